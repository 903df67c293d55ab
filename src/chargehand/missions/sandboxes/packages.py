"""The contents of an environment layer: importable names, and copies of the project's own code."""

from __future__ import annotations

import contextlib
import glob
import json
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chargehand.checks.detection import above
from chargehand.checks.paths import language_of
from chargehand.checks.reads import Copy, installed_names
from chargehand.checks.trees import TreeReader, text_of
from chargehand.sandbox.contract import WORKSPACE

_PLACES = (
    "*/lib/python3*/site-packages",
    ".tox/*/lib/python3*/site-packages",
    ".nox/*/lib/python3*/site-packages",
)
# Keys of package.json that name files which other packages load.
_LOADED = ("main", "module", "browser", "bin", "exports")
# Distributions install these by mistake; projects have directories of these names too.
_NOT_IMPORTED = frozenset({
    "__pycache__", "test", "tests", "doc", "docs", "example", "examples", "scripts", "tools", "benchmarks",
})  # fmt: skip
_NO_MODULES = (".dist-info", ".egg-info", ".data", ".libs", ".pth", ".txt")


def installed_modules(layer: Path | None) -> frozenset[str]:
    """Return the top-level names of the Python packages, modules and extensions in a layer."""
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


def find_installed_copies(
    layer: Path | None, code: Sequence[str], reader: TreeReader, tree: str
) -> dict[str, Copy]:
    """Return copies of a tree's changed code that setup installed or built in a layer, by the paths inside."""
    found: dict[str, Copy] = {}
    for path in code if layer else ():
        assert layer is not None
        copies = list[Path]()
        if language_of(path) == "javascript":
            copies += _node_copies(layer, path, reader, tree)
        elif language_of(path) == "python":
            packages = layer.glob(".venv/lib/python3*/site-packages")
            for source in (each / name for each in packages for name in installed_names(path)):
                if source.is_file():
                    # Python opens the compiled file in place of the source.
                    compiled = source.parent.glob(f"__pycache__/{glob.escape(source.stem)}.*")
                    copies += (source, *compiled)
        for copy in copies:
            inside = f"{WORKSPACE}/{copy.relative_to(layer)}"
            found[inside] = Copy(of=path, modified=copy.lstat().st_mtime_ns)
    return found


def _node_copies(layer: Path, path: str, reader: TreeReader, tree: str) -> Iterator[Path]:
    """Yield the package's own copies in `node_modules`, and files that setup built for others to load."""
    # The directory of the file's package, and the content of its package.json.
    place, document = "", dict[str, Any]()
    for directory in above(path):
        found = reader.lookup(tree, posixpath.join(directory, "package.json"))
        if found is not None:
            with contextlib.suppress(ValueError, RecursionError):
                said = json.loads(text_of(reader, *found) or "{}")
                place, document = directory, said if isinstance(said, dict) else {}
            break
    name, within = document.get("name"), posixpath.relpath(path, place or ".")
    for root in (place, *above(place)) if isinstance(name, str) else ():
        package = layer / root / "node_modules" / str(name)
        # A link leads back to the tree.
        if not package.is_symlink() and (package / within).is_file():
            yield package / within
    loaded, built = [document.get(key) for key in _LOADED], set[Path]()
    while loaded:
        each = loaded.pop()
        loaded += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        target = posixpath.normpath(posixpath.join(place, each)) if isinstance(each, str) else "."
        first = posixpath.relpath(target, place or ".").partition("/")[0]
        if first in (".", "..", "node_modules") or target.startswith(("/", "..")):
            continue
        stem = posixpath.basename(path).partition(".")[0]
        built |= {layer / target, *(layer / place / first).rglob(f"{glob.escape(stem)}.*js")}
    yield from (each for each in built if each.is_file())
