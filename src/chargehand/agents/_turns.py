"""The turns of a native agent as they were recorded, and when two of their calls are the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONG_SECONDS = 60.0
"""A call that runs this long is waiting for its command."""
_EXIT = re.compile(r"\[exit code (-?\d+)\]\s*\Z")
_TIMED_OUT = re.compile(r"\[timed out after (\d+(?:\.\d+)?) s\b[^\n]*\]\s*\Z")
_LEAST_SLEEP = 1.0
_READERS = frozenset({"read", "search"})

_VOLATILE = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\btmp(?:\.[A-Za-z0-9]{6,12}|[a-z0-9_]{8})\b"), "<temp>"),
    (re.compile(r"\bpytest-\d+\b"), "<temp>"),
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?)\b"), "<duration>"),
)
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_COMMAND = r"(?:^|[;&|({`\n'\"]|\b(?:do|then|else|sudo|exec|time)\b)\s*"
_SLEEP = re.compile(_COMMAND + r"sleep\s+(?:(\d+(?:\.\d+)?|\.\d+)([smhd]?)|[\"']?\$)")
_WAIT = re.compile(
    _COMMAND + r"(?:wait\b(?!-)|watch\s|inotifywait\b|wait-for|flock\s|(?:docker|kubectl|podman)\s+wait\b"
    r"|tail\b[^|;&\n]*\s(?:-\w*[fF]|--follow|--pid)|curl\s[^|;&\n]*--retry\b)"
    r"|\btime\.sleep\("
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_VIEW = re.compile(
    r"^\s*(?:cd\s+\S+\s*&&\s*)?(?:cat|head|tail|less|nl|sed\s+-n|awk|grep|rg|ls|find|tree|hexdump|xxd|od"
    r"|git\s+(?:show|log|diff|blame|grep|ls-files))\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call with its result as the model saw it; `failed` says that the tool refused or timed out.

    A command's exit code is read from the end of its result.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply of the model and what came of it; `changed` says whether the workspace's tree did."""

    text: str
    calls: tuple[Call, ...] = ()
    changed: bool = False


def waits(call: Call) -> bool:
    """Tell whether a call waits for something, which is never held against an agent."""
    if call.seconds >= LONG_SECONDS:
        return True
    command = call.arguments.get("command")
    if call.name != "bash" or not isinstance(command, str):
        return False
    if (cut_off := _TIMED_OUT.search(call.result)) and float(cut_off[1]) >= LONG_SECONDS:
        return True
    naps = (_UNITS[nap[2]] * float(nap[1]) if nap[1] else _LEAST_SLEEP for nap in _SLEEP.finditer(command))
    return any(nap >= _LEAST_SLEEP for nap in naps) or _WAIT.search(command) is not None


def ended(call: Call) -> tuple[str, int | None]:
    """Return the output of a call, and its exit code where it is a command that ended."""
    found = _EXIT.search(call.result) if call.name == "bash" else None
    return (call.result[: found.start()], int(found[1])) if found else (call.result, None)


def went_wrong(call: Call) -> bool:
    """Tell whether the tool refused, or the command ended with an exit code other than 0."""
    return call.failed or ended(call)[1] not in (0, None)


def normal(text: str) -> str:
    """Return `text` without what differs from run to run: numbers, times, durations, ids, temporary names."""
    return without_numbers(without_ids(text))


def without_ids(text: str) -> str:
    """Return `text` without times, durations, ids and temporary names; other numbers stay."""
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return text


def without_numbers(text: str) -> str:
    """Return `text` with `#` for each number."""
    return _NUMBER.sub("#", text)


def canonical(arguments: Mapping[str, Any]) -> str:
    """Return arguments as one text, the same for the same call: keys in order, ids and times left out."""
    text = json.dumps(dict(arguments), sort_keys=True, ensure_ascii=False, default=str)
    return without_ids(text.replace("\\n", "\n"))


def is_view(call: Call) -> bool:
    """Tell whether the numbers in a call say which part of something is read."""
    if went_wrong(call):
        return False
    return call.name in _READERS or _VIEW.match(str(call.arguments.get("command", ""))) is not None


def digest(*texts: str) -> bytes:
    """Return 16 bytes that stand for these texts."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()
