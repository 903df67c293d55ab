"""Each library that the product imports is declared, and each declared library is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/chargehand"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def declared() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return frozenset(normal(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines)


@cache
def imported() -> dict[str, str]:
    """Return the imported distributions, each with a module that imports it."""
    of = packages_distributions()
    found: dict[str, str] = {}
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            else:
                continue
            for name in {each.partition(".")[0] for each in names} - sys.stdlib_module_names - {"chargehand"}:
                for distribution in of.get(name, [name]):
                    found.setdefault(normal(distribution), str(path.relative_to(SRC)))
    return found


def test_every_import_is_a_declared_dependency() -> None:
    undeclared = {name: where for name, where in imported().items() if name not in declared()}
    assert undeclared == {}, "add it to `dependencies` in pyproject.toml"


def test_every_declared_dependency_is_imported() -> None:
    assert declared() - imported().keys() == set()
