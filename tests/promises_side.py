"""Acts on workspaces and branches in a separate process that ends by SIGKILL at a named point.

`python -m tests.promises_side` reads one act per line, forks, lets the child perform it and reports how the child
ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chargehand.core.clock import SystemClock
from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError
from chargehand.core.records import Verdict
from chargehand.core.state import MissionState
from chargehand.durable.workers import LocalWorkers
from chargehand.missions.journal import Journal
from chargehand.missions.promotion.promoter import Promoter
from chargehand.missions.services import Services
from chargehand.store.store import Store, open_store
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace

Fault = Callable[[str], None]
REFUSED = 3
"""Exit code of an act that was refused with an error of the product."""


class Nowhere:
    """A tier for a service that never opens a sandbox."""

    async def open(self, spec: object, /) -> Any:
        """Fail: no test here runs programs."""
        raise AssertionError("no sandbox was to be opened")


def refuse(*_: object, **__: object) -> Any:
    """A placeholder for services that a promotion does not use."""
    raise AssertionError("a promotion needs no agent")


def services(depot: Depot, store: Store) -> Services:
    """Return the services of a promoter, with a real depot and a real store."""
    home = depot.root.parent / "log"
    return Services(
        home=home,
        project="p",
        store=store,
        depot=depot,
        tier=Nowhere(),
        tier_name="process",
        driver="overlay",
        toolchain="",
        config=Config(),
        workers=LocalWorkers(home, version="1"),
        worker=("k-1", "worker"),
        version="1",
        open_agent=refuse,
        open_gateway=refuse,
        open_registries=refuse,
        open_egress=refuse,
    )


def passes(depot: Depot, tree: str) -> bool:
    """Return whether a tree passes the check of these tests; a merge may fail although each half passes."""
    entries = depot.entries(tree)
    paths = {entry.path for entry in entries}
    if {"left", "right"} <= paths:
        return False
    return not any(b"BAD" in depot.read_blob(entry.id) for entry in entries)


def verdict(depot: Depot, tree: str, scope: Any = "attempt") -> Verdict:
    """Return the verdict of that check."""
    return Verdict(tree=tree, scope=scope, status="green" if passes(depot, tree) else "red")


class MissionPromoter:
    """Promotes for one mission as a worker does, from the state on disk."""

    def __init__(self, depot: Depot, store: Store, mission: str, *, fault: Fault) -> None:
        self._depot = depot
        self._journal = Journal(store, mission, clock=SystemClock())
        self._promoter = Promoter(services(depot, store), self._journal, fault=fault)

    @property
    def state(self) -> MissionState:
        """The state of the mission according to the log."""
        return self._journal.state

    async def promote(self, tree: str) -> None:
        """Settle a promotion that a crash left open, then promote a tree and deliver it."""
        await self.recover()
        base = self.state.base
        assert base is not None

        async def validate(merged: str) -> Verdict:
            return verdict(self._depot, merged, "merged")

        await self._promoter.promote(base, tree, verdict(self._depot, tree), validate=validate)
        await self._promoter.deliver()

    async def withdraw(self) -> None:
        """Roll the promotion back."""
        await self.recover()
        await self._promoter.roll_back()

    async def recover(self) -> None:
        """Settle an interrupted promotion, and deliver it if its swap happened."""
        if self._promoter.settle_prepared():
            await self._promoter.deliver()


def checkpoint(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    Workspace.load(depot, job["workspace"]).checkpoint("killed")


def reset(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    Workspace.load(depot, job["workspace"]).reset(job["tree"], "rollback")


def reset_paths(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    Workspace.load(depot, job["workspace"]).reset_paths(job["paths"], job["tree"])


def fork(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    shown = Workspace.load(depot, job["workspace"])
    Workspace.create(depot, shown.base, driver=shown.driver, tree=job["tree"], id=job["id"])


def promote(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    with open_store(depot.root.parent / "log") as store:
        asyncio.run(MissionPromoter(depot, store, job["mission"], fault=fault).promote(job["tree"]))


def withdraw(depot: Depot, job: Mapping[str, Any], fault: Fault) -> None:
    with open_store(depot.root.parent / "log") as store:
        asyncio.run(MissionPromoter(depot, store, job["mission"], fault=fault).withdraw())


ACTS = {act.__name__: act for act in (checkpoint, reset, reset_paths, fork, promote, withdraw)}


def _deadly(point: str) -> Fault:
    passed: Counter[str] = Counter()

    def reach(name: str) -> None:
        passed[name] += 1
        if f"{name}#{passed[name]}" == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


def _do(job: Mapping[str, Any]) -> int:
    fault = _deadly(job["point"])
    try:
        depot = Depot.open(Path(job["root"]), repository=Path(job["repository"]), fault=fault)
        ACTS[job["act"]](depot, job, fault)
    except ChargehandError as error:
        print(f"{error.code}: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Perform each act read from stdin, until it closes."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _do(json.loads(line))
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
