"""The tools of a native agent as described to a model; validation of a model's calls; their results."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import nearest
from chargehand.sandbox.contract import WORKSPACE


class ToolSpec(Struct, frozen=True, kw_only=True):
    """One tool as described to a model; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str
    parameters: Mapping[str, object]


class ToolResult(Struct, frozen=True, kw_only=True):
    """A call's result for the model, bounded; `artifact` is the id of the whole if `text` was shortened.

    `failed` says that the tool did not carry out the request. A command that ended with an exit code was carried
    out. `image` is the media type of a picture stored as the artifact: models that take pictures are shown it.
    """

    text: str
    failed: bool = False
    artifact: str | None = None
    image: str | None = None


class ToolCall(Struct, frozen=True, kw_only=True):
    """A call that a model requests, the `index`-th of its reply.

    `arguments` is an object, or text that should have been one; `written`: the call was in the text.
    """

    index: int
    name: str
    arguments: Any
    written: bool = False


class Mistake(ValueError):
    """A call that cannot be carried out as written; the text tells the model how to correct it."""


# Seconds that a model may give one command.
LONGEST_COMMAND = 600


def _spec(name: str, description: str, required: str, **properties: dict[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": required.split(),
            "additionalProperties": False,
        },
    )


def _text(description: str, **more: object) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _count(description: str, least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "description": description, "minimum": least, "maximum": most}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


_PATH = "Path, relative to /workspace."
_PATCH = """Change several files at once; all of them are written or none. Either this form:
*** Begin Patch
*** Update File: src/a.py
@@ def greet():
 kept line
-removed line
+added line
*** Add File: src/new.py
+first line
*** Delete File: src/old.py
*** End Patch
or a unified diff. Give about 3 unchanged lines around each change; '@@ line' names a line above it when \
those lines stand in several places; '*** Move to: path' below an Update line renames."""

SNIPPET = "snippet"
# Arguments that make sense only in a plan.
_IN_PLANS = frozenset({"notes", "delegate"})
_SNIPPET = {
    "language": _text("python or javascript."),
    "code": _text("The program."),
    "input": _text("JSON text: what the program sees as the variable `input`."),
}
# The order is part of the request: changing it makes every provider's prompt cache miss.
SPECS = (
    _spec(
        "bash",
        "Run a shell command in /workspace. Every call is a new shell: directory and variables do not carry over. "
        "There is no terminal and no input. Long output is shortened; all of it lies in a file then.",
        "command",
        command=_text("The command line."),
        timeout=_count("Seconds after which it is killed.", 1, LONGEST_COMMAND),
    ),
    _spec(
        "read",
        "Show a file with line numbers, list a directory, or look at a picture (PNG, JPEG, GIF, WebP). "
        "Number and tab before a line are not in the file.",
        "path",
        path=_text("Path, relative to /workspace or absolute."),
        offset=_count("First line to show, from 1.", 1, 1_000_000_000),
        limit=_count("How many lines to show; 400 unless told.", 1, 2000),
    ),
    _spec(
        "edit",
        "Replace text in one file. `old` must be copied exactly (spaces and line breaks, no line numbers) and "
        "stand in the file once: add lines around it until it does, or set `all`. Empty `old` makes a new file.",
        "path old new",
        path=_text(_PATH),
        old=_text("The text to replace."),
        new=_text("The text to put there."),
        all={"type": "boolean", "description": "Replace every occurrence."},
    ),
    _spec("apply_patch", _PATCH, "patch", patch=_text("The whole patch.")),
    _spec(
        "search",
        "Find lines by a regular expression (grep -E) in the files of a directory; prints path:line:text. "
        "Binary files, .git, .venv and node_modules are left out; at most 200 matches are shown.",
        "pattern",
        pattern=_text("Extended regular expression; write \\( for a plain parenthesis."),
        path=_text("File or directory to search; /workspace unless told."),
        glob=_text("Only files of this name, such as *.py or src/**/*.ts."),
        context=_count("Lines to show around each match.", 0, 10),
    ),
    _spec(
        SNIPPET,
        "Compute a value by a short Python or JavaScript program, without files or network, in 16 MiB and 5 s. "
        "Gives JSON: value (of the last expression), console, error. Text of files goes in as `input`.",
        "language code",
        **_SNIPPET,
    ),
    _spec(
        "finish",
        "Say that the work is done. It is judged by the project's checks afterwards: run them yourself first. "
        "Where it cannot be done, say so by status failure, with the reason as summary.",
        "summary evidence",
        summary=_text("What was changed and why, in a few sentences."),
        evidence=_texts("What you ran and saw that shows it works, one command and its outcome each."),
        status=_text(
            "success unless told otherwise; request_clarification asks the person what the summary says.",
            enum=["success", "failure", "in_progress", "request_clarification"],
        ),
        files=_texts("The paths that matter."),
        open_points=_texts("What is left to do."),
        notes={
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "For others to know, by task id, role or everyone.",
        },
        delegate={
            "type": "array",
            "items": {"type": "object"},
            "description": "For others to do: {id, text, role, deadline (s)}.",
        },
    ),
    _spec(
        "ask",
        "Ask the person one question and wait. Only for what neither the repository nor the request can answer.",
        "question",
        question=_text("The question, understandable by itself."),
        options=_texts("Answers to choose from, if there are a few."),
    ),
    _spec(
        "search_code",
        "Find definitions by words or names in the repository map, best first. It reads the last saved state.",
        "words",
        words=_text("Names or words, such as `parse header`."),
    ),
    _spec(
        "who_calls",
        "List the places that use a function, class or other symbol: calls first. Found by name.",
        "symbol",
        symbol=_text("A name, or a qualified one such as Config.from_file."),
    ),
    _spec(
        "impact_of",
        "List the definitions that use paths or symbols, directly or through up to three calls.",
        "targets",
        targets=_texts("Paths of files, or symbols."),
    ),
    _spec(
        "tests_for",
        "List the tests that reach paths or symbols, the most direct ones first.",
        "targets",
        targets=_texts("Paths of files, or symbols."),
    ),
    _spec(
        "search_library",
        "Find code in other repositories that the person collected, with the licence of each file. Mind it.",
        "words",
        words=_text("Names or words, such as `parse chunked body`."),
    ),
)
LIBRARY_TOOL = "search_library"
# The queries of the map and the library: they read as `search` does, so a role that has `search` has them too.
MAP_TOOLS = frozenset({"search_code", "who_calls", "impact_of", "tests_for", LIBRARY_TOOL})
# The tools whose calls may change the workspace. A snippet runs in another sandbox, so it is not included.
MUTATING = frozenset({"bash", "edit", "apply_patch"})
# The tools that the agent's loop carries out itself.
LOOP_ONLY = frozenset({"finish", "ask"})


def without_others(spec: ToolSpec) -> ToolSpec:
    """Return a tool without the arguments for plans: outside a plan no agent reads a note or does a part."""
    properties = cast("Mapping[str, object]", spec.parameters["properties"])
    kept = {name: each for name, each in properties.items() if name not in _IN_PLANS}
    return replace(spec, parameters={**spec.parameters, "properties": kept})


def relocate(spec: ToolSpec, cwd: str) -> ToolSpec:
    """Return a tool described for commands that start in `cwd`."""
    if cwd == WORKSPACE:
        return spec
    parameters = json.loads(json.dumps(spec.parameters).replace(WORKSPACE, json.dumps(cwd)[1:-1]))
    return replace(spec, description=spec.description.replace(WORKSPACE, cwd), parameters=parameters)


_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOUNS = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list of strings",
    "object": "an object whose values are strings",
}


def check_arguments(spec: ToolSpec, given: object) -> dict[str, Any]:
    """Return a call's arguments (an object or its JSON text) as an object that matches the schema.

    Raises `Mistake`, which names every fault and the tool's usage.
    """
    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters["properties"])
    required = cast("list[str]", spec.parameters["required"])
    if isinstance(given, str | bytes):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as error:
            raise Mistake(f"the arguments of {spec.name} are not valid JSON ({error}). {_usage(spec)}") from None
    arguments = {} if given is None else given
    if not isinstance(arguments, dict):
        raise Mistake(f"the arguments of {spec.name} must be a JSON object. {_usage(spec)}")
    # Several models write null for arguments that they omit.
    present = {name: value for name, value in arguments.items() if value is not None or name in required}
    faults = [f"{name!r} is missing ({_describe(properties[name])})" for name in required if name not in present]
    for name, value in present.items():
        if name not in properties:
            faults.append(f"there is no argument {str(name)[:80]!r}: {nearest(str(name)[:80], properties)}")
        elif fault := _find_fault(properties[name], value):
            faults.append(f"{name!r} {fault}")
    if faults:
        raise Mistake(f"wrong arguments for {spec.name}: {'; '.join(faults)}. {_usage(spec)}")
    return {name: int(v) if isinstance(v, float) else v for name, v in present.items()}


def _find_fault(schema: Mapping[str, Any], value: object) -> str | None:
    """Return the fault of one argument, or `None` if it matches its schema."""
    match schema["type"]:
        case "string":
            fits = isinstance(value, str)
        case "boolean":
            fits = isinstance(value, bool)
        case "integer":  # some models write 3.0 for 3; only Python counts True as an int
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            fits = whole and not isinstance(value, bool)
            fits = fits and schema["minimum"] <= cast("int", value) <= schema["maximum"]
        case "object":
            fits = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        case _:
            part = dict if schema["items"]["type"] == "object" else str
            fits = isinstance(value, list) and all(isinstance(each, part) for each in value)
    if not fits:
        shown = "null" if value is None else repr(value)
        return f"must be {_describe(schema)}, not {shown if len(shown) <= 60 else shown[:60] + '...'}"
    texts: list[str] = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    texts = [*value, *value.values()] if isinstance(value, dict) else texts
    texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in texts]
    # JSON may contain half of a surrogate pair, which no file and no log can store.
    if any(_SURROGATE.search(text) for text in texts):
        return "holds half of a surrogate pair: write the character itself"
    return None


def _noun(schema: Mapping[str, Any]) -> str:
    return "a list of objects" if schema.get("items") == {"type": "object"} else _NOUNS[schema["type"]]


def _describe(schema: Mapping[str, Any]) -> str:
    noun = _noun(schema)
    return f"{noun} from {schema['minimum']} to {schema['maximum']}" if "minimum" in schema else noun


def _usage(spec: ToolSpec) -> str:
    properties = cast("Mapping[str, Mapping[str, Any]]", spec.parameters["properties"])
    required = cast("list[str]", spec.parameters["required"])
    parts = (f'"{name}"{"" if name in required else "?"}: {_noun(each)}' for name, each in properties.items())
    return f"{spec.name} takes {{{', '.join(parts)}}} (? may be left out)"
