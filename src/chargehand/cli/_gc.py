"""`chargehand gc`: disk space back from what no mission needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chargehand.app import App
from chargehand.cli._output import Output
from chargehand.core import RepositoryError, shown_path
from chargehand.store import ProjectRow
from chargehand.workspace import GcReport, gc

_OPEN = ("planned", "running", "waiting", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collected:
    project: ProjectRow
    report: GcReport | None
    skipped: str = ""


def collect(out: Output, *, repo: Path | None, dry_run: bool) -> int:
    """Remove what is not needed in one project or in all; checkpoints stay."""
    with App.open() as app:
        projects = (app.project(repo),) if repo is not None else app.store.projects.list()
        done = [_collect(app, project, dry_run=dry_run) for project in projects]
    out.document({"dry_run": dry_run, "projects": [_document(one) for one in done]})
    verb = "would be freed" if dry_run else "freed"
    for one in done:
        out.text(f"{shown_path(str(one.project.path))}: {_words(one, verb)}")
    total = sum(one.report.bytes for one in done if one.report is not None)
    out.text(f"{total / 1e6:.1f} MB {verb}; every checkpoint stays")
    return 0


def _collect(app: App, project: ProjectRow, *, dry_run: bool) -> _Collected:
    states = [state for state in app.look.all(project=project.id) if state.status in _OPEN]
    workspaces = {attempt.workspace for state in states for attempt in state.attempts}
    bases = {state.base.commit for state in states if state.base is not None}
    try:
        depot = app.depot(project)
    except RepositoryError as error:
        return _Collected(project=project, report=None, skipped=error.message)
    return _Collected(project=project, report=gc(depot, keep=workspaces, keep_bases=bases, dry_run=dry_run))


def _document(one: _Collected) -> dict[str, object]:
    found: dict[str, object] = {"project": one.project.id, "path": str(one.project.path)}
    report = one.report
    if report is None:
        return found | {"skipped": one.skipped}
    return found | {
        "workspaces": report.workspaces,
        "bases": report.bases,
        "layers": report.layers,
        "bytes": report.bytes,
    }


def _words(one: _Collected, verb: str) -> str:
    report = one.report
    if report is None:
        return f"skipped: {one.skipped}"
    counts = f"{len(report.workspaces)} workspaces, {len(report.bases)} bases, {len(report.layers)} layers"
    return f"{counts}, {report.bytes / 1e6:.1f} MB {verb}"
