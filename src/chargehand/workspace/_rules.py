"""What may be in a tree: each offence a finding, and what then stands at the path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from chargehand.core.records import Change, Finding, Severity
from chargehand.core.text import shown_path
from chargehand.workspace._trees import EXECUTABLE

_MAX_FINDINGS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceLimits:
    """What one workspace may add: the size of one file and of all changed files in bytes, counts, depth."""

    file_bytes: int = 100 * 1024 * 1024
    disk_bytes: int = 1024 * 1024 * 1024
    files: int = 100_000
    depth: int = 128


@dataclass(slots=True)
class Findings:
    """Collects findings; an agent that makes a million offences gets the first thousand of them."""

    found: list[Finding] = field(default_factory=list)
    left_out: int = 0

    def add(self, rule: str, severity: Severity, path: bytes, message: str) -> None:
        """Note that `path` breaks `rule`; `message` follows the path in a sentence."""
        if len(self.found) >= _MAX_FINDINGS:
            self.left_out += 1
            return
        text = os.fsdecode(path)
        self.found.append(
            Finding(rule=rule, severity=severity, path=text, message=f"{shown_path(text)} {message}")
        )

    def special(self, path: bytes, mode: int) -> None:
        """A fifo, socket or device: critical, not in the tree."""
        self.add("entry_special", "critical", path, f"is a {_special_kind(mode)}, not a file")

    def quota(self, path: bytes, message: str) -> None:
        """A limit of the workspace: critical, not in the tree."""
        self.add("quota", "critical", path, message)

    def result(self, changes: Iterable[Change]) -> tuple[Finding, ...]:
        """Return all findings, with what the changes themselves tell: new executables, changed ignore rules."""
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


def file_problem(info: os.stat_result) -> tuple[str, Severity, str] | None:
    """Return (rule, severity, message) for a regular file whose mode is not let in."""
    if info.st_mode & (stat.S_ISUID | stat.S_ISGID):
        return ("entry_setuid", "critical", "has a setuid or setgid bit")
    if not info.st_mode & stat.S_IRUSR:
        return ("entry_unreadable", "error", "cannot be read by its owner")
    return None


def _special_kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"
