"""`chargehand demo`: the same code as every run, on a small project, with four agents of which one is honest."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chargehand.app import App, Session, user_config_path
from chargehand.cli._demo_project import AGENTS, REQUEST, DemoAgent, git, make_project, write_agents
from chargehand.cli._diff import base_tree, depot_of, result_tree
from chargehand.cli._failures import INTERRUPTED
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.cli._request import RunOptions
from chargehand.cli._result import branch_of, cost_of, cost_text, result_document, seconds_of, show_checks
from chargehand.cli._run import Ended, run_mission
from chargehand.core import MissionState
from chargehand.store import verify


@dataclass(slots=True, kw_only=True)
class _Story:
    """What the demo has shown so far, and whether all of it came out as it should."""

    app: App
    out: Output
    project: Path
    steps: list[dict[str, Any]] = field(default_factory=list)

    def step(self, name: str, ok: bool, **facts: object) -> None:
        """Note how a step came out."""
        self.steps.append({"step": name, "ok": ok, **facts})
        if not ok:
            self.out.text("  this did not come out as it should", fg="red", bold=True)

    @property
    def ok(self) -> bool:
        """Whether every step came out as it should."""
        return all(step["ok"] for step in self.steps)


def demo(out: Output, *, keep: bool) -> int:
    """Tell the story; exit 0 only where every step came out as it should."""
    with _directory(keep) as directory:
        project = make_project(directory)
        environ = _environment(directory)
        write_agents(user_config_path(environ))
        with App.open(environ=environ, cwd=project) as app:
            story = _Story(app=app, out=out, project=project)
            _introduce(out, directory)
            code = _tell(story)
        _close(story, directory, keep)
    return code


def _tell(story: _Story) -> int:
    promoted = None
    for agent in AGENTS:
        ended = _let_work(story, agent)
        if ended.interrupted:
            return INTERRUPTED
        if ended.state.status == "promoted":
            promoted = ended.state
    if promoted is not None:
        for tell in (_show_change, _show_checkpoints, _roll_back):
            tell(story, promoted)
    _audit(story)
    _look_at_repository(story)
    return 0 if story.ok else 1


def _introduce(out: Output, directory: Path) -> None:
    out.text("A small shop with a bug in its discount, and four agents that are asked to fix it.", bold=True)
    out.text(
        "The agents are small scripts. All else is real: the repository, the sandbox, the checks, the verdicts,"
    )
    out.text(f"the log. Everything happens in {directory}.")


def _let_work(story: _Story, agent: DemoAgent) -> Ended:
    out = story.out
    out.text()
    out.text(f'$ chargehand run --agent {agent.name} "{REQUEST}"', bold=True)
    out.text(f"  {agent.story}")
    before = _fingerprint(story.project)
    ended = run_mission(story.app, out, RunOptions(text=REQUEST, agent=agent.name, yes=True))
    state = ended.state
    _show_outcome(out, state)
    untouched = before == _fingerprint(story.project)
    ok = state.status == agent.status and (agent.reason is None or agent.reason in _codes(state))
    ok = ok and (untouched or state.status == "promoted") and bool(state.reasons or state.status == "promoted")
    document = result_document(state)
    story.step(f"run:{agent.name}", ok, expected=agent.status, repository_unchanged=untouched, result=document)
    return ended


def _codes(state: MissionState) -> set[str]:
    return {reason.code for reason in state.reasons}


def _show_outcome(out: Output, state: MissionState) -> None:
    if state.status == "promoted":
        show_checks(out, state)
    out.text(f"  {state.status}", fg="green" if state.status == "promoted" else "red", bold=True)
    for reason in state.reasons:
        out.text(f"    {reason.code}: {reason.message}")
    if state.status == "promoted":
        spent = seconds_of(state)
        out.text(f"    branch {branch_of(state)}, after {spent:.1f} s, {cost_text(*cost_of(state))}")


def _fingerprint(project: Path) -> tuple[str, str]:
    """Return all refs and all that differs from HEAD: what no refused agent may change."""
    return git(project, "show-ref"), git(project, "status", "--porcelain", "--ignored")


def _show_change(story: _Story, state: MissionState) -> None:
    out = story.out
    out.text()
    out.text(f"$ chargehand mission diff {state.id}", bold=True)
    patch = depot_of(story.app, state).patch(base_tree(state), result_tree(state))
    for line in patch.decode(errors="replace").splitlines():
        out.text(f"  {line}")
    story.step("diff", b"(100 - percent)" in patch)


def _show_checkpoints(story: _Story, state: MissionState) -> None:
    out = story.out
    out.text()
    out.text(f"$ chargehand checkpoint list {state.id}", bold=True)
    for point in state.checkpoints:
        out.text(f"  {point.commit[:12]}  made at {point.trigger}, {point.changed} changed")
    story.step("checkpoints", bool(state.checkpoints), count=len(state.checkpoints))


def _roll_back(story: _Story, state: MissionState) -> None:
    out = story.out
    out.text()
    out.text(f"$ chargehand mission rollback {state.id}", bold=True)

    async def work(stop: Stop) -> MissionState:
        async with story.app.mission_session(state.id) as (found, session):
            return await _rolled_back(session, found)

    after = run_async(work)
    branch = branch_of(after) or ""
    same = git(story.project, "rev-parse", f"{branch}^{{tree}}") == git(story.project, "rev-parse", "main^{tree}")
    out.text(f"  {branch} has a new commit, {(after.commit or '')[:12]}, with the tree it began with")
    story.step("rollback", same and after.commit != state.commit, commit=after.commit)


async def _rolled_back(session: Session, mission: str) -> MissionState:
    return await session.missions.roll_back(mission)


def _audit(story: _Story) -> None:
    out = story.out
    report = verify(story.app.store)
    out.text()
    out.text("$ chargehand audit verify", bold=True)
    out.text(f"  {report.events} events of {report.missions} missions: {'whole' if report.ok else 'broken'}")
    story.step("audit", report.ok, events=report.events)


def _look_at_repository(story: _Story) -> None:
    out = story.out
    clean = not git(story.project, "status", "--porcelain")
    commits = git(story.project, "rev-list", "--count", "main").strip()
    out.text()
    out.text("$ git status; git log main", bold=True)
    out.text(f"  {'nothing to commit' if clean else 'changed!'}; main has {commits} commit, as before")
    story.step("repository", clean and commits == "1")


def _close(story: _Story, directory: Path, keep: bool) -> None:
    out = story.out
    out.document({"ok": story.ok, "steps": story.steps, "directory": str(directory) if keep else None})
    out.text()
    if story.ok:
        out.text("One change was promoted; three were refused, each with its reason.", bold=True)
    else:
        out.text("Not every step came out as it should; chargehand doctor may say why.", fg="red", bold=True)
    if keep:
        out.text(f"Kept in {directory} (CHARGEHAND_HOME={directory / 'state'})")
    out.text("Now in your own repository:")
    out.text('  chargehand init && chargehand run --agent "command:PROGRAM ARG" "TEXT"')


def _environment(directory: Path) -> dict[str, str]:
    """Return the environment of a user who has only what the demo gives them."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CHARGEHAND_")}
    return own | {"CHARGEHAND_HOME": str(directory / "state"), "XDG_CONFIG_HOME": str(directory / "config")}


@contextlib.contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="chargehand-demo-")).resolve()
    try:
        yield directory
    finally:
        if not keep:
            _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a tree in which directories may be read-only."""

    def again(remove: Callable[..., object], path: str, error: object) -> None:
        with contextlib.suppress(OSError):
            Path(path).parent.chmod(stat.S_IRWXU)
            if Path(path).is_dir() and not Path(path).is_symlink():
                Path(path).chmod(stat.S_IRWXU)
            remove(path)

    # Python 3.12 renamed the argument.
    if sys.version_info >= (3, 12):
        shutil.rmtree(directory, onexc=again)
    else:
        shutil.rmtree(directory, onerror=again)
    shutil.rmtree(directory, ignore_errors=True)
