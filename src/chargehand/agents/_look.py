"""Looks into documents of an untrusted program: what is not of the expected shape is as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def inner(document: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """Return the object at a path of keys, an empty one where there is none."""
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def text_at(document: Mapping[str, Any], *names: str) -> str:
    """Return the first text, not empty, under one of these keys."""
    return next((value for name in names if isinstance(value := document.get(name), str) and value), "")


def count_at(document: Mapping[str, Any], *names: str) -> int | None:
    """Return the first whole number from 0 under one of these keys."""
    for name in names:
        value = document.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def money_at(document: Mapping[str, Any], name: str) -> float | None:
    """Return the amount from 0 under a key."""
    value = document.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def objects_at(document: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list under a key."""
    value = document.get(name)
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def said(value: Any) -> str:
    """Return the text of a content: a text, an object that has one, or a list of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return text_at(value, "text", "content", "output")
    if isinstance(value, list):
        return "\n".join(filter(None, map(said, value)))
    return ""
