"""A native mission in a few lines: what its model said and did and how that was judged, read from the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from chargehand.core.records import CheckResult, Verdict
from chargehand.core.state import AttemptState, MissionState
from chargehand.missions.transcript import TranscriptEntry, read_transcript
from chargehand.store.store import Store

_SUBJECTS = ("path", "pattern", "command", "summary")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_WRONG = re.compile(r"^(?:FAIL|ERROR): \w+|^[\w.]*Error: .+$", re.MULTILINE)
_MOST_WRONG = 4
_COLUMN = 46
_COLOURS = {"green": "green", "red": "red", "succeeded": "green", "refused": "red"}
_JUDGED = {"passed": "green", "failed": "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """One line, and how it looks on a terminal."""

    text: str
    colour: str | None = None
    bold: bool = False


def mission_story(store: Store, state: MissionState, *, first: int = 1) -> list[StoryLine]:
    """Return a mission's story from an attempt on; with every event lines may be added, and none changes."""
    lines: list[StoryLine] = []
    for verdict in state.verdicts if first == 1 else ():
        if verdict.scope == "base":
            lines += [
                StoryLine(text=f"  before      {verdict.status}: {_describe_check(check)}")
                for check in verdict.checks
            ]
    for attempt in state.attempts[first - 1 :]:
        lines += _tell_attempt(store, state, attempt)
    return lines


def _tell_attempt(store: Store, state: MissionState, attempt: AttemptState) -> Iterator[StoryLine]:
    more = ", in the same conversation, with the report of what was wrong" if attempt.number > 1 else ""
    yield StoryLine(text=f"  attempt {attempt.number}{more}", bold=True)
    yield from _tell_work(store, state, attempt.number)
    if attempt.status == "running":
        return
    verdict = verdict_of(state, attempt.number)
    for check in verdict.checks if verdict else ():
        assert verdict is not None
        judged = _JUDGED.get(check.status, verdict.status)
        yield StoryLine(text=f"    {judged:<11} {_describe_check(check)}", colour=_COLOURS.get(judged))
        for line in complaints(store, check):
            yield StoryLine(text=f"                  {line}")
    yield StoryLine(
        text=f"  attempt {attempt.number} {attempt.status}", colour=_COLOURS.get(attempt.status), bold=True
    )


def _tell_work(store: Store, state: MissionState, number: int) -> Iterator[StoryLine]:
    """Yield a line for each text of the model and each call that has its result."""
    said = [line for line in read_transcript(store, state) if line.attempt == number]
    results = [line for line in said if line.speaker == "result"]
    for line in said:
        if line.speaker == "model":
            yield StoryLine(text=f"    model       {line.text}", colour="cyan")
        elif line.speaker == "call" and line.tool == "finish":
            yield StoryLine(text=f"    finish      {_subject(line)}")
        elif line.speaker == "call":
            # Not yet told, for a line never changes: it comes with its result.
            if not results:
                return
            # A reply's results come in the order of its calls.
            yield StoryLine(text=f"    {line.tool:<11} {_subject(line):<{_COLUMN}} {_outcome(results.pop(0))}")


def verdict_of(state: MissionState, number: int) -> Verdict | None:
    """Return the verdict on what an attempt left, `None` where there is none."""
    given = [verdict for verdict in state.verdicts if verdict.scope == "attempt"]
    return given[number - 1] if number <= len(given) else None


def complaints(store: Store, check: CheckResult) -> list[str]:
    """Return the lines of a failed check's output that say what is wrong."""
    if check.status == "passed" or check.artifact is None:
        return []
    output = store.artifacts.get(check.artifact).decode(errors="replace")
    return _WRONG.findall(output)[:_MOST_WRONG]


def text_shown_to_model(store: Store, state: MissionState, number: int) -> str:
    """Return all that the model of an attempt was told and shown, in one text."""
    lines = (line for line in read_transcript(store, state) if line.attempt == number)
    return "\n".join(line.text for line in lines if line.speaker in ("person", "result"))


def attempt_costs(state: MissionState) -> Iterator[str]:
    """Yield what each attempt cost, in words."""
    for attempt in state.attempts:
        cost = f"{attempt.cost_usd:.4f} USD" if attempt.cost_known else "unknown"
        yield f"attempt {attempt.number} {cost} for {attempt.calls} replies"


def _subject(call: TranscriptEntry) -> str:
    arguments = json.loads(call.text)
    if call.tool == "apply_patch":
        return ", ".join(_PATCHED.findall(arguments["patch"]))
    return str(next((arguments[name] for name in _SUBJECTS if name in arguments), ""))


def _outcome(result: TranscriptEntry) -> str:
    """Return the end of a result, which is where tools say how it went."""
    lines = [line for line in result.text.splitlines() if line.strip()]
    if result.tool == "search" and not result.failed:
        return f"{len(lines)} matches"
    ending = lines[-2:] if result.tool == "bash" else lines[-1:]
    return ", ".join(line.strip("[]. ") for line in ending)


def _describe_check(check: CheckResult) -> str:
    tests = "" if check.tests is None else f" ({check.tests} tests)"
    return f"{check.name}: {check.status}{tests}"
