"""What a coordinator needs of the flow of its own mission."""

from __future__ import annotations

from typing import Protocol

from chargehand.core.records import Base, MissionRequest, Verdict, VerdictScope
from chargehand.missions.promotion.promoter import Fault
from chargehand.missions.verdict.judged import BaseContext


class TreeJudge(Protocol):
    """Judges trees on a base, and brings what is promoted to its end; see `MissionFlow`."""

    fault: Fault

    async def prepare_base(self, request: MissionRequest, base: Base) -> BaseContext:
        """Return what judges on a base."""
        ...

    async def judge_again(
        self, base: Base, tree: str, *, scope: VerdictScope = "attempt"
    ) -> tuple[Verdict, BaseContext]:
        """TreeJudge a tree by today's gates; the verdict is recorded."""
        ...

    async def promote(self, context: BaseContext, tree: str, verdict: Verdict, *, approved: bool = False) -> None:
        """Promote a tree, export it and settle the mission."""
        ...

    async def deliver(self) -> None:
        """Export what is promoted and settle the mission."""
        ...
