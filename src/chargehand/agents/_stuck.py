"""Tells a native agent that goes in circles from one that works or waits, by its recorded turns alone.

Everything here is a function of what was recorded, so that it comes out the same after a crash. Two calls are
the same when they differ only in numbers, times, ids or names of temporary files. What never counts as going in
circles: waiting (a call that sleeps, waits or runs long) and new information (a result or a part of a file not
seen before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from chargehand.agents._turns import (
    Call,
    Turn,
    canonical,
    digest,
    ended,
    is_view,
    normal,
    waits,
    went_wrong,
    without_ids,
    without_numbers,
)

__all__ = ["Call", "Ladder", "Pattern", "Step", "StepKind", "Stuck", "Turn", "Watch"]

Pattern = Literal[
    "doom_loop", "same_result", "counter", "same_error", "same_failure", "monologue", "alternation", "no_progress"
]
StepKind = Literal["nudge", "switch", "roll_back", "ask"]

_EDITORS = frozenset({"edit", "write", "apply_patch"})
_DOOM, _SAME, _SAME_CHANGING, _COUNTER, _ERRORS, _FAILURES, _MONOLOGUE, _IDLE = 3, 4, 6, 6, 3, 6, 3, 25
_IDLE_AGAIN = 10
_ALTERNATION = {2: 6, 3: 8, 4: 10}
"""Actions of a repeated period: three full ones of two, two and a half of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """What goes in circles: a stable code, a sentence for the model, and the turn (from 0) in which it began."""

    pattern: Pattern
    message: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done about it, after `turn` turns; `roll_back` goes to the state before turn `stuck.since`."""

    kind: StepKind
    turn: int
    stuck: Stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    """A call as it is compared: `exact` with its own numbers, `like` without, `error` for failures alike."""

    turn: int
    name: str
    exact: bytes
    like: bytes
    arguments: bytes
    error: bytes | None
    changed: bool


@dataclass(slots=True)
class Watch:
    """Takes an agent's turns one by one and tells after each whether it is stuck; `progressed` is of the last."""

    progressed: bool = False
    _turns: int = 0
    _acts: list[_Act | None] = field(default_factory=list)  # None: nothing before it is compared with what follows
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
        begin, number = len(self._acts), self._turns
        self._turns += 1
        self._silent = 0 if turn.calls else self._silent + 1
        waited = any(waits(call) for call in turn.calls)
        new = self._take(turn, number)
        self._whole.append(None if waited or not turn.calls else self._together(begin))
        self.progressed = self._is_progress(turn, new=new)
        if self.progressed:
            self._streak, self._idle_since = begin, self._turns
        if waited:
            self._acts.append(None)
            self._streak, self._idle_since = len(self._acts), self._turns
            self._failures.clear()
            return None
        return self._judge(turn)

    def begin_anew(self) -> None:
        """Compare nothing of the past with what follows; what was seen stays seen."""
        self._acts.append(None)
        self._whole.append(None)
        self._streak, self._silent = len(self._acts), 0
        self._idle_since = max(self._idle_since, self._turns - _IDLE + _IDLE_AGAIN)
        for _, turns in self._failures.values():
            del turns[: -(_FAILURES - _ERRORS)]

    def _take(self, turn: Turn, number: int) -> bool:
        new = False
        for call in turn.calls:
            arguments = canonical(call.arguments)
            (output, code), view = ended(call), is_view(call)
            result = f"{code} {without_ids(output)}"
            exact = view or (call.name in _EDITORS and not call.failed)  # numbers say where, or what is changed
            like = digest(call.name, arguments if exact else without_numbers(arguments))
            alike = digest(str(code), normal(output))
            self._acts.append(
                _Act(
                    turn=number,
                    name=call.name,
                    exact=digest(call.name, arguments, result),
                    like=like + alike,
                    arguments=digest(arguments),
                    error=_error(call, like + alike),
                    changed=turn.changed,
                )
            )
            new |= self._is_new(call, arguments, alike, view=view)
            if call.name == "bash" and not waits(call):
                self._note_failure(call, digest(arguments), digest(result), number)
        return new

    def _is_new(self, call: Call, arguments: str, alike: bytes, *, view: bool) -> bool:
        """Tell whether the call brought information; a tool's own refusal or the call's own words are none."""
        if call.failed and call.name != "bash":
            return False
        text = normal(ended(call)[0]).strip()
        if not text or (call.name == "bash" and not view and text in without_numbers(arguments)):
            return False
        facts = {alike, digest("view", call.name, arguments)} if view else {alike}
        new = not facts <= self._seen
        self._seen |= facts
        return new

    def _note_failure(self, call: Call, action: bytes, result: bytes, number: int) -> None:
        before, turns = self._failures.get(action, (b"", []))
        if not went_wrong(call):
            self._failures.pop(action, None)
        elif before == result:
            turns.append(number)
        else:
            self._failures[action] = (result, [number])
        if went_wrong(call) or action == self._failure[1]:
            self._failure = (str(call.arguments.get("command", "")), action)

    def _together(self, begin: int) -> bytes:
        return b"".join(act.like for act in self._acts[begin:] if act is not None)

    def _is_progress(self, turn: Turn, *, new: bool) -> bool:
        """Tell whether the turn got on: new information, or a change that was not made before in the same way."""
        if not turn.changed:
            return new
        change = self._whole[-1] or b""
        first = change not in self._changes or not change
        self._changes.add(change)
        return (new or first) and not self._is_thrashing()

    def _is_thrashing(self) -> bool:
        turns = self._failures.get(self._failure[1], (b"", []))[1]
        return len(turns) >= _FAILURES

    def _judge(self, turn: Turn) -> Stuck | None:
        if self._silent >= _MONOLOGUE:
            text = f"The last {self._silent} replies called no tool."
            return Stuck(pattern="monologue", message=text, since=self._turns - self._silent)
        if turn.calls:
            found = self._same_error() or self._doom() or self._alternation() or self._same_result()
            found = found or self._same_failure(turn)
            if found is not None:
                return found
        idle = self._turns - self._idle_since
        if idle >= _IDLE:
            text = f"The last {idle} turns changed no file and found nothing new."
            return Stuck(pattern="no_progress", message=text, since=self._idle_since)
        return None

    def _recent(self) -> list[_Act]:
        return [act for act in self._acts[self._streak :] if act is not None]

    def _same_error(self) -> Stuck | None:
        last = self._acts[-1]
        if last is None or last.error is None:
            return None
        alike = [act for act in self._recent() if act.error == last.error]
        varied = last.name not in _EDITORS and len({act.arguments for act in alike}) > 1
        if len(alike) < (_COUNTER if varied else _ERRORS):
            return None
        text = f"{last.name} failed {len(alike)} times in the same way."
        return Stuck(pattern="same_error", message=text, since=alike[0].turn)

    def _doom(self) -> Stuck | None:
        tail = [act for act in self._acts[-_DOOM:] if act is not None and not act.changed]
        if len(tail) < _DOOM or len({act.exact for act in tail}) > 1:
            return None
        text = f"The same call to {tail[0].name} was made {_DOOM} times in a row with the same result."
        return Stuck(pattern="doom_loop", message=text, since=tail[0].turn)

    def _same_result(self) -> Stuck | None:
        last = self._acts[-1]
        if last is None:
            return None
        alike = [act for act in self._recent() if act.like == last.like]
        counting = len({act.arguments for act in alike}) > 1
        enough = _COUNTER if counting else _SAME_CHANGING if any(act.changed for act in alike) else _SAME
        if len(alike) < enough:
            return None
        but = ", but for numbers," if counting else ""
        text = f"The same call{but} to {last.name} was made {len(alike)} times with the same result."
        return Stuck(pattern="counter" if counting else "same_result", message=text, since=alike[0].turn)

    def _alternation(self) -> Stuck | None:
        tail = self._acts[-2 * _IDLE :]
        calls = [act.like if act else None for act in tail]
        whole = self._whole[-2 * _IDLE :]
        for period, least in _ALTERNATION.items():
            length = _periodic(calls, period)
            if length >= least and (first := tail[-length]) is not None:
                return _alternating(period, length, "actions", first.turn)
            length = _periodic(whole, period)
            if length >= least:
                return _alternating(period, length, "turns", self._turns - length)
        return None

    def _same_failure(self, turn: Turn) -> Stuck | None:
        command, action = self._failure
        if not self._is_thrashing() or all(call.arguments.get("command") != command for call in turn.calls):
            return None
        turns = self._failures[action][1]
        text = (
            f"{command[:200]!r} failed {len(turns)} times with the same output, whatever was changed in between."
        )
        return Stuck(pattern="same_failure", message=text, since=turns[0])


def _alternating(period: int, length: int, what: str, since: int) -> Stuck:
    text = f"The same {period} {what} were repeated in turn, {length} in all, with the same results."
    return Stuck(pattern="alternation", message=text, since=since)


def _error(call: Call, like: bytes) -> bytes | None:
    if not went_wrong(call):
        return None
    if call.name in _EDITORS:  # an edit that does not match is tried with other words each time
        return digest(call.name, str(call.arguments.get("path", "")))
    return like


def _periodic(keys: Sequence[bytes | None], period: int) -> int:
    """Return how many keys at the end repeat with this period, 0 where they do not or are all the same."""
    length = period
    if len(keys) < period or None in keys[-period:] or len(set(keys[-period:])) == 1:
        return 0
    while length < len(keys) and keys[-1 - length] == keys[-1 - length + period]:
        length += 1
    return length


_LADDER: tuple[StepKind, ...] = ("nudge", "switch", "roll_back", "ask")
_CHANCE, _RECOVERED = 3, 3


@dataclass(slots=True)
class Ladder:
    """Says what to do about an agent that is stuck: nudge, switch, roll back, ask; the last is repeated.

    After a step the agent has to be stuck anew before the next is due; real progress leads back to the bottom.
    Feed it the recorded turns and steps in their order. `others` is how many other models there are to switch to,
    each used once.
    """

    others: int
    _watch: Watch = field(default_factory=Watch)
    _turns: int = 0
    _stuck: Stuck | None = None
    _last: Step | None = None
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

    def take(self, step: Step) -> None:
        """Take a recorded step: it was done after the turns so far."""
        self._last, self._progress, self._stuck = step, 0, None
        self._watch.begin_anew()
        self._switched += step.kind == "switch"

    def due(self) -> Step | None:
        """Return the step to do now, if any; it counts once it is handed to `take`."""
        if self._stuck is None:
            return None
        if self._last is None:
            return self._step("nudge", self._stuck)
        if self._turns - self._last.turn < _CHANCE:
            return None
        since = min(self._stuck.since, self._last.stuck.since)  # all of one climb is about one loop
        return self._step(self._above(self._last.kind), replace(self._stuck, since=since))

    def _above(self, kind: StepKind) -> StepKind:
        at = min(_LADDER.index(kind) + 1, len(_LADDER) - 1)
        return "roll_back" if _LADDER[at] == "switch" and self._switched >= self.others else _LADDER[at]

    def _step(self, kind: StepKind, stuck: Stuck) -> Step:
        return Step(kind=kind, turn=self._turns, stuck=stuck)
