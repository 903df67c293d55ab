"""`docs/reference/plan.schema.json`: the form of plan files for editors and for models, from the plan's records.

`python -m chargehand.missions.planning.schema > docs/reference/plan.schema.json` writes it. It says what keys
there are and what they hold; what tasks have to be together only `parse_plan` knows.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from chargehand.core.codec import json_schema
from chargehand.core.plans import MOST_TASKS, Plan
from chargehand.missions.planning.reading import LOOP_KEYS, SUGAR

Schema = dict[str, Any]

_TEXT: Schema = {"type": ["string", "integer"]}
_TEXTS: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
# `30m` and `2.50` may be written with or without quotes.
_AMOUNT: Schema = {"type": ["number", "string", "null"]}
_ITEM: Schema = {"$ref": "#/$defs/Item"}
_ITEMS: Schema = {"type": "array", "items": _ITEM, "maxItems": MOST_TASKS}


def plan_schema() -> Schema:
    """Return the JSON schema (2020-12) of a plan file."""
    _, records = json_schema(Plan)
    parts = {name: _as_written(record) for name, record in records.items()}
    task, plan = parts["Task"]["properties"], parts["Plan"]
    task |= {short: task[key] for short, key in SUGAR.items()}
    task |= {key: _AMOUNT if key == "repeat" else _TEXT for key in LOOP_KEYS} | {"most": _AMOUNT}
    for name, key in (("tasks", "Item"), ("obligations", "Obligation"), ("ambiguities", "Ambiguity")):
        of: Schema = {"$ref": f"#/$defs/{key}"}
        # By id, too; a text alone is then what its record is about.
        by_id: Schema = {"type": "object", "additionalProperties": True}
        plan["properties"][name] = {"anyOf": [_ITEMS if key == "Item" else {"type": "array", "items": of}, by_id]}
    groups = {
        "sequence": _ITEMS,
        "parallel": _ITEMS,
        "each": _table({"in": _TEXTS, "as": _TEXT, "do": _ITEM}, "in", "do"),
        "decide": _table({"if": _TEXT, "then": _ITEM, "else": _ITEM}, "if", "then"),
    }
    forms = [_table({"id": _TEXT, "after": _TEXTS, name: body}, name) for name, body in groups.items()]
    parts["Item"] = {"anyOf": [{"$ref": "#/$defs/Task"}, *forms]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A plan file",
        "anyOf": [{"$ref": "#/$defs/Plan"}, _ITEMS],
        "$defs": dict(sorted(parts.items())),
    }


def render_schema() -> str:
    """Return the file."""
    return json.dumps(plan_schema(), indent=1) + "\n"


def _as_written(record: Schema) -> Schema:
    """Return the schema of a record as a file may have it: numbers as texts, one text for a list of them."""
    return {**record, "properties": {key: _loosen(value) for key, value in record["properties"].items()}}


def _loosen(field: Schema) -> Schema:
    kinds = [field.get("type"), *(each.get("type") for each in field.get("anyOf", ()))]
    if "string" in kinds and "enum" not in field:
        return _TEXT
    if "array" in kinds and field.get("items", {}).get("type") == "string":
        return _TEXTS
    return _AMOUNT if {"integer", "number"} & set(kinds) else field


def _table(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


if __name__ == "__main__":
    sys.stdout.write(render_schema())
