"""Identifiers that sort by the time they were made and are safe in paths, refs and file names."""

from __future__ import annotations

import hashlib
import secrets
import time
from typing import Literal

# Lower case only: ids become names of files and refs, and some file systems fold case.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
Kind = Literal[
    "mission",
    "attempt",
    "workspace",
    "sandbox",
    "artifact",
    "worker",
    "call",
    "question",
    "action",
    "message",
    "token",
    "lesson",
]
_PREFIX: dict[Kind, str] = {
    "mission": "m",
    "attempt": "a",
    "workspace": "w",
    "sandbox": "s",
    "artifact": "f",
    "worker": "k",
    "call": "c",
    "question": "q",
    "action": "x",
    "message": "g",
    "token": "t",
    "lesson": "l",
}


def new_id(kind: Kind, *, now_ms: int | None = None) -> str:
    """Return a fresh id such as `m-01jd5x2k9q7h3a`: prefix, 45 bits of milliseconds, 25 random bits."""
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    # Time first, so that ids sort by creation; the alphabet is in ASCII order for the same reason. Of two ids of
    # one kind made in one millisecond, one pair in 33 million collides.
    value = (moment << 25) | secrets.randbits(25)
    digits = []
    for _ in range(14):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{_PREFIX[kind]}-{''.join(reversed(digits))}"


def keyed_id(kind: Kind, key: str) -> str:
    """Return the id derived from a caller's own key, always the same: prefix, `k`, 125 bits of SHA-256.

    A store with unique ids thereby holds each key once. No id of `new_id` begins with `k` before the year 2600.
    """
    value = int.from_bytes(hashlib.sha256(f"chargehand {kind} key\0{key}".encode()).digest(), "big")
    digits = [_ALPHABET[(value >> (5 * place)) & 31] for place in range(25)]
    return f"{_PREFIX[kind]}-k{''.join(digits)}"
