"""Read JSON from outside without trusting its shape."""

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
        # Accepts what JavaScript writes and strict decoders refuse: lone surrogates, NaN.
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def dump_json(value: object) -> bytes:
    """Encode a value as JSON; lone surrogates, which UTF-8 cannot hold, are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return `value` if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def as_mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list; empty if `value` is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_tokens(value: object) -> int | None:
    """Return a token count, or `None` for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return None
    return int(value)


def as_limit(value: object) -> int | None:
    """Return a non-negative integer, or `None` for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def as_number(value: object) -> float | None:
    """Return a number, or `None` for any other value."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_texts(value: object) -> tuple[str, ...]:
    """Return a string or a list of strings as a tuple; empty for any other value."""
    if isinstance(value, str):
        return (value,)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()
