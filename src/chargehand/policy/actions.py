"""The actions that can be judged, and the records of a judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, field

Effect = Literal["allow", "ask", "deny"]
# The strength of an effect: the strongest of all that apply counts.
ORDER: dict[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}
WORKSPACE = "/workspace"
# The value of `~` and `$HOME`: the sandbox's home, which holds nothing of the person's.
HOME = "/home/agent"
# Largest script that is inspected in bytes, the same as for a line.
LARGEST_SCRIPT = 100_000
Purpose = Literal["agent", "setup", "check", "exec"]
RunKind = Literal["exec", "setup", "check", "launch"]


class Command(Struct, frozen=True, kw_only=True):
    """A program with its arguments, not run through a shell; `cwd` is absolute, else the context's."""

    argv: tuple[str, ...]
    cwd: str | None = None


class Shell(Struct, frozen=True, kw_only=True):
    """A command line for bash; every simple command in it is judged, and the strongest effect counts."""

    text: str
    cwd: str | None = None


class FileRead(Struct, frozen=True, kw_only=True):
    """A file that is read."""

    path: str


class FileWrite(Struct, frozen=True, kw_only=True):
    """A file that is written, or with `removal` deleted."""

    path: str
    removal: bool = False


class Network(Struct, frozen=True, kw_only=True):
    """A connection; `port` is 0 and `host` is "" if unknown."""

    host: str
    port: int = 0


class GitAction(Struct, frozen=True, kw_only=True):
    """A git command by its words after `git`."""

    words: tuple[str, ...]
    cwd: str | None = None


class Run(Struct, frozen=True, kw_only=True):
    """A program run for a person rather than for an agent: its words, or a line for a shell.

    `kind` is `exec` (a person typed it), `setup` or `check` (the project's), or `launch` (an agent's program). If
    it is not `trusted` (a person neither wrote nor granted it), it is also judged as an agent's commands are.
    """

    kind: RunKind
    run: tuple[str, ...] | str
    trusted: bool = False


class Snippet(Struct, frozen=True, kw_only=True):
    """A short program that runs by itself, away from the workspace."""

    language: str
    source: str


class McpCall(Struct, frozen=True, kw_only=True):
    """A call of an MCP server's tool; `arguments` is JSON, `reads` the server's claim that it changes nothing."""

    server: str
    tool: str
    arguments: str = "{}"
    reads: bool = False


class Other(Struct, frozen=True, kw_only=True):
    """Any other action, such as a call to a forge, a model or a plugin, identified by `name` and `facts`."""

    kind: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)


class Several(Struct, frozen=True, kw_only=True):
    """Actions that happen together or not at all."""

    actions: tuple[Action, ...]


Action = Command | Shell | FileRead | FileWrite | Network | GitAction | Run | Snippet | McpCall | Other | Several


class Part(Struct, frozen=True, kw_only=True):
    """One part of an action, judged by itself.

    `kind` is `command`, `read`, `write`, `delete`, `network`, `shell`, `exec`, `setup`, `check`, `launch`,
    `snippet`, `mcp.call` or `other`; `via` are the programs and forms in which it was found, `where` its script
    and line; `overridden` are the rules that a person's rule set aside.
    """

    kind: str
    text: str
    effect: Effect
    rule: str
    reason: str
    via: tuple[str, ...] = ()
    where: str = ""
    overridden: tuple[str, ...] = ()


class Judgement(Struct, frozen=True, kw_only=True):
    """The decision on an action: the strongest of its parts, named by `subject`."""

    effect: Effect
    rule: str
    reason: str
    subject: str
    parts: tuple[Part, ...] = ()

    @property
    def overridden(self) -> tuple[str, ...]:
        """The rules that a person set aside for any part."""
        return tuple(dict.fromkeys(rule for part in self.parts for rule in part.overridden))


class Surroundings(Struct, frozen=True, kw_only=True):
    """The context in which an action is judged.

    `workspace` and `cwd` are absolute; `sandboxed` means that the operating system bounds what a program reaches;
    `hosts` may be reached; `resolve` follows links if the caller can; `script` returns the text of a file that a
    program executes, `None` if unavailable. `who` is the acting agent or person.
    """

    workspace: str = WORKSPACE
    cwd: str | None = None
    sandboxed: bool = True
    purpose: Purpose = "agent"
    hosts: tuple[str, ...] = ()
    who: str = "agent"
    resolve: Callable[[str], str] = str
    script: Callable[[str], str | None] | None = None
