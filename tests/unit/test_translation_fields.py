"""Each field that the official clients know is carried to each dialect, named or refused."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typing_extensions
from tests.translation_features import BASES, MODELS, put
from tests.translation_kit import ALL, find, send

from chargehand.models.contract import Dialect

# Fields about the connection only, or that name an item for its own provider.
SILENT = {"stream", "model", "stream_options", "id", "status", "type"}
# The base has the same in another form.
REDUNDANT = {"input.0.content.2.file_url", "tools.0.functionDeclarations.0.parameters"}


def sample(kind: Any) -> Any:
    """Return a value of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (typing.Required, typing.NotRequired, typing.Annotated, typing_extensions.Required):
        return sample(inner[0])
    if origin is Literal:
        return inner[-1]
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in inner if one is not type(None)))
    if typing_extensions.is_typeddict(kind):
        hints = get_type_hints(kind)
        return {name: sample(hints[name]) for name in kind.__required_keys__} or {"zq": 1}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"a": "b"}
    if origin is not None:
        return [sample(inner[0])] if inner else ["zq"]
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        return {"zq": 1}
    if isinstance(kind, type) and issubclass(kind, str) and hasattr(kind, "__members__"):
        return list(kind)[-1].value
    return {bool: True, int: 7, float: 0.5, str: "zq"}.get(kind, "zq")


def fields(kind: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a type in their wire spelling, each with a value."""
    if hasattr(kind, "model_fields"):
        for name, info in kind.model_fields.items():
            yield info.alias or name, sample(info.annotation)
        return
    for name, inner in get_type_hints(kind).items():
        yield name, sample(inner)


@functools.cache
def steps(client: Dialect) -> list[tuple[str, Any]]:
    """Return each field that the base does not have yet."""
    return list(_steps(client))


def _steps(client: Dialect) -> Iterator[tuple[str, Any]]:
    from tests.official_types import MORE, PLACES

    base = BASES[client]
    for place, kind in PLACES[client].items():
        for name, value in fields(kind):
            path = f"{place}.{name}" if place else name
            if name not in SILENT and not find(base, path) and path not in REDUNDANT:
                yield path, value
                if value is True:  # one of the two may be the other side's default
                    yield path, False
    yield from MORE[client]


@pytest.mark.parametrize("upstream", ALL)
@pytest.mark.parametrize("client", ALL)
def test_no_field_of_an_official_client_is_left_out_in_silence(client: Dialect, upstream: Dialect) -> None:
    without = send(client, upstream, BASES[client], MODELS[upstream])
    told = dict.fromkeys((path for path, _ in steps(client)), False)
    for path, value in steps(client):
        sent = send(client, upstream, put(BASES[client], path, value), MODELS[upstream])
        told[path] = told[path] or sent.refused or sent.body != without.body or sent.left != without.left
    assert len(told) > 30
    assert [path for path, is_told in told.items() if not is_told] == []


@pytest.mark.parametrize("client", ALL)
def test_the_base_request_is_translated_without_left_out_fields(client: Dialect) -> None:
    for upstream in ALL:
        sent = send(client, upstream, BASES[client], MODELS[upstream])
        assert (sent.refused, sent.left) == (False, frozenset())
