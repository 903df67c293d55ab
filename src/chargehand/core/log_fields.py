"""Context fields of log lines: mission, attempt, request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Add these fields to every line logged within the block and in tasks that begin in it."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def current_log_fields() -> Mapping[str, str]:
    """Return the fields for a line logged now."""
    return _FIELDS.get()
