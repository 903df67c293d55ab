"""`chargehand run` and `chargehand worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    RequestCommand,
    detail_options,
    json_option,
    request_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.app.composition import App
    from chargehand.cli.terminal.output import Output
    from chargehand.configuration.run_options import RunRequest
    from chargehand.configuration.trust import ConfirmTrust


@click.command(cls=RequestCommand)
@click.argument("text", required=False)
@request_options()
@click.option(
    "--accept-known",
    is_flag=True,
    help="Accept failures that the base already has: short for --red-base accept_known.",
)
@click.option(
    "--idempotency-key", metavar="KEY", help="With --detach: the same key again returns the same mission."
)
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
    from chargehand.cli.terminal.prompts import confirm_trust
    from chargehand.cli.terminal.running import (
        continue_with_answers,
        follow_to_end,
        leave_to_worker,
        run_mission,
        show_outcome,
    )
    from chargehand.configuration.run_options import RunRequest
    from chargehand.core.errors import UsageError

    # Only the command line knows whether a person can answer.
    options["interactive"] = out.can_ask and not options["yes"] and not options["detach"]
    if options.pop("accept_known"):
        if options["red_base"] not in (None, "accept_known"):
            raise UsageError(
                f"--accept-known contradicts --red-base {options['red_base']}", hint="leave one of them out"
            )
        options["red_base"] = "accept_known"
    request = RunRequest(**options)
    with App.open() as app:
        # `--yes` asks nothing and so grants no trust: a run that needs trust is refused with a hint.
        ask = confirm_trust if out.can_ask and not request.yes else None
        if idempotency_key is not None and (not request.detach or request.issue):
            raise UsageError(
                "--idempotency-key needs --detach, and a TEXT",
                hint="add --detach; an issue is taken once anyway, however often it is named",
            )
        if request.issue is not None and idempotency_key is None:
            return _resolve_issue(app, out, request, ask)
        request, plan = plan_request(app, request)
        if idempotency_key is not None:
            request, key = key_request(app, request, idempotency_key)
            return leave_to_worker(app, out, record_once(app, request, key, confirm_trust=ask, plan=plan)[0])
        if request.detach or plan is not None:
            mission = record_mission(app, request, confirm_trust=ask, plan=plan)
            return (
                leave_to_worker(app, out, mission)
                if request.detach
                else follow_to_end(app, out, mission, asks=not request.yes)
            )
        outcome = run_mission(app, out, request)
        if outcome.state.held is not None:  # a worker starts it once the earlier mission has ended
            return follow_to_end(app, out, outcome.state.id)
        code = show_outcome(app, out, outcome if request.yes else continue_with_answers(app, out, outcome))
        if outcome.failure is None and start_needed_worker(app, outcome.state.id):
            out.notice("Started a worker for other missions that can continue.")
        return code


def _resolve_issue(app: App, out: Output, request: RunRequest, ask: ConfirmTrust | None) -> int:
    from chargehand.app.forges import take_issue
    from chargehand.cli.terminal.running import follow_to_end, leave_to_worker

    assert request.issue is not None
    mission = take_issue(app, request.issue, request, confirm_trust=ask)
    if request.detach:
        return leave_to_worker(app, out, mission)
    return follow_to_end(app, out, mission, asks=not request.yes)


@click.command()
@click.option("--until-idle", is_flag=True, help="Exit when no mission is left to run.")
@click.option("--wait-for-quota", is_flag=True, help="With --until-idle: stay while a mission waits for quota.")
@click.option("--slots", type=click.IntRange(1, 64), default=5, show_default=True, help="Missions at once.")
@click.option("--until-eof", is_flag=True, hidden=True, help="Stop when standard input ends, as on a signal.")
@click.option("--watch-forges", is_flag=True, help="Also take issues as `chargehand forge watch` does.")
@json_option
def worker(
    until_idle: bool, wait_for_quota: bool, slots: int, until_eof: bool, watch_forges: bool, out: Output
) -> None:
    """Run missions that have no active worker: detached, resumed, or left by a process that died.

    Any number of workers may run side by side. On a signal a worker releases its missions; another worker resumes
    each from its last recorded step. A mission that waits for a provider's quota is woken when the quota should
    return.
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
                    watch_forges=watch_forges,
                )
            )
        # Check again after this worker has left: a command that recorded a mission earlier saw a live worker and
        # did not start another.
        with App.open() as app:
            left = (
                app.steering.tell_coordinators()
                or app.has_work()
                or (wait_for_quota and app.mission_reader.sleepers())
            )
            if stopped or (until_idle and not left):
                return


async def _work_until_told(
    app: App, *, until_idle: bool, slots: int, sleepers: bool, until_eof: bool, watch_forges: bool
) -> bool:
    """Run one worker; return whether a signal or the end of its input stopped it.

    A second signal ends the process at once.
    """
    import asyncio
    import contextlib
    import signal

    from chargehand.app.worker import Worker

    tend: Callable[[bool], object] | None = None
    watching = contextlib.ExitStack()
    if app.user_configuration().config.forges:
        from chargehand.app.forges import ForgeWatch

        watch = watching.enter_context(contextlib.closing(ForgeWatch(app, takes=watch_forges)))

        def tend_forges(last: bool) -> object:
            return watch.step(hurry=last)

        tend = tend_forges

    worker = Worker(app, slots=slots, tend=tend)
    signals = (signal.SIGINT, signal.SIGTERM)
    stopped = False
    loop = asyncio.get_running_loop()

    # A second signal reaches the default handler, which ends the process at once.
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
    # The server holds the other end of stdin and writes nothing: end of input means that it has ended, even by
    # `kill -9`.
    if until_eof:
        loop.add_reader(0, hang_up)
    with watching:
        await worker.work(until_idle=until_idle, sleepers=sleepers)
    return stopped
