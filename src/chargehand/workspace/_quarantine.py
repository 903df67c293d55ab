"""Git objects aside until git has found them good; as receive-pack does it and fetch does not (tmp-objdir)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "tmp_objdir-chargehand-"  # git's own gc removes what a crash leaves under such a name
_LAST = (".idx",)


@contextlib.contextmanager
def quarantine(objects: Path) -> Iterator[Path]:
    """Make an object directory within another one for the block."""
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=objects))
    try:
        (place / "pack").mkdir()
        (place / "info").mkdir()
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def quoted(path: Path) -> str:
    """Return a path as git reads it from a list that is separated by colons."""
    text = os.fspath(path)
    if not any(character in text for character in ':"\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def take_in(aside: Path, objects: Path) -> None:
    """Move all objects to the others; a pack is seen only once its index is there, which comes last."""
    found = [path for path in aside.rglob("*") if path.is_file()]
    for path in sorted(found, key=lambda path: path.suffix in _LAST):
        target = objects / path.relative_to(aside)
        if not target.exists():
            _make_beside(target.parent, like=objects)
            os.rename(path, target)


def _make_beside(directory: Path, *, like: Path) -> None:
    """Make a directory that others may use as they may use the one above (a shared repository)."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        directory.chmod(like.stat().st_mode & 0o7777)
