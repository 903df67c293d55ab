"""What log lines tell of where they were written: mission, attempt, request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Let every line that is logged within the block, and in tasks that begin in it, have these fields."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def current_log_fields() -> Mapping[str, str]:
    """Return the fields of a line that is logged now."""
    return _FIELDS.get()
