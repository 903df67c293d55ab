"""Distinguishes a native agent that goes in circles from one that works or waits, by its recorded turns.

Everything here is a function of the record, so that the result is the same after a crash. Two calls are equal if
they differ only in numbers, times, ids or names of temporary files. Never counted as going in circles: waiting (a
call that sleeps, waits or runs long) and new information (a new result or a new part of a file).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.core.text import late_pattern

# A call that runs this long is waiting for its command.
LONG_SECONDS = 60.0
_EXIT = late_pattern(r"\[exit code (-?\d+)\]\s*\Z")
_TIMED_OUT = late_pattern(r"\[timed out after (\d+(?:\.\d+)?) s\b[^\n]*\]\s*\Z")
_LEAST_SLEEP = 1.0
_READERS = frozenset({"read", "search"})

# Values that differ between two runs of the same command. The order matters: a UUID must be found before its
# hexadecimal parts are, a date before its time, and a time of day before the seconds in it.
_VOLATILE = (
    (late_pattern(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (late_pattern(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<id>"),
    (late_pattern(r"\btmp(?:\.[A-Za-z0-9]{6,12}|[a-z0-9_]{8})\b"), "<temp>"),
    (late_pattern(r"\bpytest-\d+\b"), "<temp>"),
    # A digit and a letter, otherwise "defaced" and plain numbers would be ids.
    (late_pattern(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}\b"), "<id>"),
    (late_pattern(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (late_pattern(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (late_pattern(r"\b\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?)\b"), "<duration>"),
)
_NUMBER = late_pattern(r"\d+(?:[.,:]\d+)*")
# The places where a word is a command of a shell line, and not an argument or a part of another word.
_COMMAND = r"(?:^|[;&|({`\n'\"]|\b(?:do|then|else|sudo|exec|time)\b)\s*"
_SLEEP = late_pattern(_COMMAND + r"sleep\s+(?:(\d+(?:\.\d+)?|\.\d+)([smhd]?)|[\"']?\$)")
_WAIT = late_pattern(
    _COMMAND + r"(?:wait\b(?!-)|watch\s|inotifywait\b|wait-for|flock\s|(?:docker|kubectl|podman)\s+wait\b"
    r"|tail\b[^|;&\n]*\s(?:-\w*[fF]|--follow|--pid)|curl\s[^|;&\n]*--retry\b)"
    r"|\btime\.sleep\("
)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Commands whose numbers select a part to read: paging through a file is not a loop.
_VIEW = late_pattern(
    r"^\s*(?:cd\s+\S+\s*&&\s*)?(?:cat|head|tail|less|nl|sed\s+-n|awk|grep|rg|ls|find|tree|hexdump|xxd|od"
    r"|git\s+(?:show|log|diff|blame|grep|ls-files))\b"
)


class ObservedCall(Struct, frozen=True, kw_only=True):
    """A tool call with its result as the model saw it; `failed` says that the tool refused or timed out.

    A command's exit code is read from the end of its result.
    """

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool = False
    seconds: float = 0.0


class Turn(Struct, frozen=True, kw_only=True):
    """One reply of the model and its results; `changed` says whether the workspace's tree changed."""

    text: str
    calls: tuple[ObservedCall, ...] = ()
    changed: bool = False


def is_waiting(call: ObservedCall) -> bool:
    """Return whether a call waits for something, which never counts against an agent."""
    if call.seconds >= LONG_SECONDS:
        return True
    command = call.arguments.get("command")
    if call.name != "bash" or not isinstance(command, str):
        return False
    if (cut_off := _TIMED_OUT.search(call.result)) and float(cut_off[1]) >= LONG_SECONDS:
        return True
    naps = (_UNITS[nap[2]] * float(nap[1]) if nap[1] else _LEAST_SLEEP for nap in _SLEEP.finditer(command))
    return any(nap >= _LEAST_SLEEP for nap in naps) or _WAIT.search(command) is not None


def split_exit_code(call: ObservedCall) -> tuple[str, int | None]:
    """Return the output of a call, and its exit code if it is a command that ended."""
    found = _EXIT.search(call.result) if call.name == "bash" else None
    return (call.result[: found.start()], int(found[1])) if found else (call.result, None)


def went_wrong(call: ObservedCall) -> bool:
    """Return whether the tool refused, or the command ended with an exit code other than 0."""
    return call.failed or split_exit_code(call)[1] not in (0, None)


def normalise(text: str) -> str:
    """Return `text` without values that differ between runs: numbers, times, durations, ids, temporary names."""
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
    """Return arguments as one text, equal for equal calls: keys in order, ids and times left out."""
    text = json.dumps(dict(arguments), sort_keys=True, ensure_ascii=False, default=str)
    return without_ids(text.replace("\\n", "\n"))


def is_view(call: ObservedCall) -> bool:
    """Return whether the numbers in a call select the part to read."""
    if went_wrong(call):
        return False
    return call.name in _READERS or _VIEW.match(str(call.arguments.get("command", ""))) is not None


def digest(*texts: str) -> bytes:
    """Return a 16-byte digest of these texts."""
    return hashlib.blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


Pattern = Literal[
    "doom_loop", "same_result", "counter", "same_error", "same_failure", "monologue", "alternation", "no_progress"
]
LadderAction = Literal["nudge", "switch", "roll_back", "ask"]

_EDITORS = frozenset({"edit", "write", "apply_patch"})
# The threshold of each pattern. The same call with the same result is tolerated longer while files change in
# between, and a call that only counts up its numbers may be paging.
_DOOM, _SAME, _SAME_CHANGING, _COUNTER, _ERRORS, _FAILURES, _MONOLOGUE, _IDLE = 3, 4, 6, 6, 3, 6, 3, 25
# Turns without progress after a step of the ladder: it got a hint, so it has less time than at first.
_IDLE_AGAIN = 10
# Actions of a repeated period: three full periods of two, two and a half of four.
_ALTERNATION = {2: 6, 3: 8, 4: 10}


class Stuck(Struct, frozen=True, kw_only=True):
    """A detected loop: a stable code, a sentence for the model, and the turn (from 0) in which it began."""

    pattern: Pattern
    message: str
    since: int


class LadderStep(Struct, frozen=True, kw_only=True):
    """The response to a loop, after `turn` turns; `roll_back` returns to the state before turn `stuck.since`."""

    kind: LadderAction
    turn: int
    stuck: Stuck


class _ComparedCall(Struct, frozen=True, kw_only=True):
    """A call for comparison: `exact` with its numbers, `like` without, `error` equal for similar failures."""

    turn: int
    name: str
    exact: bytes
    like: bytes
    arguments: bytes
    error: bytes | None
    changed: bool


class StuckDetector(Struct):
    """Takes an agent's turns one by one and reports after each whether it is stuck, or `progressed`."""

    progressed: bool = False
    _turns: int = 0
    # A `None` separates: calls before it are not compared with calls after it.
    _calls: list[_ComparedCall | None] = field(default_factory=list)
    _whole: list[bytes | None] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)
    _changes: set[bytes] = field(default_factory=set)
    _failures: dict[bytes, tuple[bytes, list[int]]] = field(default_factory=dict)
    _failure: tuple[str, bytes] = ("", b"")
    _streak: int = 0
    _idle_since: int = 0
    _silent: int = 0

    def add(self, turn: Turn) -> Stuck | None:
        """Take the next turn; return how the agent is stuck, or `None` while it works or waits."""
        begin, number = len(self._calls), self._turns
        self._turns += 1
        self._silent = 0 if turn.calls else self._silent + 1
        waited = any(is_waiting(call) for call in turn.calls)
        new = self._compare_calls(turn, number)
        together = b"".join(call.like for call in self._calls[begin:] if call is not None)
        self._whole.append(None if waited or not turn.calls else together)
        self.progressed = new
        if turn.changed:
            # A change is progress unless it was made before in the same way, or does not fix a repeated failure.
            change = self._whole[-1] or b""
            first = change not in self._changes or not change
            self._changes.add(change)
            self.progressed = (new or first) and not self._is_thrashing()
        if self.progressed:
            self._streak, self._idle_since = begin, self._turns
        # A wait ends every comparison: the same poll before and after it is right for an agent.
        if waited:
            self._calls.append(None)
            self._streak, self._idle_since = len(self._calls), self._turns
            self._failures.clear()
            return None
        if self._silent >= _MONOLOGUE:
            text = f"The last {self._silent} replies called no tool."
            return Stuck(pattern="monologue", message=text, since=self._turns - self._silent)
        if turn.calls:
            found = self._find_same_error() or self._find_doom_loop() or self._find_alternation()
            found = found or self._find_same_result() or self._find_same_failure(turn)
            if found is not None:
                return found
        idle = self._turns - self._idle_since
        if idle >= _IDLE:
            text = f"The last {idle} turns changed no file and found nothing new."
            return Stuck(pattern="no_progress", message=text, since=self._idle_since)
        return None

    def begin_anew(self) -> None:
        """Stop comparing the past with the future; known results stay known."""
        self._calls.append(None)
        self._whole.append(None)
        self._streak, self._silent = len(self._calls), 0
        self._idle_since = max(self._idle_since, self._turns - _IDLE + _IDLE_AGAIN)
        # Some failures stay counted: it got a hint, so fewer are enough than at first.
        for _, turns in self._failures.values():
            del turns[: -(_FAILURES - _ERRORS)]

    def _compare_calls(self, turn: Turn, number: int) -> bool:
        new = False
        for call in turn.calls:
            arguments = canonical(call.arguments)
            (output, code), view = split_exit_code(call), is_view(call)
            result = f"{code} {without_ids(output)}"
            exact = view or (call.name in _EDITORS and not call.failed)  # numbers select the place, or the change
            # Without its numbers, `attempt 3` is the same call as `attempt 2`, and a counter does not hide a loop.
            like = digest(call.name, arguments if exact else without_numbers(arguments))
            alike = digest(str(code), normalise(output))
            error = like + alike if went_wrong(call) else None
            if error is not None and call.name in _EDITORS:
                # A failing edit is retried with other words each time, so only the file is compared.
                error = digest(call.name, str(call.arguments.get("path", "")))
            self._calls.append(
                _ComparedCall(
                    turn=number,
                    name=call.name,
                    exact=digest(call.name, arguments, result),
                    like=like + alike,
                    arguments=digest(arguments),
                    error=error,
                    changed=turn.changed,
                )
            )
            new |= self._is_new(call, arguments, alike, view=view)
            if call.name == "bash" and not is_waiting(call):
                action, outcome = digest(arguments), digest(result)
                before, turns = self._failures.get(action, (b"", []))
                if not went_wrong(call):
                    self._failures.pop(action, None)
                # Only the same output again counts: another error after a change is progress.
                elif before == outcome:
                    turns.append(number)
                else:
                    self._failures[action] = (outcome, [number])
                if went_wrong(call) or action == self._failure[1]:
                    self._failure = (str(call.arguments.get("command", "")), action)
        return new

    def _is_new(self, call: ObservedCall, arguments: str, alike: bytes, *, view: bool) -> bool:
        """Return whether the call brought information; a tool's refusal or an echo of the call does not count."""
        if call.failed and call.name != "bash":
            return False
        text = normalise(split_exit_code(call)[0]).strip()
        if not text or (call.name == "bash" and not view and text in without_numbers(arguments)):
            return False
        # A new part of a file is news even if it reads like another part.
        facts = {alike, digest("view", call.name, arguments)} if view else {alike}
        new = not facts <= self._seen
        self._seen |= facts
        return new

    def _is_thrashing(self) -> bool:
        turns = self._failures.get(self._failure[1], (b"", []))[1]
        return len(turns) >= _FAILURES

    def _recent_calls(self) -> list[_ComparedCall]:
        return [call for call in self._calls[self._streak :] if call is not None]

    def _find_same_error(self) -> Stuck | None:
        last = self._calls[-1]
        if last is None or last.error is None:
            return None
        alike = [call for call in self._recent_calls() if call.error == last.error]
        varied = last.name not in _EDITORS and len({call.arguments for call in alike}) > 1
        if len(alike) < (_COUNTER if varied else _ERRORS):
            return None
        text = f"{last.name} failed {len(alike)} times in the same way."
        return Stuck(pattern="same_error", message=text, since=alike[0].turn)

    def _find_doom_loop(self) -> Stuck | None:
        tail = [call for call in self._calls[-_DOOM:] if call is not None and not call.changed]
        if len(tail) < _DOOM or len({call.exact for call in tail}) > 1:
            return None
        text = f"The same call to {tail[0].name} was made {_DOOM} times in a row with the same result."
        return Stuck(pattern="doom_loop", message=text, since=tail[0].turn)

    def _find_same_result(self) -> Stuck | None:
        last = self._calls[-1]
        if last is None:
            return None
        alike = [call for call in self._recent_calls() if call.like == last.like]
        counting = len({call.arguments for call in alike}) > 1
        enough = _COUNTER if counting else _SAME_CHANGING if any(call.changed for call in alike) else _SAME
        if len(alike) < enough:
            return None
        but = ", but for numbers," if counting else ""
        text = f"The same call{but} to {last.name} was made {len(alike)} times with the same result."
        return Stuck(pattern="counter" if counting else "same_result", message=text, since=alike[0].turn)

    def _find_alternation(self) -> Stuck | None:
        tail = self._calls[-2 * _IDLE :]
        calls = [call.like if call else None for call in tail]
        # Whole turns as well: turns of several calls can alternate without a short period of single calls.
        whole = self._whole[-2 * _IDLE :]
        # `_find_same_result` finds a period of one.
        for period, least in _ALTERNATION.items():
            length = _count_periodic(calls, period)
            if length >= least and (first := tail[-length]) is not None:
                return _alternation_of(period, length, "actions", first.turn)
            length = _count_periodic(whole, period)
            if length >= least:
                return _alternation_of(period, length, "turns", self._turns - length)
        return None

    def _find_same_failure(self, turn: Turn) -> Stuck | None:
        command, action = self._failure
        if not self._is_thrashing() or all(call.arguments.get("command") != command for call in turn.calls):
            return None
        turns = self._failures[action][1]
        text = (
            f"{command[:200]!r} failed {len(turns)} times with the same output, whatever was changed in between."
        )
        return Stuck(pattern="same_failure", message=text, since=turns[0])


def _alternation_of(period: int, length: int, what: str, since: int) -> Stuck:
    text = f"The same {period} {what} were repeated in turn, {length} in all, with the same results."
    return Stuck(pattern="alternation", message=text, since=since)


def _count_periodic(keys: Sequence[bytes | None], period: int) -> int:
    """Return how many keys at the end repeat with this period, 0 if they do not or are all the same."""
    length = period
    if len(keys) < period or None in keys[-period:] or len(set(keys[-period:])) == 1:
        return 0
    while length < len(keys) and keys[-1 - length] == keys[-1 - length + period]:
        length += 1
    return length


# From the cheapest and mildest to steps that cost a person's time.
_LADDER: tuple[LadderAction, ...] = ("nudge", "switch", "roll_back", "ask")
# Turns that a step is given to help; turns of progress after which the ladder restarts at the bottom.
_CHANCE, _RECOVERED = 3, 3


class EscalationLadder(Struct):
    """Decides the response to a stuck agent: nudge, switch, roll back, ask; the last is repeated.

    After a step the agent must get stuck again before the next is due; real progress leads back to the bottom.
    Call it with the recorded turns and steps in their order. `others` is the number of other models to switch to,
    each used once.
    """

    others: int
    _watch: StuckDetector = field(default_factory=StuckDetector)
    _turns: int = 0
    _stuck: Stuck | None = None
    _last: LadderStep | None = None
    _progress: int = 0
    _switched: int = 0

    def add(self, turn: Turn) -> None:
        """Take the next recorded turn."""
        self._turns += 1
        self._stuck = self._watch.add(turn)
        if self._stuck is None and self._watch.progressed:
            self._progress += 1
            if self._progress >= _RECOVERED:
                self._last = None

    def take(self, step: LadderStep) -> None:
        """Take a recorded step, done after the turns so far."""
        self._last, self._progress, self._stuck = step, 0, None
        self._watch.begin_anew()
        self._switched += step.kind == "switch"

    def due(self) -> LadderStep | None:
        """Return the step to do now, if any; it counts once it is passed to `take`."""
        if self._stuck is None:
            return None
        if self._last is None:
            return LadderStep(kind="nudge", turn=self._turns, stuck=self._stuck)
        if self._turns - self._last.turn < _CHANCE:
            return None
        kind = _LADDER[min(_LADDER.index(self._last.kind) + 1, len(_LADDER) - 1)]
        if kind == "switch" and self._switched >= self.others:
            kind = "roll_back"
        # The steps of one climb concern one loop, so a roll-back goes to where the first of them saw it begin.
        since = min(self._stuck.since, self._last.stuck.since)
        return LadderStep(kind=kind, turn=self._turns, stuck=replace(self._stuck, since=since))


# Characters of a call's arguments and of the end of its result that a person is shown.
_SHOWN_CALL, _SHOWN_RESULT = 300, 1_000
_ADVICE = {
    "monologue": "Call a tool now: act, ask if a person has to decide, or finish.",
    "same_error": "Find out why it fails before you try it again: read the whole error and the real text.",
    "same_failure": "Your changes do not reach the cause. Read the error and the code that it comes from.",
    "no_progress": "Say in one sentence what is missing, then change something, ask, or finish.",
}


def nudge_message(stuck: Stuck) -> str:
    """Return the text for a model that goes in circles."""
    advice = _ADVICE.get(stuck.pattern, "Repeating it brings nothing new. Try something else, ask, or finish.")
    return f"You seem to be going in circles. {stuck.message} {advice}"


def stuck_question(stuck: Stuck, last: ObservedCall | None) -> str:
    """Return the question to a person about an agent that goes in circles, including its last call."""
    lines = [f"The agent is going in circles and hints did not help. {stuck.message}"]
    if last is not None:
        arguments = ", ".join(f"{name}: {value}" for name, value in last.arguments.items())
        lines.append(f"Its last call was {last.name} ({arguments[:_SHOWN_CALL]}), with this result:")
        lines.append(last.result.strip()[-_SHOWN_RESULT:] or "(nothing)")
    return "\n".join([*lines, "What should it do now?"])
