"""`chargehand demo`: the same code as every run, on a small project, with a model whose words are scripted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chargehand.app.composition import App
from chargehand.app.demo.project import (
    ACCEPTANCE,
    CHEAT,
    CHEAT_REQUEST,
    REQUEST,
    STUBBORN_FILE,
    git,
    make_project,
    own_environment,
    temporary_directory,
    write_configuration,
    write_files_beside,
)
from chargehand.app.demo.script import FORK_AT, MODEL, STUBBORN
from chargehand.app.demo.story import attempt_costs, complaints, mission_story, text_shown_to_model, verdict_of
from chargehand.app.locations import user_config_path
from chargehand.app.runs import RunRequest
from chargehand.cli._diff import base_tree, depot_of, result_tree
from chargehand.cli._run import Ended, go_on, run_mission
from chargehand.cli.failures import INTERRUPTED
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.cli.rendering import branch_of, cost_of, result_document
from chargehand.core.events import Event, Payload
from chargehand.core.state import MissionState
from chargehand.missions._fork import fork
from chargehand.missions._journal import Watch
from chargehand.store._audit import verify

_QUIET = Output(as_json=True)
"""Shows no progress: the demo tells its missions in its own words."""


@dataclass(slots=True, kw_only=True)
class _Story:
    """What the demo has shown so far, and whether all of it came out as it should."""

    app: App
    out: Output
    project: Path
    acceptance: Path
    steps: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False

    def step(self, name: str, ok: bool, **facts: object) -> None:
        """Note how a step came out."""
        self.steps.append({"step": name, "ok": ok, **facts})
        if not ok:
            self.out.text("  this did not come out as it should", fg="red", bold=True)

    def command(self, words: str) -> None:
        """Show the command that does what comes next."""
        self.out.text()
        self.out.text(f"$ {words}", bold=True)

    def mission(self, work: Callable[[Watch], Ended], *, first: int = 1) -> MissionState:
        """Let a mission run to its end; tell it from attempt `first` on as it comes, and how it ended."""
        shown = 0

        def tell(event: Event, payload: Payload) -> None:
            nonlocal shown
            lines = mission_story(self.app.store, self.app.look.state(event.mission), first=first)
            for line in lines[shown:]:
                self.out.text(line.text, fg=line.colour, bold=line.bold)
            shown = len(lines)

        ended = work(tell)
        self.interrupted |= ended.interrupted
        self._outcome(ended.state)
        return ended.state

    def _outcome(self, state: MissionState) -> None:
        self.out.text(f"  mission {state.status}", fg="green" if state.status == "promoted" else "red", bold=True)
        for reason in state.reasons:
            self.out.text(f"    {reason.code}: {reason.message}")

    @property
    def ok(self) -> bool:
        """Whether every step came out as it should."""
        return all(step["ok"] for step in self.steps)


def demo(out: Output, *, keep: bool) -> int:
    """Tell the story; exit 0 only where every step came out as it should."""
    with temporary_directory(keep) as directory:
        project = make_project(directory)
        environ = own_environment(directory)
        write_configuration(user_config_path(environ), directory)
        with contextlib.closing(App(environ=environ, cwd=project)) as app:
            story = _Story(app=app, out=out, project=project, acceptance=write_files_beside(directory))
            _introduce(out, directory)
            _tell(story)
        if story.interrupted:
            return INTERRUPTED
        _close(story, directory, keep)
    return 0 if story.ok else 1


def _tell(story: _Story) -> None:
    state = _let_the_model_work(story)
    if story.interrupted:
        return
    if state.status == "promoted":
        for tell in (_show_change, _show_checkpoints, _fork, _let_one_cheat, _roll_back):
            tell(story, state)
            if story.interrupted:
                return
    _audit(story)
    _look_at_repository(story)


def _introduce(out: Output, directory: Path) -> None:
    out.text("A small shop with a bug in its discount, and a model that is asked to fix it.", bold=True)
    out.text("The model's words are a script, and its price is play money. All else is real: the repository,")
    out.text("the gateway, the tools, the sandbox, the checks, the verdicts, the log. Nothing uses the network.")
    out.text(f"Everything happens in {directory}.")


def _let_the_model_work(story: _Story) -> MissionState:
    story.command(
        f"chargehand run --model {MODEL} --attempts 2 \\\n"
        f'    --check-file ../{story.acceptance.name}:{ACCEPTANCE} \\\n    "{REQUEST}"'
    )
    story.out.text(
        f"  {story.acceptance.name} is an acceptance test: it is there while checks run, and only then."
    )
    options = RunRequest(
        text=REQUEST,
        model=MODEL,
        attempts="2",
        check_files=(f"{story.acceptance}:{ACCEPTANCE}",),
        yes=True,
    )
    before = _fingerprint(story.project)
    state = story.mission(lambda watch: run_mission(story.app, _QUIET, options, watch=watch))
    if not story.interrupted:
        _show_export(story, state, before)
        _note_attempts(story, state)
    return state


def _note_attempts(story: _Story, state: MissionState) -> None:
    """Note that the first attempt's claim was not believed, for a reason that it could not see before."""
    store, verdict = story.app.store, verdict_of(state, 1)
    why = [line for check in verdict.checks for line in complaints(store, check)] if verdict else []
    claimed = [(attempt.status, attempt.verdict) for attempt in state.attempts]
    story.step("attempts", claimed == [("refused", "red"), ("succeeded", "green")] and bool(why), reason=why)
    hidden = ACCEPTANCE not in text_shown_to_model(store, state, 1) and ACCEPTANCE in text_shown_to_model(
        store, state, 2
    )
    story.step("acceptance_file_hidden_until_reported", hidden)


def _show_export(story: _Story, state: MissionState, before: tuple[str, str]) -> None:
    out, branch = story.out, branch_of(state)
    cost, known = cost_of(state)
    if branch is not None:
        out.text(f"    branch  {branch}")
    out.text(f"    cost    {'; '.join(attempt_costs(state))} (play money)")
    ok = state.status == "promoted" and branch is not None and known and (cost or 0) > 0
    after = _fingerprint(story.project)
    ok = ok and before[1] == after[1] and set(before[0].splitlines()) <= set(after[0].splitlines())
    story.step("run", ok, result=result_document(state))


def _fingerprint(project: Path) -> tuple[str, str]:
    """Return all refs and all that differs from HEAD: what no refused agent may change."""
    return git(project, "show-ref"), git(project, "status", "--porcelain", "--ignored")


def _show_change(story: _Story, state: MissionState) -> None:
    story.command(f"chargehand mission diff {state.id}")
    patch = depot_of(story.app, state).patch(base_tree(state), result_tree(state))
    for line in patch.decode(errors="replace").rstrip().splitlines():
        if not line.startswith(("diff --git", "index ", "--- ")):
            story.out.text(f"  {line}", **_colour(line))
    story.step("diff", b"+    return price * (100 - percent) // 100" in patch)


def _colour(line: str) -> dict[str, str]:
    if line.startswith("+++"):
        return {}
    return {"fg": {"+": "green", "-": "red"}[line[0]]} if line[:1] in ("+", "-") else {}


def _show_checkpoints(story: _Story, state: MissionState) -> None:
    story.command(f"chargehand checkpoint list {state.id}")
    for point in state.checkpoints:
        story.out.text(f"  {point.commit[:12]}  made after an {point.trigger}, {point.changed} changed")
    story.step("checkpoints", len(state.checkpoints) > 1, count=len(state.checkpoints))


def _fork(story: _Story, state: MissionState) -> None:
    out, app = story.out, story.app
    point = f"{FORK_AT.attempt}.{FORK_AT.turn}"
    story.command(f"chargehand mission fork {state.id} --at {point} --reply @../{STUBBORN_FILE}")
    out.text(f"  The same mission from reply {point} on, with other words in the model's mouth.")
    before = _fingerprint(story.project)
    made = fork(app.store, app.depot(app.project(story.project)), state.id, FORK_AT, edit=STUBBORN)
    other = story.mission(lambda watch: go_on(app, _QUIET, made, watch=watch), first=FORK_AT.attempt)
    calls = sum(attempt.calls for attempt in other.attempts)
    out.text(f"    {calls or 'no'} replies were asked for again: what came before {point} is in the log")
    ok = other.status == "refused" and not calls and before == _fingerprint(story.project)
    story.step("fork", ok, at=point, result=result_document(other))


def _let_one_cheat(story: _Story, state: MissionState) -> None:
    out = story.out
    story.command(f'chargehand run --agent "{CHEAT}" "{CHEAT_REQUEST}"')
    out.text("  Any program can be an agent. This one deletes the tests that fail.")
    before = _fingerprint(story.project)
    options = RunRequest(text=CHEAT_REQUEST, agent=CHEAT, yes=True)
    cheated = story.mission(lambda watch: run_mission(story.app, _QUIET, options, watch=watch), first=2)
    ok = cheated.status == "refused" and before == _fingerprint(story.project)
    ok = ok and "test_deleted" in {reason.code for reason in cheated.reasons}
    story.step("cheat", ok, result=result_document(cheated))


def _roll_back(story: _Story, state: MissionState) -> None:
    story.command(f"chargehand mission rollback {state.id}")

    async def work(stop: Stop) -> MissionState:
        async with story.app.mission_session(state.id) as (found, session):
            return await session.missions.roll_back(found)

    after = run_async(work)
    branch = branch_of(after) or ""
    same = git(story.project, "rev-parse", f"{branch}^{{tree}}") == git(story.project, "rev-parse", "main^{tree}")
    story.out.text(f"  the branch has a new commit, {(after.commit or '')[:12]}, with the tree it began with")
    story.step("rollback", same and after.commit != state.commit, commit=after.commit)


def _audit(story: _Story) -> None:
    report = verify(story.app.store)
    story.command("chargehand audit verify")
    whole = "whole" if report.ok else "broken"
    story.out.text(f"  {report.events} events of {report.missions} missions: {whole}")
    story.step("audit", report.ok, events=report.events)


def _look_at_repository(story: _Story) -> None:
    clean = not git(story.project, "status", "--porcelain")
    commits = git(story.project, "rev-list", "--count", "main").strip()
    story.command("git status; git log main")
    story.out.text(f"  {'nothing to commit' if clean else 'changed!'}; main has {commits} commit, as before")
    story.step("repository", clean and commits == "1")


def _close(story: _Story, directory: Path, keep: bool) -> None:
    out = story.out
    out.document({"ok": story.ok, "steps": story.steps, "directory": str(directory) if keep else None})
    out.text()
    if not story.ok:
        out.text("Not every step came out as it should; chargehand doctor may say why.", fg="red", bold=True)
    if keep:
        out.text("All of it is kept, to look at with the commands above:", bold=True)
        out.text(f"  cd {story.project}")
        out.text(f"  export CHARGEHAND_HOME={directory / 'state'} XDG_CONFIG_HOME={directory / 'config'}")
    out.text("The same with your own model, in your own repository:", bold=True)
    for line in _YOURS:
        out.text(f"  {line}")


_YOURS = (
    "chargehand init                               asks what you have and sets it up",
    'chargehand run "TEXT"                         needs ANTHROPIC_API_KEY, OPENAI_API_KEY or Ollama',
    'chargehand run --model PROVIDER:MODEL "TEXT"  takes the model you name',
)
