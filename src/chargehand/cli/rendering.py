"""How a mission stands: as a document, as text, and as an exit code."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from chargehand.cli.output import Output
from chargehand.core.records import CheckResult, Export, Verdict
from chargehand.core.state import AttemptState, MissionState
from chargehand.core.text import shown_path
from chargehand.core.usage import AttemptUsage
from chargehand.missions._causes import Cause, attempt_cause, mission_cause
from chargehand.missions._contracts import FAILING_TEST

_CODES = {"promoted": 0, "waiting": 3, "paused": 3, "exhausted": 4, "planned": 0, "running": 0}
_COLOURS = {"promoted": "green", "waiting": "yellow", "running": "cyan", "planned": "cyan"}
_HEADS = "refs/heads/"


def exit_code(state: MissionState) -> int:
    """Return the exit code of a run that ended so; a blocked export or apply needs a person."""
    if reported(state):
        return 0
    if state.status == "promoted":
        wanted = [state.export]
        if state.request is not None and state.request.apply:
            wanted.append(state.applied)
        return 0 if all(done is not None and done.state == "done" for done in wanted) else 3
    return _CODES.get(state.status, 1)


def reported(state: MissionState) -> bool:
    """Tell whether a mission ended well with a report, so that there was nothing to promote."""
    return state.status == "promoted" and state.commit is None and bool(state.reports)


def report_document(state: MissionState) -> dict[str, Any] | None:
    """Return the last report of a mission whose role changes nothing; null where there is none."""
    if not state.reports:
        return None
    last = state.reports[-1]
    return {"role": last.role, "kind": last.kind, "text": last.text, "artifact": last.artifact}


def show_report(out: Output, state: MissionState) -> None:
    """Write the last report of a mission, as far as the log holds it."""
    if not state.reports:
        return
    last = state.reports[-1]
    out.text()
    out.text(f"{last.kind} by the {last.role}", bold=True)
    out.text(last.text)
    out.text(f"  all of it: chargehand artifact show {last.artifact[:12]}")
    out.text()


def branch_of(state: MissionState) -> str | None:
    """Return the mission's branch in the user's repository, `None` where there is none."""
    if state.export is None or state.exported is None:
        return None
    return state.export.ref.removeprefix(_HEADS)


def seconds_of(state: MissionState) -> float | None:
    """Return the seconds from the first event to the last."""
    if not state.created or not state.updated:
        return None
    spent = datetime.fromisoformat(state.finished or state.updated) - datetime.fromisoformat(state.created)
    return round(spent.total_seconds(), 3)


def cost_of(state: MissionState) -> tuple[float | None, bool]:
    """Return what all attempts cost, and whether that is known: one unknown makes the sum unknown."""
    costs = [attempt.cost_usd if attempt.cost_known else None for attempt in state.attempts]
    known = [cost for cost in costs if cost is not None]
    return (sum(known), True) if len(known) == len(costs) else (None, False)


def result_document(state: MissionState) -> dict[str, Any]:
    """Return the result of a mission as `run --json` prints it; what is not known is null."""
    cost, known = cost_of(state)
    base = state.base.commit if state.base else None
    done = Export(ref="", state="done", reason="report") if reported(state) else state.export
    return {
        "mission": state.id,
        "status": state.status,
        "role": state.role.role if state.role else None,
        "report": report_document(state),
        "branch": branch_of(state),
        "commit": base if reported(state) else state.commit,
        "base": base,
        "export": done,
        "checkpoints": len(state.checkpoints),
        "reverted": state.reverted,
        "attempts": [_attempt(attempt) for attempt in state.attempts],
        "cost_usd": cost,
        "cost_known": known,
        "seconds": seconds_of(state),
        "reasons": state.reasons,
        "cause": cause_document(mission_cause(state)),
        "question": state.open_question,
    }


def cause_document(cause: Cause | None) -> dict[str, str | None] | None:
    """Return why something ended without success; null where it did not."""
    return None if cause is None else {"class": cause.kind, "code": cause.code, "remedy": cause.remedy}


def cause_line(cause: Cause) -> str:
    """Return a cause in words: its class and what to do."""
    return f"cause     {cause.kind}: {cause.remedy}"


def _attempt(attempt: AttemptState) -> dict[str, Any]:
    return {
        "agent": attempt.agent,
        "model": attempt.model,
        "status": attempt.status,
        "verdict": attempt.verdict,
        "cost_usd": attempt.cost_usd if attempt.cost_known else None,
        "cost_known": attempt.cost_known,
        "money": money_document(attempt),
        "seconds": attempt.seconds,
        "cause": cause_document(attempt_cause(attempt)),
        "usage": attempt.usage,
    }


def money_document(attempt: AttemptState) -> dict[str, Any]:
    """Return how far an attempt's cost is known, what the limits count, and both sums where they differ."""
    sums = {"reported_usd": attempt.reported_usd, "computed_usd": attempt.computed_usd}
    return {
        "calls": attempt.calls,
        "unknown_calls": attempt.unknown_calls,
        "booked_usd": attempt.booked_usd,
        "differing": sums if _differ(attempt) else None,
    }


def money_text(attempt: AttemptState) -> str:
    """Return what a person should know of an attempt's money beside its cost, "" where that is all."""
    parts = []
    if attempt.unknown_calls:
        unknown = f"{attempt.unknown_calls} of {attempt.calls} calls of unknown cost"
        parts.append(f"{unknown}, {attempt.booked_usd:.4f} USD count for the limits")
    if _differ(attempt):
        computed = f"{attempt.computed_usd:.4f} by tokens and price"
        parts.append(f"{attempt.reported_usd:.4f} USD by the provider's word, {computed}")
    return "; ".join(parts)


def _differ(attempt: AttemptState) -> bool:
    """Tell whether what providers say and what we compute, of the calls that have both, is 1 % apart or more."""
    most = max(attempt.reported_usd, attempt.computed_usd)
    return abs(attempt.reported_usd - attempt.computed_usd) > most / 100


def usage_text(usage: AttemptUsage) -> str:
    """Return what an attempt took in words; what nobody counted is said so."""
    at_most = "seen at most" if usage.sampled else "at most"
    parts = [
        f"processor {_seconds(usage.cpu_seconds)} of {_seconds(usage.wall_seconds)}",
        f"memory {at_most} {_mib(usage.peak_memory)}",
        f"processes {at_most} {'unknown' if usage.peak_processes is None else usage.peak_processes}",
        f"disk {_mib(usage.disk_used)} kept, {_mib(usage.disk_written)} written",
        f"output {_mib(usage.output)}",
    ]
    if usage.network_out is not None:
        parts.append(f"network {_mib(usage.network_out)} out, {_mib(usage.network_in)} in")
    return ", ".join(parts)


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f} s"


def _mib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / (1 << 20):.1f} MiB"


def show_result(out: Output, state: MissionState) -> None:
    """Write how a mission ended for a person, and what they can do next."""
    out.text(f"{state.status}  {state.id}", fg=_COLOURS.get(state.status, "red"), bold=True)
    for reason in state.reasons:
        out.text(f"  {reason.code}: {reason.message}")
    show_report(out, state)
    show_checks(out, state)
    for message, reason in state.undelivered.items():
        out.text(f"  message {message} reached no agent: {reason.message}", fg="yellow")
    for reverted in state.reverted:
        out.text(f"  set back  {shown_path(reverted.path)} ({reverted.rule})")
    _show_places(out, state)
    out.text(f"  {summary(state)}")
    for line in next_steps(state, f"chargehand mission show {state.id}"):
        out.text(f"  {line}")


def summary(state: MissionState) -> str:
    """Return attempts, checkpoints, time and money on one line."""
    seconds = seconds_of(state)
    parts = [
        f"{len(state.attempts)} attempt{'' if len(state.attempts) == 1 else 's'}",
        f"{len(state.checkpoints)} checkpoint{'' if len(state.checkpoints) == 1 else 's'}",
        "time unknown" if seconds is None else f"{seconds:.1f} s",
        cost_text(*cost_of(state)),
    ]
    return ", ".join(parts)


def cost_text(cost: float | None, known: bool) -> str:
    """Return money in words; what is not known is said so."""
    if not known or cost is None:
        return "cost unknown"
    return f"cost {cost:.4f} USD" if 0 < cost < 1 else f"cost {cost:.2f} USD"


def show_checks(out: Output, state: MissionState) -> None:
    """Write the table of the last verdict's checks beside how they end on the base."""
    verdict = last_verdict(state)
    if verdict is None or not verdict.checks:
        return
    before = {check.name: check for base in state.verdicts if base.scope == "base" for check in base.checks}
    out.text()
    out.table(
        ("CHECK", "RESULT", "ON BASE", "TESTS", "SECONDS"),
        [check_row(check, before.get(check.name)) for check in verdict.checks],
    )
    if state.request is not None and state.request.only_checks is not None:
        out.text("  the project's own checks were replaced by --only-check")
    out.text()


def last_verdict(state: MissionState) -> Verdict | None:
    """Return the last verdict on a tree of the mission's own."""
    own = [verdict for verdict in state.verdicts if verdict.scope != "base"]
    return own[-1] if own else None


def check_row(check: CheckResult, before: CheckResult | None = None) -> tuple[str, ...]:
    """Return a check as a row of the table."""
    tests = "-" if check.tests is None else str(check.tests)
    return (check.name, check.status, before.status if before else "-", tests, f"{check.seconds:.1f}")


def _show_places(out: Output, state: MissionState) -> None:
    branch = branch_of(state)
    if branch is not None and state.exported is not None:
        out.text(f"  branch    {branch} @ {state.exported[:12]}")
    for what, export in (("export", state.export), ("apply", state.applied)):
        if export is not None and (export.state != "done" or export.reason):
            out.text(f"  {what}    {export.state}: {export.reason}")
    if state.applied is not None and state.applied.state == "done":
        out.text(f"  applied   {state.applied.ref.removeprefix(_HEADS)}")


def next_steps(state: MissionState, *more: str) -> list[str]:
    """Return lines with the commands that make sense now, `more` after them."""
    steps = []
    branch = branch_of(state)
    applied = state.applied is not None and state.applied.state == "done"
    if state.status == "promoted" and branch is not None and not applied:
        steps.append(f"git merge {branch}")
    if state.waits_for_quota is not None:
        steps.append("chargehand worker")
        steps.append(f'chargehand mission answer {state.id} "go on"')
    elif state.status in ("waiting", "paused") and state.open_question is not None:
        steps.append(f"chargehand mission answer {state.id} TEXT")
    elif any(reason.code == FAILING_TEST for reason in state.reasons):
        steps.append(f"chargehand mission diff {state.id} | git apply")
        steps.append('chargehand run "make the new tests pass"   once they are committed')
    elif state.status == "waiting":
        steps.append(f"chargehand mission promote {state.id} --reason …")
    elif state.status == "paused":
        steps.append(f"chargehand mission resume {state.id}")
    if state.status in ("planned", "running"):
        steps.append(f"chargehand mission watch {state.id}")
    if state.checkpoints and not reported(state):
        steps.append(f"chargehand mission diff {state.id}")
    return [f"{'next:' if number == 0 else '     '}     {step}" for number, step in enumerate([*steps, *more])]


def full_document(state: MissionState) -> dict[str, Any]:
    """Return everything that is known of a mission: the result's keys and all behind them."""
    return result_document(state) | {
        "project": state.project,
        "repository": state.repository,
        "created": state.created,
        "updated": state.updated,
        "request": state.request,
        "base": state.base,
        "tree": state.tree,
        "applied": state.applied,
        "attempts": [_full_attempt(attempt) for attempt in state.attempts],
        "checkpoints": state.checkpoints,
        "verdicts": state.verdicts,
        "conflicts": state.conflicts,
        "network": state.network,
        "messages": state.messages,
        "acknowledged": sorted(state.acknowledged),
        "received": state.received,
        "undelivered": state.undelivered,
        "tier": state.tier,
        "role_chosen": state.role,
        "reports": state.reports,
        "queued": state.queued,
        "unknown_events": state.unknown_events,
    }


def _full_attempt(attempt: AttemptState) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "number": attempt.number,
        **_attempt(attempt),
        "workspace": attempt.workspace,
        "reasons": attempt.reasons,
        "captured": attempt.captured,
    }
