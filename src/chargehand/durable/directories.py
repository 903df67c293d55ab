"""Directories of the state directory, which no other user may read: also if a worker makes the first of them."""

from __future__ import annotations

from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory and each missing one above it, for its owner alone (mode 0700); raises `OSError`.

    `Path.mkdir(parents=True, mode=...)` would make the directories above it for everyone.
    """
    missing = [directory, *directory.parents]
    for each in reversed([each for each in missing if not each.exists()]):
        each.mkdir(mode=0o700, exist_ok=True)
