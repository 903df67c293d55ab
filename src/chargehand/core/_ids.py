"""Identifiers that sort by the time they were made and are safe in paths, refs and file names."""

from __future__ import annotations

import secrets
import time
from typing import Literal

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
Kind = Literal[
    "mission", "attempt", "workspace", "sandbox", "artifact", "worker", "call", "question", "action", "message"
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
}


def new_id(kind: Kind, *, now_ms: int | None = None) -> str:
    """Return a fresh id such as `m-01jd5x2k9q7h3a`: prefix, 45 bits of milliseconds, 25 random bits."""
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    value = (moment << 25) | secrets.randbits(25)
    digits = []
    for _ in range(14):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return f"{_PREFIX[kind]}-{''.join(reversed(digits))}"
