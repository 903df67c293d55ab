"""The check surface: files, and parts of files, that decide what the checks check, each with the reason."""

from __future__ import annotations

import configparser
import itertools
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chargehand.checks._makefile import MAKEFILES, used_part
from chargehand.checks.paths import is_test_file, is_test_path
from chargehand.checks.trees import TreeReader, new_text, old_text
from chargehand.core.records import Change

# From a file's text and the check commands to what matters of it; raises `ValueError` where unreadable.
Parts = Callable[[str, Sequence[str]], object]

_PYPROJECT_TOOLS = frozenset({
    "pytest", "tox", "coverage", "nox", "hatch", "pdm", "poe", "taskipy", "invoke", "ruff", "mypy", "pyright",
    "black", "isort", "flake8", "pylint", "bandit", "basedpyright", "ty", "unittest", "nose2", "mutmut",
})  # fmt: skip
_PYPROJECT_PROJECT = ("scripts", "gui-scripts", "entry-points")
_SETUP_CFG = (
    "tool:", "pytest", "coverage", "tox", "testenv", "flake8", "mypy", "pycodestyle", "pylint", "isort", "aliases",
    "options.entry_points", "test", "nosetests", "unittest",
)  # fmt: skip
_PACKAGE_JSON = ("scripts", "jest", "vitest", "mocha", "ava", "tap", "nyc", "c8", "eslintConfig", "playwright")
_CARGO_PACKAGE = ("build", "autotests", "links", "default-run")

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
_TEST_TOOLS = frozenset({
    "pytest", "_pytest", "py", "pluggy", "iniconfig", "tox", "nox", "nose", "nose2", "coverage", "hypothesis",
    "xdist", "mock", "pip", "setuptools", "pkg_resources", "packaging", "exceptiongroup", "tomli", "attr", "attrs",
})  # fmt: skip
# `test` is also the standard library's, and the commonest name for a project's own tests.
_SHADOWABLE = (_TEST_TOOLS | sys.stdlib_module_names) - {"test", "__main__"}
_MODULE = re.compile(r"(\w+)(?:\.[\w-]+)*\.(?:py|pyc|so|pyd)")
_SYMLINK = 0o120000
_UNREADABLE = "it cannot be read, so what it says about the checks is unknown"
# Directories that Python or a test runner puts on the path: only there does a file hide an installed module.
_MODULE_ROOTS = frozenset({"", "src", "lib", "python"})


class Surface:
    """The check surface for a set of check commands."""

    def __init__(self, commands: Sequence[str]) -> None:
        self._commands = tuple(commands)
        self._scripts: set[str] = set()
        for command in commands:
            try:
                words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
            except ValueError:
                words = command.split()
            self._scripts |= {word.removeprefix("/workspace/").removeprefix("./") for word in words}
            modules = [word for before, word in itertools.pairwise(words) if before == "-m"]
            self._scripts |= {m.replace(".", "/") + end for m in modules for end in (".py", "/__main__.py")}

    def reason(self, change: Change, reader: TreeReader) -> str | None:
        """Return why this change touches how checks run, `None` where it does not."""
        by_path = self.path_reason(change)
        parts = parts_of(change.path.rpartition("/")[2])
        if by_path is not None or parts is None:
            return by_path
        old, new = old_text(reader, change), new_text(reader, change)
        if (old is None and change.old_id is not None) or (new is None and change.new_id is not None):
            return _UNREADABLE  # no regular file, or too large
        try:
            same = parts(old or "", self._commands) == parts(new or "", self._commands)
        # An agent writes these files: a value of the wrong shape fails anywhere in a reader, with any of these.
        except (ValueError, RecursionError, TypeError, AttributeError):
            return _UNREADABLE
        return None if same else "the part that checks use has changed"

    def path_reason(self, change: Change) -> str | None:
        """Return why its place alone makes this change one of how checks run; nothing is read."""
        if change.path in self._scripts and not is_test_file(change.path):
            return "a check command names it"
        *directories, name = change.path.split("/")
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
        return next(starts, None) or next(suffixes, None) or _shadowed_module(change)


def _shadowed_module(change: Change) -> str | None:
    """Name the module that a new file would hide; one that the base holds already is the project's own."""
    if change.kind in {"modified", "deleted"}:
        return None
    *directories, name = change.path.split("/")
    if name.startswith("__init__.") and directories:
        *directories, module = directories
    elif found := _MODULE.fullmatch(name):
        module = found[1]
    elif change.new_mode == _SYMLINK:
        module = name  # a link to a directory is a package as well
    else:
        return None
    imported_from = "/".join(directories)
    at_root = imported_from in _MODULE_ROOTS or is_test_path(f"{imported_from}/x")
    return f"it hides the module {module!r}" if at_root and module in _SHADOWABLE else None


# --- files of which only a part is check surface


def parts_of(name: str) -> Parts | None:
    """Return how to read the file of this base name, `None` where no part of it is check surface."""
    match name:
        case "pyproject.toml":
            return _read_pyproject
        case "setup.cfg":
            return _read_setup_cfg
        case "package.json":
            return lambda text, _: _pick(json.loads(text or "{}"), _PACKAGE_JSON)
        case "Cargo.toml":
            return _read_cargo
    return used_part if name in MAKEFILES else None


def _read_pyproject(text: str, commands: Sequence[str]) -> object:
    document = tomllib.loads(text)
    project = document.get("project", {})
    tools = document.get("tool", {})
    poetry = tools.get("poetry", {})
    return (
        document.get("build-system"),
        _pick(project, _PYPROJECT_PROJECT),
        _pick(tools, _PYPROJECT_TOOLS & set(tools)),
        _pick(poetry, ("scripts", "plugins", "build")),
    )


def _read_setup_cfg(text: str, commands: Sequence[str]) -> object:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    return {name: sorted(parser.items(name)) for name in parser.sections() if name.startswith(_SETUP_CFG)}


def _read_cargo(text: str, commands: Sequence[str]) -> object:
    document = tomllib.loads(text)
    binaries = [_pick(item, ("name", "test", "harness")) for item in document.get("bin", [])]
    return (
        _pick(document, ("profile", "test", "bench", "lints")),
        _pick(document.get("package", {}), _CARGO_PACKAGE),
        _pick(document.get("lib", {}), ("test", "harness", "doctest", "path")),
        [item for item in binaries if len(item) > 1],
    )


def _pick(table: Any, names: Any) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"expected a table, found {type(table).__name__}")
    return {name: table[name] for name in sorted(names) if name in table}
