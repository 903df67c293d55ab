"""Runs checks ahead of their turn: on the tree that will be judged next if the one that is judged now passes.

Only a tree's own checks run ahead. What they came to is used when that exact tree is judged on that exact base in
that environment, and compared with the base then; otherwise it is discarded. Nothing of it outlives the process: a
worker that takes over runs the checks again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from msgspec import Struct

from chargehand.checks.execution import CheckOutput
from chargehand.checks.reads import ReadObserver
from chargehand.core.errors import ChargehandError
from chargehand.core.records import CheckResult


class RunKey(Struct, frozen=True, kw_only=True):
    """What a run depends on: trees, the environment's layer, and a digest of the checks with their files."""

    base: str
    tree: str
    layer: Path | None
    checks: str


class OwnRun(Struct, frozen=True, kw_only=True):
    """How a tree's own checks ended, what they opened, and what they printed, by their names."""

    checks: tuple[CheckResult, ...]
    observer: ReadObserver
    outputs: dict[str, CheckOutput]


class RunsAhead:
    """The runs ahead of one mission that are under way, or done and not used yet."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, asyncio.Task[OwnRun | None]] = {}

    def begin(self, key: RunKey, run: Coroutine[Any, Any, OwnRun | None]) -> None:
        """Run ahead; a run that is known is left as it is."""
        if key in self._runs:
            run.close()
        else:
            self._runs[key] = asyncio.create_task(run)

    async def take(self, key: RunKey) -> OwnRun | None:
        """Wait for a run and return it, `None` where there is none, or nothing came of it."""
        run = self._runs.pop(key, None)
        if run is None:
            return None
        # A run that failed counts as none: the verdict runs the checks itself, and finds out what is wrong.
        with contextlib.suppress(ChargehandError, OSError):
            return await run
        return None

    async def stop(self, *, but: str | None = None) -> None:
        """Stop the runs of all trees, `but` one, and forget them."""
        stopped = [self._runs.pop(key) for key in tuple(self._runs) if key.tree != but]
        for run in stopped:
            run.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
