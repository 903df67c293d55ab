"""The check surface: files, and parts of files, that decide how checks work, each with the reason."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections import OrderedDict
from functools import cached_property

from chargehand.checks.areas import Areas
from chargehand.checks.paths import is_source, is_test_file, is_test_path
from chargehand.checks.surface.analysers import TYPE_CHECKERS, idle_linters, linter_of
from chargehand.checks.surface.coverage import CoverageScope
from chargehand.checks.surface.makefile import MAKEFILES, whole_text
from chargehand.checks.surface.modules import can_hide, hidden_library, is_usual_root, module_names, new_module
from chargehand.checks.surface.names import CHECKS, LATER
from chargehand.checks.surface.parts import Parts, later_parts_of, parts_of, parts_without
from chargehand.checks.surface.pins import is_workflow, only_moves_pins
from chargehand.checks.surface.programs import Programs, find_outside_programs, find_programs
from chargehand.checks.trees import TreeReader, new_text, old_text, text_of
from chargehand.core.records import Change
from chargehand.core.text import late_pattern

_UNREADABLE = "it cannot be read, so its effect on the checks is unknown"
_SUBMODULE = 0o160000
# A new one makes its directory a separate package: tests below it may run differently, or not at all.
_STARTS_PACKAGE = frozenset({"package.json", "go.mod", "Cargo.toml"})
_GO_HOOK = late_pattern(r"^\s*func\s+(?:TestMain|init)\s*\(", re.MULTILINE)
_OF_LINTERS = ("configures a linter", "configures a type checker")
_MOST_TESTS = 500
_KEPT = 32
# The scripts of a base are read from disk, and every inspection of a running attempt uses the same base.
_found: OrderedDict[tuple[str, ...], Programs] = OrderedDict()


class Surface:
    """The check surface of a base `tree` for the checks of some areas. Raises the errors of `reader`."""

    def __init__(self, areas: Areas, reader: TreeReader, tree: str) -> None:
        self._areas = areas
        self._reader = reader
        self._tree = tree
        self._programs = _programs(areas, reader, tree)
        self._outside = find_outside_programs(areas.outside, reader, tree, areas.directory)
        # Every directory above an acceptance file, including its own.
        self._beside = {
            posixpath.dirname(path[:end])
            for path in areas.acceptance
            for end in (*(at for at, letter in enumerate(path) if letter == "/"), len(path))
        }

    @property
    def digest(self) -> str:
        """A digest of all inputs of the reasons other than the change and the rules."""
        programs = [self._programs.digest(), self._outside.digest()]
        areas = self._areas
        parts = [self._tree, programs, sorted(areas.installed), areas.acceptance, areas.directory]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def reason(self, change: Change, reader: TreeReader) -> str | None:
        """Return why this change affects how checks run, or `None`."""
        by_path = self.path_reason(change)
        if by_path is not None:
            return None if is_workflow(change.path) and only_moves_pins(change, reader) else by_path
        name = posixpath.basename(change.path)
        if name.endswith("_test.go") and self._is_beside(change.path) and change.new_id is not None:
            text = new_text(reader, change)
            if text is None or _GO_HOOK.search(text):
                return "it runs before the tests of an acceptance file in its directory"
        parts = parts_of(name)
        if name in MAKEFILES and posixpath.dirname(change.path) in self._programs.directories - {
            "",
            self._areas.directory,
        }:
            parts = whole_text
        if parts is None or _is_same(parts, change, reader, self._areas.commands):
            return None
        others = parts_without(name, self._idle_linters)
        if others is not None and _is_same(others, change, reader, self._areas.commands):
            return None
        return "the part that checks use has changed"

    @property
    def words(self) -> frozenset[str]:
        """All words of the checks and of the programs that they run, in lower case."""
        return self._programs.words

    @property
    def coverage(self) -> CoverageScope:
        """The scope of coverage by the settings of the base."""
        return self._programs.coverage

    def is_judged_code(self, path: str) -> bool:
        """Return whether a check both starts and judges the file at this path."""
        return self._programs.is_judged_code(path)

    @cached_property
    def _idle_linters(self) -> frozenset[str]:
        """The linters and type checkers that neither checks nor the base's tests start."""
        idle, read = set(idle_linters(self._programs.words)), 0
        for path, mode, blob in self._reader.entries(self._tree) if idle else ():
            if is_test_path(path) and is_source(path):
                read += 1
                text = text_of(self._reader, mode, blob) if read <= _MOST_TESTS else None
                if text is None:
                    return frozenset()
                idle.difference_update(re.findall(r"[\w-]+", text))
        return frozenset(idle)

    def later_reason(self, change: Change, reader: TreeReader) -> str | None:
        """Return why part of this change runs later, outside any sandbox, or `None`."""
        if _SUBMODULE in (change.old_mode, change.new_mode):
            return "git fetches another repository for it"
        by_name = LATER.reason(change.path)
        if by_name is not None:
            # As with packages: a newer version of a program that the project already runs is not a new source.
            return None if only_moves_pins(change, reader) else by_name
        parts = later_parts_of(posixpath.basename(change.path))
        if parts is not None and not _is_same(parts, change, reader, self._areas.commands):
            return "a package manager or git runs programs that it names"
        return None

    def path_reason(self, change: Change) -> str | None:
        """Return why this change's path alone makes it check surface; its content is not read."""
        path, name = change.path, posixpath.basename(change.path)
        # For manifests only the parts decide, however many scripts name them.
        by_name = self._programs.reason(path) if parts_of(name) is None else None
        # Some names count only at the top: checks that start in a directory take that for the top.
        names = dict.fromkeys((path, path.removeprefix(f"{self._areas.directory}/")))
        by_name = by_name or next(filter(None, map(CHECKS.reason, names)), None) or self._outside.reason(path)
        if by_name in _OF_LINTERS and linter_of(path) in self._idle_linters:
            by_name = None
        if by_name is not None:
            return by_name
        new = change.kind not in {"modified", "deleted"}
        if new and name in _STARTS_PACKAGE and name != path:
            return "it makes its directory a separate package, which checks of the parent may leave out"
        if new and name in MAKEFILES - {"Makefile"}:
            return "make reads it instead of another Makefile"
        if name == "__init__.py" and self._is_beside(path) and (new or is_test_path(path)):
            return "Python runs it before an acceptance file in its directory"
        if new and path.endswith(".pyi") and self._is_stub(path.removesuffix("i")):
            return f"type checkers read it in place of {name.removesuffix('i')}"
        hidden = hidden_library(change)
        if hidden is not None:
            what, place = hidden
            # The base may have something there: a file with any suffix, or files below it.
            if not any(base == place or base.startswith((f"{place}/", f"{place}.")) for base in self._base_paths):
                return f"it hides {what}"
        return self._hidden_module(change)

    @cached_property
    def _base_paths(self) -> tuple[str, ...]:
        return tuple(path for path, _, _ in self._reader.entries(self._tree))

    def _is_stub(self, source: str) -> bool:
        """Return whether a check starts a type checker and the base has the source for a stub."""
        checked = not TYPE_CHECKERS.isdisjoint(self._programs.words)
        return checked and self._reader.lookup(self._tree, source) is not None

    def _is_beside(self, path: str) -> bool:
        return posixpath.dirname(path) in self._beside

    def _hidden_module(self, change: Change) -> str | None:
        """Return the reason if a new module hides another; a module that the base already has there is its own."""
        found = new_module(change)
        # A package without `__init__.py`, such as `zope`, is assembled from every directory that has parts of it.
        top = self._areas.directory
        part = module_names(change.path, top) if change.kind == "added" else None
        if part and part[1] in self._areas.installed and change.path != f"{posixpath.join(*part)}.py":
            found = part
        if found is None or not self._is_import_root(found[0]):
            return None
        root, module = found
        hides = can_hide(module, self._areas.installed)
        if not hides and module not in {name for _, name in self._own_modules}:
            return None
        if (root, module) in self._own_modules:
            return None
        # A test file with the name of a module is collected, not imported in its place.
        return None if not hides and is_test_file(change.path) else f"it hides the module {module!r}"

    def _is_import_root(self, directory: str) -> bool:
        if directory in self._programs.directories or is_usual_root(directory, self._areas.directory):
            return True

        # A test runner puts the first directory that is not a package on the path.
        def is_package(path: str) -> bool:
            return self._reader.lookup(self._tree, f"{path}/__init__.py") is not None

        if is_package(directory):
            return False
        return is_test_path(f"{directory}/x") or any(
            is_package(f"{directory}/{name}") for name in ("tests", "test")
        )

    @cached_property
    def _own_modules(self) -> frozenset[tuple[str, str]]:
        """The top-level modules of the base: (directory, name)."""
        found = set[tuple[str, str]]()
        for path, _, _ in self._reader.entries(self._tree):
            found |= {module for top in {"", self._areas.directory} if (module := module_names(path, top))}
            directory, name = posixpath.split(path)
            if name.endswith(".py") and directory in self._programs.directories:
                found.add((directory, name.removesuffix(".py")))
        return frozenset(found)


def _programs(areas: Areas, reader: TreeReader, tree: str) -> Programs:
    # A tree's id identifies its content, so entries are valid for every reader.
    key = (tree, areas.directory, *areas.commands)
    found = _found.get(key)
    if found is None:
        found = _found[key] = find_programs(areas.commands, reader, tree, areas.directory)
        while len(_found) > _KEPT:
            _found.popitem(last=False)
    return found


def _is_same(parts: Parts, change: Change, reader: TreeReader, commands: tuple[str, ...]) -> bool:
    """Return whether a change leaves the counted part of a file unchanged; false if a version is unreadable."""
    old, new = old_text(reader, change), new_text(reader, change)
    if (old is None and change.old_id is not None) or (new is None and change.new_id is not None):
        return False  # not a regular file, or too large
    try:
        return parts(old or "", commands) == parts(new or "", commands)
    # An agent writes these files: a value of the wrong shape may raise any of these in a reader.
    except (ValueError, RecursionError, TypeError, AttributeError, IndexError):
        return False
