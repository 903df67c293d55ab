"""An action taken apart into what rules are asked about: commands, files, hosts, each with its facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chargehand.policy._actions import (
    Action,
    Command,
    FileRead,
    FileWrite,
    GitAction,
    Network,
    Other,
    Several,
    Shell,
    Surroundings,
)
from chargehand.policy._paths import absolute, places
from chargehand.policy._programs import flags, hosts, subcommands, touched
from chargehand.policy._shell import Parsed, Simple, parse
from chargehand.policy._wrappers import INTERPRETERS, SHELLS, inner_of, program_of

MOST_PARTS = 400
"""Things that one action is taken apart into at most; one with more is not understood."""
_DEEPEST = 8
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0", "ip6-localhost"})  # noqa: S104 -- compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to the rules; `action` and `resource` are Cedar's, `text` is for people."""

    action: str
    resource: tuple[str, str]
    text: str
    facts: Mapping[str, Any]
    via: tuple[str, ...] = ()


class TooMuchError(Exception):
    """An action has more parts than are looked at."""


@dataclass(slots=True)
class Apart:
    """Takes one action apart; `requests` is what came of it."""

    around: Surroundings
    requests: list[Request] = field(default_factory=list)

    def take(self, action: Action) -> None:
        """Add what an action asks; raises `TooMuchError`."""
        match action:
            case Several():
                for each in action.actions:
                    self.take(each)
            case Command():
                self._command(Simple(argv=action.argv, cwd=self._cwd(action.cwd)), 0)
            case GitAction():
                self._command(Simple(argv=("git", *action.words), cwd=self._cwd(action.cwd)), 0)
            case Shell():
                self._line(action.text, self._cwd(action.cwd), (), 0)
            case FileRead():
                self._file("read", action.path, self._cwd(None), ())
            case FileWrite():
                self._file("delete" if action.removal else "write", action.path, self._cwd(None), ())
            case Network():
                self._host(action.host, action.port, ())
            case Other():
                facts = {"kind": action.kind, "name": action.name, "facts": sorted(f"{k}={v}" for k, v in
                         action.facts.items())}  # fmt: skip
                self._add(Request(action="other", resource=("Thing", action.kind), text=f"{action.kind} "
                                  f"{action.name}", facts=facts))  # fmt: skip

    def _cwd(self, given: str | None) -> str:
        return given or self.around.cwd or self.around.workspace

    def _add(self, request: Request) -> None:
        if len(self.requests) >= MOST_PARTS:
            raise TooMuchError
        self.requests.append(request)

    def _shell(self, state: str, text: str, via: tuple[str, ...]) -> None:
        """Ask about a line or script that could not be looked into."""
        self._add(Request(action="shell", resource=("Shell", state), text=text, facts={"state": state}, via=via))

    def _line(self, text: str | None, cwd: str | None, via: tuple[str, ...], depth: int) -> None:
        if text is None:
            return self._shell("unknown", "a line that is made as it runs", via)
        parsed = parse(text, cwd=cwd, via=via) if depth <= _DEEPEST else Parsed(problem="it is nested too deeply")
        if parsed.problem:
            return self._shell("unparsable", f"{text[:200]!r}: {parsed.problem}", via)
        if parsed.recursive:
            self._shell("recursive", "a function that calls itself", via)
        for redirect in parsed.redirects:
            self._file("write" if redirect.writes else "read", redirect.path, redirect.cwd, (*redirect.via, ">"))
        for command in parsed.commands:
            self._command(command, depth, parsed.functions)
        return None

    def _command(self, command: Simple, depth: int, functions: frozenset[str] = frozenset()) -> None:
        first = command.argv[0] if command.argv else None
        if first is not None and first in functions:
            return
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
        self._touches(program, command)
        for host, port in hosts(program, words) or ():
            self._host(host, port, (*command.via, program))
        self._inside(program, command, depth)

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
            "sandboxed": self.around.sandboxed,
            "purpose": self.around.purpose,
        }

    def _touches(self, program: str, command: Simple) -> None:
        found = touched(program, command.argv[1:])
        via = (*command.via, program)
        for kind, paths in (("delete", found.removes), ("write", found.writes), ("read", found.reads)):
            for path in dict.fromkeys(paths):
                self._file(kind, path, command.cwd, via, quiet=kind == "read")

    def _file(
        self, kind: str, path: str | None, cwd: str | None, via: tuple[str, ...], *, quiet: bool = False
    ) -> None:
        """Ask about a file; `quiet` leaves out what is only maybe one, and nothing that rules could mind."""
        remote = device_host(path)
        if remote is not None:
            return self._host(*remote, via)
        real = absolute(path, cwd, self.around)
        named = places(real, self.around)
        if quiet and not named & {"secret", "device", "git"}:
            return None
        text = path if path is not None else "a file that is named as it runs"
        facts = {"path": real or "", "places": sorted(named), "sandboxed": self.around.sandboxed, "via": list(via),
                 "purpose": self.around.purpose}  # fmt: skip
        self._add(Request(action=kind, resource=("File", real or ""), text=text, facts=facts, via=via))
        return None

    def _host(self, host: str, port: int, via: tuple[str, ...]) -> None:
        name = host.lower().strip("[]").rstrip(".")
        loopback = name in _LOOPBACK or name.endswith(".localhost") or name.startswith("127.")
        facts = {"host": name, "port": port, "loopback": loopback, "listed": name in self.around.hosts,
                 "known": bool(name), "purpose": self.around.purpose}  # fmt: skip
        text = f"{name or 'a host that is not known'}{f':{port}' if port else ''}"
        self._add(Request(action="network", resource=("Host", name), text=text, facts=facts, via=via))

    def _inside(self, program: str, command: Simple, depth: int) -> None:
        inner = inner_of(command)
        via = (*command.via, inner.label)
        if depth > _DEEPEST:
            return self._shell("unparsable", "it is nested too deeply", via)
        for argv in inner.commands:
            self._command(Simple(argv=argv, cwd=command.cwd, via=via, feed=command.feed), depth + 1)
        for line in inner.lines:
            self._line(line, command.cwd, via, depth + 1)
        for script in inner.scripts:
            self._script(script, command.cwd, via, depth)
        if not inner.scripts and "/" in (command.argv[0] or ""):
            self._own_script(command, depth)
        if program in INTERPRETERS and command.feed is not None and not any(_is_file(w) for w in command.argv[1:]):
            self._shell("program", f"{program} reads a program", (*command.via, program))
        return None

    def _own_script(self, command: Simple, depth: int) -> None:
        """Look into a script that is run by its path, where the caller knows its text."""
        path = absolute(command.argv[0], command.cwd, self.around)
        text = self.around.script(path) if self.around.script is not None and path is not None else None
        first = (text or "").partition("\n")[0]
        if text is not None and (not first.startswith("#!") or any(first.endswith(name) for name in SHELLS)):
            self._line(text, command.cwd, (*command.via, "script"), depth + 1)

    def _script(self, script: str | None, cwd: str | None, via: tuple[str, ...], depth: int) -> None:
        path = absolute(script, cwd, self.around)
        text = self.around.script(path) if self.around.script is not None and path is not None else None
        if text is not None:
            self._line(text, cwd, via, depth + 1)
        else:
            state = "stream" if path is None or path.startswith("/dev/") else "script"
            self._shell(state, script or "a script that is not known", via)


def _is_file(word: str | None) -> bool:
    return word is None or not word.startswith("-") or word in ("-c", "-e", "-m")


def shown(argv: Sequence[str | None]) -> str:
    """Return a command as one line, "?" for words that are not known."""
    return " ".join("?" if word is None else word for word in argv)


def device_host(path: str | None) -> tuple[str, int] | None:
    """Return host and port of bash's `/dev/tcp/HOST/PORT`."""
    if path is None or not path.startswith(("/dev/tcp/", "/dev/udp/")):
        return None
    host, _, port = path.split("/", 3)[3].partition("/")
    return host, int(port) if port.isdigit() else 0


def apart(action: Action, around: Surroundings) -> Iterator[Request]:
    """Yield what an action asks of the rules; one with too many parts is not understood."""
    found = Apart(around)
    try:
        found.take(action)
    except TooMuchError:
        yield Request(action="shell", resource=("Shell", "unparsable"), facts={"state": "unparsable"},
                      text=f"more than {MOST_PARTS} commands and files")  # fmt: skip
    yield from found.requests
