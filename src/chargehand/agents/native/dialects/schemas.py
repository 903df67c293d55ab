"""JSON schemas of tools in the form in which they are sent: without titles, which only repeat names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_UNIONS = ("allOf", "anyOf", "oneOf")
_PLAIN = frozenset({"title", "$schema"})
_CHAT = _PLAIN | {"discriminator"}


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without titles and `$schema`."""
    return _SchemaWalk(_PLAIN, strict_shapes=False).root(schema)


def chat_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as OpenAI takes it: objects have `properties`, and `$ref` has no other key beside it."""
    made = _SchemaWalk(_CHAT, strict_shapes=True).root(schema)
    if isinstance(definitions := made.get("definitions"), dict):
        walk = _SchemaWalk(_CHAT, strict_shapes=True)
        made["definitions"] = {name: walk.node(value) for name, value in definitions.items()}
    return made


class _SchemaWalk:
    """Copies a schema without the keys `without`."""

    def __init__(self, without: Collection[str], *, strict_shapes: bool) -> None:
        self._without = without
        self._strict_shapes = strict_shapes

    def root(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole schema with its `$defs`."""
        made: dict[str, Any] = self.node({key: value for key, value in schema.items() if key != "$defs"})
        if isinstance(parts := schema.get("$defs"), Mapping) and parts:
            made["$defs"] = {name: self.node(value) for name, value in parts.items()}
        return made

    def node(self, schema: Any) -> Any:
        """Return one schema; a value that is none, such as `true`, stays as it is."""
        if not isinstance(schema, Mapping):
            return schema
        made: dict[str, Any] = dict(schema)
        kind = made.get("type")
        if kind == "object":
            self._each(made, "properties", "patternProperties")
            self._one(made, "additionalProperties")
        elif kind == "array":
            self._each(made, "prefixItems")
            self._one(made, "items")
        for union in _UNIONS:
            if isinstance(members := made.pop(union, None), list):
                handled = [self.node(member) for member in members]
                # A union of one says nothing more than its member.
                alone = kind is None and len(handled) == 1 and isinstance(handled[0], dict)
                made = handled[0] | made if alone else {**made, union: handled}
        for key in self._without:
            made.pop(key, None)
        return _fix_shape(made) if self._strict_shapes else made

    def _each(self, made: dict[str, Any], *keys: str) -> None:
        for key in keys:
            if isinstance(held := made.get(key), dict):
                made[key] = {name: self.node(value) for name, value in held.items()}
            elif isinstance(held, list):
                made[key] = [self.node(value) for value in held]

    def _one(self, made: dict[str, Any], key: str) -> None:
        if isinstance(held := made.get(key), list):
            made[key] = [self.node(value) for value in held]
        elif held:
            made[key] = self.node(held)


def _fix_shape(made: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in made and len(made) > 1:
        made["anyOf"] = [{"$ref": made.pop("$ref")}]
    if made.get("type") == "object":
        made.setdefault("properties", {})
    return made
