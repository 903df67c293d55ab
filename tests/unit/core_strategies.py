"""Strategies for any value of the vocabulary's types, derived from their annotations."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from chargehand.core.events import Payload, event_types
from chargehand.core.mission_events import MissionCreated

_text = st.text(max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: _text,
    int: st.integers(-(2**40), 2**40),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Any: _json,
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: values(hints[name]) for name in kind.__struct_fields__})
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(each) for each in inner))
    if origin is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    if origin is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    assert origin is tuple, kind
    return st.tuples(*(values(each) for each in inner))


def payloads(*, later: bool = False) -> st.SearchStrategy[Payload]:
    """Any payload; `later`: only those that may follow a mission's first line."""
    classes = list(event_types().values())
    if later:
        classes.remove(MissionCreated)
    return st.one_of(*(values(each) for each in classes))
