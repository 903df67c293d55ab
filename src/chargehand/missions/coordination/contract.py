"""What a coordinator needs of the flow of its own mission."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from chargehand.core.records import Base, MissionRequest, Verdict, VerdictScope
from chargehand.missions.promotion.promoter import Fault
from chargehand.missions.verdict.ahead import RunsAhead
from chargehand.missions.verdict.judged import BaseContext
from chargehand.missions.verdict.validation import Validator

# Called with what judges a tree before it begins with it.
Meanwhile = Callable[[Validator], Awaitable[None]]


async def wait_idly(validator: Validator) -> None:
    """Do nothing while a tree is judged."""


class TreeJudge(Protocol):
    """Judges trees on a base, and brings what is promoted to its end; see `MissionFlow`."""

    fault: Fault
    ahead: RunsAhead

    async def prepare_base(self, request: MissionRequest, base: Base) -> BaseContext:
        """Return what judges on a base."""
        ...

    async def judge_again(
        self, base: Base, tree: str, *, scope: VerdictScope = "attempt", meanwhile: Meanwhile = wait_idly
    ) -> tuple[Verdict, BaseContext]:
        """TreeJudge a tree by today's gates; the verdict is recorded."""
        ...

    async def promote(self, context: BaseContext, tree: str, verdict: Verdict, *, approved: bool = False) -> None:
        """Promote a tree, export it and settle the mission."""
        ...

    async def deliver(self) -> None:
        """Export what is promoted and settle the mission."""
        ...
