"""What a coordinator needs of the flow of its own mission."""

from __future__ import annotations

from typing import Protocol

from chargehand.core.records import Base, MissionRequest, Verdict, VerdictScope
from chargehand.missions.promotion.promoter import Fault
from chargehand.missions.verdict.judged import BaseContext
from chargehand.missions.verdict.validation import Validator


class TreeJudge(Protocol):
    """Judges trees on a base, and brings what is promoted to its end; see `MissionFlow`."""

    fault: Fault

    async def prepare_base(self, request: MissionRequest, base: Base) -> BaseContext:
        """Return what judges on a base."""
        ...

    async def judge_again(
        self, base: Base, tree: str, *, scope: VerdictScope = "attempt"
    ) -> tuple[Verdict, Validator]:
        """TreeJudge a tree by today's gates; the verdict is recorded."""
        ...

    async def promote(
        self, base: Base, tree: str, verdict: Verdict, validator: Validator, *, approved: bool = False
    ) -> None:
        """Promote a tree, export it and settle the mission."""
        ...

    async def deliver(self) -> None:
        """Export what is promoted and settle the mission."""
        ...
