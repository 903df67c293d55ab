"""One script for every client: its tool calls in our own words become calls of what a request offers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from chargehand.core.errors import nearest
from chargehand.models._render import ScriptedCall, ScriptedReply
from chargehand.models._talk import Offer

_WORKSPACE = "/workspace"
_PATHS = ("path", "file_path", "filePath", "filename", "absolute_path", "file")
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "path": _PATHS,
    "old": ("old", "old_string", "oldString", "old_str"),
    "new": ("new", "new_string", "newString", "new_str"),
    "content": ("content", "contents", "file_text"),
    "command": ("command", "cmd"),
    "pattern": ("pattern", "query", "regex"),
    "summary": ("summary",),
    "evidence": ("evidence",),
}
_TOOLS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bash": (("command",), ("bash", "exec_command", "run_shell_command", "shell", "shell_command", "terminal")),
    "read": (("path",), ("read", "read_file", "view")),
    "edit": (("path", "old", "new"), ("edit", "replace", "str_replace", "edit_file")),
    "write": (("path", "content"), ("write", "write_file", "create_file")),
    "search": (("pattern",), ("search", "grep", "grep_search", "search_file_content", "grep_files")),
    "finish": (("summary",), ("finish",)),
}
"""Each tool of ours: what it must be given, and what clients call theirs, in lower case."""
_REPLACE = (
    "import sys; p, old, new = sys.argv[1:]; s = open(p).read(); "
    "n = s.count(old); n == 1 or sys.exit(f'it stands there {n} times'); open(p, 'w').write(s.replace(old, new))"
)
_FILLED: Mapping[str, Any] = {
    "string": "As the script says.",
    "boolean": False,
    "integer": 0,
    "number": 0,
    "array": [],
}


class ToolUnknownError(Exception):
    """A script calls what is no tool of ours, or what the request offers nothing for; `message` says which."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A tool of the client, and which of its arguments each of ours is."""

    offer: Offer
    names: Mapping[str, str]

    def call(self, call: ScriptedCall, given: Mapping[str, Any]) -> ScriptedCall:
        properties = _properties(self.offer)
        made = {to: _value(given[name], to, properties[to]) for name, to in self.names.items()}
        for name in self.offer.schema.get("required", ()):
            if name not in made:
                made[name] = _filler(properties.get(name, {}))
        return replace(call, name=self.offer.name, arguments=made)


def fitted(reply: ScriptedReply, offers: Sequence[Offer]) -> ScriptedReply:
    """Return a reply whose calls (bash, read, edit, write, search, finish) are calls of what is offered.

    What has no tool of its own is done by a shell; `finish` becomes words where none is offered. A call that names
    an offered tool with its own arguments stays. A request that offers no tool at all, such as for a title, gets
    the words alone. Raises `ToolUnknownError`.
    """
    if not offers:
        return replace(reply, tools=())
    calls: list[ScriptedCall] = []
    text = reply.text
    for call in reply.tools:
        made = _fitted(call, offers)
        if made is None:
            text = "\n".join(filter(None, (text, str(_given(call).get("summary", "")))))
        else:
            calls.append(made)
    return replace(reply, text=text, tools=tuple(calls))


def _fitted(call: ScriptedCall, offers: Sequence[Offer]) -> ScriptedCall | None:
    given = _given(call)
    if any(offer.name == call.name and _takes(offer, given) for offer in offers):
        return call
    if call.name not in _TOOLS:
        raise ToolUnknownError(_unknown(call.name, offers))
    missing = [name for name in _TOOLS[call.name][0] if name not in given]
    if missing:
        raise ToolUnknownError(f"a call of {call.name!r} needs {', '.join(missing)}")
    fit = _fit(call.name, given, offers)
    if fit is not None:
        return fit.call(call, given)
    if call.name == "finish":
        return None
    line = _in_a_shell(call.name, given)
    shell = _fit("bash", {"command": line}, offers) if line else None
    if shell is None:
        raise ToolUnknownError(_unknown(call.name, offers))
    return shell.call(call, {"command": line})


def _takes(offer: Offer, given: Mapping[str, Any]) -> bool:
    return set(offer.schema.get("required", ())) <= set(given) <= set(_properties(offer))


def _given(call: ScriptedCall) -> Mapping[str, Any]:
    return call.arguments if isinstance(call.arguments, Mapping) else {}


def _fit(name: str, given: Mapping[str, Any], offers: Sequence[Offer]) -> _Fit | None:
    for called in _TOOLS[name][1]:
        for offer in offers:
            if offer.name.lower() != called:
                continue
            properties = _properties(offer)
            names = {
                each: next((one for one in _ARGUMENTS.get(each, (each,)) if one in properties), "")
                for each in given
            }
            if all(names.values()):
                return _Fit(offer=offer, names=names)
    return None


def _properties(offer: Offer) -> Mapping[str, Any]:
    found = offer.schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _value(value: Any, name: str, schema: Any) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if name in _ARGUMENTS["command"] and schema.get("type") == "array":
        return ["bash", "-lc", value]
    # Other programs want the whole path, and not all say so.
    if name in _PATHS[1:] and not str(value).startswith("/"):
        return f"{_WORKSPACE}/{value}"
    return value


def _filler(schema: Any) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if schema.get("enum"):
        return schema["enum"][0]
    return _FILLED.get(str(schema.get("type", "string")).lower(), {})


def _in_a_shell(name: str, given: Mapping[str, Any]) -> str:
    """Return a command line that does the same, "" where none does."""
    path = shlex.quote(str(given.get("path", ".")))
    match name:
        case "read":
            return f"cat -- {path}"
        case "edit":
            old, new = (shlex.quote(str(given[each])) for each in ("old", "new"))
            return f"python3 -c {shlex.quote(_REPLACE)} {path} {old} {new}"
        case "write":
            return f'mkdir -p -- "$(dirname -- {path})" && printf %s {shlex.quote(str(given["content"]))} > {path}'
        case "search":
            return f"grep -rnE -e {shlex.quote(str(given['pattern']))} -- {path}"
    return ""


def _unknown(name: str, offers: Sequence[Offer]) -> str:
    offered = ", ".join(offer.name for offer in offers) or "none"
    near = nearest(name, [*_TOOLS, *(offer.name for offer in offers)])
    ours = "" if name in _TOOLS else f"; a script's own are {', '.join(_TOOLS)}"
    return f"the tool {name!r} is not there: the request offers {offered}{ours}{'; ' if near else ''}{near}"
