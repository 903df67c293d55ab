"""`chargehand format` and `chargehand project hook …`."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chargehand.app.actions import Actions
from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.checks._formatters import Formatter, detect_formatters, formatted_by
from chargehand.cli._prepare import find_mission
from chargehand.cli.interrupt import run_async
from chargehand.cli.output import Output
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.text import shown_path
from chargehand.missions._branching import Branching
from chargehand.missions._formatting import Formatted, run_formatters
from chargehand.missions._reader import DepotReader
from chargehand.workspace._apply_files import AppliedFiles, apply_files
from chargehand.workspace._depot import Depot
from chargehand.workspace._hook import install_hook, remove_hook
from chargehand.workspace._repository import find_repository
from chargehand.workspace._staged import staged_tree

_WOULD_CHANGE, _NOT_FORMATTED = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatOptions:
    """What stands on the command line of `format`."""

    paths: tuple[str, ...] = ()
    repo: Path | None = None
    mission: str | None = None
    check: bool = False
    staged: bool = False
    apply: bool = False
    time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is formatted: a tree, by which formatters, and which files each is given."""

    tree: str
    formatters: tuple[Formatter, ...]
    files: dict[str, tuple[str, ...]]


def format_files(out: Output, options: FormatOptions) -> int:
    """Run the project's formatters in a sandbox and tell what they change; 1 where a check finds anything."""
    if options.mission is not None and (options.staged or options.apply or options.repo is not None):
        raise UsageError("--mission formats what that mission left", hint="leave out --staged, --apply and --repo")
    if options.check and options.apply:
        raise UsageError("--check and --apply were given", hint="--check only looks")
    with App.open() as app:
        if options.mission is not None:
            return run_async(lambda stop: _format_mission(app, out, options))
        return run_async(lambda stop: _format_index(app, out, options))


async def _format_index(app: App, out: Output, options: FormatOptions) -> int:
    found = await asyncio.to_thread(app.find, options.repo)
    staged = await asyncio.to_thread(staged_tree, found.depot, found.base)
    within = _within(app, found.depot, options.paths)
    if options.staged:
        within = [path for path in staged.changed if not within or _below(path, within)]
    source = _source(found.depot, staged.tree, within, nothing=options.staged and not within)
    if not any(source.files.values()):
        return _show(out, options, source, None, {"source": "staged"})
    async with app.session(options.repo, found=found) as session:
        done = await _run(app, session, source, options)
    applied = await asyncio.to_thread(apply_files, found.depot, done.changes) if options.apply else None
    return _show(out, options, source, done, {"source": "staged"}, applied=applied)


async def _format_mission(app: App, out: Output, options: FormatOptions) -> int:
    assert options.mission is not None
    mission = find_mission(app, options.mission)
    points = app.look.state(mission).checkpoints
    if not points:
        raise NotFoundError(f"mission {mission!r} has no checkpoint", hint=f"chargehand mission show {mission}")
    async with app.mission_session(mission) as (_, session):
        source = _source(session.depot, points[-1].tree, [path.strip("/") for path in options.paths])
        about: dict[str, Any] = {"source": "mission", "mission": mission}
        if not any(source.files.values()):
            return _show(out, options, source, None, about)
        done = await _run(app, session, source, options)
        if done.changes and not options.check:
            branching = Branching(store=app.store, look=app.look, worker=app.member.id, clock=app.clock)
            keep = (session.depot, mission, done.tree)
            kept = await asyncio.to_thread(
                branching.keep, *keep, before=source.tree, trigger="formatted", stop=threading.Event()
            )
            about["checkpoint"] = kept.commit
    return _show(out, options, source, done, about)


def _source(depot: Depot, tree: str, within: list[str], *, nothing: bool = False) -> _Source:
    reader = DepotReader(depot)
    formatters = () if nothing else detect_formatters(reader, tree)
    return _Source(tree=tree, formatters=formatters, files=formatted_by(reader, tree, formatters, within=within))


async def _run(app: App, session: Session, source: _Source, options: FormatOptions) -> Formatted:
    seconds = Actions(app).config(options.time).time
    async with session.missions.open_work(session.base, tree=source.tree) as (workspace, sandbox):
        return await run_formatters(
            session.depot, workspace, sandbox, source.formatters, source.files, tree=source.tree, seconds=seconds
        )


def _within(app: App, depot: Depot, paths: tuple[str, ...]) -> list[str]:
    """Return the paths from the repository's top, as they were given from where the person stands."""
    root, found = depot.repository.path.resolve(), []
    for path in paths:
        real = Path(os.path.normpath(app.cwd.resolve() / path))
        if not real.is_relative_to(root):
            raise UsageError(
                f"{path!r} is not in the repository {str(root)!r}", hint="name files of the repository"
            )
        found.append("" if real == root else str(real.relative_to(root)))
    return found


def _below(path: str, within: list[str]) -> bool:
    return any(each in ("", path) or path.startswith(f"{each}/") for each in within)


def _show(
    out: Output,
    options: FormatOptions,
    source: _Source,
    done: Formatted | None,
    about: dict[str, Any],
    *,
    applied: AppliedFiles | None = None,
) -> int:
    changed = [change.path for change in done.changes] if done else []
    runs = done.runs if done else ()
    out.document(
        {
            **about,
            "check": options.check,
            "tree": source.tree,
            "result": done.tree if done else source.tree,
            "formatters": [{"name": each.name, "why": each.why} for each in source.formatters],
            "runs": runs,
            "changed": changed,
            "applied": applied,
        }
    )
    _tell(out, options, source, changed, applied)
    for run in runs:
        if run.problem:
            out.text(f"{run.name} {'is not in the sandbox' if run.missing else 'failed'}: {run.problem}", fg="red")
    if options.check and changed:
        return _WOULD_CHANGE
    return _NOT_FORMATTED if any(run.problem for run in runs) else 0


def _tell(
    out: Output, options: FormatOptions, source: _Source, changed: list[str], applied: AppliedFiles | None
) -> None:
    for path in changed:
        out.text(f"{'would change' if options.check or not (options.mission or applied) else 'changed'}  "
                 f"{shown_path(path)}")  # fmt: skip
    for path in applied.left if applied else ():
        out.text(f"left as it is, for it differs from what is staged: {shown_path(path)}", fg="yellow")
    if not source.formatters:
        out.text("no formatter is named by the project's configuration, or there is nothing to format")
    elif not changed:
        out.text("all is formatted")
    elif not options.check and applied is None and options.mission is None:
        out.text("nothing was written: --apply writes into your files")


def install(out: Output, *, repo: Path | None) -> int:
    """Install the pre-commit hook of a repository."""
    program = shutil.which("chargehand") or str(Path(sys.executable).with_name("chargehand"))
    hook = install_hook(find_repository(repo or Path.cwd()), Path(program).absolute())
    out.document({"path": str(hook.path), "changed": hook.changed})
    out.text(f"{'wrote' if hook.changed else 'is there already:'} {shown_path(str(hook.path))}")
    return 0


def remove(out: Output, *, repo: Path | None) -> int:
    """Remove the pre-commit hook of a repository."""
    hook = remove_hook(find_repository(repo or Path.cwd()))
    out.document({"path": str(hook.path), "changed": hook.changed})
    out.text(f"{'removed' if hook.changed else 'there is none at'} {shown_path(str(hook.path))}")
    return 0
