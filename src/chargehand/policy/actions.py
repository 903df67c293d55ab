"""What can be judged, and what a judgement is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct, field

Effect = Literal["allow", "ask", "deny"]
# How strong an effect is: the strongest of all that apply counts.
ORDER: dict[Effect, int] = {"allow": 0, "ask": 1, "deny": 2}
WORKSPACE = "/workspace"
# What `~` and `$HOME` stand for: the sandbox's own home, which holds nothing of the person's.
HOME = "/home/agent"
# Bytes of a script that is looked into, as many as of a line.
LARGEST_SCRIPT = 100_000
Purpose = Literal["agent", "setup", "check", "exec"]
RunKind = Literal["exec", "setup", "check", "launch"]


class Command(Struct, frozen=True, kw_only=True):
    """A program with its arguments, given to no shell; `cwd` is absolute, else the context's."""

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
    """A file that is written, or with `removal` goes away."""

    path: str
    removal: bool = False


class Network(Struct, frozen=True, kw_only=True):
    """A connection; `port` is 0 where it is not known, `host` "" likewise."""

    host: str
    port: int = 0


class GitAction(Struct, frozen=True, kw_only=True):
    """A git command by its words after `git`."""

    words: tuple[str, ...]
    cwd: str | None = None


class Run(Struct, frozen=True, kw_only=True):
    """What runs for a person rather than for an agent: a program with its words, or a line for a shell.

    `kind` is `exec` (a person typed it), `setup` or `check` (the project's), or `launch` (an agent's own program).
    What is not `trusted` (a person neither wrote nor granted it) is judged as an agent's commands are, too.
    """

    kind: RunKind
    run: tuple[str, ...] | str
    trusted: bool = False


class Snippet(Struct, frozen=True, kw_only=True):
    """A short program that runs by itself, away from the workspace."""

    language: str
    source: str


class McpCall(Struct, frozen=True, kw_only=True):
    """A call of an MCP server's tool; `arguments` is JSON, `reads` the server's word that it changes nothing."""

    server: str
    tool: str
    arguments: str = "{}"
    reads: bool = False


class Other(Struct, frozen=True, kw_only=True):
    """Anything else, such as a call to a forge, a model or a plugin; `name` says which, `facts` more of it."""

    kind: str
    name: str
    facts: Mapping[str, str] = field(default_factory=dict)


class Several(Struct, frozen=True, kw_only=True):
    """Actions that happen together or not at all."""

    actions: tuple[Action, ...]


Action = Command | Shell | FileRead | FileWrite | Network | GitAction | Run | Snippet | McpCall | Other | Several


class Part(Struct, frozen=True, kw_only=True):
    """One thing that an action was taken apart into, judged by itself.

    `kind` is `command`, `read`, `write`, `delete`, `network`, `shell`, `exec`, `setup`, `check`, `launch`,
    `snippet`, `mcp.call` or `other`; `via` are the programs and forms
    it was found in, `where` is the script and line that it stands in; `overridden` are the rules that a person's
    rule set aside.
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
    """What is to be done about an action: the strongest of its parts, `subject` names which."""

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
    """What an action is judged in.

    `workspace` and `cwd` are absolute; `sandboxed` says that the operating system bounds what a program reaches;
    `hosts` may be reached; `resolve` follows links where the caller can; `script` returns the text of a file that
    a program executes, `None` where that cannot be had. `who` is the agent or person that acts.
    """

    workspace: str = WORKSPACE
    cwd: str | None = None
    sandboxed: bool = True
    purpose: Purpose = "agent"
    hosts: tuple[str, ...] = ()
    who: str = "agent"
    resolve: Callable[[str], str] = str
    script: Callable[[str], str | None] | None = None
