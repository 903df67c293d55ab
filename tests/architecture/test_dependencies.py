"""Each library that the product imports is declared, and each declared library is imported."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.architecture import trees

from chargehand.configuration.extras import EXTRAS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/chargehand"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


PLACES = {
    "boto3": ("credentials/_aws.py",),
    "botocore": ("credentials/_aws.py",),
    "granian": ("server/",),
    "keyring": ("credentials/_keyring.py",),
    "mcp": ("mcp/",),
    "mcp_types": ("mcp/",),
    "numpy": (
        *("decisions/beliefs/", "decisions/processes/", "decisions/routing/"),
        *("decisions/forecasting/", "decisions/forecasts.py"),
    ),
    "prometheus_client": ("server/",),
    "psycopg": ("durable/leases.py",),
    "pydantic": ("mcp/",),
    "starlette": ("mcp/", "server/"),
    "uvicorn": ("mcp/",),
    # The parser process alone imports them.
    "tree_sitter_c": ("knowledge/_grammars.py",),
    "tree_sitter_c_sharp": ("knowledge/_grammars.py",),
    "tree_sitter_cpp": ("knowledge/_grammars.py",),
    "tree_sitter_go": ("knowledge/_grammars.py",),
    "tree_sitter_java": ("knowledge/_grammars.py",),
    "tree_sitter_javascript": ("knowledge/_grammars.py",),
    "tree_sitter_php": ("knowledge/_grammars.py",),
    "tree_sitter_python": ("knowledge/_grammars.py",),
    "tree_sitter_ruby": ("knowledge/_grammars.py",),
    "tree_sitter_rust": ("knowledge/_grammars.py",),
    "tree_sitter_typescript": ("knowledge/_grammars.py",),
    # These import the above when they are imported, so only commands that have checked for them may do so.
    "chargehand.mcp": ("mcp/", "cli/serving.py"),
    "chargehand.server": ("server/", "cli/serving.py"),
}
"""Where a module of an optional part may be imported: a package, or a file that handles its absence."""


@cache
def declared() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    return frozenset(normal(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in lines)


def imports_of(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere in it."""
    found = set[str]()
    for node in trees.nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            if node.module == "chargehand":
                found |= {f"chargehand.{alias.name}" for alias in node.names}
    return found


@cache
def imported() -> dict[str, str]:
    """Return the imported distributions, each with a module that imports it."""
    of = packages_distributions()
    found: dict[str, str] = {}
    for path in sorted(SRC.rglob("*.py")):
        for name in (
            {each.partition(".")[0] for each in imports_of(path)} - sys.stdlib_module_names - {"chargehand"}
        ):
            for distribution in of.get(name, [name]):
                found.setdefault(normal(distribution), str(path.relative_to(SRC)))
    return found


def test_every_import_is_a_declared_dependency() -> None:
    undeclared = {name: where for name, where in imported().items() if name not in declared()}
    assert undeclared == {}, "add it to `dependencies` in pyproject.toml"


def test_every_declared_dependency_is_imported() -> None:
    # `all` names the distribution itself.
    assert declared() - imported().keys() == {"chargehand"}


def test_optional_modules_are_imported_only_where_their_absence_is_handled() -> None:
    wrong = [
        (str(path.relative_to(SRC)), name)
        for path in sorted(SRC.rglob("*.py"))
        for name in imports_of(path)
        for module, places in PLACES.items()
        if f"{name}.".startswith(f"{module}.") and not str(path.relative_to(SRC)).startswith(places)
    ]
    assert wrong == []


def test_each_module_of_an_extra_has_its_places_and_a_declared_distribution() -> None:
    of = packages_distributions()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in EXTRAS:
        assert set(extra.modules) <= PLACES.keys()
        listed = {normal(re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0]) for line in extras[extra.name]}
        assert {normal(name) for module in extra.modules for name in of[module]} <= listed
    assert {*extras} - {"all", "testing"} == {extra.name for extra in EXTRAS}
