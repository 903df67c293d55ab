"""A mission as text: its result, its details, and the exit code of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from chargehand.cli.terminal.lines import option_lines
from chargehand.cli.terminal.output import Output, count_text, local_time, status_colour
from chargehand.core.records import Base, CheckResult, Export, Verdict
from chargehand.core.state import AttemptState, AttemptUsage, MissionState, MissionSummary
from chargehand.core.text import printable, shown_path
from chargehand.missions.causes import Cause, attempt_cause, mission_cause
from chargehand.reports.documents import (
    Delivery,
    MessageDocument,
    MissionDetails,
    cause_document,
    mission_document,
)
from chargehand.reports.outcome import (
    FailureDocument,
    ended_with_report,
    explain_failures,
    exported_branch,
    inspection_warnings,
    mission_cost,
    mission_seconds,
    next_commands,
    sums_differ,
    was_rolled_back,
)
from chargehand.workspace.merge import conflict_report

if TYPE_CHECKING:
    from chargehand.app.runs import RunStart
    from chargehand.store.store import Store

# `mission show` lists this many refused hosts; the document lists all.
_REFUSED_HOSTS = 10
_NAMED_PATHS = 5
_NAMED_TESTS = 5
_NAMED_WARNINGS = 10
# Planned and running are not failures: with --detach, a worker continues the work.
_CODES = {"promoted": 0, "waiting": 3, "paused": 3, "exhausted": 4, "planned": 0, "running": 0}
_DELIVERIES: Mapping[Delivery, str] = {
    "next_step": "Sent. The agent gets it before its next step.",
    "next_attempt": "Sent. This agent reads messages only when it starts: it gets this one with its next attempt.",
    "next_task": "Sent. Tasks that start from now on get it; to reach a running task, use --task ID.",
    "no_attempt_left": "Not delivered: this agent reads messages only when it starts, and this is "
    "its last attempt. To stop it: chargehand mission send --critical {mission} TEXT",
    "on_resume": "Sent. The agent gets it when the mission runs: chargehand mission resume {mission}",
}


def delivery_text(sent: MessageDocument) -> str:
    """Return whether and when the agent gets a message, as a sentence."""
    return _DELIVERIES[sent.delivery].format(mission=sent.mission)


def exit_code(state: MissionState) -> int:
    """Return the exit code of a run that ended in this state; a blocked export or apply needs a person."""
    # A read-only role promotes nothing: its report is the successful end. A task's coordinator exports. A plan
    # whose tasks had nothing to do is handled the same way.
    exports = state.commit is not None and not ended_with_report(state) and not state.parent
    return _exit_code(state.status, exported_ends(state) if exports else ())


def details_exit_code(details: MissionDetails) -> int:
    """Return the same as `exit_code`, for a mission on another machine."""
    exports = details.status == "promoted" and details.commit is not None and not details.parent
    return _exit_code(details.status, exported_ends(details) if exports else ())


def exported_ends(mission: MissionState | MissionDetails) -> tuple[Export | None, ...]:
    """Return the state of each export that the mission requested."""
    applies = mission.request is not None and mission.request.apply
    return (mission.export, mission.applied) if applies else (mission.export,)


def _exit_code(status: str, wanted: Sequence[Export | None]) -> int:
    if status == "promoted":
        return 0 if all(done is not None and done.state == "done" for done in wanted) else 3
    return _CODES.get(status, 1)


def show_report(out: Output, state: MissionState) -> None:
    """Write the last report of a mission, as far as the log contains it."""
    if not state.reports:
        return
    last = state.reports[-1]
    out.text()
    out.text(f"{last.kind} by the {last.role}", bold=True)
    if not out.has_seen(last.text):
        out.text(last.text)
    out.text(f"  full text: chargehand artifact show {last.artifact[:12]}")
    out.text()


def cause_line(cause: Cause, mission: str) -> str:
    """Return the remedy for a cause as a sentence."""
    document = cause_document(cause, mission)
    assert document is not None
    return f"advice    {document.remedy[:1].upper()}{document.remedy[1:]}."


def money_text(attempt: AttemptState) -> str:
    """Return notes on an attempt's money that its cost does not show, or ""."""
    parts = []
    if attempt.unknown_calls:
        unknown = f"{attempt.unknown_calls} of {attempt.calls} calls have no known cost"
        parts.append(f"{unknown}, {attempt.booked_usd:.4f} USD count towards the limits")
    if sums_differ(attempt):
        computed = f"{attempt.computed_usd:.4f} USD by tokens and price"
        parts.append(f"{attempt.reported_usd:.4f} USD as the provider reports it, {computed}")
    return "; ".join(parts)


def usage_text(usage: AttemptUsage) -> str:
    """Return an attempt's resource usage; unmeasured values are called unknown."""
    # Without control groups the peaks are the highest samples, so the true ones may be higher.
    peak = "sampled peak" if usage.sampled else "peak"
    parts = [
        f"CPU {_seconds(usage.cpu_seconds)} in {_seconds(usage.wall_seconds)}",
        f"memory {peak} {_mib(usage.peak_memory)}",
        f"processes {peak} {'unknown' if usage.peak_processes is None else usage.peak_processes}",
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


def print_result(out: Output, state: MissionState, store: Store) -> None:
    """Write a mission's result, as a document or as text; `store` has the outputs that explain failures."""
    failures = explain_failures(store, state)
    out.document(mission_document(state, failures))
    if not out.as_json:
        show_result(out, state, failures)


def show_result(out: Output, state: MissionState, failures: tuple[FailureDocument, ...] = ()) -> None:
    """Write for a person how a mission ended and which commands come next."""
    _show_ending(out, state)
    show_report(out, state)
    show_checks(out, state)
    show_failures(out, failures, indent="  ")
    _show_warnings(out, state)
    for message, reason in state.undelivered.items():
        out.text(f"  message {message} was not delivered: {reason.message}", fg="yellow")
    for reverted in state.reverted:
        out.text(f"  reverted  {shown_path(reverted.path)} ({reverted.rule})")
    branch = exported_branch(state)
    if branch is not None and state.exported is not None:
        out.text(f"  branch    {branch} @ {state.exported[:12]}{_undone(state)}")
    for what, export in (("export", state.export), ("apply", state.applied)):
        if export is not None and (export.state != "done" or export.reason):
            out.text(f"  {what}    {export.state}: {export.reason}")
    if state.applied is not None and state.applied.state == "done":
        out.text(f"  applied   {state.applied.ref.removeprefix('refs/heads/')}")
    for delivery in state.deliveries.values():
        why = "".join(f"; {text}" for text in (delivery.reason, delivery.remedy) if text)
        shown = delivery.ref if delivery.state == "done" else delivery.state
        out.text(f"  {delivery.target:<9} {shown}{why}")
    out.text(f"  {summary(state)}")
    show_next(out, (*next_commands(state, failures), f"chargehand mission show {state.id}"), indent="  ")


def _show_ending(out: Output, state: MissionState) -> None:
    """Write a mission's status, its reasons unless a person just saw them, and what to do about it."""
    colour = status_colour(state.status)
    if ended_with_report(state):
        out.text(
            f"done: {'; '.join(reason.message for reason in state.reasons)}  {state.id}", fg=colour, bold=True
        )
    else:
        out.text(f"{status_text(state)}  {state.id}", fg=colour, bold=True)
    for reason in () if ended_with_report(state) else state.reasons:
        if not out.has_seen(reason.message):
            out.text(f"  {reason.code}: {reason.message}")
    _show_options(out, state, indent="  ")
    cause = mission_cause(state)
    if cause is not None:
        out.text(f"  {cause_line(cause, state.id)}")


def _show_options(out: Output, state: MissionState, *, indent: str = "") -> None:
    """Write the answers that the open question offers, unless a person just saw them."""
    asked = state.open_question
    lines = tuple(option_lines(asked.options, asked.meanings)) if asked is not None else ()
    if not out.has_seen("\n".join(lines)):
        for number, line in enumerate(lines):
            out.text(f"{indent}{'answers' if number == 0 else '':<8}{line}")


def status_text(state: MissionSummary) -> str:
    """Return a mission's status in words: rolled-back missions, and missions that promoted nothing, have their
    own.
    """
    if was_rolled_back(state):
        return "rolled back"
    if state.status == "promoted" and state.commit is None:
        return "reported" if ended_with_report(state) else "done"
    return state.status


def _undone(state: MissionState) -> str:
    return " (the promotion was undone by a new commit)" if was_rolled_back(state) else ""


def show_failures(out: Output, failures: Sequence[FailureDocument], *, indent: str = "") -> None:
    """Write the failures: each test with the lines that explain it, and the artifact with all output."""
    for failure in failures:
        how = {"timed_out": "timed out"}.get(failure.status, failure.status)
        out.text(f"{indent}{how:<9} {failure.name}", bold=True)
        for test in failure.tests[:_NAMED_TESTS]:
            if not out.has_seen("\n".join((test.name, *test.lines))):
                out.text(f"{indent}          {test.name}")
                for line in test.lines:
                    out.text(f"{indent}            {line}")
        if len(failure.tests) > _NAMED_TESTS:
            out.text(f"{indent}          and {count_text(len(failure.tests) - _NAMED_TESTS, 'more test')}")
        for line in () if out.has_seen("\n".join(failure.lines)) else failure.lines:
            out.text(f"{indent}          {line}")
        if failure.artifact is not None:
            out.text(f"{indent}          all output: chargehand artifact show {failure.artifact[:12]}")


def summary(state: MissionState) -> str:
    """Return attempts, checkpoints, time and money on one line."""
    seconds, tally = mission_seconds(state), state.tasks
    done = [
        count_text(len(state.attempts), "attempt"),
        count_text(len(state.checkpoints), "checkpoint"),
    ]
    if tally is not None:
        ends = {"merged": tally.merged, "done before": tally.done, "left out": tally.left_out}
        told = [f"{count} {end}" for end, count in ends.items() if count]
        done = [f"{count_text(tally.total, 'task')} ({', '.join(told) or 'none done yet'})"]
    parts = [
        *done,
        "time unknown" if seconds is None else f"{seconds:.1f} s",
        cost_text(*mission_cost(state)),
    ]
    return ", ".join(parts)


def cost_text(cost: float | None, known: bool) -> str:
    """Format a cost; an unknown cost is called unknown."""
    if not known or cost is None:
        return "cost unknown"
    # Most missions cost cents: with two digits many would look free.
    return f"cost {cost:.4f} USD" if 0 < cost < 1 else f"cost {cost:.2f} USD"


def show_checks(out: Output, state: MissionState) -> None:
    """Write the table of the last verdict's checks, with their results on the base."""
    verdict = state.last_verdict
    if verdict is None or not verdict.checks:
        return
    # Compared with the base: a check that was already red is not the mission's fault.
    before = {check.name: check for base in state.verdicts if base.scope == "base" for check in base.checks}
    out.text()
    out.table(
        ("CHECK", "RESULT", "ON BASE", "TESTS", "SECONDS"),
        [check_row(check, before.get(check.name)) for check in verdict.checks],
    )
    for line in (*verdict.tolerated, *_describe_reads(verdict)):
        out.text(f"  {line}")
    if state.request is not None and state.request.only_checks is not None:
        # Shown with the result: green by other checks is a different claim.
        out.text("  the project's own checks were replaced by --only-check")
    out.text()


def _show_warnings(out: Output, state: MissionState) -> None:
    """Write inspection's warnings, except those repeated in the mission's reasons."""
    said = {(reason.code, reason.message) for reason in state.reasons}
    found = inspection_warnings(state)
    warnings = [e for e in found if (e.rule, e.text) not in said]
    for each in warnings[:_NAMED_WARNINGS]:
        out.text(f"  warning   {each.text} ({each.rule})", fg="yellow")
    if len(warnings) > _NAMED_WARNINGS:
        more = count_text(len(warnings) - _NAMED_WARNINGS, "more warning")
        out.text(f"  warning   and {more}: chargehand mission show {state.id}", fg="yellow")


def _describe_reads(verdict: Verdict) -> list[str]:
    """Describe changed code that no check opened, or that was loaded from elsewhere."""
    if not verdict.checks or verdict.scope == "base":
        return []
    lines = []
    if verdict.unread is None:
        lines.append("This sandbox does not observe which files the checks open.")
    if verdict.unread:
        what = count_text(len(verdict.unread), "changed source file")
        lines.append(f"No check opened {what}: {_some_paths(verdict.unread)}")
    if verdict.elsewhere:
        lines.append(f"Checks loaded, in place of changed code: {_some_paths(verdict.elsewhere)}")
    return lines


def _some_paths(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED_PATHS} more" if len(paths) > _NAMED_PATHS else ""
    return ", ".join(map(shown_path, paths[:_NAMED_PATHS])) + more


def check_row(check: CheckResult, before: CheckResult | None = None) -> tuple[str, ...]:
    """Return a check as a row of the table."""
    tests = "-" if check.tests is None else str(check.tests)
    seconds = f"{check.seconds:.1f}{' warm' if check.warm else ''}"
    return (check.name, check.status, before.status if before else "-", tests, seconds)


def show_next(out: Output, commands: Sequence[str], *, indent: str = "") -> None:
    """Write the commands that are possible next."""
    for number, line in enumerate(commands):
        begin = f"{indent}{'next:' if number == 0 else '     '}     "
        if out.width is not None and len(begin + line) > out.width:  # a remark moves to a line of its own
            line = line.replace("  # ", f"\n{' ' * len(begin)}# ")
        out.text(begin + line)


def base_line(base: Base) -> str:
    """Describe a mission's base: branch, commit, how far behind, and whether changes are left out."""
    name = base.branch or base.revision
    parts = [f"{printable(name)} @ {base.commit[:12]}"]
    if base.upstream and base.behind:
        parts.append(f"{count_text(base.behind, 'commit')} behind {base.upstream}")
    if base.dirty:
        parts.append("uncommitted changes are not part of it")
    return ", ".join(parts)


def place_line(agent: str, checks: str) -> str:
    """Return the directory in which a mission works, and the checks' directory if it differs."""
    other = f"; checks and setup run in {shown_path(checks or '.')}" if checks != agent else ""
    return f"works     in {shown_path(agent or '.')}{other}"


def start_lines(start: RunStart) -> tuple[str, ...]:
    """Return the lines shown to a person before work begins."""
    assignment, choice = start.assignment, start.assignment.choice
    role = assignment.role
    bounds = "" if role.writes else f", read-only, ends with a {role.output}"
    lines = [
        f"mission   {start.mission}",
        f"base      {base_line(start.base)}",
        *([place_line(start.places.agent, start.places.checks)] if start.places.agent else []),
        f"role      {role.name} ({assignment.file.place}{bounds})",
        f"agent     {choice.agent} ({choice.why})",
        *([f"model     {choice.model}"] if choice.model else []),
        f"sandbox   {start.tier}, workspace by {start.driver}",
    ]
    if start.only_checks is not None:
        lines.append(f"checks    only {', '.join(start.only_checks)} (--only-check)")
    return (*lines, *(f"note      {note}" for note in start.notes))


def show_header(out: Output, state: MissionState) -> None:
    """Write the known facts about a mission before a person starts to watch it."""
    out.text(f"mission   {state.id}", bold=True)
    if state.base is not None:
        out.text(f"base      {base_line(state.base)}")
    if state.request is not None:
        out.text(f"request   {(state.request.text.strip().splitlines() or [''])[0]}")
        out.text(f"agent     {state.request.agent}")


def show_details(out: Output, state: MissionState, details: MissionDetails) -> None:
    """Write all details of a mission for a person."""
    _show_request(out, state, details)
    why = {} if state.tier is None else {state.tier.tier: f" ({state.tier.reason})"}
    for place in details.places:
        out.text(f"sandbox   {place.tier}{why.pop(place.tier, '')}, workspace by {place.driver}")
    for tier, because in why.items():
        out.text(f"sandbox   {tier}{because}")
    if state.role is not None:
        out.text(f"role      {state.role.role} ({state.role.origin}, {state.role.digest[:12]})")
    for reason in state.reasons:
        out.text(f"reason    {reason.code}: {reason.message}")
    if (asked := state.open_question) is not None:
        # An agent's question is the reason itself; a plan's question is one of several pending items.
        is_told = any(asked.text in reason.message for reason in state.reasons)
        more = (f", {asked.deadline}" if asked.deadline else "") + ("" if is_told else f": {asked.text.strip()}")
        out.text(f"question  {asked.kind}{more}")
    _show_options(out, state)
    if details.waits is not None:
        out.text(f"waits     {details.waits.message}")
    cause = mission_cause(state)
    if cause is not None:
        out.text(cause_line(cause, state.id))
    show_failures(out, details.failures)
    show_report(out, state)
    for attempt in state.attempts:
        _show_attempt(out, state, attempt)
    _show_tree_history(out, state)
    _show_delivery(out, state, details)


def _show_request(out: Output, state: MissionState, details: MissionDetails) -> None:
    """Write the mission's identity and request, and whether its log is damaged and how to recover."""
    out.text(f"{status_text(state)}  {state.id}", bold=True)
    if details.damaged:
        out.text("damaged   Its log is damaged; the readable part follows.", fg="red")
        for line in details.damaged[:_NAMED_PATHS]:
            where = f"line {line.seq}: " if line.seq is not None else ""
            out.text(f"          {where}{line.message}")
        if len(details.damaged) > _NAMED_PATHS:
            more = len(details.damaged) - _NAMED_PATHS
            out.text(f"          and {more} more: chargehand audit verify {state.id}")
        out.text("          `chargehand store restore` restores a backup; no worker continues this mission.")
    out.text(f"created   {local_time(state.created)}")
    out.text(f"project   {shown_path(state.repository)}")
    if state.base is not None:
        out.text(f"base      {base_line(state.base)}")
    request = state.request
    if request is None:
        return
    if request.directory:
        out.text(place_line(request.directory, request.checks_directory))
    first, *rest = request.text.strip().splitlines() or [""]
    out.text(f"request   {first}")
    for each in rest:
        out.text(f"          {each}")
    out.text(f"agent     {request.agent}")
    attempts = count_text(request.attempts, "attempt")
    out.text(f"limits    {request.seconds:g} s, {attempts}, sandbox {request.tier}")
    asked = {
        "only checks": request.only_checks,
        "more checks": request.extra_checks,
        "check files": tuple(path for _, path in request.check_files),
        "outside checks": request.outside_checks,
        "outside files": tuple(path for _, path in request.outside_files),
        "allow": request.allow,
        "forbid": request.forbid,
        "partial": ("yes",) if request.partial else (),
        "apply": ("yes",) if request.apply else (),
        "break at": request.break_at,
        "red base": (request.red_base,) if request.red_base != "go" else (),
    }
    for name, values in asked.items():
        if values:
            out.text(f"{name:<9} {', '.join(values)}")


def _show_attempt(out: Output, state: MissionState, attempt: AttemptState) -> None:
    if attempt.seconds is not None:
        spent = f"{attempt.seconds:.1f} s"
    elif state.waits_for_quota:
        spent = "waiting for quota"
    else:
        spent = "waiting for an answer" if state.status == "waiting" else "still running"
    verdict = (attempt.verdict or "no verdict").replace("_", " ")
    cost = cost_text(attempt.cost_usd, attempt.cost_known)
    who = f"{attempt.agent} ({attempt.model})" if attempt.model else attempt.agent
    out.text(f"attempt   {attempt.number} by {who}: {attempt.status}, {verdict}, {spent}, {cost}")
    for reason in attempt.reasons:
        out.text(f"            {reason.code}: {reason.message}")
    money = money_text(attempt)
    if money:
        out.text(f"            money: {money}")
    if attempt.usage.closed:
        out.text(f"            used {usage_text(attempt.usage)}")
    if attempt.captured is not None:
        out.text(f"            failure snapshot: chargehand artifact show {attempt.captured[:12]}")
    cause, of_mission = attempt_cause(attempt), mission_cause(state)
    # The last attempt's cause is the mission's own, which is shown above.
    if cause is not None and (of_mission is None or cause.code != of_mission.code):
        out.text(f"            {cause_line(cause, state.id)}")


def _show_tree_history(out: Output, state: MissionState) -> None:
    """Write the mission's network requests and the verdicts on each tree."""
    used = state.network
    if used.allowed or used.refused:
        sizes = f"{used.bytes_out:,} bytes out, {used.bytes_in:,} in"
        out.text(f"network   {used.allowed} requests allowed, {used.refused} refused ({sizes})")
        # The most refused come first: a person may want to allow that host.
        for place, count in sorted(used.hosts_refused.items(), key=lambda item: -item[1])[:_REFUSED_HOSTS]:
            out.text(f"            refused {count_text(count, 'time')}: {place}")
    # Only the last verdict on each base: one from before its setup says nothing about the tree.
    last_on_base = {each.tree: each for each in state.verdicts if each.scope == "base"}
    for verdict in (each for each in state.verdicts if each.scope != "base" or each is last_on_base[each.tree]):
        out.text(f"verdict   {verdict.status.replace('_', ' ')} on the {verdict.scope} tree {verdict.tree[:12]}")
        for check in verdict.checks:
            why = f": {check.reason}" if check.reason else ""
            ran = "" if check.tests is None else f"{count_text(check.tests, 'test')}, "
            warm = ", with compiler caches" if check.warm else ""
            out.text(f"            {check.status}  {check.name} ({ran}{check.seconds:.1f} s{warm}){why}")
        for line in _describe_reads(verdict):
            out.text(f"            {line}")
        for finding in verdict.findings:
            line = f", line {finding.line}" if finding.line is not None else ""
            person = " (needs a person's decision)" if finding.needs_person else ""
            out.text(f"            {finding.severity}  {finding.rule}  {finding.text}{line}{person}")
    for reverted in state.reverted:
        out.text(f"reverted  {shown_path(reverted.path)} ({reverted.rule})")
    for conflict in state.conflicts:
        whole = f" (full list: chargehand artifact show {conflict.artifact[:12]})" if conflict.artifact else ""
        branch = conflict.branch or "later merges"
        out.text(f"conflict  with {branch} @ {conflict.commit[:12]}, paths: {conflict.count}{whole}")
        for line in conflict_report(conflict.conflicts, ours=branch, theirs="the mission").splitlines():
            out.text(f"            {line}")


def _show_delivery(out: Output, state: MissionState, details: MissionDetails) -> None:
    """Write the checkpoints, the exports, the resources used, and the next commands."""
    for point in state.checkpoints:
        out.text(f"point     {point.commit[:12]}  {point.trigger}, {count_text(point.changed, 'file')} changed")
    branch = exported_branch(state)
    if branch is not None:
        out.text(f"branch    {branch} @ {(state.exported or '')[:12]}{_undone(state)}")
    for name, export in (("export", state.export), ("apply", state.applied)):
        if export is not None:
            why = f": {export.reason}" if export.reason else ""
            out.text(f"{name:<9} {export.state} {export.ref}{why}")
    for delivery in details.deliveries:
        why = "".join(f"; {text}" for text in (delivery.reason, delivery.remedy) if text)
        out.text(f"delivery  {delivery.target}: {delivery.state} {delivery.ref}".rstrip() + why)
    for promotion in details.promotions:
        where = f"on {promotion.branch} since {local_time(promotion.landed)}" if promotion.branch else "open"
        out.text(f"fate      {promotion.commit[:12]}: {(promotion.fate or where).replace('_', ' ')}")
    attempts = {attempt.id: attempt for attempt in state.attempts}
    for each in details.feedback:
        attempt = attempts.get(each.attempt)
        which = f" on attempt {attempt.number}" if attempt is not None else ""
        counts = "" if attempt is not None and attempt.ended_well else " (does not count)"
        said = f"{', ' * bool(each.place)}{each.place}{': ' * bool(each.note)}{each.note}"
        out.text(f"feedback  {'good' if each.good else 'bad'}{which} by {each.identity}{counts}{said}")
    unknown = state.unknown_events - state.damaged_events
    if unknown:
        # Mentioned because all of the above comes from the readable lines.
        out.text(f"events    {count_text(unknown, 'line')} erased or from a later version")
    out.text(f"spent     {summary(state)}")
    show_next(out, details.next)
