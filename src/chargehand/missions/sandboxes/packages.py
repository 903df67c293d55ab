"""What is installed in an environment layer: names that programs import, and copies of the project's own code."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from chargehand.checks.reads import installed_names
from chargehand.sandbox.contract import WORKSPACE

_PLACES = (
    "*/lib/python3*/site-packages",
    ".tox/*/lib/python3*/site-packages",
    ".nox/*/lib/python3*/site-packages",
)
# What distributions leave there by mistake; projects have directories of these names too.
_NOT_IMPORTED = frozenset({
    "__pycache__", "test", "tests", "doc", "docs", "example", "examples", "scripts", "tools", "benchmarks",
})  # fmt: skip
_NO_MODULES = (".dist-info", ".egg-info", ".data", ".libs", ".pth", ".txt")


def installed_modules(layer: Path | None) -> frozenset[str]:
    """Return the top names of the Python packages, modules and extensions in a layer; none without a layer."""
    if layer is None:
        return frozenset()
    entries = (entry for place in _PLACES for packages in layer.glob(place) for entry in packages.iterdir())
    names = {
        # `yaml.cpython-311-x86_64-linux-gnu.so` is imported as `yaml`.
        entry.name.partition(".")[0]
        for entry in entries
        if not entry.name.endswith(_NO_MODULES) and (entry.is_dir() or entry.suffix in (".py", ".so", ".pyc"))
    }
    return frozenset(name for name in names if name.isidentifier() and name not in _NOT_IMPORTED)


def find_installed_copies(layer: Path | None, code: Sequence[str]) -> dict[str, str]:
    """Return what setup installed of changed code in a layer: each copy's path inside, and the path it is of."""
    if layer is None:
        return {}
    copies: dict[str, str] = {}
    for packages in layer.glob(".venv/lib/python3*/site-packages"):
        for path in code:
            for name in installed_names(path):
                source = packages / name
                # Python opens the compiled file in place of the source.
                compiled = source.parent.glob(f"__pycache__/{glob.escape(source.stem)}.*")
                installed = (source, *compiled) if source.is_file() else ()
                copies |= {f"{WORKSPACE}/{each.relative_to(layer)}": path for each in installed}
    return copies
