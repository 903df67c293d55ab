"""Typed reading of JSON and MessagePack by msgspec, safe to begin from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_D = TypeVar("_D")
# msgspec 0.22 crashed where two threads read one class for the first time: one alone lets it learn a class.
_LEARNING = threading.RLock()
_JSON: dict[object, msgspec.json.Decoder[Any]] = {}
_PACKED: dict[object, msgspec.msgpack.Decoder[Any]] = {}


@overload
def decode_as(content: bytes | str, kind: type[_T]) -> _T: ...
@overload
def decode_as(content: bytes | str, kind: Any) -> Any: ...
def decode_as(content: bytes | str, kind: Any) -> Any:
    """Return JSON as a value of `kind`, a class or any other type.

    Raises `msgspec.DecodeError`, `msgspec.ValidationError`.
    """
    return _decode(_learnt(kind, _JSON, msgspec.json.Decoder), content)


@overload
def unpack_as(content: bytes, kind: type[_T]) -> _T: ...
@overload
def unpack_as(content: bytes, kind: Any) -> Any: ...
def unpack_as(content: bytes, kind: Any) -> Any:
    """Return msgpack as a value of `kind`; raises as `decode_as`."""
    return _decode(_learnt(kind, _PACKED, msgspec.msgpack.Decoder), content)


@overload
def convert_to(document: object, kind: type[_T], *, from_attributes: bool = False, strict: bool = True) -> _T: ...
@overload
def convert_to(document: object, kind: Any, *, from_attributes: bool = False, strict: bool = True) -> Any: ...
def convert_to(document: object, kind: Any, *, from_attributes: bool = False, strict: bool = True) -> Any:
    """Return a document of plain values as a value of `kind`; raises `msgspec.ValidationError`.

    `from_attributes` also takes other objects for what their attributes say; without `strict` texts may stand for
    numbers and truth values.
    """
    # For its side effect: `convert` too makes msgspec learn a class, and must not be the first to do so.
    _learnt(kind, _PACKED, msgspec.msgpack.Decoder)
    return msgspec.convert(document, kind, from_attributes=from_attributes, strict=strict)


def json_schema(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of `kind`, and those of what it refers to as `#/$defs/NAME`, by name."""
    _learnt(kind, _PACKED, msgspec.msgpack.Decoder)
    (own,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    return own, parts


def _decode(decoder: Any, content: bytes | str) -> Any:
    try:
        return decoder.decode(content)
    except RecursionError as error:  # who sends it is told that it is wrong, as of anything else
        raise msgspec.DecodeError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text in it is not valid UTF-8 ({error.reason})") from error


def _learnt(kind: Any, known: dict[object, _D], make: Callable[[Any], _D]) -> _D:
    """Return what reads `kind`, made once; with it, msgspec has learnt every class that `kind` leads to."""
    found = known.get(kind)
    if found is None:
        with _LEARNING:
            found = known.get(kind)
            if found is None:
                found = known[kind] = make(kind)
    return found
