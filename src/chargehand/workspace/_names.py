"""What a path from an agent may be called, and where a symbolic link may point.

Git and pygit2 each refuse some names and let others through; a name that is harmless here may be `.git` on
another file system. Sources: git's `utf8.c` (`next_hfs_char`), `path.c` (`is_ntfs_dotgit`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from chargehand.core.text import printable

# Code points that HFS+ ignores in names, as git lists them.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# NTFS drops trailing dots and spaces, reads `:` as the start of a stream, and knows `git~1` as a short name.
_NTFS_GIT = re.compile(r"(\.git|git~1)[. ]*(:.*)?", re.IGNORECASE | re.DOTALL)
_MAX_NAME = 255


def is_git_disguise(name: bytes) -> bool:
    """Return whether some file system takes `name` for `.git` (plain `.git` included)."""
    text = _IGNORED.sub("", os.fsdecode(name))
    return any(_NTFS_GIT.fullmatch(part) for part in text.split("\\"))


def passes_for_repository(names: Collection[bytes]) -> bool:
    """Return whether git, run inside a directory that holds these names, would take it for a bare repository.

    It would then do what the `config` there says. Objects and refs may lie elsewhere (`commondir`), and be links.
    """
    return b"HEAD" in names and (b"commondir" in names or (b"objects" in names and b"refs" in names))


STEERING = (b"config", b"config.worktree", b"commondir", b"hooks")
"""What in a repository tells git which programs to run, itself or by naming where that is told."""


def name_problem(name: bytes) -> str:
    """Return why a new path may not have this component, or an empty string."""
    if name in (b"", b".", b"..") or b"/" in name:
        return "is not a name"
    if len(name) > _MAX_NAME:
        return "is too long"
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8"
    if any(part in (".", "..") for part in text.split("\\")):
        return "climbs out on some systems"
    if "\n" in text or "\t" in text or printable(text) != text:
        return "holds control or invisible characters"
    return ""


def link_problem(path: bytes, target: bytes) -> str:
    """Return why a link at `path` may not point to `target`, or an empty string.

    Only targets of the form `../../name/name` are let in: a `..` after a name may climb out once a component is
    itself a link, so no reading of the text alone could prove it harmless.
    """
    if target.startswith(b"/"):
        return "is absolute"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    if climbs > path.count(b"/"):
        return "leaves the workspace"
    if b".." in parts[climbs:]:
        return "climbs up after a name"
    if any(is_git_disguise(part) for part in parts[climbs:]):
        return "points into .git"
    return ""
