"""Runs checks ahead of their turn: on the tree that is judged next if the current one passes.

Only a tree's own checks run ahead. Their results are used when that exact tree is judged on that exact base in
that environment, and compared with the base then; otherwise they are discarded. They do not outlive the process: a
worker that takes over runs the checks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from chargehand.checks.execution import CheckOutput
from chargehand.checks.reads import ReadObserver
from chargehand.core.errors import ChargehandError
from chargehand.core.records import CheckResult


class RunKey(Struct, frozen=True, kw_only=True):
    """The inputs of a run: trees, the environment's layer, and a digest of the checks with their files."""

    base: str
    tree: str
    layer: Path | None
    checks: str


class OwnRun(Struct, frozen=True, kw_only=True):
    """A run of a tree's own checks: their results, their observed reads, and their output by name."""

    checks: tuple[CheckResult, ...]
    observer: ReadObserver
    outputs: dict[str, CheckOutput]


class _Run(NamedTuple):
    task: asyncio.Task[OwnRun | None]
    begun: asyncio.Event | None


class RunsAhead:
    """The runs ahead of one mission: waiting for a place, running, or finished and unused."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, _Run] = {}

    def begin(
        self, key: RunKey, run: Coroutine[Any, Any, OwnRun | None], begun: asyncio.Event | None = None
    ) -> None:
        """Run ahead, unless the run is already known. If it waits for a place, it sets `begun` then."""
        if key in self._runs:
            run.close()
        else:
            self._runs[key] = _Run(asyncio.create_task(run), begun)

    async def take(self, key: RunKey) -> OwnRun | None:
        """Wait for a run and return it, `None` if it is unknown, has no place yet, or failed."""
        run = self._runs.pop(key, None)
        if run is None:
            return None
        if run.begun is not None and not run.begun.is_set() and not run.task.done():
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
            return None
        # A failed run counts as missing: the verdict runs the checks itself, and reports the problem.
        with contextlib.suppress(ChargehandError, OSError):
            return await run.task
        return None

    async def stop(self, *, but: str | None = None) -> None:
        """Stop the runs of all trees, `but` one, and forget them."""
        stopped = [self._runs.pop(key).task for key in tuple(self._runs) if key.tree != but]
        for run in stopped:
            run.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
