"""One question to the rules, and the questions that need nothing to be taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chargehand.policy._actions import McpCall, Other, Snippet, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to the rules; `action` and `resource` are Cedar's, `text` and `where` are for people."""

    action: str
    resource: tuple[str, str]
    text: str
    facts: Mapping[str, Any]
    via: tuple[str, ...] = ()
    where: str = ""


class TooMuchError(Exception):
    """An action has more parts than are looked at."""


class ScriptTooLongError(Exception):
    """The scripts of an action have more parts than are looked at."""


def plain_request(action: Snippet | McpCall | Other, around: Surroundings) -> Request:
    """Return what an action asks that is judged as a whole."""
    if isinstance(action, Snippet):
        facts = {"language": action.language, "length": len(action.source), "purpose": around.purpose}
        text = f"{action.language} snippet: {action.source}"
        return Request(action="snippet", resource=("Program", action.language), text=text, facts=facts)
    if isinstance(action, McpCall):
        facts = {"server": action.server, "tool": action.tool, "arguments": action.arguments,
                 "reads": action.reads, "sandboxed": around.sandboxed, "purpose": around.purpose}  # fmt: skip
        name = f"{action.server}/{action.tool}"
        return Request(action="mcp.call", resource=("Tool", name), text=f"{name} {action.arguments}", facts=facts)
    told = sorted(f"{key}={value}" for key, value in action.facts.items())
    return Request(
        action="other",
        resource=("Thing", action.kind),
        text=f"{action.kind} {action.name}",
        facts={"kind": action.kind, "name": action.name, "facts": told},
    )


def shown(argv: Sequence[str | None]) -> str:
    """Return a command as one line, "?" for words that are not known."""
    return " ".join("?" if word is None else word for word in argv)


def device_host(path: str | None) -> tuple[str, int] | None:
    """Return host and port of bash's `/dev/tcp/HOST/PORT`."""
    if path is None or not path.startswith(("/dev/tcp/", "/dev/udp/")):
        return None
    host, _, port = path.split("/", 3)[3].partition("/")
    return host, int(port) if port.isdigit() else 0
