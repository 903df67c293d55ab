"""The check surface: files that decide what the checks check, and the reason for each."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence

from chargehand.checks._paths import is_test_file, is_test_path
from chargehand.checks._reader import TreeReader, new_text, old_text
from chargehand.checks._surface_parts import parts_of
from chargehand.core.records import Change

_BY_NAME: dict[str, str] = {
    "conftest.py": "pytest loads it before the tests",
    **dict.fromkeys(("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"), "configures pytest"),
    **dict.fromkeys(("tox.ini", "tox.toml"), "configures tox and pytest"),
    "noxfile.py": "configures nox",
    **dict.fromkeys((".coveragerc", ".coveragerc.toml"), "configures coverage"),
    **dict.fromkeys(("sitecustomize.py", "usercustomize.py"), "Python runs it at every start"),
    **dict.fromkeys(("ruff.toml", ".ruff.toml", ".flake8", ".pylintrc", "pylintrc"), "configures a linter"),
    **dict.fromkeys(("mypy.ini", ".mypy.ini", "pyrightconfig.json"), "configures a type checker"),
    **dict.fromkeys(
        (".pre-commit-config.yaml", "biome.json", ".golangci.yml", ".golangci.yaml"), "configures a linter"
    ),
    "build.rs": "cargo runs it before it builds",
    **dict.fromkeys(
        ("justfile", "Justfile", "Taskfile.yml", "Taskfile.yaml"), "defines commands that checks may run"
    ),
    **dict.fromkeys((".gitlab-ci.yml", ".travis.yml", ".drone.yml", "Jenkinsfile"), "configures CI"),
    **dict.fromkeys(("azure-pipelines.yml", "bitbucket-pipelines.yml", "appveyor.yml"), "configures CI"),
    **dict.fromkeys((".woodpecker.yml", ".woodpecker.yaml", ".cirrus.yml"), "configures CI"),
}
_BY_START: tuple[tuple[str, str], ...] = (
    ("jest.config.", "configures jest"),
    ("vitest.", "configures vitest"),
    ("vite.config.", "configures vitest"),
    (".mocharc", "configures mocha"),
    ("karma.conf.", "configures karma"),
    ("playwright.config.", "configures playwright"),
    ("cypress.config.", "configures cypress"),
    (".eslintrc", "configures a linter"),
    ("eslint.config.", "configures a linter"),
)
_BY_SUFFIX: tuple[tuple[str, str], ...] = (
    (".pth", "Python runs it at every start"),
    (".pyc", "Python may load it in place of the source"),
    (".mk", "a Makefile may include it"),
)
_CI_DIRS: tuple[tuple[str, ...], ...] = (
    (".github", "workflows"),
    (".github", "actions"),
    (".gitea", "workflows"),
    (".forgejo", "workflows"),
    (".ci",),
    (".circleci",),
    (".buildkite",),
    (".woodpecker",),
)
_TEST_TOOLS = frozenset(
    {"pytest", "_pytest", "py", "pluggy", "iniconfig", "tox", "nox", "nose", "nose2", "coverage", "hypothesis"}
    | {
        "xdist",
        "mock",
        "pip",
        "setuptools",
        "pkg_resources",
        "packaging",
        "exceptiongroup",
        "tomli",
        "attr",
        "attrs",
    }
)
# `test` is also the standard library's, and the commonest name for a project's own tests.
_SHADOWABLE = (_TEST_TOOLS | sys.stdlib_module_names) - {"test", "__main__"}
_MODULE = re.compile(r"(\w+)(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)")
_SYMLINK = 0o120000
_MODULE_ROOTS = frozenset({"", "src", "lib", "python"})


class Surface:
    """The check surface for a set of check commands."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = tuple(commands)
        self._scripts = frozenset(name for command in commands for name in _named_files(command))

    def reason(self, change: Change, reader: TreeReader) -> str | None:
        """Return why this change touches how checks run, `None` where it does not."""
        return self.path_reason(change) or self._by_content(change, reader)

    def path_reason(self, change: Change) -> str | None:
        """Return why its place alone makes this change one of how checks run; nothing is read."""
        path = change.path
        if path in self._scripts and not is_test_file(path):
            return "a check command names it"
        return _by_path(path) or _shadow(change)

    def _by_content(self, change: Change, reader: TreeReader) -> str | None:
        name = change.path.rpartition("/")[2]
        parts = parts_of(name)
        if parts is None:
            return None
        try:
            old, new = (
                _text(old_text(reader, change), change.old_id),
                _text(new_text(reader, change), change.new_id),
            )
            same = parts(old, self._commands) == parts(new, self._commands)
        except (ValueError, RecursionError, TypeError, AttributeError):
            return "it can not be read, so what it says of the checks is unknown"
        return None if same else "the part that checks use has changed"


def _text(text: str | None, id: str | None) -> str:
    if text is None and id is not None:
        raise ValueError("no regular file, or too large")
    return text or ""


def _by_path(path: str) -> str | None:
    *directories, name = path.split("/")
    if name in _BY_NAME:
        return _BY_NAME[name]
    if any(tuple(directories[: len(ci)]) == ci for ci in _CI_DIRS):
        return "configures CI"
    if directories[-1:] == [".cargo"] and name in {"config", "config.toml"}:
        return "configures cargo"
    if any(part.endswith((".dist-info", ".egg-info")) for part in directories):
        return "Python may load test plugins that it declares"
    starts = (reason for start, reason in _BY_START if name.startswith(start))
    suffixes = (reason for suffix, reason in _BY_SUFFIX if name.endswith(suffix))
    return next(starts, None) or next(suffixes, None)


def _shadow(change: Change) -> str | None:
    """Name the module that a new file would hide; one that the base holds already is the project's own."""
    if change.kind in {"modified", "deleted"}:
        return None
    *directories, name = change.path.split("/")
    if name.startswith("__init__.") and directories:
        *directories, module = directories
    elif found := _MODULE.fullmatch(name):
        module = found[1]
    else:
        module = name
        if change.new_mode != _SYMLINK:
            return None
    imported_from = "/".join(directories)
    at_root = imported_from in _MODULE_ROOTS or is_test_path(f"{imported_from}/x")
    return f"it hides the module {module!r}" if at_root and module in _SHADOWABLE else None


def _named_files(command: str) -> Iterator[str]:
    """Yield the paths that a command may run as a script or a module."""
    try:
        words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    except ValueError:
        words = command.split()
    previous = ""
    for word in words:
        if previous == "-m":
            yield from (word.replace(".", "/") + end for end in (".py", "/__main__.py"))
        yield word.removeprefix("/workspace/").removeprefix("./")
        previous = word
