"""A model's arguments held against the schema of a tool, with a complaint that says how to do it right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from chargehand.agents._tools_model import Mistake, ToolSpec
from chargehand.core.errors import nearest

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOUNS = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list of strings",
}


def checked_arguments(spec: ToolSpec, given: object) -> dict[str, Any]:
    """Return the arguments as an object that keeps the schema; raises `Mistake` naming every fault."""
    arguments = _as_object(spec, given)
    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters["properties"])
    required = cast("list[str]", spec.parameters["required"])
    # null for what may be left out is how several models leave it out
    present = {name: value for name, value in arguments.items() if value is not None or name in required}
    faults = [f"{name!r} is missing ({_wanted(properties[name])})" for name in required if name not in present]
    for name, value in present.items():
        if name not in properties:
            faults.append(f"there is no argument {str(name)[:80]!r}: {nearest(str(name)[:80], properties)}")
        elif fault := _fault(properties[name], value):
            faults.append(f"{name!r} {fault}")
    if faults:
        raise Mistake(f"wrong arguments for {spec.name}: {'; '.join(faults)}. {_usage(spec)}")
    return {name: int(v) if isinstance(v, float) else v for name, v in present.items()}


def _as_object(spec: ToolSpec, given: object) -> dict[str, Any]:
    if isinstance(given, str | bytes):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise Mistake(f"the arguments of {spec.name} are no valid JSON ({error}). {_usage(spec)}") from None
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise Mistake(f"the arguments of {spec.name} must be a JSON object. {_usage(spec)}")
    return given


def _fault(schema: Mapping[str, Any], value: object) -> str | None:
    kind = schema["type"]
    if not _is(kind, value):
        return f"must be {_wanted(schema)}, not {_shown(value)}"
    if kind == "integer" and not schema["minimum"] <= cast("int", value) <= schema["maximum"]:
        return f"must be {_wanted(schema)}, not {_shown(value)}"
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if any(_SURROGATE.search(text) for text in texts):
        return "holds half of a surrogate pair: write the character itself"
    return None


def _is(kind: str, value: object) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case _:
            return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _wanted(schema: Mapping[str, Any]) -> str:
    noun = _NOUNS[schema["type"]]
    return f"{noun} from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else noun


def _shown(value: object) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:60] + "..."


def _usage(spec: ToolSpec) -> str:
    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters["properties"])
    required = cast("list[str]", spec.parameters["required"])
    parts = (
        f'"{name}"{"" if name in required else "?"}: {_NOUNS[each["type"]]}' for name, each in properties.items()
    )
    return f"{spec.name} takes {{{', '.join(parts)}}} (? may be left out)"
