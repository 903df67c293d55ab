"""`chargehand mission list` and `show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.event_text import payload_of
from chargehand.cli._prepare import base_line, current_project, find_mission
from chargehand.cli.output import Output
from chargehand.cli.rendering import (
    branch_of,
    cause_line,
    check_row,
    cost_text,
    full_document,
    money_text,
    next_steps,
    result_document,
    show_report,
    summary,
    usage_text,
)
from chargehand.core.attempt_events import SandboxOpened
from chargehand.core.mission_events import MergeConflicted
from chargehand.core.records import Finding, Reason, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.missions._causes import attempt_cause, mission_cause
from chargehand.workspace._merge_conflicts import conflict_report

_TITLE = 48
_PLACES = 10


def list_missions(out: Output, *, repo: Path | None, everywhere: bool) -> int:
    """Write the missions of the repository one is in, or of all projects."""
    with App.open() as app:
        project = None if everywhere else current_project(app, repo)
        states = list(app.look.all(project=project.id if project else None))
        waits = app.look.waits()
    out.document({"missions": [_listed(state) | {"waits": _waits(state, waits)} for state in states]})
    if not states:
        out.text('no mission yet; start one with  chargehand run "TEXT"')
        return 0
    rows = [
        (state.id, state.status, _when(state.created), branch_of(state) or "-", _title(state)) for state in states
    ]
    out.table(("MISSION", "STATUS", "CREATED", "BRANCH", "REQUEST"), rows)
    for state in states:
        reason = _waits(state, waits)
        if reason is not None:
            out.text(f"{state.id} waits: {reason.message}")
    return 0


def _waits(state: MissionState, waits: Mapping[str, Reason]) -> Reason | None:
    """Return why a mission that should go on does not: no quota, its place in line, or that nobody took it up."""
    if state.waits_for_quota is not None:
        return state.waits_for_quota.reason
    return state.queued.reason if state.queued is not None else waits.get(state.id)


def _listed(state: MissionState) -> dict[str, object]:
    return result_document(state) | {
        "repository": state.repository,
        "created": state.created,
        "updated": state.updated,
        "request": state.request.text if state.request else None,
    }


def _when(time: str) -> str:
    return time[:16].replace("T", " ")


def _title(state: MissionState) -> str:
    lines = state.request.text.strip().splitlines() if state.request else []
    title = lines[0] if lines else ""
    return title if len(title) <= _TITLE else title[: _TITLE - 1] + "…"


def show_mission(out: Output, mission: str) -> int:
    """Write everything that is known of one mission."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
        places = _places(app, state.id)
        waits = _waits(state, app.look.waits())
    shown = [{"tier": tier, "driver": driver} for tier, driver in places]
    out.document(full_document(state) | {"places": shown, "waits": waits})
    out.text(f"{state.status}  {state.id}", bold=True)
    _show_request(out, state)
    for tier, driver in places:
        out.text(f"sandbox   {tier}, workspace by {driver}")
    if state.tier is not None:
        out.text(f"tier      {state.tier.tier}: {state.tier.reason}")
    if state.role is not None:
        out.text(f"role      {state.role.role} ({state.role.origin}, {state.role.digest[:12]})")
    for reason in state.reasons:
        out.text(f"reason    {reason.code}: {reason.message}")
    if waits is not None:
        out.text(f"waits     {waits.message}")
    cause = mission_cause(state)
    if cause is not None:
        out.text(cause_line(cause))
    show_report(out, state)
    _show_attempts(out, state)
    _show_network(out, state)
    for verdict in state.verdicts:
        _show_verdict(out, verdict)
    for reverted in state.reverted:
        out.text(f"set back  {shown_path(reverted.path)} ({reverted.rule})")
    for conflicted in state.conflicts:
        _show_conflicts(out, conflicted)
    _show_checkpoints(out, state)
    _show_ends(out, state)
    return 0


def _places(app: App, mission: str) -> list[tuple[str, str]]:
    """Return each pair of tier and workspace driver that the mission's sandboxes had, the first one first."""
    payloads = map(payload_of, app.store.log.read(mission))
    opened = (payload for payload in payloads if isinstance(payload, SandboxOpened))
    return list(dict.fromkeys((each.tier, each.driver) for each in opened))


def _show_request(out: Output, state: MissionState) -> None:
    out.text(f"project   {shown_path(state.repository)}")
    if state.base is not None:
        out.text(f"base      {base_line(state.base)}")
    request = state.request
    if request is None:
        return
    first, *rest = request.text.strip().splitlines() or [""]
    out.text(f"request   {first}")
    for line in rest:
        out.text(f"          {line}")
    out.text(f"agent     {request.agent}")
    attempts = f"{request.attempts} attempt{'' if request.attempts == 1 else 's'}"
    out.text(f"limits    {request.seconds:g} s, {attempts}, sandbox {request.tier}")
    asked = {
        "only checks": request.only_checks,
        "more checks": request.extra_checks,
        "check files": tuple(path for _, path in request.check_files),
        "allow": request.allow,
        "forbid": request.forbid,
        "partial": ("yes",) if request.partial else (),
        "apply": ("yes",) if request.apply else (),
    }
    for name, values in asked.items():
        if values:
            out.text(f"{name:<9} {', '.join(values)}")


def _show_attempts(out: Output, state: MissionState) -> None:
    for attempt in state.attempts:
        open_now = "waits for an answer" if state.open_question else "still running"
        open_now = "waits for quota" if state.waits_for_quota else open_now
        spent = open_now if attempt.seconds is None else f"{attempt.seconds:.1f} s"
        verdict = attempt.verdict or "no verdict"
        cost = cost_text(attempt.cost_usd, attempt.cost_known)
        who = f"{attempt.agent} ({attempt.model})" if attempt.model else attempt.agent
        out.text(f"attempt   {attempt.number} by {who}: {attempt.status}, {verdict}, {spent}, {cost}")
        for reason in attempt.reasons:
            out.text(f"            {reason.code}: {reason.message}")
        spent_on = money_text(attempt)
        if spent_on:
            out.text(f"            money: {spent_on}")
        if attempt.usage.closed:
            out.text(f"            took {usage_text(attempt.usage)}")
        if attempt.captured is not None:
            out.text(f"            what went on: chargehand artifact show {attempt.captured[:12]}")
        cause = attempt_cause(attempt)
        if cause is not None:
            out.text(f"            {cause_line(cause)}")


def _show_network(out: Output, state: MissionState) -> None:
    used = state.network
    if not used.allowed and not used.refused:
        return
    sizes = f"{used.bytes_out:,} bytes out, {used.bytes_in:,} in"
    out.text(f"network   {used.allowed} requests let through, {used.refused} refused ({sizes})")
    for place, count in sorted(used.hosts_refused.items(), key=lambda item: -item[1])[:_PLACES]:
        out.text(f"            refused {count} times: {place}")


def _show_verdict(out: Output, verdict: Verdict) -> None:
    out.text(f"verdict   {verdict.status} on the {verdict.scope} tree {verdict.tree[:12]}")
    for check in verdict.checks:
        name, status, _, tests, seconds = check_row(check)
        why = f": {check.reason}" if check.reason else ""
        out.text(f"            {status}  {name} ({tests} tests, {seconds} s){why}")
    for found in verdict.findings:
        out.text(f"            {_finding(found)}")


def _finding(found: Finding) -> str:
    line = f":{found.line}" if found.line is not None else ""
    person = " (a person has to decide)" if found.needs_person else ""
    return f"{found.severity}  {found.rule}  {shown_path(found.path)}{line}: {found.message}{person}"


def _show_conflicts(out: Output, told: MergeConflicted) -> None:
    whole = f" (all of it: chargehand artifact show {told.artifact[:12]})" if told.artifact else ""
    out.text(f"conflict  with {told.branch} @ {told.commit[:12]}, paths: {told.count}{whole}")
    for line in conflict_report(told.conflicts, ours=told.branch, theirs="the mission").splitlines():
        out.text(f"            {line}")


def _show_checkpoints(out: Output, state: MissionState) -> None:
    for point in state.checkpoints:
        out.text(f"point     {point.commit[:12]}  {point.trigger}, {point.changed} changed")


def _show_ends(out: Output, state: MissionState) -> None:
    branch = branch_of(state)
    if branch is not None:
        out.text(f"branch    {branch} @ {(state.exported or '')[:12]}")
    for name, export in (("export", state.export), ("apply", state.applied)):
        if export is not None:
            why = f": {export.reason}" if export.reason else ""
            out.text(f"{name:<9} {export.state} {export.ref}{why}")
    if state.unknown_events:
        out.text(f"events    {state.unknown_events} cannot be read by this version, or are erased")
    out.text(f"spent     {summary(state)}")
    for line in next_steps(state):
        out.text(line)
