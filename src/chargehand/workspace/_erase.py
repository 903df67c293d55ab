"""Lets go of checkpoints for good: only ever on an explicit order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from chargehand.workspace._git import Git
from chargehand.workspace._history import swap_ref
from chargehand.workspace._workspace import WORKSPACES

_FORMAT = "%(objectname) %(committerdate:unix) %(refname)"
_IN_THE_MAKING = 3600.0
"""Objects younger than this may belong to a checkpoint that is being made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The refs that go with the commits they were at, how many commits nothing reaches then, and their bytes."""

    refs: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()
    commits: int = 0
    bytes: int = 0


def doomed_refs(git: Git, kept: Callable[[str, float], bool]) -> Erasure:
    """Return what letting go of checkpoints would erase; `kept` is asked by workspace and time of its last one."""
    doomed: list[tuple[str, str]] = []
    stay: list[str] = []
    for line in git("for-each-ref", f"--format={_FORMAT}").text.splitlines():
        tip, when, ref = line.split(" ", 2)
        if ref.startswith(WORKSPACES) and not kept(ref.removeprefix(WORKSPACES), float(when or 0)):
            doomed.append((ref, tip))
        else:
            stay.append(tip)
    if not doomed:
        return Erasure()
    only = "".join(f"{tip}\n" for _, tip in doomed) + "".join(f"^{tip}\n" for tip in dict.fromkeys(stay))
    lost = git("rev-list", "--count", "--stdin", input=only.encode())
    size = git("rev-list", "--objects", "--disk-usage", "--stdin", input=only.encode())
    return Erasure(
        refs=tuple(ref for ref, _ in doomed),
        tips=tuple(tip for _, tip in doomed),
        commits=int(lost.text),
        bytes=int(size.text),
    )


def erase(git: Git, erasure: Erasure, *, limit: float, quiet: bool) -> None:
    """Let go of the refs, and of the objects that nothing reaches and that are older than `limit`.

    Raises `RefMovedError` where a checkpoint was added meanwhile. Unless all is `quiet` there, what was written
    within the last hour stays for now: somebody may be about to refer to it.
    """
    for ref, tip in zip(erasure.refs, erasure.tips, strict=True):
        swap_ref(git, ref, new=None, old=tip)
    newest = min(limit, time.time() if quiet else time.time() - _IN_THE_MAKING)
    when = datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    git("repack", "-A", "-d", "-q", f"--unpack-unreachable={when}")
    git("prune", f"--expire={when}")
