"""The chain of one mission's lines, wherever they were read from, and what an audit says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from chargehand.core.events import GENESIS, chain_hash

ProblemKind = Literal[
    "store_damaged",  # the database file itself is broken
    "line_missing",  # lines were dropped before this one
    "line_malformed",  # a column is not even of its type
    "line_changed",  # a column differs from what the line's hash covers
    "payload_changed",  # the payload differs from its digest
    "payload_missing",  # the payload is gone and no erasure was ordered
    "chain_broken",  # the line does not follow the one before it
    "tail_missing",  # the log ends before a head that was kept
    "head_changed",  # the kept head and the line at its place differ, or it is not a head
    "head_forged",  # a signed head whose signature is not its key's
    "key_unknown",  # a signed head of a key that is not this log's
    "key_missing",  # signed heads without any key to check them
    "key_changed",  # the files of the key do not hold one key
    "mission_changed",  # the mission's row differs from its first line
    "mission_missing",  # lines or a kept head without a mission's row
    "export_malformed",  # a line of an export that is not one
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProblem:
    """A place where the log is not what was written; `seq` is `None` where it concerns the whole mission."""

    mission: str
    seq: int | None
    kind: ProblemKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """How much was looked at, and what is wrong with it.

    `signed_heads` counts those whose signature and line agree, `keys` are the ids of the keys that made them: what
    comes after the last of them is not proven.
    """

    missions: int
    events: int
    problems: tuple[AuditProblem, ...]
    signed_heads: int = 0
    keys: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Line:
    """A line as it is kept, whatever it claims to be."""

    mission: bytes | None
    seq: bytes | None
    time: bytes | None
    type: bytes | None
    payload: bytes | None
    digest: bytes | None
    prev: bytes | None
    hash: bytes | None


def line_problems(
    mission: str, lines: Iterable[Line], *, hashes: dict[int, str], erased: Collection[tuple[str, int]]
) -> Iterator[AuditProblem]:
    """Yield where lines differ from their hashes and neighbours; `hashes` is filled with what they claim.

    `erased` holds the (mission, seq) whose payloads were ordered to go.
    """
    seq, accepted = 0, {GENESIS}
    for line in lines:
        expected, found = seq + 1, integer(line.seq)
        if found is None:
            yield problem(mission, expected, "line_malformed", f"seq is {line.seq!r}")
            continue
        seq = found
        if seq != expected:
            yield problem(mission, expected, "line_missing", f"line {seq} follows line {expected - 1}")
        elif text(line.prev) not in accepted:
            yield problem(mission, seq, "chain_broken", "it does not follow the line before it")
        yield from _payload_problems(mission, seq, line, erased=erased)
        made = _recomputed(mission, seq, line)
        hashes[seq] = text(line.hash)
        if made != hashes[seq]:
            yield problem(mission, seq, "line_changed", "its columns and its hash do not agree")
        # Both the hash that is kept and the one that should be: one changed byte is one place, not two.
        accepted = {hashes[seq], made}


def _payload_problems(
    mission: str, seq: int, line: Line, *, erased: Collection[tuple[str, int]]
) -> Iterator[AuditProblem]:
    if line.payload is None:
        if (mission, seq) not in erased:
            yield problem(mission, seq, "payload_missing", "its payload is gone and no erasure was ordered")
    elif hashlib.sha256(line.payload).hexdigest() != text(line.digest):
        yield problem(mission, seq, "payload_changed", "its payload and its digest do not agree")


def _recomputed(mission: str, seq: int, line: Line) -> str:
    return chain_hash(
        prev=text(line.prev),
        mission=mission,
        seq=seq,
        time=text(line.time),
        type=text(line.type),
        digest=text(line.digest),
    )


def integer(kept: bytes | None) -> int | None:
    """Return the number that a column holds, `None` for what is no number as we write it."""
    shown = text(kept)
    return int(shown) if shown.isascii() and shown.isdigit() and shown == str(int(shown)) else None


def text(kept: bytes | None) -> str:
    """Return the text that a column holds."""
    # What is not UTF-8 becomes a character that no id, time, type or hash of ours has: it can only fail to agree.
    return "" if kept is None else kept.decode(errors="replace")


def problem(mission: str, seq: int | None, kind: ProblemKind, message: str) -> AuditProblem:
    """Return a problem at a place."""
    return AuditProblem(mission=mission, seq=seq, kind=kind, message=message)
