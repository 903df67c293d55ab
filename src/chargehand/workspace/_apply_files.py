"""Brings new contents of single files into the user's working tree, where a file is what they were made from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chargehand.core.records import Change
from chargehand.workspace._depot import Depot
from chargehand.workspace._files import replace_file
from chargehand.workspace._objects import object_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFiles:
    """Which files were written, and which were left since they are not what was worked on."""

    written: tuple[str, ...]
    left: tuple[str, ...]


def apply_files(depot: Depot, changes: Iterable[Change]) -> AppliedFiles:
    """Write each changed file whole, keeping its mode; no index and no branch is touched.

    A file that differs from the old content, is a link or lies behind one, or is no regular file stays as it is.
    """
    written, left = [], []
    for change in changes:
        path = depot.repository.path / change.path
        if change.kind == "modified" and change.new_id and _is_as(path, depot.repository.path, change.old_id):
            mode = stat.S_IMODE(path.stat().st_mode)
            replace_file(path, depot.read_blob(change.new_id))
            path.chmod(mode)
            written.append(change.path)
        else:
            left.append(change.path)
    return AppliedFiles(written=tuple(written), left=tuple(left))


def _is_as(path: Path, root: Path, blob: str | None) -> bool:
    """Tell whether a regular file, below no link, has this content."""
    if blob is None or path.parent.resolve() != root.resolve() / path.parent.relative_to(root):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return regular and object_id("blob", file.read()).hex() == blob
