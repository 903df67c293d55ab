"""The demo's story: the product itself on a small project, with a scripted model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from chargehand.app.composition import App
from chargehand.app.demo.project import (
    ACCEPTANCE,
    CHEAT,
    CHEAT_REQUEST,
    FORGERY,
    OUTSIDE_CHECK,
    OUTSIDE_FILE,
    OUTSIDE_PLACE,
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
from chargehand.app.runs import RunOutcome
from chargehand.configuration.locations import user_config_path
from chargehand.configuration.run_options import RunRequest
from chargehand.core.events import Event, Payload
from chargehand.core.state import MissionState
from chargehand.missions.fork import create_fork
from chargehand.missions.reading import base_tree, result_tree
from chargehand.missions.transcript import read_transcript
from chargehand.reports.documents import MissionDocument, mission_document
from chargehand.reports.outcome import explain_failures, exported_branch, mission_cost
from chargehand.reports.story import MissionStory, attempt_costs, complaints, verdict_of
from chargehand.reports.story import StoryLine as StoryLine
from chargehand.store.audit import verify

OnEvent = Callable[[Event, Payload], None]
_SCRIPTED = (
    "The model's words are a script, and its price is play money. All else is real: the repository,",
    "the gateway, the tools, the sandbox, the checks, the verdicts, the log. Nothing uses the network.",
)
_YOURS = (
    "chargehand init                               sets up an agent, a model and chargehand.toml",
    'chargehand run "TEXT"                         needs ANTHROPIC_API_KEY, OPENAI_API_KEY or Ollama',
    'chargehand run --model PROVIDER:MODEL "TEXT"  uses the model you name',
)


class DemoDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every step ended as expected; `directory` contains everything if it was kept."""

    ok: bool
    steps: tuple[dict[str, Any], ...]
    directory: str | None


class DemoStage(Protocol):
    """The stage that shows the story and runs its missions, so that a signal ends them like any mission."""

    def show(self, line: StoryLine, /) -> None:
        """Show a line."""
        ...

    def run_mission(self, app: App, request: RunRequest, /, *, on_event: OnEvent) -> RunOutcome:
        """Run a new mission until it is settled."""
        ...

    def continue_mission(self, app: App, mission: str, /, *, on_event: OnEvent) -> RunOutcome:
        """Run a recorded mission until it is settled."""
        ...

    def roll_back(self, app: App, mission: str, /) -> MissionState:
        """Undo a promotion."""
        ...


def run_demo(stage: DemoStage, *, keep: bool) -> DemoDocument | None:
    """Tell the story in a temporary directory, kept with `keep`; return `None` if a signal interrupted it."""
    with temporary_directory(keep) as directory:
        project = make_project(directory)
        environ = own_environment(directory)
        write_configuration(user_config_path(environ), directory)
        with contextlib.closing(App(environ=environ, cwd=project)) as app:
            story = _Demo(app, stage, project=project, acceptance=write_files_beside(directory))
            story.tell(directory)
        if story.interrupted:
            return None
        story.close(directory, keep=keep)
    ok = all(step["ok"] for step in story.steps)
    return DemoDocument(ok=ok, steps=tuple(story.steps), directory=str(directory) if keep else None)


class _Demo:
    """The scenes of the story, and their results."""

    def __init__(self, app: App, stage: DemoStage, *, project: Path, acceptance: Path) -> None:
        self.app = app
        self.project = project
        self.steps: list[dict[str, Any]] = []
        self.interrupted = False
        self._stage = stage
        self._acceptance = acceptance

    def tell(self, directory: Path) -> None:
        """Say what is scripted, then run the scenes; without a promotion, skip the scenes that depend on it."""
        self._text("A small shop with a bug in its discount, and a model that is asked to fix it.", bold=True)
        for line in _SCRIPTED:
            self._text(line)
        self._text(f"Everything happens in {directory}.")
        state = self._let_the_model_work()
        if self.interrupted:
            return
        if state.status == "promoted":
            scenes = (
                self._show_change,
                self._fork,
                self._let_one_cheat,
                self._let_one_forge,
                self._roll_back,
            )
            for scene in scenes:
                scene(state)
                if self.interrupted:
                    return
        report = verify(self.app.store)
        self._command("chargehand audit verify")
        counted = f"{report.events} events in {report.missions} missions"
        self._text(f"  Log {'intact' if report.ok else 'broken'}: {counted}.")
        self._step("audit", report.ok, events=report.events)
        clean = not git(self.project, "status", "--porcelain")
        commits = git(self.project, "rev-list", "--count", "main").strip()
        self._command("git status; git log main")
        self._text(f"  {'nothing to commit' if clean else 'changed!'}; main has {commits} commit, as before")
        self._step("repository", clean and commits == "1")

    def close(self, directory: Path, *, keep: bool) -> None:
        """Say where everything is kept, and how to do the same with another model."""
        self._text()
        if not all(step["ok"] for step in self.steps):
            line = "Not every step ended as expected; chargehand doctor may say why."
            self._text(line, colour="red", bold=True)
        if keep:
            self._text("All of it is kept, to look at with the commands above:", bold=True)
            self._text(f"  cd {self.project}")
            home, config = directory / "state", directory / "config"
            self._text(f"  export CHARGEHAND_HOME={home} XDG_CONFIG_HOME={config}")
        self._text("The same with your own model, in your own repository:", bold=True)
        for line in _YOURS:
            self._text(f"  {line}")

    def _text(self, text: str = "", *, colour: str | None = None, bold: bool = False) -> None:
        self._stage.show(StoryLine(text=text, colour=colour, bold=bold))

    def _step(self, name: str, ok: bool, **facts: object) -> None:
        """Record the result of a step."""
        self.steps.append({"step": name, "ok": ok, **facts})
        if not ok:
            self._text("  this did not end as expected", colour="red", bold=True)

    def _document(self, state: MissionState) -> MissionDocument:
        return mission_document(state, explain_failures(self.app.store, state))

    def _command(self, words: str) -> None:
        """Show the command for the next step."""
        self._text()
        self._text(f"$ {words}", bold=True)

    def _mission(self, work: Callable[[OnEvent], RunOutcome], *, first: int = 1) -> MissionState:
        """Run a mission to its end; show its events from attempt `first` on, and its ending."""
        story = MissionStory(self.app.store, first=first, catch_up=True)

        def tell(event: Event, payload: Payload) -> None:
            for line in story.tell(event):
                self._stage.show(line)

        ended = work(tell)
        self.interrupted |= ended.interrupted
        state = ended.state
        self._text(f"  mission {state.status}", colour="green" if state.status == "promoted" else "red", bold=True)
        for reason in state.reasons:
            self._text(f"    {reason.code}: {reason.message}")
        return state

    def _let_the_model_work(self) -> MissionState:
        self._command(
            f"chargehand run --model {MODEL} --attempts 2 \\\n"
            f'    --check-file ../{self._acceptance.name}:{ACCEPTANCE} \\\n    "{REQUEST}"'
        )
        name = self._acceptance.name
        self._text(f"  {name} is an acceptance test: it exists only while checks run.")
        request = RunRequest(
            text=REQUEST,
            model=MODEL,
            attempts="2",
            check_files=(f"{self._acceptance}:{ACCEPTANCE}",),
            yes=True,
        )
        before = self._fingerprint()
        state = self._mission(lambda tell: self._stage.run_mission(self.app, request, on_event=tell))
        if not self.interrupted:
            branch = exported_branch(state)
            cost, known = mission_cost(state)
            if branch is not None:
                self._text(f"    branch  {branch}")
            self._text(f"    cost    {'; '.join(attempt_costs(state))} (play money)")
            after = self._fingerprint()
            # A promotion adds a ref; the files and all other refs stay unchanged.
            ok = (
                state.status == "promoted"
                and branch is not None
                and known
                and (cost or 0) > 0
                and before[1] == after[1]
                and set(before[0].splitlines()) <= set(after[0].splitlines())
            )
            self._step("run", ok, result=self._document(state))
            # The first attempt's claim was rejected, for a reason that it could not see before.
            store, verdict = self.app.store, verdict_of(state, 1)
            why = [line for check in verdict.checks for line in complaints(store, check)] if verdict else []
            claimed = [(attempt.status, attempt.verdict) for attempt in state.attempts]
            self._step(
                "attempts", claimed == [("refused", "red"), ("succeeded", "green")] and bool(why), reason=why
            )
            told = [line for line in read_transcript(store, state) if line.speaker in ("person", "result")]
            first, second = ("\n".join(line.text for line in told if line.attempt == number) for number in (1, 2))
            self._step("acceptance_file_hidden_until_reported", ACCEPTANCE not in first and ACCEPTANCE in second)
        return state

    def _fingerprint(self) -> tuple[str, str]:
        """Return all refs and all differences from HEAD: no refused agent may change them."""
        return git(self.project, "show-ref"), git(self.project, "status", "--porcelain", "--ignored")

    def _show_change(self, state: MissionState) -> None:
        self._command(f"chargehand mission diff {state.id}")
        patch = self.app.projects.mission_depot(state).patch(base_tree(state), result_tree(state))
        for line in patch.decode(errors="replace").rstrip().splitlines():
            if line.startswith(("diff --git", "index ", "--- ")):
                continue
            colour = None if line.startswith("+++") else {"+": "green", "-": "red"}.get(line[:1])
            self._text(f"  {line}", colour=colour)
        self._step("diff", b"+    return price * (100 - percent) // 100" in patch)
        self._command(f"chargehand checkpoint list {state.id}")
        for point in state.checkpoints:
            self._text(f"  {point.commit[:12]}  made after an {point.trigger}, files changed: {point.changed}")
        self._step("checkpoints", len(state.checkpoints) > 1, count=len(state.checkpoints))

    def _fork(self, state: MissionState) -> None:
        point = f"{FORK_AT.attempt}.{FORK_AT.turn}"
        self._command(f"chargehand mission fork {state.id} --at {point} --reply @../{STUBBORN_FILE}")
        self._text(f"  The same mission from reply {point} on, with another reply in place of the model's.")
        before = self._fingerprint()
        depot = self.app.projects.depot(self.app.projects.find(self.project))
        made = create_fork(self.app.store, depot, state.id, FORK_AT, edit=STUBBORN)
        other = self._mission(
            lambda tell: self._stage.continue_mission(self.app, made, on_event=tell), first=FORK_AT.attempt
        )
        calls = sum(attempt.calls for attempt in other.attempts)
        self._text(f"    {calls or 'no'} replies were requested again: all before {point} are in the log")
        ok = other.status == "refused" and not calls and before == self._fingerprint()
        self._step("fork", ok, at=point, result=self._document(other))

    def _let_one_cheat(self, state: MissionState) -> None:
        self._command(f'chargehand run --agent "{CHEAT}" "{CHEAT_REQUEST}"')
        self._text("  Any program can be an agent. This one deletes the tests that fail.")
        before = self._fingerprint()
        request = RunRequest(text=CHEAT_REQUEST, agent=CHEAT, yes=True)
        # From the second attempt, which it does not have: a command has no conversation to show.
        cheated = self._mission(lambda tell: self._stage.run_mission(self.app, request, on_event=tell), first=2)
        ok = cheated.status == "refused" and before == self._fingerprint()
        ok = ok and "check_failed" in {reason.code for reason in cheated.reasons}
        self._step("cheat", ok, result=self._document(cheated))

    def _let_one_forge(self, state: MissionState) -> None:
        name = self._acceptance.name
        self._command(
            f'chargehand run --agent \\\n    "{FORGERY}" \\\n'
            f"    --check-file ../{name}:{ACCEPTANCE} \\\n"
            f'    --outside-file ../{OUTSIDE_FILE}:{OUTSIDE_PLACE} --outside-check "{OUTSIDE_CHECK}" \\\n'
            f'    "{REQUEST}"'
        )
        self._text("  This one leaves the tests alone and makes their comparisons hold. An outside check asks")
        self._text("  the code from another sandbox, where the code cannot reach it.")
        before = self._fingerprint()
        request = RunRequest(
            text=REQUEST,
            agent=FORGERY,
            attempts="1",
            check_files=(f"{self._acceptance}:{ACCEPTANCE}",),
            outside_checks=(OUTSIDE_CHECK,),
            outside_files=(f"{self._acceptance.parent / OUTSIDE_FILE}:{OUTSIDE_PLACE}",),
            yes=True,
        )
        forged = self._mission(lambda tell: self._stage.run_mission(self.app, request, on_event=tell))
        verdict = verdict_of(forged, 1)
        outcomes = [check.status for check in verdict.checks] if verdict else []
        ok = forged.status == "refused" and before == self._fingerprint()
        # Its tests pass, and the check that it cannot reach does not.
        ok = ok and outcomes[:1] == ["passed"] and outcomes[-1:] == ["failed"]
        self._step("forgery", ok, result=self._document(forged))

    def _roll_back(self, state: MissionState) -> None:
        self._command(f"chargehand mission rollback {state.id}")
        after = self._stage.roll_back(self.app, state.id)
        branch = exported_branch(after) or ""
        now, then = (git(self.project, "rev-parse", f"{name}^{{tree}}") for name in (branch, "main"))
        commit = after.commit or ""
        self._text(f"  the branch has a new commit, {commit[:12]}, with the tree it began with")
        self._step("rollback", now == then and after.commit != state.commit, commit=after.commit)
