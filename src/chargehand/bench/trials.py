"""One trial: a problem solved by a mission in its own state, and the validator's judgement of the result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from chargehand.app.composition import App
from chargehand.app.runs import RunStart, continue_mission, prepare_run, release_running, run_mission
from chargehand.app.sandbox_commands import open_outside_judge
from chargehand.bench.records import Arm, BenchProblem, BenchResult, Outcome, Validation
from chargehand.bench.validation import make_repository, open_scratch, validate
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import ChargehandError
from chargehand.core.events import Event, Payload
from chargehand.core.state import SETTLED, MissionState
from chargehand.missions.causes import mission_cause
from chargehand.reports.outcome import mission_cost, mission_seconds
from chargehand.sandbox.contract import Stream

CHEATING = frozenset(
    {
        "acceptance_path", "area_protected", "assertions_removed", "check_suppressed", "check_surface",
        "config_protected", "runs_later", "test_deleted", "test_removed", "test_skipped", "tests_lost",
        "tests_weakened", "tolerance_loosened",
    }
)  # fmt: skip
"""Codes of reasons for which a mission does not promote a change that would make its own checks easier to pass."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A problem to solve once, in the directory `place`, with the environment of the user's commands."""

    problem: BenchProblem
    sample: int
    seed: int
    arm: Arm
    place: Path
    environ: Mapping[str, str]


class TrialRun:
    """Runs one trial in the calling thread; `interrupt` releases its mission from any other thread."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: App | None = None
        self._validation: asyncio.Future[Validation] | None = None
        self._interrupted = False
        self._spans: list[float] = []

    # --- `RunObserver`: a benchmark shows only results

    def begin(self, start: RunStart, /) -> None:
        """Ignore the start."""

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Ignore an event."""

    def output(self, stream: Stream, piece: bytes, /) -> None:
        """Ignore output."""

    def check_output(self, stream: Stream, piece: bytes, /) -> None:
        """Ignore output."""

    def interrupt(self) -> None:
        """Release the mission, and end the validation, so that a resumed run continues the trial."""
        with self._guard:
            self._interrupted = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if self._app is not None:
            release_running(self._app)
        if self._validation is not None:
            self._validation.cancel()

    def prepare(self) -> None:
        """Prepare the mission, and start nothing. Raises the errors of `prepare_run`."""
        repository = make_repository(self._trial.problem, self._trial.place)
        with open_scratch(self._trial.place / "home", repository, self._trial.environ) as app:
            prepare_run(app, self._request(repository))

    def run(self) -> BenchResult | None:
        """Return the result, `None` if the trial was interrupted.

        A trial begun by a process that was killed continues. An error of machine, provider or problem is a result.
        """
        began = time.monotonic()
        trial = self._trial
        cost: float | None = None
        try:
            repository = make_repository(trial.problem, trial.place)
            with open_scratch(trial.place / "home", repository, trial.environ) as app:
                try:
                    return self._run(app, repository, began)
                except ChargehandError:
                    missions = app.store.log.missions()
                    cost = mission_cost(app.mission_state(missions[0].id))[0] if missions else 0.0
                    raise
        except ChargehandError as error:
            return self._error_result(error, began, cost)

    def _run(self, app: App, repository: Path, began: float) -> BenchResult | None:
        known = app.store.log.missions()
        began_mission = time.monotonic()
        prepared = None if known else prepare_run(app, self._request(repository))
        self._spans = [time.monotonic() - began_mission]
        nothing = Validation(judgement="none")

        async def work() -> tuple[MissionState | None, Validation, str]:
            with self._guard:
                self._loop, self._app = asyncio.get_running_loop(), app
                if self._interrupted:
                    return None, nothing, ""
            try:
                return await solve()
            finally:  # the loop ends after this
                with self._guard:
                    self._loop = self._app = None

        async def solve() -> tuple[MissionState | None, Validation, str]:
            at = time.monotonic()
            outcome = (
                await run_mission(app, prepared, observer=self)
                if prepared is not None
                else await continue_mission(app, known[0].id, observer=self)
            )
            self._spans.append(time.monotonic() - at)
            state = outcome.state
            message = outcome.failure.message if outcome.failure else ""
            if state.status not in SETTLED or state.status == "paused" or self._interrupted:
                return None, nothing, message
            at = time.monotonic()
            self._validation = asyncio.ensure_future(self._validate(app, state))
            try:
                validation = await self._validation
            except asyncio.CancelledError:
                if not self._interrupted:
                    raise
                return None, nothing, message
            self._spans.append(time.monotonic() - at)
            return state, validation, message

        state, validation, message = asyncio.run(work())
        if state is None:
            return None
        return self._result(state, validation, message, began, resumed=prepared is None)

    def _request(self, repository: Path) -> RunRequest:
        arm, problem = self._trial.arm, self._trial.problem
        seconds = f"{problem.seconds:g}s" if problem.seconds is not None else None
        return RunRequest(
            text=problem.request,
            repo=repository,
            agent=arm.agent,
            model=arm.model,
            only_checks=problem.checks or (),
            attempts=arm.attempts,
            budget=arm.budget,
            time=arm.time or seconds,
            sandbox=arm.sandbox,
            yes=True,
        )

    async def _validate(self, app: App, state: MissionState) -> Validation:
        tree = last_tree(state)
        if tree is None or state.base is None:
            return Validation(judgement="none")
        async with open_outside_judge(app, mission=state.id) as judge:
            return await validate(judge, self._trial.problem, tree)

    def _result(
        self, state: MissionState, validation: Validation, message: str, began: float, *, resumed: bool
    ) -> BenchResult:
        codes = tuple(dict.fromkeys(reason.code for reason in state.reasons))
        last = state.attempts[-1] if state.attempts else None
        seconds = mission_seconds(state) or 0.0
        said = message or "; ".join(reason.message for reason in state.reasons)
        spent = time.monotonic() - began
        return BenchResult(
            problem=self._trial.problem.id,
            sample=self._trial.sample,
            seed=self._trial.seed,
            outcome=find_outcome(state, validation, has_validator=self._trial.problem.validator is not None),
            status=state.status,
            reasons=codes,
            cheating=tuple(sorted(CHEATING.intersection(codes))),
            validation=validation,
            tree=last_tree(state) or "",
            attempts=len(state.attempts),
            agent=last.agent if last else state.request.agent if state.request else "",
            model=last.model if last else None,
            cost_usd=mission_cost(state)[0],
            seconds=seconds,
            overhead=round(max(0.0, spent - sum(self._spans)), 3),
            resumed=resumed,
            message=said[:500],
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _error_result(self, error: ChargehandError, began: float, cost: float | None) -> BenchResult:
        trial = self._trial
        return BenchResult(
            problem=trial.problem.id,
            sample=trial.sample,
            seed=trial.seed,
            outcome="error",
            status="error",
            reasons=(error.code,),
            cheating=(),
            validation=Validation(judgement="none"),
            tree="",
            attempts=0,
            agent=trial.arm.agent or "",
            model=trial.arm.model,
            cost_usd=cost,
            seconds=round(time.monotonic() - began, 3),
            overhead=0.0,
            message=error.message[:500],
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def last_tree(state: MissionState) -> str | None:
    """Return the solution: the promoted tree, else the last one, `None` before the first."""
    if state.status == "promoted" and state.tree:
        return state.tree
    if state.checkpoints:
        return state.checkpoints[-1].tree
    return state.base.tree if state.base is not None else None


def find_outcome(state: MissionState, validation: Validation, *, has_validator: bool) -> Outcome:
    """Return the outcome of a settled mission."""
    is_promoted = state.status == "promoted" and state.commit is not None
    cause = None if is_promoted else mission_cause(state)
    if cause is not None and cause.kind in ("provider", "engine"):
        return "error"
    if not has_validator:
        return "unvalidated"
    if not is_promoted:
        return "not_promoted"
    return "solved" if validation.judgement == "passed" else "false_green"
