"""Runs a mission until it is settled, in this process or a worker, and shows its progress."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chargehand.core.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chargehand.app.composition import App
    from chargehand.app.runs import RunObserver, RunOutcome
    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output
    from chargehand.configuration.run_options import RunRequest
    from chargehand.core.events import Event, Payload
    from chargehand.core.state import MissionState

    OnEvent = Callable[[Event, Payload], None]


def run_mission(app: App, out: Output, request: RunRequest, *, on_event: OnEvent | None = None) -> RunOutcome:
    """Run one mission until it is settled and show its progress; `on_event` is also called for its events.

    Raises an error for a problem found before the mission exists.
    """
    from chargehand.app import runs
    from chargehand.cli.terminal.prompts import confirm_trust

    ask = confirm_trust if out.can_ask and not request.yes else None
    prepared = runs.prepare_run(app, request, confirm_trust=ask)
    return _run_shown(
        app, out, lambda shown: runs.run_mission(app, prepared, observer=shown), on_event, menu=not request.yes
    )


def continue_mission(app: App, out: Output, mission: str, *, on_event: OnEvent | None = None) -> RunOutcome:
    """Run a recorded mission from its current state until it is settled, as `run_mission` does."""
    from chargehand.app import runs

    return _run_shown(app, out, lambda shown: runs.continue_mission(app, mission, observer=shown), on_event)


def _run_shown(
    app: App,
    out: Output,
    work: Callable[[RunObserver], Awaitable[RunOutcome]],
    on_event: OnEvent | None,
    *,
    menu: bool = True,
) -> RunOutcome:
    """Do the work with its progress shown; Ctrl-C cancels the mission, SIGTERM releases it for any worker.

    At a terminal the first Ctrl-C opens the `menu` instead.
    """
    from msgspec.structs import replace

    from chargehand.app.runs import cancel_running, release_running
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.menu import RunMenu
    from chargehand.cli.terminal.notices import call_person
    from chargehand.cli.terminal.progress import ObserverWithEvents, hold_progress, progress

    async def watched(stop: Stop) -> RunOutcome:
        # A cancellation is logged before it is carried out: it holds even if this process dies of it.
        stop.end = lambda: cancel_running(app)
        stop.release = lambda: release_running(app)
        with progress(out, store=app.store, in_pipe=True, asks=menu and out.can_ask) as shown:
            offered = RunMenu(app, stop, lambda held: hold_progress(shown, held))
            if menu and out.can_ask:
                stop.menu = offered
            observed = ObserverWithEvents(shown, on_event) if on_event else shown
            try:
                outcome = await work(ObserverWithEvents(observed, offered.note))
            finally:
                offered.close()
        return replace(outcome, interrupted=stop.asked)

    since = time.monotonic()
    outcome = run_async(watched)
    if not outcome.interrupted:
        call_person(app, out, since, outcome.state)
    return outcome


def continue_with_answers(app: App, out: Output, outcome: RunOutcome) -> RunOutcome:
    """Put a waiting mission's questions to the person at the terminal until all are answered or one is skipped."""
    import functools

    from msgspec.structs import replace

    from chargehand.app.projects import remember_registries
    from chargehand.app.runs import RunOutcome
    from chargehand.cli.terminal.progress import run_with_progress
    from chargehand.cli.terminal.prompts import ask_question, confirm_promotion, confirm_registries
    from chargehand.core.mission_events import PROMOTE

    last = outcome
    while out.can_ask and last.failure is None and not last.interrupted and last.state.status == "waiting":
        state, asked = last.state, last.state.open_question
        if state.waits_for_quota is not None:  # time answers that, no person does
            break
        if asked is not None:
            answer = ask_question(out, asked)
            # The question stays open in the log, for `mission answer` at any time.
            if answer is None:
                break
            app.steering.answer(state.id, answer)
            last = continue_mission(app, out, state.id)
            continue
        if {reason.code for reason in state.reasons} == {"setup_offline"} and confirm_registries(state):
            remember_registries(app, state)
            # Judged again in the requested environment; if that is green, it waits for no person.
            promoted = run_with_progress(out, app.store, functools.partial(_promote, app, state.id, ""))
            last = RunOutcome(state=promoted)
        elif PROMOTE in state.questions and confirm_promotion(state):
            shown = state.questions[PROMOTE].tree
            promoted = run_with_progress(out, app.store, functools.partial(_promote, app, state.id, shown))
            last = RunOutcome(state=promoted)
        break
    # The last outcome may have no start: a resumed mission was recorded earlier.
    return replace(last, start=outcome.start)


async def _promote(app: App, mission: str, tree: str, shown: RunObserver) -> MissionState:
    from chargehand.app.missions import promote_mission

    return await promote_mission(app, mission, tree=tree, watch=shown.watch)


def show_outcome(app: App, out: Output, outcome: RunOutcome) -> int:
    """Write the result and its error, if any; return the exit code."""
    held = outcome.failure is not None and outcome.failure.code == "mission_held"
    if held and not outcome.interrupted:  # a worker took the recorded mission before this process did
        return follow_to_end(app, out, outcome.state.id)
    from chargehand.cli.terminal.failures import INTERRUPTED, WAITING, show_failure
    from chargehand.cli.terminal.rendering import exit_code, print_result
    from chargehand.missions.services import FULL_DISK
    from chargehand.missions.waiting import goes_on_by_itself

    print_result(out, outcome.state, app.store)
    # Before the failure: interrupted work may fail in any way, and the sender of the signal need not hear of it.
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.failure is not None:
        code = show_failure(outcome.failure, as_json=out.as_json)
        # Not even the waiting state could be recorded: any worker resumes the mission once there is room.
        full = outcome.failure.code in FULL_DISK and goes_on_by_itself(outcome.state)
        return WAITING if full else code
    return exit_code(outcome.state)


def follow_to_end(app: App, out: Output, mission: str, *, asks: bool = True) -> int:
    """Show a mission that a worker runs until it is settled; Ctrl-C cancels it. Return the exit code.

    With `asks`, the questions of a plan are put to the person at the terminal.
    """
    import signal

    from chargehand.app.missions import cancel_mission
    from chargehand.app.worker import ensure_worker
    from chargehand.cli.terminal.failures import INTERRUPTED
    from chargehand.cli.terminal.following import follow
    from chargehand.cli.terminal.menu import watch_menu
    from chargehand.cli.terminal.notices import call_person
    from chargehand.cli.terminal.rendering import exit_code, print_result, show_header

    if (worker := ensure_worker(app)).problem is not None:
        out.notice(
            f"No worker could be started: {worker.problem}. Once that is fixed, `chargehand worker` runs it."
        )
    if out.detail != "result" and not out.as_json:
        show_header(out, app.mission_reader.state(mission))
    try:
        while True:
            since = time.monotonic()
            with watch_menu(out, mission, watching=False) as menu:
                state = follow(app, out, mission, menu, events=False)  # --json is one document, whatever is run
            if state is None:
                return 0
            call_person(app, out, since, state)
            if not asks or state.plan is None or not _answer_open_question(app, out, mission):
                break
    except KeyboardInterrupt as interrupt:
        # SIGTERM ends this process but not the mission, which its worker continues.
        told = signal.SIGTERM in interrupt.args
        state = app.mission_reader.state(mission) if told else cancel_mission(app, mission)
        print_result(out, state, app.store)
        return INTERRUPTED
    print_result(out, state, app.store)
    return exit_code(state)


def _answer_open_question(app: App, out: Output, mission: str) -> bool:
    """Ask the person at the terminal the question that a plan or one of its tasks waits for; return whether they
    answered.
    """
    from chargehand.app.missions import addressed_mission, answer_mission
    from chargehand.cli.terminal.prompts import ask_question

    if not out.can_ask:
        return False
    try:
        asked = addressed_mission(app, mission, "answer")
    except RefusedError:  # nothing is asked, or several tasks ask: `mission answer --task` names one
        return False
    answer = None if asked.question is None else ask_question(out, asked.question)
    if answer is None:
        return False
    answer_mission(app, asked, answer)
    return True


def leave_to_worker(app: App, out: Output, mission: str) -> int:
    """Ensure that a worker runs a recorded mission, and show how to follow it."""
    from chargehand.app.worker import ensure_worker
    from chargehand.reports.documents import mission_document

    worker = ensure_worker(app)
    out.document(mission_document(app.mission_reader.state(mission)))
    out.text(f"mission   {mission}")
    if worker.problem is None:
        # The worker may have other missions to do first, and a new worker needs a moment.
        waits = None if worker.started else app.mission_reader.waits((mission,)).get(mission)
        how = "A worker was started for it" if worker.started else waits.message if waits else "A worker runs it"
        out.text(f"{how}. Follow it with: chargehand mission watch {mission}")
    else:
        out.notice(f"The mission is recorded, but no worker could be started: {worker.problem}.")
        out.notice("Once that is fixed, `chargehand worker` runs it. Do not start it again.")
    return 0
