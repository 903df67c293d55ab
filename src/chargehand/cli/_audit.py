"""`chargehand audit …`."""

from __future__ import annotations

from chargehand.app import App
from chargehand.cli._output import Output
from chargehand.cli._prepare import find_mission
from chargehand.store import AuditReport, verify


def verify_log(out: Output, mission: str | None) -> int:
    """Write whether the log is what was written; exit 1 where it is not."""
    with App.open() as app:
        report = verify(app.store, None if mission is None else find_mission(app, mission))
    show_report(out, report)
    return 0 if report.ok else 1


def show_report(out: Output, report: AuditReport) -> None:
    """Write what an audit found, and where."""
    out.document(
        {"ok": report.ok, "missions": report.missions, "events": report.events, "problems": report.problems}
    )
    for problem in report.problems:
        place = problem.mission or "the store"
        line = f" line {problem.seq}" if problem.seq is not None else ""
        out.text(f"{place}{line}: {problem.kind}: {problem.message}", fg="red")
    counted = f"{report.events} events of {report.missions} missions"
    out.text(f"{counted}: {'whole' if report.ok else f'{len(report.problems)} problems'}")
