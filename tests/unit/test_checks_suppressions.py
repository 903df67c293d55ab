"""Suppressions of one line: named, and a question if a check starts the tool that they silence."""

from __future__ import annotations

import pytest
from tests.unit._inspecting import findings, rules

CODE = "def add(a: int, b: int) -> int:\n    return a + b\n"


def asked(path: str, old: str | None, new: str, *commands: str) -> list[bool]:
    before = {} if old is None else {path: old}
    found = findings(before, {path: new}, commands=commands)
    return [each.needs_person for each in found if each.rule == "check_suppressed"]


@pytest.mark.parametrize(
    ("path", "line", "command"),
    [
        ("a.py", "    return a + b  # type: ignore[return-value]", "mypy ."),
        ("a.py", "    return a + b  # pyright: ignore[reportAny]", "pyright"),
        ("a.py", "    return a + b  # noqa: E501", "ruff check ."),
        ("a.py", "    return a + b  # pylint: disable=invalid-name", "pylint a"),
        ("a.py", "    return a + b  # pragma: no cover", "pytest --cov=a --cov-fail-under=90"),
        ("a.ts", "// @ts-ignore", "npx tsc --noEmit"),
        ("a.js", "x() // eslint-disable-line", "npx eslint ."),
        ("a.go", "x() //nolint:errcheck", "golangci-lint run"),
        ("a.rs", "#[allow(dead_code)]", "cargo clippy"),
    ],
)
def test_a_new_suppression_requires_a_person_if_a_check_runs_its_tool(path: str, line: str, command: str) -> None:
    new = f"{CODE}{line}\n"
    assert asked(path, CODE, new, command) == asked(path, None, new, command) == [True]
    assert asked(path, CODE, new, "pytest -q") == [False]
    # Not asked: in tests, which are not code that it could hide; for an old suppression; for a removed one.
    assert asked(f"tests/test_{path}", CODE, new, command) == [False]
    assert asked(path, new, f"{new}\nx\n", command) == asked(path, new, CODE, command) == []


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (CODE.replace("a: int", "a: Any"), [True]),
        (CODE.replace("-> int", "-> Any"), [True]),
        (CODE + "def more(a: Any) -> Any:\n    return a\n", []),
        (CODE.replace("a + b", "b + a"), []),
    ],
)
def test_a_type_changed_to_any_requires_a_person_but_a_new_any_does_not(new: str, expected: list[bool]) -> None:
    assert asked("a.py", CODE, new, "mypy .") == expected


def test_many_types_in_a_line_are_compared_in_linear_time() -> None:
    """If each of them were a gap, comparing these lines would outlast any test."""
    lists = {word: f"x: tuple[{', '.join([word] * 50)}]" for word in ("int", "Any")}
    assert asked("a.py", f"{lists['int']} = 1\n", f"{lists['Any']} = 1\n", "mypy .") == [True]
    assert asked("a.py", f"{lists['int']} = 1\n", f"{lists['Any']} = 2\n", "mypy .") == []


def test_a_stub_of_an_existing_source_is_surface_of_type_checkers() -> None:
    files = {"a.py": CODE}
    assert rules(files, files | {"a.pyi": "x: int\n"}, commands=("mypy .",)) == [
        ("check_surface", "warning", "a.pyi")
    ]
    assert rules(files, files | {"a.pyi": "x: int\n"}, commands=("pytest",)) == []
    assert rules({}, {"b.pyi": "x: int\n"}, commands=("mypy .",)) == []
