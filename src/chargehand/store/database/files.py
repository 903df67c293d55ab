"""Files that exist whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes, *, durable: bool) -> None:
    """Write `path` via a temporary file; `durable` also waits until name and content are on disk.

    Raises `OSError`, and then `path` is unchanged.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # In the same directory: a rename is atomic only within one file system.
    descriptor, temporary = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                # Before the rename: otherwise after a power cut the name could exist without the content.
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
