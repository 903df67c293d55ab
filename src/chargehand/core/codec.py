"""Typed decoding of JSON and MessagePack with msgspec, and plain values of documents.

Several threads may decode a class for the first time.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import msgspec

_T = TypeVar("_T")
_D = TypeVar("_D")
# msgspec 0.22 crashed when two threads decoded a class for the first time: only one thread prepares a class.
_LEARNING = threading.RLock()
_JSON: dict[object, msgspec.json.Decoder[Any]] = {}
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_PACKED: dict[object, msgspec.msgpack.Decoder[Any]] = {}
_Hook = Callable[[type, Any], Any]


@overload
def decode_as(content: bytes | str, kind: type[_T]) -> _T: ...
@overload
def decode_as(content: bytes | str, kind: Any) -> Any: ...
def decode_as(content: bytes | str, kind: Any) -> Any:
    """Decode JSON as `kind`, a class or any other type."""
    return _decode(_learnt(kind, _JSON, msgspec.json.Decoder), content)


@overload
def unpack_as(content: bytes, kind: type[_T], *, hook: _Hook | None = None) -> _T: ...
@overload
def unpack_as(content: bytes, kind: Any, *, hook: _Hook | None = None) -> Any: ...
def unpack_as(content: bytes, kind: Any, *, hook: _Hook | None = None) -> Any:
    """Decode MessagePack as `kind`; raise as `decode_as` does.

    `hook` makes values of types that msgspec does not know, and may raise `ValueError`; a kind always has the same
    hook.
    """
    return _decode(_learnt(kind, _PACKED, lambda each: msgspec.msgpack.Decoder(each, dec_hook=hook)), content)


@overload
def convert_to(document: object, kind: type[_T], *, from_attributes: bool = False, strict: bool = True) -> _T: ...
@overload
def convert_to(document: object, kind: Any, *, from_attributes: bool = False, strict: bool = True) -> Any: ...
def convert_to(document: object, kind: Any, *, from_attributes: bool = False, strict: bool = True) -> Any:
    """Convert a document of plain values to `kind`; raise `msgspec.ValidationError`.

    `from_attributes` also reads the attributes of other objects; without `strict`, text is accepted for numbers
    and booleans.
    """
    # For the side effect: `convert` also makes msgspec prepare a class, and must not be the first to do so.
    _learnt(kind, _PACKED, msgspec.msgpack.Decoder)
    return msgspec.convert(document, kind, from_attributes=from_attributes, strict=strict)


def json_schema(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON schema of `kind`, and by name the schemas that it references as `#/$defs/NAME`."""
    _learnt(kind, _PACKED, msgspec.msgpack.Decoder)
    (own,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    return own, parts


def _decode(decoder: Any, content: bytes | str) -> Any:
    try:
        return decoder.decode(content)
    except RecursionError as error:  # the sender is at fault, as with any malformed input
        raise msgspec.DecodeError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"a text in it is not valid UTF-8 ({error.reason})") from error


def _learnt(kind: Any, known: dict[object, _D], make: Callable[[Any], _D]) -> _D:
    """Return the decoder of `kind`, made once; making it prepares every class that `kind` refers to."""
    found = known.get(kind)
    if found is None:
        with _LEARNING:
            found = known.get(kind)
            if found is None:
                found = known[kind] = make(kind)
    return found


def to_json(value: object) -> Any:
    """Return `value` as JSON values; a path's bytes that are not UTF-8 are shown as `\\xNN`."""
    return _without_surrogates(msgspec.to_builtins(value))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATES.sub(_escape_byte, value)
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    return value


def _escape_byte(found: re.Match[str]) -> str:
    # Python shows a byte B of a path that is not UTF-8 as U+DC00 + B; other surrogates have no meaning.
    code = ord(found[0]) - 0xDC00
    return f"\\x{code:02x}" if 0x80 <= code <= 0xFF else "\N{REPLACEMENT CHARACTER}"
