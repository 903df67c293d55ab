"""The names that programs of an environment layer import from what is installed there."""

from __future__ import annotations

from pathlib import Path

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
