"""`chargehand run` and `chargehand worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    base_option,
    detail_options,
    json_option,
    repo_option,
    role_option,
    time_option,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chargehand.app.composition import App
    from chargehand.app.runs import RunObserver, RunOutcome, RunRequest
    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output
    from chargehand.core.events import Event, Payload
    from chargehand.core.state import MissionState

    OnEvent = Callable[[Event, Payload], None]


@click.command()
@click.argument("text", required=False)
@click.option("--file", metavar="F", help="Read the request from a file, or from stdin with '-'.")
@repo_option
@click.option("--dir", "directory", metavar="DIR", help="Work in the project of this directory; '/' is the top.")
@base_option
@click.option("--agent", metavar="NAME", help="A configured agent, 'native', or 'command:PROGRAM ARG…'.")
@click.option("--model", metavar="NAME", help="The first model to use: of [models], or PROVIDER:MODEL.")
@click.option("--budget", metavar="USD", help="Spend at most this much on models.")
@click.option("--check", "checks", multiple=True, metavar="CMD", help="An additional check that must pass.")
@role_option
@click.option(
    "--only-check", "only_checks", multiple=True, metavar="CMD", help="A check that replaces the project's own."
)
@click.option(
    "--check-file", "check_files", multiple=True, metavar="HOST:PATH", help="A file only the checks see, at PATH."
)
@click.option(
    "--outside-check",
    "outside_checks",
    multiple=True,
    metavar="CMD",
    help="A check outside the tree, in its own sandbox; `under-test CMD` runs CMD in the tree's.",
)
@click.option(
    "--outside-file",
    "outside_files",
    multiple=True,
    metavar="HOST:PATH",
    help="A file only the outside checks see, at PATH.",
)
@click.option("--allow", multiple=True, metavar="AREA", help="Allow changes only in this area (as in .gitignore).")
@click.option("--forbid", multiple=True, metavar="AREA", help="Forbid changes in this area.")
@time_option
@click.option("--attempts", metavar="N", help="At most this many attempts.")
@click.option("--sandbox", metavar="TIER", help="The sandbox tier: process, container or vm.")
@click.option("--strategy", metavar="NAME", help="How workspaces are made: shadow or direct.")
@click.option("--partial", is_flag=True, help="Promote what remains after violating files were reverted.")
@click.option("--apply", is_flag=True, help="Also fast-forward the branch that is checked out.")
@click.option(
    "--red-base",
    type=click.Choice(("go", "ask", "stop")),
    help="What to do if checks already fail on the base (default: ask at a terminal, else go).",
)
@click.option("--team", metavar="NAME", help="Who works on it, one after the other, and who reviews it.")
@click.option(
    "--plan", metavar="FILE", help="The tasks of the work, as YAML or JSON; 'auto': a planner makes them."
)
@click.option(
    "--break-at", metavar="WHERE", help="Pause before these: plan, promote, step, task:ID (with commas between)."
)
@click.option("--detach", is_flag=True, help="Return at once; a background worker runs it.")
@click.option(
    "--idempotency-key", metavar="KEY", help="With --detach: the same key again returns the same mission."
)
@click.option("--yes", is_flag=True, help="Ask nothing; this never grants trust.")
@detail_options
@json_option
def run(out: Output, idempotency_key: str | None, **options: Any) -> int:
    """Let an agent do what TEXT asks for, and promote the result if it passes every check.

    The result is a branch chargehand/… in the repository; nothing else in it is touched. Uncommitted changes are
    not part of the work.

    \b
    Example:
      chargehand run --agent "command:ruff check --fix ." "fix the lint errors"
    """
    from chargehand.app.composition import App
    from chargehand.app.missions import start_needed_worker
    from chargehand.app.requests import key_request, plan_request, record_mission, record_once
    from chargehand.app.runs import RunRequest
    from chargehand.cli.terminal.prompts import confirm_trust
    from chargehand.core.errors import UsageError

    # Only here is it known that somebody can answer.
    if options["red_base"] is None and out.can_ask and not options["yes"] and not options["detach"]:
        options["red_base"] = "ask"
    request = RunRequest(**options)
    with App.open() as app:
        # `--yes` asks nothing, and so grants no trust: what needs it is refused with a hint.
        ask = confirm_trust if out.can_ask and not request.yes else None
        if idempotency_key is not None and not request.detach:
            raise UsageError("--idempotency-key needs --detach", hint="add --detach")
        request, plan = plan_request(app, request)
        if idempotency_key is not None:
            request, key = key_request(app, request, idempotency_key)
            return leave_to_worker(app, out, record_once(app, request, key, confirm_trust=ask, plan=plan)[0])
        if request.detach or plan is not None:
            mission = record_mission(app, request, confirm_trust=ask, plan=plan)
            return leave_to_worker(app, out, mission) if request.detach else follow_to_end(app, out, mission)
        outcome = run_mission(app, out, request)
        if outcome.state.held is not None:  # a worker begins it once the earlier mission has ended
            return follow_to_end(app, out, outcome.state.id)
        code = show_outcome(app, out, outcome if request.yes else continue_with_answers(app, out, outcome))
        if outcome.failure is None and start_needed_worker(app, outcome.state.id):
            out.notice("Started a worker for other missions that can continue.")
        return code


@click.command()
@click.option("--until-idle", is_flag=True, help="Exit when no mission is left to run.")
@click.option("--wait-for-quota", is_flag=True, help="With --until-idle: stay while a mission waits for quota.")
@click.option("--slots", type=click.IntRange(1, 64), default=5, show_default=True, help="Missions at once.")
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop where standard input ends, as on a signal.")
@json_option
def worker(until_idle: bool, wait_for_quota: bool, slots: int, until_eof: bool, out: Output) -> None:
    """Run missions that have no active worker: detached, resumed, or left by a process that died.

    Any number of workers may run side by side. On a signal a worker releases its missions; another worker resumes
    each from its last recorded step. A mission that waits for a provider's quota is woken when that is expected.
    """
    import functools

    from chargehand.app.composition import App
    from chargehand.cli.terminal.interrupt import run_loop
    from chargehand.cli.terminal.logs import set_up_logs

    set_up_logs()
    while True:
        with App.open(role="worker") as app:
            out.notice(f"Worker {app.member.id} runs missions of {app.home}.")
            # Not `run_async`: a signal cancels nothing here, it releases the missions for another worker.
            stopped = run_loop(
                functools.partial(
                    _work_until_told,
                    app,
                    until_idle=until_idle,
                    slots=slots,
                    sleepers=wait_for_quota,
                    until_eof=until_eof,
                )
            )
        # Asked again once this one counts no more: whoever left a mission before that saw a living worker.
        with App.open() as app:
            left = (
                app.steering.tell_coordinators()
                or app.has_work()
                or (wait_for_quota and app.mission_reader.sleepers())
            )
            if stopped or (until_idle and not left):
                return


async def _work_until_told(app: App, *, until_idle: bool, slots: int, sleepers: bool, until_eof: bool) -> bool:
    """Run one worker; return whether a signal, or the end of its input, ended it.

    A second signal ends the process at once.
    """
    import asyncio
    import signal

    from chargehand.app.worker import Worker

    worker = Worker(app, slots=slots)
    signals, stopped = (signal.SIGINT, signal.SIGTERM), False
    loop = asyncio.get_running_loop()

    # A second signal meets the default handler, which ends the process at once.
    def stop() -> None:
        nonlocal stopped
        stopped = True
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        worker.stop()

    def hang_up() -> None:
        loop.remove_reader(0)
        stop()

    for number in signals:
        loop.add_signal_handler(number, stop)
    # Whoever holds the other end, and writes nothing, has ended by then, even of `kill -9`.
    if until_eof:
        loop.add_reader(0, hang_up)
    await worker.work(until_idle=until_idle, sleepers=sleepers)
    return stopped


def run_mission(app: App, out: Output, request: RunRequest, *, on_event: OnEvent | None = None) -> RunOutcome:
    """Run one mission to where it is settled, its progress shown; `on_event` is called for its events too.

    Raises for whatever was wrong before there was a mission.
    """
    from chargehand.app import runs
    from chargehand.cli.terminal.prompts import confirm_trust

    ask = confirm_trust if out.can_ask and not request.yes else None
    prepared = runs.prepare_run(app, request, confirm_trust=ask)
    return _run_shown(
        app, out, lambda shown: runs.run_mission(app, prepared, observer=shown), on_event, menu=not request.yes
    )


def continue_mission(app: App, out: Output, mission: str, *, on_event: OnEvent | None = None) -> RunOutcome:
    """Run a recorded mission from where it stands to where it is settled, as `run_mission` does."""
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
    """Do the work with its progress shown; a signal cancels the mission, and its outcome says so.

    At a terminal the first Ctrl-C opens the `menu` instead.
    """
    from msgspec.structs import replace

    from chargehand.app.runs import cancel_running
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.menu import RunMenu
    from chargehand.cli.terminal.progress import ObserverWithEvents, hold_progress, progress

    async def watched(stop: Stop) -> RunOutcome:
        # A cancellation is noted in the log before it is carried out: it holds even where this process dies of it.
        stop.end = lambda: cancel_running(app)
        with progress(out, store=app.store) as shown:
            offered = RunMenu(app, stop, lambda held: hold_progress(shown, held))
            if menu and out.can_ask:
                stop.menu = offered
            observed = ObserverWithEvents(shown, on_event) if on_event else shown
            try:
                outcome = await work(ObserverWithEvents(observed, offered.note))
            finally:
                offered.close()
        return replace(outcome, interrupted=stop.asked)

    return run_async(watched)


def continue_with_answers(app: App, out: Output, outcome: RunOutcome) -> RunOutcome:
    """Put what a mission waits for to the person at the terminal, until nothing is asked or they leave it."""
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
        if state.waits_for_quota is not None:  # time answers that, no person
            break
        if asked is not None:
            answer = ask_question(asked)
            # It stays open in the log, for `mission answer` at any time.
            if answer is None:
                break
            app.steering.answer(state.id, answer)
            last = continue_mission(app, out, state.id)
            continue
        if {reason.code for reason in state.reasons} == {"setup_offline"} and confirm_registries(state):
            remember_registries(app, state)
            # Judged again in the environment that it asks for, it waits for nobody where that is green.
            promoted = run_with_progress(out, app.store, functools.partial(_promote, app, state.id, ""))
            last = RunOutcome(state=promoted)
        elif PROMOTE in state.questions and confirm_promotion(state):
            shown = state.questions[PROMOTE].tree
            promoted = run_with_progress(out, app.store, functools.partial(_promote, app, state.id, shown))
            last = RunOutcome(state=promoted)
        break
    # The last outcome may have none: a mission that is continued was recorded before.
    return replace(last, start=outcome.start)


async def _promote(app: App, mission: str, tree: str, shown: RunObserver) -> MissionState:
    from chargehand.app.missions import promote_mission

    return await promote_mission(app, mission, tree=tree, watch=shown.watch)


def show_outcome(app: App, out: Output, outcome: RunOutcome) -> int:
    """Write the result, and the error behind it if there is one; return the exit code."""
    from chargehand.cli.terminal.failures import INTERRUPTED, show_failure
    from chargehand.cli.terminal.rendering import exit_code, print_result, start_lines

    # On a terminal these lines were shown as it began.
    if outcome.start is not None and not out.shows_progress and out.detail != "result":
        for line in start_lines(outcome.start):
            out.text(line)
    print_result(out, outcome.state, app.store)
    # Before the failure: what a signal broke off may fail in any way, and that is no news to who sent it.
    if outcome.interrupted:
        return INTERRUPTED
    if outcome.failure is not None:
        return show_failure(outcome.failure, as_json=out.as_json)
    return exit_code(outcome.state)


def follow_to_end(app: App, out: Output, mission: str) -> int:
    """Show a mission that a worker runs until it is settled; a signal cancels it. Return the exit code."""
    from chargehand.app.missions import cancel_mission
    from chargehand.app.worker import ensure_worker
    from chargehand.cli.terminal.failures import INTERRUPTED
    from chargehand.cli.terminal.following import follow
    from chargehand.cli.terminal.menu import watch_menu
    from chargehand.cli.terminal.rendering import exit_code, print_result, show_header

    if (worker := ensure_worker(app)).problem is not None:
        out.notice(
            f"No worker could be started: {worker.problem}. Once that is fixed, `chargehand worker` runs it."
        )
    if out.detail != "result" and not out.as_json:
        show_header(out, app.mission_reader.state(mission))
    try:
        with watch_menu(out, mission, watching=False) as menu:
            state = follow(app, out, mission, menu, events=False)  # --json is one document, whatever is run
    except KeyboardInterrupt:
        print_result(out, cancel_mission(app, mission), app.store)
        return INTERRUPTED
    if state is None:
        return 0
    print_result(out, state, app.store)
    return exit_code(state)


def leave_to_worker(app: App, out: Output, mission: str) -> int:
    """See to it that a worker runs a recorded mission, and say how to follow it."""
    from chargehand.app.documents import mission_document
    from chargehand.app.worker import ensure_worker

    worker = ensure_worker(app)
    out.document(mission_document(app.mission_reader.state(mission)))
    out.text(f"mission   {mission}")
    if worker.problem is None:
        out.text(f"A worker runs it. Follow it with: chargehand mission watch {mission}")
    else:
        out.notice(f"The mission is recorded, but no worker could be started: {worker.problem}.")
        out.notice("Once that is fixed, `chargehand worker` runs it. Do not start it again.")
    return 0
