"""Which changes to look at first where not all can be: by risk, and by lot among equals."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from chargehand.checks._areas import OWN_CONFIG
from chargehand.checks._dependency_files import is_dependency_file
from chargehand.checks._paths import holds_tests, is_test_path, language_of
from chargehand.checks._reader import is_regular
from chargehand.checks._surface import Surface
from chargehand.checks._surface_parts import parts_of
from chargehand.core.records import Change

_EXECUTABLE = 0o111


def sample(changes: Sequence[Change], surface: Surface, *, files: int, seed: str) -> tuple[Change, ...]:
    """Return `files` of the changes, the riskiest first; the same ones for the same seed and changes.

    In this order: the check surface; configuration, dependencies, executables and links; tests; other source;
    the rest. Among equals a lot decides that an agent cannot know before its tree is complete.
    """

    def order(change: Change) -> tuple[int, bytes]:
        lot = hashlib.sha256(seed.encode() + b"\0" + os.fsencode(change.path)).digest()
        return _risk(change, surface), lot

    return tuple(sorted(changes, key=order)[:files])


def _risk(change: Change, surface: Surface) -> int:
    path = change.path
    if path == OWN_CONFIG or surface.path_reason(change) is not None:
        return 0
    if parts_of(path.rpartition("/")[2]) is not None or is_dependency_file(path) or _is_new_kind(change):
        return 1
    if holds_tests(path) or is_test_path(path):
        return 2
    return 3 if language_of(path) is not None else 4


def _is_new_kind(change: Change) -> bool:
    """Whether a change makes something executable, or something that is no regular file."""
    if change.new_mode is None or change.new_mode == change.old_mode:
        return False
    return not is_regular(change.new_mode) or bool(change.new_mode & _EXECUTABLE)
