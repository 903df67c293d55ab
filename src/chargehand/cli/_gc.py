"""`chargehand gc`: disk space back from what no mission needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from chargehand.app.composition import App
from chargehand.cli._output import Output
from chargehand.core.errors import UsageError
from chargehand.core.text import printable, shown_path
from chargehand.store._projects import ProjectRow
from chargehand.workspace._gc import GcReport, gc

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMG]i?)?B?", re.IGNORECASE)
_KINDS = ("workspaces", "bases", "layers", "litter")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """What stands on the command line of `gc`."""

    repo: Path | None = None
    dry_run: bool = False
    max_age: str | None = None
    max_bytes: str | None = None
    checkpoints: bool = False
    yes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The projects to go through, those whose repository is gone, and the rules for `gc`."""

    projects: tuple[ProjectRow, ...]
    skipped: tuple[ProjectRow, ...]
    roots: tuple[Path, ...]
    rules: dict[str, Any]


def collect(out: Output, options: GcOptions | None = None, **said: Any) -> int:
    """Remove what is not needed, by the limits of the user's configuration or those given."""
    options = options or GcOptions(**said)
    with App.open() as app:
        job = _job(app, options)
        if options.checkpoints and not options.dry_run:
            _confirm(out, gc(job.roots, needed=app.needed, dry_run=True, **job.rules), yes=options.yes)
        report = gc(job.roots, needed=app.needed, dry_run=options.dry_run, **job.rules)
    _show(out, job, report)
    return 0


def _job(app: App, options: GcOptions) -> _Job:
    limits = app.user_configuration().config.limits
    one = options.repo is not None
    listed = (app.project(options.repo),) if one else tuple(app.store.projects.list())
    there = tuple(project for project in listed if project.path.is_dir())
    rules: dict[str, Any] = {"max_age": limits.workspace_age, "checkpoints": options.checkpoints}
    if options.max_age is not None:
        age = _number(options.max_age, _AGE, "--max-age", "90s, 30m, 24h or 7d")
        rules |= {"max_age": age, "shared_age": age}
    if options.max_bytes is not None:
        rules["max_bytes"] = int(_number(options.max_bytes, _SIZE, "--max-bytes", "500MB or 2GiB"))
    elif not one:  # the limit is for all projects together
        rules["max_bytes"] = limits.state_mb << 20
    return _Job(
        projects=there,
        skipped=tuple(project for project in listed if project not in there),
        roots=tuple(app.home / "projects" / project.id for project in listed),
        rules=rules,
    )


def _number(text: str, form: re.Pattern[str], option: str, example: str) -> float:
    found = form.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{option} is not like {example}: {text!r}", hint=f"write it as {example}")
    unit = found[2] or ""
    factor = _SECONDS[unit.lower()] if form is _AGE else _bytes(unit)
    return float(found[1]) * factor


def _bytes(unit: str) -> int:
    step = 1024 if unit.lower().endswith("i") else 1000
    return int(step ** ("kmg".index(unit[0].lower()) + 1)) if unit else 1


def _confirm(out: Output, planned: GcReport, *, yes: bool) -> None:
    """Have a person agree to what will be unreachable. Raises `UsageError` where there is nobody to ask."""
    refs = sum(len(project.erased.refs) for project in planned.projects)
    if yes or not refs:
        return
    commits = sum(project.erased.commits for project in planned.projects)
    what = f"{commits} checkpoints of {refs} workspaces can never be restored, shown or forked again"
    if not out.can_ask:
        hint = "add --yes; 'chargehand gc --checkpoints --dry-run' names them"
        raise UsageError(f"nobody to ask: {what}", hint=hint)
    click.confirm(f"{what}. Go on?", abort=True, err=True)


def _show(out: Output, job: _Job, report: GcReport) -> None:
    by_root = {project.root: project for project in report.projects}
    rows = (*job.projects, *job.skipped)
    documents = []
    verb = "would be freed" if report.dry_run else "freed"
    for row in rows:
        found = next((by_root[root] for root in job.roots if root.name == row.id), None)
        documents.append(_document(row, found, skipped=row in job.skipped))
        out.text(f"{shown_path(str(row.path))}: {_words(found, verb)}")
        for line in _lines(found) if report.dry_run else ():
            out.text(f"  {line}")
    out.document({"dry_run": report.dry_run, "taken": report.taken, "bytes": report.bytes, "projects": documents})
    erased = sum(project.erased.commits for project in report.projects)
    kept = "every checkpoint stays" if not erased else f"{erased} checkpoints {_gone(report.dry_run)}"
    out.text(f"{_mb(report.bytes)} {verb} of {_mb(report.taken)}; {kept}")


def _document(row: ProjectRow, found: Any, *, skipped: bool) -> dict[str, object]:
    told: dict[str, object] = {"project": row.id, "path": str(row.path)}
    if skipped:
        told["skipped"] = "its repository is gone; what is kept of it was looked at all the same"
    kinds = {kind: getattr(found, kind) for kind in _KINDS}
    erased = {"refs": found.erased.refs, "commits": found.erased.commits, "bytes": found.erased.bytes}
    return {**told, **kinds, "bytes": found.bytes, "checkpoints": erased}


def _words(found: Any, verb: str) -> str:
    counts = ", ".join(f"{len(getattr(found, kind))} {kind}" for kind in _KINDS[:3])
    return f"{counts}, {_mb(found.bytes)} {verb}"


def _lines(found: Any) -> Sequence[str]:
    names = [f"{kind.removesuffix('s')} {printable(name)}" for kind in _KINDS for name in getattr(found, kind)]
    return [*names, *(f"checkpoints {ref}" for ref in found.erased.refs)]


def _gone(dry_run: bool) -> str:
    return "would become unreachable" if dry_run else "were let go"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
