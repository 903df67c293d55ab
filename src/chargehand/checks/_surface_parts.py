"""The parts of mixed configuration files that decide how checks run; the rest may change freely."""

from __future__ import annotations

import configparser
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chargehand.checks._makefile import MAKEFILES, used_part

Parts = Callable[[str, Sequence[str]], object]
"""From a file's text and the check commands to what matters of it; raises `ValueError` where unreadable."""

_PYPROJECT_TOOLS = frozenset(
    {"pytest", "tox", "coverage", "nox", "hatch", "pdm", "poe", "taskipy", "invoke", "ruff", "mypy", "pyright"}
    | {"black", "isort", "flake8", "pylint", "bandit", "basedpyright", "ty", "unittest", "nose2", "mutmut"}
)
_PYPROJECT_PROJECT = ("scripts", "gui-scripts", "entry-points")
_SETUP_CFG = ("tool:", "pytest", "coverage", "tox", "testenv", "flake8", "mypy", "pycodestyle", "pylint", "isort")
_SETUP_CFG_MORE = ("aliases", "options.entry_points", "test", "nosetests", "unittest")
_PACKAGE_JSON = ("scripts", "jest", "vitest", "mocha", "ava", "tap", "nyc", "c8", "eslintConfig", "playwright")
_CARGO_PACKAGE = ("build", "autotests", "links", "default-run")


def parts_of(name: str) -> Parts | None:
    """Return how to read the file of this base name, `None` where no part of it is check surface."""
    return _used_make if name in MAKEFILES else _PARTS.get(name)


def _used_make(text: str, commands: Sequence[str]) -> object:
    return used_part(text, commands)


def _pyproject(text: str, commands: Sequence[str]) -> object:
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


def _setup_cfg(text: str, commands: Sequence[str]) -> object:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from error
    starts = (*_SETUP_CFG, *_SETUP_CFG_MORE)
    return {name: sorted(parser.items(name)) for name in parser.sections() if name.startswith(starts)}


def _package_json(text: str, commands: Sequence[str]) -> object:
    return _pick(json.loads(text or "{}"), _PACKAGE_JSON)


def _cargo(text: str, commands: Sequence[str]) -> object:
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


_PARTS: dict[str, Parts] = {
    "pyproject.toml": _pyproject,
    "setup.cfg": _setup_cfg,
    "package.json": _package_json,
    "Cargo.toml": _cargo,
}
