"""Seams between packages that must not import each other; `app` wires them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

DriverName = Literal["overlay", "reflink", "worktree"]


class Bind(Struct, frozen=True, kw_only=True):
    """A host path shown at `target` inside the sandbox."""

    source: Path
    target: str
    writable: bool = False


class MountPlan(Struct, frozen=True, kw_only=True):
    """A workspace as data: made by `workspace`, mounted by `sandbox` in its own private mount namespace.

    Either `lowers` (topmost first) with `upper` and `work` on one file system, which become an overlay at
    `target`, or `plain`, a directory bound writable at `target`. With `read_only` nothing inside can write there.
    `binds` come on top, in order. As root every
    directory belongs to `sandbox_ids()`; otherwise to the user who runs Chargehand.
    """

    target: str
    lowers: tuple[Path, ...] = ()
    upper: Path | None = None
    work: Path | None = None
    plain: Path | None = None
    binds: tuple[Bind, ...] = ()
    read_only: bool = False


class Ledger(Protocol):
    """The money of one attempt in USD: reserved before each call to a model, settled after it.

    What is reserved counts as spent for every limit until it is settled. Methods may block on the store.
    """

    def left(self, *, settled: bool = False) -> float | None:
        """Return what may still be reserved: the least over all limits, `None` where there is none.

        With `settled`, as if the calls under way cost nothing: what is left of that is not used up.
        """
        ...

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        """Reserve for a call; return the limits of which this books four fifths for the first time.

        What is reserved outlives this process, and a power cut once `secure` returned. Raises `ExhaustedError`
        (`budget`, or `budget_reserved` where it may fit once calls under way are settled) that names the limit;
        nothing is reserved then.
        """
        ...

    # Apart from `reserve`: meanwhile the provider works, and one wait for the disk serves all who ask.
    def secure(self) -> None:
        """Wait until the disk has everything that was reserved before."""
        ...

    def settle(self, call: str, usd: float | None, *, most: float | None = None) -> None:
        """Book what a call cost instead of its reserve.

        `None` (not known) leaves the reserve booked, or the `most` that it can have cost where that is less.
        """
        ...


class Spent(Struct, frozen=True, kw_only=True):
    """How far a limit (`attempt`, `task`, `mission`, `user` or `day`) is used up, in USD; reserves included."""

    limit: str
    limit_usd: float
    spent_usd: float


class KeySource(Protocol):
    """Where the keys of model providers come from; they never leave the host."""

    def get(self, name: str) -> str | None:
        """Return the secret of that name, `None` where there is none."""
        ...


class ArtifactSink(Protocol):
    """Where large outputs are kept; the id is what events carry."""

    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        """Keep `content` and return its artifact id; equal content of one mission gives an equal id."""
        ...


# The host user that owns bases and uppers when Chargehand runs as root: in the range that no distribution or
# service manager hands out (61000 lies between systemd's unused 60578 and its dynamic users from 61184).
SANDBOX_UID = 61000


def sandbox_ids() -> tuple[int, int]:
    """Return the (uid, gid) that owns what a sandbox may write: ours, or `SANDBOX_UID` when we are root."""
    uid = os.geteuid()
    return (SANDBOX_UID, SANDBOX_UID) if uid == 0 else (uid, os.getegid())
