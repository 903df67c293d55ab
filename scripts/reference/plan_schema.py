"""The JSON Schema of plan files, from the records that a plan becomes and the short forms that files may use.

It says what each key holds. Rules between tasks (their order, which of them writes a file) are checked when a
plan is read.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct

from chargehand.core.plans import Ambiguity, Estimate, Loop, Obligation, Plan, Task, TeamMember
from chargehand.missions.planning.expansion import GROUPS
from chargehand.missions.planning.reading import (
    MOST_AT_ONCE,
    MOST_CANDIDATES,
    MOST_LOOPS,
    RISKS,
    SUGAR,
)

_TEXT: dict[str, Any] = {"type": ["string", "integer"]}
_NUMBER: dict[str, Any] = {"type": ["string", "number"]}
_TEXTS: dict[str, Any] = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, {"type": "null"}]}
_ITEM: dict[str, Any] = {"$ref": "#/$defs/item"}
_ITEMS: dict[str, Any] = {"type": "array", "items": _ITEM}


def _count(least: int, most: int | None = None) -> dict[str, Any]:
    # YAML's scalars may come as texts.
    number = {"type": "integer", "minimum": least, **({"maximum": most} if most is not None else {})}
    return {"anyOf": [number, {"type": "string", "pattern": "^[+-]?[0-9]+$"}]}


_COUNTS = {
    "candidates": _count(1, MOST_CANDIDATES),
    "attempts": _count(1),
    "priority": _count(-1_000, 1_000),
    "most": _count(1, MOST_LOOPS),
    "repeat": _count(1, MOST_LOOPS),
    "at_once": _count(0, MOST_AT_ONCE),
    "risk": {"enum": list(RISKS)},
}


def _table(record: type[Struct], *more: str, also: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of a table: the fields of a record, and `more` keys that files may have."""
    fields = msgspec.structs.fields(record)
    properties: dict[str, Any] = {}
    for name, kind in [(field.encode_name, field.type) for field in fields] + [(name, str) for name in more]:
        if name in _COUNTS:
            properties[name] = _COUNTS[name]
        elif name in (*SUGAR, *SUGAR.values(), "usd", "deadline"):
            properties[name] = _NUMBER
        else:
            properties[name] = _TEXTS if "tuple" in str(kind) else _TEXT
    about = " ".join((record.__doc__ or "").split())
    required = [field.encode_name for field in fields if field.required]
    return {
        "description": about,
        "type": "object",
        "properties": {**properties, **(also or {})},
        "required": required,
        "additionalProperties": False,
    }


def _by_id(name: str) -> dict[str, Any]:
    """Return the schema of a list of tables, or of a table of them, or of their texts, by id."""
    whole = {"$ref": f"#/$defs/{name}"}
    # In a table by ids the key stands for the id.
    part = {"anyOf": [_TEXT, {"type": "object"}]}
    return {"anyOf": [{"type": "array", "items": whole}, {"type": "object", "additionalProperties": part}]}


def _group(form: str) -> dict[str, Any]:
    bodies: dict[str, dict[str, Any]] = {
        "sequence": _ITEMS,
        "parallel": _ITEMS,
        "each": _body({"in": _TEXTS, "as": _TEXT, "do": _ITEM}, "in", "do"),
        "decide": _body({"if": _TEXT, "then": _ITEM, "else": _ITEM}, "if", "then"),
    }
    return _body({"id": _TEXT, "after": _TEXTS, form: bodies[form]}, form)


def _body(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def render_schema() -> str:
    """Return the schema, as the file has it."""
    task = _table(
        Task,
        *(*SUGAR, "repeat", "while", "until", "most"),
        also={"loop": _body(_table(Loop)["properties"]), "estimate": _table(Estimate)},
    )
    to_whom = _body({"to": _TEXT, "needs": _TEXTS, "deadline": _NUMBER, "text": _TEXT})
    task["properties"]["delegate"] = {"anyOf": [_TEXT, to_whom]}
    task |= {"required": ["id"], "anyOf": [{"required": ["text"]}, {"required": ["delegate"]}]}
    whole = _table(Plan)
    tasks = {"anyOf": [_ITEMS, {"type": "object"}]}
    whole["properties"] |= {
        "tasks": tasks,
        "obligations": _by_id("obligation"),
        "ambiguities": _by_id("ambiguity"),
        "team": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/member"}}, {"type": "object"}]},
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A plan of chargehand run --plan",
        "anyOf": [{"$ref": "#/$defs/plan"}, _ITEMS],
        "$defs": {
            "plan": whole,
            "item": {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("task", *GROUPS)]},
            "task": task,
            **{form: _group(form) for form in GROUPS},
            "obligation": _table(Obligation),
            "ambiguity": _table(Ambiguity),
            "member": _table(TeamMember),
        },
    }
    return json.dumps(schema, indent=1) + "\n"
