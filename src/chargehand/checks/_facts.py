"""The facts that inspection reads from each change, and the order in which it reads changes when it samples."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks._dependencies import dependencies_in, is_dependency_file
from chargehand.checks._manifests import Dependencies
from chargehand.checks._secrets import SEARCHED, blob_findings
from chargehand.checks._suppressions import find_suppressions
from chargehand.checks.areas import OWN_CONFIG
from chargehand.checks.paths import holds_tests, is_source, is_test_path, language_of
from chargehand.checks.suites.facts import Suite
from chargehand.checks.suites.weakening import suites_of
from chargehand.checks.surface.parts import parts_of
from chargehand.checks.surface.rules import Surface
from chargehand.checks.trees import TreeReader, is_regular, new_text, old_text
from chargehand.core.records import Change, Finding
from chargehand.core.text import late_pattern

_EXECUTABLE = frozenset({0o100755})
# Lines of code that disable a checker for a whole file or for all rules: a linter or type checker then passes
# whatever the file contains. Suppressing one rule on one line is the normal use of linters.
_SILENT = late_pattern(
    "|".join(
        (
            # Python
            r"#\s*(?:ruff|flake8)\s*:\s*noqa\b\s*$|#\s*pylint\s*:\s*(?:skip-file|disable\s*=\s*all)",
            r"#\s*mypy\s*:\s*(?:ignore-errors|disable-error-code|allow-|no-|follow-imports)|^\s*#\s*type\s*:\s*ignore\b",
            r"#\s*pyright\s*:\s*(?:basic|ignore(?!\[)|\w+\s*=\s*(?:false|none))|#\s*(?:isort|nosemgrep)\s*:\s*skip_?file",
            r"#\s*bandit\s*:\s*skip|#\s*coverage\s*:\s*ignore",
            # JavaScript
            r"@ts-nocheck|/\*+\s*(?:eslint|oxlint|tslint|stylelint)[-:]disable\s*(?:\*/|--)|\bbiome-ignore-all\b",
            r"\b(?:istanbul|c8|v8)\s+ignore\s+(?:file|start)\b|@no(?:flow|check)\b",
            # Go, Rust
            r"^//\s*nolint(?::all)?\s*$|^//\s*Code generated\b.*\bDO NOT EDIT\b",
            r"#!\[\s*(?:cfg_attr\([^\]]*)?(?:allow|expect)\s*\(|#!\[\s*rustfmt::skip",
            # The JVM, C, Ruby, PHP, shells
            r"@SuppressWarnings\(\s*\"all\"|@file\s*:\s*Suppress|\bCHECKSTYLE\s*:\s*OFF\b|\bnoinspection\s+ALL\b",
            r"\bNOLINTBEGIN\b|#\s*pragma\s+(?:GCC|clang)\s+(?:diagnostic\s+ignored|system_header)",
            r"\bcppcheck-suppress-file\b|\bLCOV_EXCL_START\b|\brubocop\s*:\s*disable\s+all\b|#\s*:nocov:",
            r"\bphpcs\s*:\s*ignoreFile\b|@phpcsSuppress\s*$|\bphpstan-ignore-file\b|#\s*shellcheck\s+disable\s*=\s*all\b",
        )
    ),
    re.MULTILINE,
)
_SHOWN = 80


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one change: `findings` on its content (without paths), and why it touches the check `surface`.

    `later` describes its parts that run outside any sandbox on a person's machine, `silenced` is a line that
    disables a checker. `size` is that of the new content in bytes. Suites and dependencies are `None` if the file
    has no such content.
    """

    findings: tuple[Finding, ...] = ()
    surface: str | None = None
    later: str | None = None
    silenced: str | None = None
    size: int = 0
    old_suite: Suite | None = None
    new_suite: Suite | None = None
    old_dependencies: Dependencies | None = None
    new_dependencies: Dependencies | None = None


def read_facts(change: Change, reader: TreeReader, surface: Surface, *, large_bytes: int) -> Facts:
    """Return the facts of a change; files from `large_bytes` on are large. Raises the errors of `reader`."""
    once = _ReadOnce(reader)
    old_suite, new_suite = suites_of(change, once)
    findings = [*blob_findings(change, once, large_bytes=large_bytes)]
    if is_source(change.path):
        # Tests that silence a tool hide nothing of the code.
        words = frozenset[str]() if is_test_path(change.path) else surface.words
        scope = None if is_test_path(change.path) else surface.coverage
        findings += find_suppressions(old_text(once, change), new_text(once, change), words, scope)
    return Facts(
        # Without the path an entry can be encoded: a path need not be text.
        findings=tuple(replace(f, path="") for f in findings),
        surface=surface.reason(change, once),
        later=surface.later_reason(change, once),
        silenced=find_silenced(old_text(once, change), new_text(once, change)) if is_source(change.path) else None,
        size=once.blob_size(change.new_id) if change.new_id and is_regular(change.new_mode) else 0,
        old_suite=old_suite,
        new_suite=new_suite,
        old_dependencies=dependencies_in(change.path, once, change.old_mode, change.old_id),
        new_dependencies=dependencies_in(change.path, once, change.new_mode, change.new_id),
    )


def find_silenced(old: str | None, new: str | None) -> str | None:
    """Return the first new line that disables a checker for a file, or `None`."""
    if new is None:
        return None
    before = {found[0].strip() for found in _SILENT.finditer(old or "")}
    return next(
        (text[:_SHOWN] for found in _SILENT.finditer(new) if (text := found[0].strip()) not in before), None
    )


class _ReadOnce:
    """A `TreeReader` that reads each blob of one change once, however many rules look at it."""

    def __init__(self, reader: TreeReader) -> None:
        self.entries = reader.entries
        self.lookup = reader.lookup
        self._reader = reader
        self._blobs: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        """Return the blob's content, at most `limit` bytes of it."""
        if limit is None or limit > SEARCHED:
            return self._reader.read_blob(id, limit=limit)
        if id not in self._blobs:
            self._blobs[id] = self._reader.read_blob(id, limit=SEARCHED)
        return self._blobs[id][:limit]

    def blob_size(self, id: str, /) -> int:
        """Return the blob's size in bytes."""
        if id not in self._sizes:
            self._sizes[id] = self._reader.blob_size(id)
        return self._sizes[id]


def sample(changes: Sequence[Change], surface: Surface, *, files: int, seed: str) -> tuple[Change, ...]:
    """Return `files` of the changes, the riskiest first; the same ones for the same seed and changes.

    In this order: the check surface; configuration, dependencies, executables and links; tests; other source; the
    rest. Ties are broken by a hash of seed and path: the seed is the id of the tree, so that an agent cannot
    choose names that are left out.
    """

    def rank(change: Change) -> tuple[int, bytes]:
        lot = hashlib.sha256(seed.encode() + b"\0" + os.fsencode(change.path)).digest()
        path = change.path
        mode = change.new_mode
        has_new_mode = mode is not None and mode != change.old_mode
        if path == OWN_CONFIG or surface.path_reason(change) is not None:
            return 0, lot
        if (
            parts_of(path.rpartition("/")[2]) is not None
            or is_dependency_file(path)
            or (has_new_mode and (not is_regular(mode) or mode in _EXECUTABLE))
        ):
            return 1, lot
        if holds_tests(path) or is_test_path(path):
            return 2, lot
        return 3 if language_of(path) is not None else 4, lot

    return tuple(sorted(changes, key=rank)[:files])
