"""Requests to the rules: an action is split into commands, files and hosts, each with its facts."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.policy.actions import (
    Action,
    Command,
    FileRead,
    FileWrite,
    GitAction,
    McpCall,
    Network,
    Other,
    Run,
    Several,
    Shell,
    Snippet,
    Surroundings,
)
from chargehand.policy.paths import absolute, places
from chargehand.policy.shell.lines import Parsed, Simple, parse
from chargehand.policy.shell.programs import flags, hosts, program_given_to, subcommands, touched
from chargehand.policy.shell.scripts import Line, lines_of, shell_script, task_of
from chargehand.policy.shell.wrappers import fed_by_file, inner_of, program_of

# Most parts of one action; an action with more is not understood.
MOST_PARTS = 400
# Most parts of scripts that are inspected for one action.
MOST_IN_SCRIPTS = 300
_DEEPEST = 8
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "ip6-localhost"})  # noqa: S104 -- compared


class Request(Struct, frozen=True, kw_only=True):
    """One request to the rules; `action` and `resource` are Cedar's, `text` and `where` are for people."""

    action: str
    resource: tuple[str, str]
    text: str
    facts: Mapping[str, Any]
    via: tuple[str, ...] = ()
    where: str = ""


class TooMuchError(Exception):
    """An action has more parts than the limit."""


class ScriptTooLongError(Exception):
    """The scripts of an action have more parts than the limit."""


def requests_of(action: Action, around: Surroundings) -> Iterator[Request]:
    """Yield an action's requests to the rules; an action with too many parts is not understood."""
    splitter = _Splitter(around)
    try:
        splitter.split(action)
    except TooMuchError:
        facts = {"state": "unparsable", "script": False, "sandboxed": around.sandboxed}
        yield Request(action="shell", resource=("Shell", "unparsable"), facts=facts,
                      text=f"more than {MOST_PARTS} commands and files")  # fmt: skip
    yield from splitter.requests


def plain_request(action: Snippet | McpCall | Other, around: Surroundings) -> Request:
    """Return the request of an action that is judged as a whole."""
    if isinstance(action, Snippet):
        facts = {"language": action.language, "length": len(action.source), "purpose": around.purpose}
        text = f"{action.language} snippet: {action.source}"
        return Request(action="snippet", resource=("Program", action.language), text=text, facts=facts)
    if isinstance(action, McpCall):
        facts = {"server": action.server, "tool": action.tool, "arguments": action.arguments,
                 "reads": action.reads, "sandboxed": around.sandboxed, "purpose": around.purpose}  # fmt: skip
        name = f"{action.server}/{action.tool}"
        return Request(action="mcp.call", resource=("Tool", name), text=f"{name} {action.arguments}", facts=facts)
    more = sorted(f"{key}={value}" for key, value in action.facts.items())
    return Request(
        action="other",
        resource=("Thing", action.kind),
        text=f"{action.kind} {action.name}",
        facts={"kind": action.kind, "name": action.name, "facts": more},
    )


def shown(argv: Sequence[str | None]) -> str:
    """Return a command as one line, "?" for unknown words."""
    return " ".join("?" if word is None else word for word in argv)


def device_host(path: str | None) -> tuple[str, int] | None:
    """Return host and port of bash's `/dev/tcp/HOST/PORT`."""
    if path is None or not path.startswith(("/dev/tcp/", "/dev/udp/")):
        return None
    host, _, port = path.split("/", 3)[3].partition("/")
    return host, int(port) if port.isdigit() else 0


class _Splitter(Struct):
    """Splits one action into `requests`.

    `_open` are the scripts and runs being inspected, `_seen` the inspected scripts and their requests, `_written`
    the files that the action has written so far, `_where` the current script and line.
    """

    around: Surroundings
    requests: list[Request] = field(default_factory=list)
    _open: list[object] = field(default_factory=list)
    _seen: set[object] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _in_scripts: int = 0
    _where: str = ""

    def split(self, action: Action) -> None:
        """Add the requests of an action; raises `TooMuchError`."""
        match action:
            case Several():
                for each in action.actions:
                    self.split(each)
            case Command() | GitAction():
                argv = action.argv if isinstance(action, Command) else ("git", *action.words)
                self._split_command(Simple(argv=argv, cwd=self._cwd(action.cwd)), 0)
            case Shell():
                self._split_line(action.text, self._cwd(action.cwd), (), 0)
            case FileRead():
                self._ask_file("read", action.path, self._cwd(None), ())
            case FileWrite():
                kind = "delete" if action.removal else "write"
                self._ask_file(kind, action.path, self._cwd(None), ())
            case Network():
                self._ask_host(action.host, action.port, ())
            case Run():
                self._split_run(action)
            case Snippet() | McpCall() | Other():
                self._add(plain_request(action, self.around))

    def _split_run(self, action: Run) -> None:
        """Ask about every program run for a person; also inspect it if it is not trusted."""
        cwd = self._cwd(None)
        if isinstance(action.run, str):
            parsed = parse(action.run, cwd=cwd)
            commands = parsed.commands if not parsed.problem else ()
        else:
            commands = (Simple(argv=action.run, cwd=cwd),)
        for command in commands or (Simple(argv=(None,), cwd=cwd),):
            program = program_of(command.argv[0])
            text = shown(command.argv) if commands else str(action.run)
            facts = {**self._facts(program, command, text), "trusted": action.trusted}
            self._add(Request(action=action.kind, resource=("Program", program), text=text, facts=facts))
        if action.trusted:
            return
        # Judged like an agent's script: refused for plainly forbidden commands, not for computed ones.
        self._open.append(action)
        self._where = f"the project's {action.kind}"
        try:
            if isinstance(action.run, str):
                self._split_line(action.run, cwd, (action.kind,), 0)
            else:
                self._split_command(Simple(argv=action.run, cwd=cwd, via=(action.kind,)), 0)
        except ScriptTooLongError:
            self._in_scripts -= 1  # make room for the request that reports it
            self._ask_opaque("script", f"more than {MOST_IN_SCRIPTS} commands and files", (action.kind,))
        finally:
            self._open.pop()
            self._where = ""

    def _cwd(self, given: str | None) -> str:
        return given or self.around.cwd or self.around.workspace

    @property
    def _in_script(self) -> bool:
        """Whether the current part is in a script.

        In a script only plainly forbidden parts are refused: a model can rewrite a line that it writes, but a
        project's script that runs `"$@"` cannot be rewritten.
        """
        return bool(self._open)

    def _add(self, request: Request) -> None:
        if not self._in_script:
            if len(self.requests) - self._in_scripts >= MOST_PARTS:
                raise TooMuchError
            self.requests.append(request)
            return
        # A project's script repeats itself: equal requests are made once, and the limit counts different ones.
        key = (request.action, request.resource, request.text)
        if key in self._seen:
            return
        if self._in_scripts >= MOST_IN_SCRIPTS:
            raise ScriptTooLongError
        self._seen.add(key)
        self._in_scripts += 1
        self.requests.append(replace(request, where=self._where))

    def _ask_opaque(self, state: str, text: str, via: tuple[str, ...]) -> None:
        """Ask about a line or script that could not be inspected; `state` gives the reason."""
        facts = {"state": state, "script": self._in_script, "sandboxed": self.around.sandboxed}
        self._add(Request(action="shell", resource=("Shell", state), text=text, facts=facts, via=via))

    def _split_line(
        self, text: str | None, cwd: str | None, via: tuple[str, ...], depth: int, *, number: int = 0
    ) -> None:
        """Split a line; `number` is its first line in its script, 0 outside a script."""
        if text is None:
            return self._ask_opaque("unknown", "a line that is only known at run time", via)
        parsed = parse(text, cwd=cwd, via=via) if depth <= _DEEPEST else Parsed(problem="it is nested too deeply")
        if parsed.problem:
            return self._ask_opaque("unparsable", f"{text[:200]!r}: {parsed.problem}", via)
        if parsed.recursive:
            self._ask_opaque("recursive", "a function that calls itself", via)
        for redirect in parsed.redirects:
            with self._at(number and number + redirect.number - 1):
                kind = "write" if redirect.writes else "read"
                self._ask_file(kind, redirect.path, redirect.cwd, (*redirect.via, ">"))
        for command in parsed.commands:
            with self._at(number and number + command.number - 1):
                self._split_command(command, depth, parsed.functions)
        return None

    @contextlib.contextmanager
    def _at(self, number: int) -> Iterator[None]:
        """Name the line of the script for the requests made in the block."""
        before = self._where
        if number:
            self._where = f"{before.rpartition(':')[0]}:{number}"
        try:
            yield
        finally:
            self._where = before

    def _split_command(self, command: Simple, depth: int, functions: frozenset[str] = frozenset()) -> None:
        first = command.argv[0] if command.argv else None
        if first is not None and first in functions:
            return  # its body was inspected at its definition
        program = program_of(first)
        words = command.argv[1:]
        text = shown(command.argv)
        self._add(
            Request(
                action="command",
                resource=("Program", program),
                text=text,
                facts=self._facts(program, command, text),
                via=command.via,
            )
        )
        via = (*command.via, program)
        found = touched(program, words)
        for kind, paths in (("delete", found.removes), ("write", found.writes), ("read", found.reads)):
            for path in dict.fromkeys(paths):
                self._ask_file(kind, path, command.cwd, via, quiet=kind == "read")
        for host, port in hosts(program, words) or ():
            self._ask_host(host, port, via)
        fed_by = fed_by_file(command.argv)
        if fed_by is not None:
            command = replace(command, feed=(self._text(absolute(fed_by, command.cwd, self.around)),))
        self._split_inner(program, command, depth)

    def _facts(self, program: str, command: Simple, text: str) -> dict[str, Any]:
        words = command.argv[1:]
        sub, sub2 = [*subcommands(program, words), "", ""][:2]
        own = command.argv[0] or ""
        own_places = places(absolute(own, command.cwd, self.around), self.around) if "/" in own else frozenset()
        return {
            "program": program,
            "path": own,
            "places": sorted(own_places),
            "sub": sub,
            "sub2": sub2,
            "words": [word for word in words if word is not None],
            "flags": flags(words),
            "line": text,
            "known": all(word is not None for word in words),
            "fed": command.feed is not None,
            "via": list(command.via),
            "script": self._in_script,
            "sandboxed": self.around.sandboxed,
            "purpose": self.around.purpose,
        }

    def _ask_file(
        self, kind: str, path: str | None, cwd: str | None, via: tuple[str, ...], *, quiet: bool = False
    ) -> None:
        """Ask about a file; `quiet` skips words that are only possibly files and not relevant to any rule."""
        remote = device_host(path)
        if remote is not None:
            return self._ask_host(*remote, via)
        real = absolute(path, cwd, self.around)
        named = places(real, self.around)
        # Any word of a command may be a file that it reads: asking about each would hide the few that matter.
        if quiet and not named & {"secret", "device", "git"}:
            return None
        if kind != "read" and real is not None:
            self._written.add(real)
        text = path if path is not None else "a file whose name is only known at run time"
        facts = {"path": real or "", "places": sorted(named), "sandboxed": self.around.sandboxed, "via": list(via),
                 "script": self._in_script, "purpose": self.around.purpose}  # fmt: skip
        self._add(Request(action=kind, resource=("File", real or ""), text=text, facts=facts, via=via))
        return None

    def _ask_host(self, host: str, port: int, via: tuple[str, ...]) -> None:
        name = host.lower().strip("[]").rstrip(".")
        loopback = name in _LOOPBACK or name.endswith(".localhost") or name.startswith("127.")
        facts = {"host": name, "port": port, "loopback": loopback, "listed": name in self.around.hosts,
                 "known": bool(name), "purpose": self.around.purpose}  # fmt: skip
        text = f"{name or 'an unknown host'}{f':{port}' if port else ''}"
        self._add(Request(action="network", resource=("Host", name), text=text, facts=facts, via=via))

    # --- what programs run

    def _split_inner(self, program: str, command: Simple, depth: int) -> None:
        """Inspect what a command runs in addition to itself: programs, lines for a shell, scripts, tasks."""
        inner = inner_of(command)
        via = (*command.via, inner.label)
        if depth > _DEEPEST:
            return self._ask_opaque("unparsable", "it is nested too deeply", via)
        for argv in inner.commands:
            self._split_command(Simple(argv=argv, cwd=command.cwd, via=via, feed=command.feed), depth + 1)
        for line in inner.lines:
            self._split_line(line, command.cwd, via, depth + 1)
        for script in inner.scripts:
            if not self._split_script(script, command.cwd, via, depth):
                path = absolute(script, command.cwd, self.around)
                state = "stream" if path is None or path.startswith("/dev/") else "script"
                self._ask_opaque(state, script or "an unknown script", via)
        given = program_given_to(command)
        if given is not None:
            # Parsing `python -c` would promise more than is possible: the sandbox is the barrier.
            self._ask_opaque("program", given, (*command.via, program))
        own = command.argv[0] or ""
        if not inner.scripts and "/" in own:
            # A program that is run by its path: a script if the caller knows its text, else not inspected.
            path = absolute(own, command.cwd, self.around)
            via = (*command.via, "script")
            text = self._text(path)
            if text is not None and shell_script(text):
                self._split_script(own, command.cwd, via, depth)
            elif {"workspace", "temp"} & places(path, self.around):
                self._ask_opaque("program", own, via)
        self._split_task(program, command, depth)
        return None

    def _text(self, path: str | None) -> str | None:
        # Read through the sandbox, not from the host's files: a program in the sandbox reads the same.
        return self.around.script(path) if self.around.script is not None and path is not None else None

    def _split_script(self, script: str | None, cwd: str | None, via: tuple[str, ...], depth: int) -> bool:
        """Inspect a script as a whole; return whether its text is known."""
        path = absolute(script, cwd, self.around)
        text = self._text(path)
        if path is None or text is None:
            return False
        self._look_into(path, (Line(text=text, number=1),), cwd, via, depth)
        return True

    def _split_task(self, program: str, command: Simple, depth: int) -> None:
        """Inspect the tasks that make or npm run."""
        task = task_of(program, command.argv[1:])
        if task is None:
            return
        cwd = None if task.directory is None else absolute(task.directory, command.cwd, self.around)
        via = (*command.via, program)
        self._ask_opaque("program", shown(command.argv), via)
        for name in task.files:
            path = absolute(name, cwd, self.around)
            text = self._text(path)
            if path is not None and text is not None:
                # make reads only the first existing one of its files.
                self._look_into(path, lines_of(task, text), cwd, via, depth, key=(path, task.names))
                return

    def _look_into(
        self,
        path: str,
        lines: Sequence[Line],
        cwd: str | None,
        via: tuple[str, ...],
        depth: int,
        *,
        key: object = None,
    ) -> None:
        """Split the lines of a script, each script once: its calls of itself are covered by that."""
        looked = ("script", key or path, cwd)
        if looked in self._seen:
            return  # by the name and not by the text: a script that calls itself would never end
        self._seen.add(looked)
        before, outermost = self._where, not self._in_script
        self._where = f"{posixpath.relpath(path, self.around.workspace)}:1"
        self._open.append(path)
        try:
            # A script that the line writes before it runs it cannot be read beforehand.
            if path in self._written:
                self._ask_opaque("script", f"{path}, which is written as well", via)
            for line in lines:
                self._split_line(line.text, cwd, via, depth + 1, number=line.number)
        except ScriptTooLongError:
            if not outermost:
                raise
            self._in_scripts -= 1  # make room for the request that reports it
            self._ask_opaque("script", f"more than {MOST_IN_SCRIPTS} commands and files in scripts", via)
        finally:
            self._open.pop()
            self._where = before
