"""What an ACP agent wants to know from a person: the flat forms of its elicitations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.agents._look import inner, objects_at, text_at

_MOST_FIELDS = 10
_YES, _NO = ("yes", "y", "true"), ("no", "n", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: `kind` is its JSON type, `options` the answers it may have (none: any)."""

    name: str
    kind: str
    text: str
    options: tuple[str, ...] = ()


def fields_of(params: Mapping[str, Any]) -> tuple[Field, ...]:
    """Return the fields of a form that a person can answer one by one, none where it is no such form."""
    properties = inner(params, "requestedSchema", "properties")
    if params.get("mode", "form") != "form" or len(properties) > _MOST_FIELDS:
        return ()
    found = tuple(_field(name, schema) for name, schema in properties.items() if isinstance(schema, Mapping))
    known = all(each.kind in ("string", "boolean", "integer", "number") for each in found)
    return found if known and len(found) == len(properties) else ()


def read_answer(field: Field, answer: str) -> Any:
    """Return an answer as the field wants it, `None` where it cannot be that."""
    text = answer.strip()
    if field.kind == "boolean":
        return True if text.lower() in _YES else False if text.lower() in _NO else None
    if field.kind == "string":
        return text if not field.options or text in field.options else None
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        return None


def _field(name: str, schema: Mapping[str, Any]) -> Field:
    kind = text_at(schema, "type") or "string"
    listed = schema.get("enum")
    options = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    options += [text_at(each, "const") for each in objects_at(schema, "oneOf")]
    if kind == "boolean":
        options = ["yes", "no"]
    text = ": ".join(filter(None, (text_at(schema, "title"), text_at(schema, "description")))) or name
    return Field(name=name, kind=kind, text=text, options=tuple(filter(None, options)))
