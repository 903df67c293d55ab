"""Rules for names, link targets and file modes in a tree, and findings for violations.

Git and pygit2 each refuse some names and let others through; a name that is harmless here may mean `.git` on
another file system. Sources: git's `utf8.c` (`next_hfs_char`), `path.c` (`is_ntfs_dotgit`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable

from msgspec import Struct, field

from chargehand.core.records import Change, Finding, Severity
from chargehand.core.text import late_pattern, printable, shown_path
from chargehand.workspace.tree.objects import EXECUTABLE

STEERING = (b"config", b"config.worktree", b"commondir", b"hooks")
"""Entries of a repository that make git run programs, directly or by redirecting it to other configuration."""
# Code points that HFS+ ignores in names, as git lists them.
_IGNORED = late_pattern("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# NTFS drops trailing dots and spaces, reads `:` as the start of a stream, and knows `git~1` as a short name.
_NTFS_GIT = late_pattern(r"(\.git|git~1)[. ]*(:.*)?", re.IGNORECASE | re.DOTALL)
_MAX_NAME = 255
_MAX_FINDINGS = 1000


def is_git_disguise(name: bytes) -> bool:
    """Return whether some file system treats `name` as `.git` (plain `.git` included)."""
    text = _IGNORED.sub("", os.fsdecode(name))
    # On Windows a backslash separates names.
    return any(_NTFS_GIT.fullmatch(part) for part in text.split("\\"))


def passes_for_repository(names: Collection[bytes]) -> bool:
    """Return whether git, run inside a directory with these names, would take it for a bare repository.

    Git would then obey the `config` there. Objects and refs may be elsewhere (`commondir`), and may be links.
    """
    return b"HEAD" in names and (b"commondir" in names or (b"objects" in names and b"refs" in names))


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
        return "contains control or invisible characters"
    return ""


def link_problem(path: bytes, target: bytes) -> str:
    """Return why a link at `path` may not point to `target`, or an empty string.

    Only targets of the form `../../name/name` are allowed.
    """
    if target.startswith(b"/"):
        return "is absolute"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == b"..":
        climbs += 1
    if climbs > path.count(b"/"):
        return "leaves the workspace"
    # A `..` after a name may climb out if that name is itself a link: the text alone cannot prove such a target
    # harmless.
    if b".." in parts[climbs:]:
        return "climbs up after a name"
    if any(is_git_disguise(part) for part in parts[climbs:]):
        return "points into .git"
    return ""


def file_problem(info: os.stat_result) -> tuple[str, Severity, str] | None:
    """Return (rule, severity, message) for a regular file whose mode is not allowed."""
    if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return ("entry_setuid", "critical", "has a setuid or setgid bit")
    if not info.st_mode & stat.S_IRUSR:
        return ("entry_unreadable", "error", "cannot be read by its owner")
    return None


class Findings(Struct):
    """Collects findings; keeps only the first thousand, even if an agent breaks rules a million times."""

    found: list[Finding] = field(default_factory=list)
    left_out: int = 0

    def add(self, rule: str, severity: Severity, path: bytes, message: str, *, needs_person: bool = False) -> None:
        """Record that `path` breaks `rule`; `message` follows the path in a sentence."""
        if len(self.found) >= _MAX_FINDINGS:
            self.left_out += 1
            return
        text = os.fsdecode(path)
        self.found.append(
            Finding(
                rule=rule,
                severity=severity,
                path=text,
                message=f"{shown_path(text)} {message}",
                needs_person=needs_person,
            )
        )

    def special(self, path: bytes, mode: int) -> None:
        """Record a fifo, socket or device: critical, not in the tree."""
        kind = "fifo" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        self.add("entry_special", "critical", path, f"is a {kind}, not a file")

    def quota(self, path: bytes, message: str) -> None:
        """Record an exceeded limit of the workspace: critical, not in the tree."""
        self.add("quota", "critical", path, message)

    def result(self, changes: Iterable[Change]) -> tuple[Finding, ...]:
        """Return all findings, including those for the changes: new executables, changed ignore rules."""
        for change in changes:
            path = os.fsencode(change.path)
            if change.new_mode == EXECUTABLE and change.old_mode != EXECUTABLE:
                self.add("entry_executable", "warning", path, "is newly executable")
            if path.rpartition(b"/")[2] == b".gitignore":
                self.add("gitignore_changed", "info", path, "takes effect after promotion")
        if self.left_out:
            self.left_out, count = 0, self.left_out
            self.found[-1] = Finding(
                rule="quota", severity="critical", path="", message=f"{count + 1} further findings were left out"
            )
        return tuple(self.found)
