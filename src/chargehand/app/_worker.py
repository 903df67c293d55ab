"""A worker: goes on with every mission that should go on and that nobody alive holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from chargehand.app._app import App
from chargehand.core import ChargehandError, FencedError, MissionFinished, Reason
from chargehand.durable import Engine

_LOG = logging.getLogger("chargehand.worker")
_LOOK_SECONDS = 0.1
_CHECK_LOOKS = 20
_IDLE_LOOKS = 10
_KEEP_SECONDS = 7 * 86_400.0
SLOTS = 5
"""Missions that one worker runs at once, where nobody says otherwise."""


class Worker:
    """Looks for missions to take, hands them to the engine, and runs those that the engine gives it."""

    def __init__(self, app: App, *, slots: int = SLOTS) -> None:
        self._app = app
        self._slots = slots
        self._stopping = asyncio.Event()
        self._handed: dict[str, int] = {}

    def stop(self) -> None:
        """Let go of everything that runs, to be resumed by another worker, and end."""
        self._stopping.set()
        self._app.controls.stop_all("release")

    async def work(self, *, until_idle: bool) -> None:
        """Work until stopped, or until there is nothing to do; raises `StoreError`, `TierUnavailableError`."""
        app = self._app
        async with (
            app.taking_orders(),
            Engine.open(
                app.engine_url,
                worker=app.member.id,
                slots=self._slots,
                run=self._run,
                is_live=app.workers.live,
            ) as engine,
        ):
            await engine.forget_finished(older_than=_KEEP_SECONDS)
            await self._look_on(engine, until_idle=until_idle)
            app.controls.stop_all("release")

    async def _look_on(self, engine: Engine, *, until_idle: bool) -> None:
        looks = idle = 0
        while not self._stopping.is_set():
            if looks % _CHECK_LOOKS == 0:
                await self._check(engine)
            looks += 1
            found = await self._hand_over(engine)
            idle = 0 if found or engine.active() else idle + 1
            if until_idle and idle > _IDLE_LOOKS:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _LOOK_SECONDS)

    async def _check(self, engine: Engine) -> None:
        """Let what is lost be found: rows of dead workers, and missions handed over that no row waits for."""
        self._app.workers.sweep()
        await engine.rescue()
        waiting = await engine.waiting()
        self._handed = {mission: epoch for mission, epoch in self._handed.items() if mission in waiting}

    async def _hand_over(self, engine: Engine) -> bool:
        """Hand what may be taken to the engine; return whether anything should go on at all."""
        rows = [row for row in self._app.store.log.takeable() if not self._app.look.live(row)]
        for row in rows:
            if self._handed.get(row.id) != row.epoch:
                await engine.trigger(row.id, row.epoch)
                self._handed[row.id] = row.epoch
        return bool(rows)

    async def _run(self, mission: str) -> None:
        """Go on with one mission; what cannot even be begun settles it."""
        if self._stopping.is_set() or not self._takeable(mission):
            return
        try:
            async with self._app.mission_session(mission, recorded=True) as (_, session):
                await session.missions.run(mission)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or self._app.store.log.get(mission).runnable:
                raise  # let go of: its turn goes back to the queue
            task.uncancel()
        except FencedError as error:
            _LOG.warning("%s", error)
        except ChargehandError as error:
            if error.code != "mission_held":
                self._give_up(mission, error.code, error.message)
        except Exception as error:  # of our own: without an end it would be tried again for ever
            _LOG.exception("mission %s", mission)
            self._give_up(mission, "internal", f"{type(error).__name__}: {error}")

    def _takeable(self, mission: str) -> bool:
        return any(row.id == mission and not self._app.look.live(row) for row in self._app.store.log.takeable())

    def _give_up(self, mission: str, code: str, message: str) -> None:
        """Settle a mission that could not be begun."""
        row = self._app.store.log.get(mission)
        if row.runnable and not self._app.look.live(row):
            finished = MissionFinished(status="failed", reasons=(Reason(code=code, message=message),))
            self._app.store.log.append(mission, finished)
