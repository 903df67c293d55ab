"""Why a mission that nobody has taken up waits, told from who is alive and what they hold."""

from __future__ import annotations

from dataclasses import dataclass

from chargehand.core.records import Reason
from chargehand.durable.workers import Workers
from chargehand.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A mission that should go on and that nobody alive holds; `before` so many others were asked for before it.

    `workers` take up whatever should go on and are alive, `running` is how many missions they hold.
    """

    workers: int
    running: int
    before: int

    @property
    def reason(self) -> Reason:
        """Why it waits, in words; the code is `no_worker`, or `queued` where one is alive."""
        line = f"; {self.before} asked for before it wait too" if self.before else ""
        if not self.workers:
            message = f"no worker is alive to take it up (`chargehand worker` starts one){line}"
            return Reason(code="no_worker", message=message)
        who = "1 worker is" if self.workers == 1 else f"{self.workers} workers are"
        runs = "runs" if self.workers == 1 else "run"
        what = "1 mission" if self.running == 1 else f"{self.running} missions"
        message = f"not taken up yet: {who} alive and {runs} {what}{line}; it goes on by itself"
        return Reason(code="queued", message=message)


def standings(store: Store, workers: Workers) -> dict[str, Standing]:
    """Return how each mission stands that should go on and that nobody alive holds, the oldest first.

    Raises `StoreError`.
    """
    alive = {member.id for member in workers.members() if member.role == "worker"}
    rows = [row for row in store.log.takeable() if row.runnable]
    living = {row.owner for row in rows if row.owner is not None and workers.live(row.owner)}
    running = sum(row.owner in living and row.owner in alive for row in rows)
    free = [row.id for row in rows if row.owner not in living]
    return {
        mission: Standing(workers=len(alive), running=running, before=before)
        for before, mission in enumerate(free)
    }
