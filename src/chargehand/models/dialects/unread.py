"""Names the parts of a request that its reader does not read, so that no part is dropped silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# The fields that a reader reads, each with its inner fields; `None` for a field read as a whole.
Shape = Mapping[str, Any]


def list_unread(value: object, shape: Shape, path: str = "") -> Iterator[str]:
    """Yield the path of each non-empty field that is not in `shape`; lists add nothing to a path."""
    if isinstance(value, list):
        for one in value:
            yield from list_unread(one, shape, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            where = f"{path}.{name}" if path else str(name)
            if name not in shape:
                if inner is not None and inner != "" and inner != [] and inner != {}:
                    yield where
            elif shape[name] is not None:
                yield from list_unread(inner, shape[name], where)
