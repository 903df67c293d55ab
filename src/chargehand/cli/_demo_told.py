"""An attempt in a few lines: what its model said and did and how that was judged, read off the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from chargehand.cli._output import Output
from chargehand.core import CheckResult, MissionState, Verdict
from chargehand.missions import Line, transcript
from chargehand.store import Store

_SUBJECTS = ("path", "pattern", "command", "summary")
_PATCHED = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE)
_WRONG = re.compile(r"^(?:FAIL|ERROR): \w+|^[\w.]*Error: .+$", re.MULTILINE)
_MOST_WRONG = 4
_COLUMN = 50


def show_work(out: Output, store: Store, state: MissionState, number: int) -> None:
    """Write what the model of an attempt said and did, a line for each reply and each call."""
    said = [line for line in transcript(store, state) if line.attempt == number]
    results = [line for line in said if line.speaker == "result"]
    for line in said:
        if line.speaker == "model":
            out.text(f"    model   {line.text}", fg="cyan")
        elif line.speaker == "call":
            # A reply's results come in the order of its calls; `finish` has none.
            result = results.pop(0) if line.tool != "finish" else None
            out.text(f"    {_call(line, result)}".rstrip())


def show_verdict(out: Output, store: Store, state: MissionState, number: int) -> None:
    """Write the verdict on what an attempt left, with the reason where it is red."""
    verdict = verdict_of(state, number)
    if verdict is None:
        return
    out.text(f"  {verdict.status}", fg="green" if verdict.status == "green" else "red", bold=True)
    for check in verdict.checks:
        out.text(f"    {check.name}: {check.status}{_tests(check)}")
        for line in wrong(store, check):
            out.text(f"      {line}")


def verdict_of(state: MissionState, number: int) -> Verdict | None:
    """Return the verdict on what an attempt left, `None` where there is none."""
    given = [verdict for verdict in state.verdicts if verdict.scope == "attempt"]
    return given[number - 1] if number <= len(given) else None


def wrong(store: Store, check: CheckResult) -> list[str]:
    """Return the lines of a failed check's output that say what is wrong."""
    if check.status == "passed" or check.artifact is None:
        return []
    output = store.artifacts.get(check.artifact).decode(errors="replace")
    return _WRONG.findall(output)[:_MOST_WRONG]


def seen(store: Store, state: MissionState, number: int) -> str:
    """Return all that the model of an attempt was told or shown, its own words left out."""
    lines = (line for line in transcript(store, state) if line.attempt == number)
    return "\n".join(line.text for line in lines if line.speaker in ("person", "result"))


def _call(call: Line, result: Line | None) -> str:
    done = f"{call.tool:<7} {_subject(call)}"
    return f"{done:<{_COLUMN}} {_outcome(result)}" if result is not None else done


def _subject(call: Line) -> str:
    arguments = json.loads(call.text)
    if call.tool == "apply_patch":
        return ", ".join(_PATCHED.findall(arguments["patch"]))
    return str(next((arguments[name] for name in _SUBJECTS if name in arguments), ""))


def _outcome(result: Line) -> str:
    """Return the end of a result, which is where tools say how it went."""
    lines = [line for line in result.text.splitlines() if line.strip()]
    if result.tool == "search":
        return f"{len(lines)} matches"
    ending = lines[-2:] if result.tool == "bash" else lines[-1:]
    return ", ".join(line.strip("[]. ") for line in ending)


def _tests(check: CheckResult) -> str:
    return "" if check.tests is None else f" ({check.tests} tests)"


def show_reasons(out: Output, state: MissionState) -> None:
    """Write how a mission ended and why."""
    out.text(f"  {state.status}", fg="green" if state.status == "promoted" else "red", bold=True)
    for reason in state.reasons:
        out.text(f"    {reason.code}: {reason.message}")


def costs(state: MissionState) -> Iterator[str]:
    """Yield what each attempt cost, in words."""
    for attempt in state.attempts:
        cost = f"{attempt.cost_usd:.4f} USD" if attempt.cost_known else "unknown"
        yield f"attempt {attempt.number} {cost} for {attempt.calls} replies"
