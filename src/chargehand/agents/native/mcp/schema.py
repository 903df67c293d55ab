"""JSON schemas of an untrusted author: simplified and bounded, and used to check a model's arguments.

Parts that are not understood here are left to the server, which knows its own schema. Patterns are shown to the
model but never run: a regular expression of an untrusted author can take forever.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from chargehand.core.text import printable

# A schema of an untrusted author can be a bomb: bounded in width, depth and size.
_MOST_NODES, _DEEPEST, _LONGEST, _MOST_CHARACTERS = 300, 12, 500, 16_000
_MOST_FAULTS = 8
_COMBINED = ("anyOf", "oneOf", "allOf")
_Holds = Callable[[Any, Any], bool]
_OF_NUMBERS: Mapping[str, _Holds] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_OF_TEXTS: Mapping[str, _Holds] = {"minLength": operator.ge, "maxLength": operator.le}
_OF_LISTS: Mapping[str, _Holds] = {"minItems": operator.ge, "maxItems": operator.le}
_TEXTS = ("description", "pattern", "format")
_TYPES = ("string", "integer", "number", "boolean", "array", "object", "null")


def plain_schema(schema: object) -> dict[str, Any]:
    """Return a bounded object schema with only known keywords and resolved references; never raises.

    A schema of more than 16,000 characters becomes that of any object.
    """
    made = _SchemaSimplifier(schema if isinstance(schema, dict) else {}).node(schema, 0)
    # Every request carries it: better no schema than one that fills the context.
    if len(json.dumps(made)) > _MOST_CHARACTERS:
        made = {}
    properties = made.get("properties", {})
    required = [name for name in made.get("required", []) if name in properties]
    return {**made, "type": "object", "properties": properties, "required": required}


class _SchemaSimplifier:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes = 0

    def node(self, schema: object, depth: int) -> dict[str, Any]:
        self._nodes += 1
        # Beyond the bounds everything is allowed here; the server checks again.
        if not isinstance(schema, dict) or depth > _DEEPEST or self._nodes > _MOST_NODES:
            return {}
        # Inlined, so that the result is complete by itself wherever it is shown.
        if isinstance(reference := schema.get("$ref"), str):
            found: object = self._root if reference.startswith("#/") else {}
            for word in reference[2:].split("/"):
                name = word.replace("~1", "/").replace("~0", "~")
                found = found.get(name) if isinstance(found, dict) else None
            return self.node(found, depth + 1)
        made = _copy_keywords(schema)
        if isinstance(properties := schema.get("properties"), dict):
            named = [(name, each) for name, each in properties.items() if _is_name(name)]
            made["properties"] = {name: self.node(each, depth + 1) for name, each in named[:_MOST_NODES]}
        if isinstance(items := schema.get("items"), dict):
            made["items"] = self.node(items, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, bool | dict):
            made["additionalProperties"] = more if isinstance(more, bool) else self.node(more, depth + 1)
        for word in _COMBINED:
            if isinstance(parts := schema.get(word), list) and 0 < len(parts) <= _MOST_NODES:
                made[word] = [self.node(part, depth + 1) for part in parts]
        return made


def _copy_keywords(schema: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    kinds = schema.get("type")
    known = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind in _TYPES]
    if known:
        made["type"] = known if isinstance(kinds, list) else known[0]
    for word in _TEXTS:
        if isinstance(text := schema.get(word), str) and text:
            made[word] = " ".join(printable(text).split())[:_LONGEST]  # one line: it may become part of a prompt
    for word in (*_OF_NUMBERS, *_OF_TEXTS, *_OF_LISTS):
        if _is_number(schema.get(word)):
            made[word] = schema[word]
    choices = schema.get("enum")
    if isinstance(choices, list) and 0 < len(choices) <= _LONGEST and all(map(_is_plain, choices)):
        made["enum"] = choices
    for word in ("const", "default"):
        if word in schema and _is_plain(schema[word]):
            made[word] = schema[word]
    required = schema.get("required")
    if isinstance(required, list):
        made["required"] = [name for name in required if _is_name(name)]
    return made


def _is_plain(value: object) -> bool:
    """Return whether a value of an `enum` or a `const` can be shown unchanged."""
    text = isinstance(value, str) and len(value) <= _LONGEST and printable(value) == value
    return text or value is None or isinstance(value, bool) or _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= 64 and printable(name) == name and name.isprintable()


def faults(schema: Mapping[str, Any], value: object) -> list[str]:
    """Return the first few faults of a value by a schema of `plain_schema`, each with its place."""
    found: list[str] = []
    for fault in _find_faults(schema, value, "arguments"):
        found.append(fault)
        if len(found) >= _MOST_FAULTS:
            break
    return found


_IS: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _find_faults(schema: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
    kinds = schema.get("type")
    wanted = kinds if isinstance(kinds, list) else [kinds] if kinds else []
    # No other fault is meaningful for a value of the wrong type.
    if wanted and not any(_IS[kind](value) for kind in wanted):
        yield f"{place} must be {' or '.join(wanted)}, not {_short_json(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{place} must be one of {_short_json(schema['enum'])}, not {_short_json(value)}"
    if "const" in schema and value != schema["const"]:
        yield f"{place} must be {_short_json(schema['const'])}, not {_short_json(value)}"
    for words, measured in (
        (_OF_NUMBERS, value if _is_number(value) else None),
        (_OF_TEXTS, len(value) if isinstance(value, str) else None),
        (_OF_LISTS, len(value) if isinstance(value, list) else None),
    ):
        for word, holds in words.items():
            if word in schema and measured is not None and not holds(measured, schema[word]):
                yield f"{place} breaks {word} {schema[word]}"
    if isinstance(value, dict):
        yield from _find_object_faults(schema, value, place)
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            yield from _find_faults(schema["items"], each, f"{place}[{number}]")
    yield from _find_combined_faults(schema, value, place)


def _find_object_faults(schema: Mapping[str, Any], value: Mapping[str, Any], place: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{place}.{name} is missing"
    for name, each in value.items():
        if name in properties:
            yield from _find_faults(properties[name], each, f"{place}.{name}")
        elif more is False:
            yield f"there is no {place}.{str(name)[:80]}"
        elif isinstance(more, dict):
            yield from _find_faults(more, each, f"{place}.{str(name)[:80]}")


def _find_combined_faults(schema: Mapping[str, Any], value: Any, place: str) -> Iterator[str]:
    for part in schema.get("allOf", ()):
        yield from _find_faults(part, value, place)
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if parts and not any(next(_find_faults(part, value, place), None) is None for part in parts):
            yield f"{place} fits none of {word}: {_short_json(parts)}"


def _short_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:120] + "..."
