"""A report as Markdown (CommonMark), in which untrusted text is always plain text.

Text from a person, an agent, a file's name or a check is put into code, where Markdown has no meaning: between
more backticks than any run of them in the text. There it cannot become a heading, table, link or HTML, and no site
makes a mention or a reference of it. All other words are the renderer's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from chargehand.core.records import CheckResult, Finding, Reason
from chargehand.core.text import printable, shown_path
from chargehand.reports.documents import AttemptDetails
from chargehand.reports.report import AttemptReport, MissionReport, ReportedEvent

_TICKS = re.compile("`+")
_MOST_ARTIFACTS = 50
_DECISIONS = {
    "approval.given": "approved",
    "question.answered": "answered",
    "message.sent": "sent a message",
    "mission.paused": "paused it",
    "mission.resumed": "resumed it",
    "mission.cancel_asked": "cancelled it",
}


def code(text: str) -> str:
    """Return text on one line as a code span; control characters are shown as escapes, bytes as `\\xNN`."""
    shown = printable(shown_path(text))
    if not shown.strip(" "):
        return "(empty)"
    fence = _fence(shown, 1)
    # A space at both ends is removed by Markdown, so that the text may begin or end with a backtick or a space.
    return f"{fence} {shown} {fence}" if shown[0] in "` " or shown[-1] in "` " else f"{fence}{shown}{fence}"


def words(text: str) -> str:
    """Return a sentence as a code span, with line breaks replaced by spaces."""
    return code(" ".join(text.split()))


def block(text: str, *, indent: str = "") -> Iterator[str]:
    """Yield the lines of a text as a fenced code block, without control characters."""
    shown = printable(text).expandtabs(4)
    fence = _fence(shown, 3)
    for line in (fence, *shown.split("\n"), fence):
        yield f"{indent}{line}".rstrip()


def _fence(text: str, least: int) -> str:
    return "`" * max(least, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))


def render_report(report: MissionReport) -> str:
    """Return a report as Markdown, with a newline at its end."""
    lines: list[str] = []
    for title, part in (
        (None, _tell_status(report)),
        ("What was asked", _tell_request(report)),
        ("What was done", _tell_changes(report)),
        ("Checks that judged the promoted tree", _tell_checks(report)),
        *((("Tasks", _tell_tasks(report)),) if report.tasks else ()),
        ("Attempts and refusals", _tell_attempts(report)),
        ("Decisions", _tell_events(report.decisions, "No person decided anything.")),
        ("Cost and time", _tell_cost(report)),
        ("Evidence", _tell_evidence(report)),
    ):
        lines += [f"## {title}", ""] if title else []
        lines += [*part, ""]
    lines += ["## How to undo it", "", report.undo.text]
    for command in report.undo.commands:
        lines += ["", *block(command)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _tell_status(report: MissionReport) -> Iterator[str]:
    yield f"# Mission {code(report.mission)}: {report.status}"
    if not report.final:
        yield ""
        yield "**Not final:** the mission is not settled; this is its present state."
    details = report.details
    if details.damaged:
        yield ""
        yield "**Its log is damaged:** this report covers only the lines that can still be read."
        yield ""
        for line in details.damaged:
            where = "the log" if line.seq is None else f"line {line.seq}"
            yield f"- {where}: {words(line.message)}"
    elif details.unknown_events:
        yield ""
        yield f"{_count(details.unknown_events, 'line')} of its log cannot be read: erased, or of a later version."
    if details.reasons:
        yield ""
    yield from _tell_reasons(details.reasons)


def _tell_reasons(reasons: Iterable[Reason], indent: str = "") -> Iterator[str]:
    for reason in reasons:
        yield f"{indent}- reason {code(reason.code)}: {words(reason.message)}"


def _tell_request(report: MissionReport) -> Iterator[str]:
    details = report.details
    request, base, role = details.request, details.base, details.role_chosen
    yield from block(request.text) if request else ("The request is not known.",)
    yield ""
    yield f"- by {_known(report.user)}, at {_known(details.created)}"
    yield f"- in {_known(details.repository)}"
    if report.forked_from:
        yield f"- continues mission {code(report.forked_from)}"
    if base is None:
        yield "- base not known"
    else:
        dirty = "; uncommitted changes were not part of it" if base.dirty else ""
        yield f"- base {code(base.commit)} ({code(base.branch or base.revision)}){dirty}"
    yield f"- role {_known(details.role)}" + (f", file {code(role.digest)}" if role else "")
    agent, model = (request.agent, request.model) if request else (None, None)
    yield f"- agent {_known(agent)}, model {_known(model)}"
    if request and request.why:
        yield f"- chosen because: {words(request.why)}"


def _known(text: str | None) -> str:
    return code(text) if text else "not named"


def _tell_changes(report: MissionReport) -> Iterator[str]:
    if report.files is None:
        yield "- which files changed is not known: the trees cannot be read"
    else:
        yield f"- {_count(len(report.files), 'file')} changed"
        for each in report.files:
            binary = each.added is None or each.removed is None
            counts = "binary" if binary else f"{_count(each.added, 'line')} added, {each.removed} removed"
            yield f"  - {code(each.path)}: {counts}"
    yield f"- {_count(len(report.details.checkpoints), 'checkpoint')} kept"
    if report.details.report is not None:
        yield "- its report:"
        yield from block(report.details.report.text, indent="  ")
    if report.promoted is None:
        yield "- nothing was promoted"
    else:
        yield f"- promoted commit {code(report.promoted.commit)}, tree {code(report.promoted.tree)}"
        if report.promoted.undone_by:
            yield f"- undone by commit {code(report.promoted.undone_by)}"
    for name, export in (("export", report.details.export), ("apply", report.details.applied)):
        if export is not None and export.ref:
            why = f": {words(export.reason)}" if export.reason else ""
            yield f"- {name} to {code(export.ref)} {export.state}{why}"


def _count(number: int | None, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _tell_checks(report: MissionReport) -> Iterator[str]:
    if report.promoted is None:
        yield "None: nothing was promoted."
    elif report.promoted.verdict is None:
        yield "The log no longer has a verdict on that tree."
    else:
        verdict = report.promoted.verdict
        yield f"- verdict {verdict.status} on the {verdict.scope} tree {code(verdict.tree)}"
        if not verdict.checks:
            yield "- no check ran"
        yield from map(_tell_check, verdict.checks)
        yield from _tell_findings(verdict.findings)
        yield from _tell_unread(verdict.unread)
        for path in verdict.elsewhere:
            yield f"- loaded from outside the tree in place of changed code: {code(path)}"
    if report.details.request is not None and report.details.request.only_checks is not None:
        yield "- the project's own checks were replaced by `--only-check`"
    if report.on_base:
        yield "- on the base, before any work:"
        yield from (_tell_check(check, "  ") for check in report.on_base.checks)


def _tell_check(check: CheckResult, indent: str = "") -> str:
    told = [check.status, "tests not counted" if check.tests is None else _count(check.tests, "test")]
    told.append(f"{check.seconds:.1f} s")
    told += ["from outside the tree"] if check.outside else []
    told += ["with the base's own tests"] if check.base_tests else []
    told += ["started with the base's compiler cache"] if check.warm else []
    output = f", output {code(check.artifact)}" if check.artifact else ""
    why = f": {words(check.reason)}" if check.reason else ""
    return f"{indent}- check {code(check.name)}: {', '.join(told)}{output}{why}"


def _tell_findings(findings: Iterable[Finding], indent: str = "") -> Iterator[str]:
    for found in findings:
        line = f" line {found.line}" if found.line is not None else ""
        person = ", needs a person" if found.needs_person else ""
        place = f"{code(found.path)}{line}: " if found.path else ""
        yield f"{indent}- {found.severity} {code(found.rule)}{person}: {place}{words(found.message)}"


def _tell_unread(unread: Sequence[str] | None, indent: str = "") -> Iterator[str]:
    if unread is None:
        yield f"{indent}- which changed code the checks opened was not observed"
    for path in unread or ():
        yield f"{indent}- changed code that no check opened: {code(path)}"


def _tell_tasks(report: MissionReport) -> Iterator[str]:
    for task in report.tasks:
        outcome = "rolled back" if task.rolled_back else (task.outcome or "not ended").replace("_", " ")
        commit = f" at {code(task.commit[:12])}" if task.commit else ""
        why = f": {words(task.reason.message)}" if task.reason is not None else ""
        yield f"- {code(task.id)}: {words(task.text)}: {outcome}{commit}{why}"
        if task.missions:
            yield f"  - by {', '.join(map(code, task.missions))}, {_money(task.cost_usd)}"
        for reason in task.returned:
            yield f"  - went back: {words(reason.message)}"
        for vote in task.reviews:
            said = f": {words('; '.join(vote.points))}" if vote.points else ""
            yield f"  - {code(vote.role)} {vote.vote}{', proven by a test' if vote.proven else ''}{said}"
    for duty in report.obligations:
        by = [code(task.id) for task in report.tasks if duty.id in task.covers]
        yield f"- obligation {code(duty.id)}: {words(duty.text)}: {', '.join(by) or '**no task covers it**'}"


def _tell_attempts(report: MissionReport) -> Iterator[str]:
    if not report.attempts:
        yield "Each task has its own mission." if report.tasks else "No attempt began."
    for attempt, details in zip(report.attempts, report.details.attempts, strict=True):
        yield from _tell_attempt(attempt, details)
    for verdict in report.judged_again:
        yield f"- judged apart from an attempt, tree {code(verdict.tree)}: {verdict.status}"
        yield from _tell_findings(verdict.findings, "  ")


def _tell_attempt(attempt: AttemptReport, details: AttemptDetails) -> Iterator[str]:
    spent = "time not known yet" if details.seconds is None else f"{details.seconds:.1f} s"
    who = code(details.agent) + (f" with {code(details.model)}" if details.model else "")
    verdict = f"verdict {details.verdict}" if details.verdict else "no verdict"
    cost = _money(details.cost_usd)
    yield f"- attempt {attempt.number} by {who}: {details.status}, {verdict}, {spent}, {cost}"
    if details.money.unknown_calls:
        yield f"  - {details.money.unknown_calls} of {details.money.calls} calls have no known cost"
    yield from _tell_reasons(details.reasons, "  ")
    for each in attempt.reverted:
        yield f"  - reverted {code(each.path)} by rule {code(each.rule)}"
    if attempt.verdict is not None:
        yield from _tell_findings(attempt.verdict.findings, "  ")
        yield from _tell_unread(attempt.verdict.unread, "  ")
    for failure in attempt.failures:
        output = f", all output {code(failure.artifact)}" if failure.artifact else ""
        yield f"  - {failure.kind} {code(failure.name)} {failure.status.replace('_', ' ')}{output}"
        for test in failure.tests:
            yield f"    - test {code(test.name)}"
            if test.lines:
                yield from block("\n".join(test.lines), indent="      ")
        if failure.lines:
            yield from block("\n".join(failure.lines), indent="    ")


def _tell_events(events: Sequence[ReportedEvent], none: str) -> Iterator[str]:
    if not events:
        yield none
    for each in events:
        what = _DECISIONS.get(each.kind, "interrupted") if each.identity else "interruption"
        who = f"{code(each.identity)} " if each.identity else ""
        about = f" ({words(each.about)})" if each.about else ""
        yield f"- {code(each.time)}: {who}{what}{about}" + (f": {words(each.text)}" if each.text else "")


def _tell_cost(report: MissionReport) -> Iterator[str]:
    yield f"- {_money(report.details.cost_usd)}"
    seconds = report.details.seconds
    yield f"- time {'not known' if seconds is None else f'{seconds:.1f} s from the first event to the last'}"
    yield from _tell_events(report.interruptions, "- no interruption")


def _money(cost: float | None) -> str:
    return "cost not known" if cost is None else f"cost {cost:.4f} USD"


def _tell_evidence(report: MissionReport) -> Iterator[str]:
    yield f"- the log: {code(f'chargehand mission log {report.mission}')}"
    yield f"- proof that it was not changed: {code(f'chargehand audit verify {report.mission}')}"
    if report.promoted is not None:
        command = code(f"chargehand audit provenance {report.mission}")
        yield f"- signed provenance of each promoted commit: {command}"
    for each in report.evidence[:_MOST_ARTIFACTS]:
        yield f"- {code(each.kind)} {code(each.id)}, {each.size} bytes"
    more = len(report.evidence) - _MOST_ARTIFACTS
    if more > 0:
        yield f"- {more} more: {code(f'chargehand artifact list {report.mission}')}"
    yield "- `chargehand artifact show ID` prints one"
