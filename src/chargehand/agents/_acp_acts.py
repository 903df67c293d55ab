"""What an ACP agent asks permission for, in the words of policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from chargehand.agents._look import inner, objects_at, text_at
from chargehand.policy.actions import Action, Command, FileRead, FileWrite, Network, Other, Several, Shell

_PATHS = ("file_path", "filePath", "filepath", "path", "absolute_path", "old_path", "new_path")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_MOST_PATHS = 200


def action_of_call(call: Mapping[str, Any]) -> Action | None:
    """Return what a tool call would do, `None` for one that does nothing.

    What cannot be told from its kind, input and places is `Other`, which no rule allows by itself.
    """
    raw, kind = inner(call, "rawInput"), call.get("kind")
    paths = tuple(dict.fromkeys(_paths(call, raw)))[:_MOST_PATHS]
    command = raw.get("command")
    if kind == "execute" and not raw:  # gemini tells no input: its title is the command, and as much its word
        command = text_at(call, "title")
    if kind in ("execute", "other", None) and command:
        return _command(command, text_at(raw, "cwd", "directory", "workdir"))
    match kind:
        case "think":
            return None
        case "read" | "search":
            return _several([FileRead(path=path) for path in paths or (".",)])
        case "edit" | "delete" | "move" | "other" | None if paths:
            removal = kind == "delete"
            return _several([FileWrite(path=path, removal=removal) for path in paths])
        case "fetch" if (host := urlsplit(text_at(raw, "url", "prompt")).hostname) is not None:
            return Network(host=host)
    return Other(kind="tool", name=text_at(call, "title", "kind") or "unnamed")


def action_of_terminal(argv: Sequence[str], cwd: str) -> Action:
    """Return what a terminal's command does; a shell's script is looked into."""
    if len(argv) == 3 and argv[0].rpartition("/")[2] in _SHELLS and argv[1] in ("-c", "-lc"):
        return Shell(text=argv[2], cwd=cwd or None)
    return Command(argv=tuple(argv), cwd=cwd or None)


def _command(command: Any, cwd: str) -> Action:
    if isinstance(command, str):
        return Shell(text=command, cwd=cwd or None)
    words = tuple(map(str, command)) if isinstance(command, list) else (str(command),)
    return action_of_terminal(words, cwd)


def _paths(call: Mapping[str, Any], raw: Mapping[str, Any]) -> Iterator[str]:
    for place in (*objects_at(call, "locations"), *objects_at(call, "content")):
        if path := text_at(place, "path"):
            yield path
    yield from (path for name in _PATHS if (path := text_at(raw, name)))


def _several(actions: Sequence[Action]) -> Action:
    return actions[0] if len(actions) == 1 else Several(actions=tuple(actions))
