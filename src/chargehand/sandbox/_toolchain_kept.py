"""A toolchain kept from one command to the next, as long as nothing that was looked at for it has changed.

Every path that a search depends on is a witness: directories by the names in them, files by what they are. What is
kept of it is what stat(2) says, so that a file written in place, a link that leads elsewhere (here or on the way)
and a name that appears are seen alike; the time of an inode's last change cannot be set back by a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_UNSETTLED = 2.0
"""Seconds within which a second change may leave the time stamps as they are."""


def keep(place: Path, key: str, witnesses: Iterable[str], document: dict[str, Any], *, began: float) -> None:
    """Keep what a search found, unless something changed since it `began` (as `time.time`) or just before that."""
    paths = sorted({*witnesses, __file__})
    digest, changed = _digest(paths)
    if changed > began - _UNSETTLED:
        return
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # it only saves time
        fresh.write_text(json.dumps({"key": key, "paths": paths, "digest": digest, "found": document}))
        fresh.replace(place)


def kept(place: Path, key: str) -> dict[str, Any] | None:
    """Return what was kept for the same question, `None` where anything that it stands on has changed."""
    try:
        told = json.loads(place.read_text())
        same = told["key"] == key and told["digest"] == _digest(told["paths"])[0]
        return told["found"] if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def search_began() -> float:
    """Return the time that a search begins at, on the clock of the file systems."""
    return time.time()


def _digest(paths: Iterable[str]) -> tuple[str, float]:
    """Return a digest of what all paths are now, and when the latest of them changed."""
    digest, latest = hashlib.sha256(), 0
    for path in paths:
        try:
            info = os.stat(path)
        except (OSError, ValueError):
            digest.update(b"-")
            continue
        parts = (info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        digest.update(repr(parts).encode())
        latest = max(latest, info.st_ctime_ns)
    return digest.hexdigest(), latest / 1e9
