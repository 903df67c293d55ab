"""Scripts: the replies of a scripted model in a file, one per line.

The tool calls of a `neutral` script use our own tool names, and are converted to calls of the tools that a request
offers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from chargehand.core.codec import convert_to
from chargehand.core.errors import UsageError, nearest
from chargehand.models.contract import StopReason, Usage
from chargehand.models.faults import Fault
from chargehand.models.recording import read_header, read_source
from chargehand.models.scripted_replies import ScriptedCall, ScriptedReply

_FORMAT = "chargehand-script"
_VERSION = 1


class ScriptLine(msgspec.Struct, frozen=True, kw_only=True):
    """One reply of a script with its attempt and turn; `line` is its line number in the file.

    `expect` lists texts that the newest messages of the call must contain, so that a script cannot drift unseen.
    """

    reply: ScriptedReply
    line: int = 0
    attempt: int | None = None
    turn: int | None = None
    expect: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: bytes, *, name: str, number: int) -> ScriptLine:
        """Read line `number` of the script `name`; raises `UsageError` (`script_invalid`) that names both."""
        try:
            found = json.loads(line)
            raw = convert_to(found, _RawLine)
            fault = Fault.parse(raw.fault) if raw.fault else None
            if fault is not None and (fault.turn is not None or fault.probability is not None):
                raise ValueError(f"the fault {raw.fault!r} names a turn, but its line is already for one turn")
        except (ValueError, msgspec.ValidationError) as error:
            raise _invalid(name, number, str(error)) from error
        _check_keys(found, _RawLine.__struct_fields__, name, number)
        for call in found.get("tools", ()):
            _check_keys(call, _RawCall.__struct_fields__, name, number)
        if min(raw.attempt or 1, raw.turn or 1) < 1 or raw.attempt == 0 or raw.turn == 0 or raw.delay < 0:
            raise _invalid(name, number, "attempts and turns count from 1, and a delay is not negative")
        tools = tuple(ScriptedCall(name=c.name, arguments=c.arguments or {}, id=c.id) for c in raw.tools)
        return cls(
            line=number,
            attempt=raw.attempt,
            turn=raw.turn,
            expect=(raw.expect,) if isinstance(raw.expect, str) else raw.expect,
            reply=ScriptedReply(
                text=raw.text, tools=tools, usage=raw.usage, stop=raw.stop, fault=raw.fault, delay=raw.delay
            ),
        )

    def to_document(self) -> dict[str, Any]:
        """Return the line as written in its file, without empty fields."""
        reply = self.reply
        usage = {} if reply.usage is None else asdict(reply.usage)
        tools = [
            {"name": call.name, "arguments": call.arguments, **({"id": call.id} if call.id else {})}
            for call in reply.tools
        ]
        made = {
            "text": reply.text,
            "tools": tools,
            "usage": {key: value for key, value in usage.items() if value is not None},
            "stop": reply.stop,
            "fault": reply.fault,
            "delay": reply.delay,
            "expect": list(self.expect),
        }
        due = {"attempt": self.attempt, "turn": self.turn}
        return {
            **{key: value for key, value in due.items() if value is not None},
            **{key: value for key, value in made.items() if value},
        }


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The replies of a scripted model, in order.

    Lines that name an attempt belong to it; an attempt that no line names gets the lines without an attempt. A
    line without a turn is due one turn after the line before it. The calls of a `neutral` script are converted to
    the tools that each request offers.
    """

    lines: tuple[ScriptLine, ...]
    note: str = ""
    name: str = "script"
    neutral: bool = False

    @classmethod
    def load(cls, source: Path | str | bytes) -> Script:
        """Read a script from a file or from its bytes.

        Raises `UsageError` (`script_invalid`, `file_unreadable`) that names file and line.
        """
        content, name = read_source(source, "script")
        lines = content.split(b"\n")
        header = read_header(lines[0], _FORMAT, _VERSION, lambda text: _invalid(name, 1, text))
        found = tuple(
            ScriptLine.parse(line, name=name, number=number)
            for number, line in enumerate(lines[1:], start=2)
            if line.strip()
        )
        if header.get("tools", "as written") not in ("as written", "neutral"):
            raise _invalid(name, 1, f'tools are "neutral" or "as written", not {header["tools"]!r}')
        neutral = header.get("tools") == "neutral"
        return cls(lines=found, note=str(header.get("note", "")), name=name, neutral=neutral)

    @classmethod
    def of(cls, *replies: ScriptedReply | str) -> Script:
        """Return a script of these replies in order, the same for every attempt."""
        made = (ScriptedReply(text=one) if isinstance(one, str) else one for one in replies)
        return cls(lines=tuple(ScriptLine(reply=reply, line=n) for n, reply in enumerate(made, start=2)))

    def dump(self) -> bytes:
        """Return the script in the format that `load` reads."""
        header = {"format": _FORMAT, "version": _VERSION, "note": self.note}
        header |= {"tools": "neutral"} if self.neutral else {}
        documents = [header, *(line.to_document() for line in self.lines)]
        return b"".join(json.dumps(document).encode() + b"\n" for document in documents)

    def turns(self) -> Iterator[tuple[int | None, int, ScriptLine]]:
        """Yield each line with the attempt and the turn that it is due for."""
        last: dict[int | None, int] = {}
        for line in self.lines:
            turn = last.get(line.attempt, 0) + 1 if line.turn is None else line.turn
            last[line.attempt] = turn
            yield line.attempt, turn, line


class _RawCall(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, Any] | str = ""
    id: str = ""


class _RawLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line as written in the file; every field is optional."""

    attempt: int | None = None
    turn: int | None = None
    text: str = ""
    tools: tuple[_RawCall, ...] = ()
    usage: Usage | None = None
    stop: StopReason | None = None
    fault: str = ""
    delay: float = 0.0
    expect: str | tuple[str, ...] = ()
    note: str = ""


def _check_keys(found: Mapping[str, Any], known: Iterable[str], name: str, number: int) -> None:
    names = list(known)
    for key in found:
        if key not in names:
            raise _invalid(name, number, f"{key!r} is not a field of a script", nearest(key, names))


def _invalid(name: str, line: int, problem: str, hint: str = "") -> UsageError:
    more = f"a line is a JSON object with any of {', '.join(_RawLine.__struct_fields__)}"
    return UsageError(f"{name}, line {line}: {problem}", code="script_invalid", hint=f"{hint}\n{more}".strip())
