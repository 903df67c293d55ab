"""Reads decoded JSON from outside without trusting its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec


def parse_json(data: bytes) -> Any:
    """Decode JSON as a provider sends it; raises `ValueError`."""
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        pass
    try:
        # Takes what JavaScript writes and strict decoders refuse: halves of surrogate pairs, NaN.
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def dump_json(value: object) -> bytes:
    """Encode a value as JSON; halves of surrogate pairs, which UTF-8 cannot hold, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return `value` where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list, none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_tokens(value: object) -> int | None:
    """Return a count of tokens, `None` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return int(value)


def as_limit(value: object) -> int | None:
    """Return a whole number from 0 on, `None` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_number(value: object) -> float | None:
    """Return a number, `None` for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_texts(value: object) -> tuple[str, ...]:
    """Return a text or a list of texts as texts, none for anything else."""
    if isinstance(value, str):
        return (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
