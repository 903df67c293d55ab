"""pip commands that install a Python project and its tests' packages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from chargehand.checks.runners.python import Pytest
from chargehand.checks.setups.declared import (
    TEST_NAMES,
    find_extras,
    find_test_environment,
    find_test_packages,
)
from chargehand.checks.stacks import Stack, table
from chargehand.core.text import late_pattern

# Requirements that no test needs, and that conflict with others more often than those of tests do.
_OTHER_PURPOSE = late_pattern(
    r"(?<![a-z])(?:(?:mk)?docs?|documentation|sphinx|lint\w*|typing|mypy|build|release|publish|bench\w*|examples?|min|minimum|minimal|oldest|lowest)(?![a-z])"
)
_NEW_PIP = 'pip install --quiet --upgrade "pip>=25.1" && '  # the first that supports `--group`


def pip_commands(stack: Stack) -> list[str]:
    """Return commands that install a project and its tests' packages, the most complete one first."""
    all_files = stack.requirements()
    files = [path for path in all_files if not _OTHER_PURPOSE.search(path)]
    own, tests = _install_project(stack), _install_tests(stack)
    if not own and not stack.tests("python"):
        # e.g. the packages of a website in a project of another language: no test needs them.
        all_files = files
    pytest = ["pytest"] if Pytest().detect(stack) else []
    unnamed = pytest if stack.pytest_required() is None else []
    complete = [*_options("-r", all_files), *own, *tests, *unnamed]
    named = _install_environment(stack, own, pytest) if own else []
    # Old pins of tox and nox may no longer fit: they come first only if nothing else names test packages.
    first = [named, complete] if all_files == [] and own == ["-e", "."] and not tests else [complete, named]
    tries = [
        *first,
        [*_options("-r", files), *own, *tests, *(unnamed if files or tests or own[1:] != ["."] else pytest)],
        [*own, *tests, *pytest] if own else [],
        [*_options("-r", files), *pytest] if files else [],
        [*own[:1], ".", *pytest] if own else [],
    ]
    # Only a command with an option that needs a newer pip gets one.
    lines = (
        (_NEW_PIP if "--group" in words else "") + "pip install " + " ".join(words) for words in tries if words
    )
    return list(dict.fromkeys((*_install_locked(stack), *lines)))


def _install_project(stack: Stack) -> list[str]:
    """Return the words that install a project with its extra for tests."""
    pyproject = stack.toml("pyproject.toml")
    poetry = table(pyproject, "tool", "poetry")
    if not ({"project", "build-system"} & set(pyproject) or poetry or stack.has("setup.py")):
        return []
    extras = find_extras(stack)
    return _own(["-e", "."], [name for name in TEST_NAMES if name in extras][:1])


def _own(words: list[str], extras: list[str]) -> list[str]:
    return [words[0], f".[{','.join(extras)}]"] if extras else words


def _install_tests(stack: Stack) -> list[str]:
    """Return the words that install the groups and requirements declared for tests."""
    groups = table(stack.toml("pyproject.toml"), "dependency-groups")
    return [
        *_options("--group", (name for name in TEST_NAMES if name in groups)),
        *map(shlex.quote, find_test_packages(stack)),
    ]


def _install_environment(stack: Stack, own: list[str], pytest: list[str]) -> list[str]:
    """Return the words that install the packages of tox's or nox's test environment."""
    wanted = find_test_environment(stack)
    extras = find_extras(stack)
    known = [name for name in wanted.extras if name in extras]
    if not (wanted.files or wanted.packages or known):
        return []
    words = [*_options("-r", wanted.files), *(_own(["-e", "."], known) if known else own)]
    words += map(shlex.quote, wanted.packages)
    return words if known or wanted.files or "pytest" in words else [*words, *pytest]


def _install_locked(stack: Stack) -> list[str]:
    """Return the command for uv's lock, which contains registry addresses and so needs a network."""
    if not stack.has("uv.lock"):
        return []
    pyproject = stack.toml("pyproject.toml")
    groups = table(pyproject, "dependency-groups")
    extras = table(pyproject, "project", "optional-dependencies")
    chosen = [
        *_options("--group", (name for name in TEST_NAMES if name in groups)),
        *_options("--extra", (name for name in TEST_NAMES if name in extras)),
    ]
    export = " ".join(["uv export --quiet --frozen --no-hashes", *chosen, "--output-file /tmp/locked.txt"])
    return [f"pip install --quiet uv && {export} && pip install -r /tmp/locked.txt"]


def _options(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (name, value)]
