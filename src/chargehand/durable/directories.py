"""Directories of the state directory, unreadable for other users even if a worker makes the first of them."""

from __future__ import annotations

from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory and each missing parent, for the owner only (mode 0700); raises `OSError`.

    `Path.mkdir(parents=True, mode=...)` would make the parents accessible to everyone.
    """
    missing = [directory, *directory.parents]
    for each in reversed([each for each in missing if not each.exists()]):
        each.mkdir(mode=0o700, exist_ok=True)
