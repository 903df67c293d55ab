"""`chargehand worker`: goes on with missions that nobody runs."""

from __future__ import annotations

import asyncio
import logging
import signal

from chargehand.app.composition import App
from chargehand.app.worker import Worker as AppWorker
from chargehand.cli.output import Output


def work(out: Output, *, until_idle: bool, slots: int, sleepers: bool = False) -> int:
    """Work until there is nothing to do, or until a signal says so; one that was given up joins anew."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    while True:
        with App.open(role="worker") as app:
            out.notice(f"worker {app.member.id} takes missions of {app.home}")
            stopped = asyncio.run(_work(app, until_idle=until_idle, slots=slots, sleepers=sleepers))
        # Asked again once this one counts no more: whoever left a mission before that saw a living worker.
        with App.open() as app:
            if stopped or (until_idle and not app.has_work() and not (sleepers and app.look.sleepers())):
                return 0


async def _work(app: App, *, until_idle: bool, slots: int, sleepers: bool) -> bool:
    """Run one worker; return whether a signal ended it. A second signal ends the process at once."""
    worker = AppWorker(app, slots=slots)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        worker.stop()

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop)
    await worker.work(until_idle=until_idle, sleepers=sleepers)
    return stopped
