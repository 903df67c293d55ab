"""Breakpoints: the points before which a mission stops until a person lets it go on."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import UsageError
from chargehand.core.events import Payload
from chargehand.core.mission_events import BreakpointsChanged, MissionCreated, MissionPaused

_KINDS = ("plan", "promote", "step")
TASK = "task:"


def parse_breakpoints(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the breakpoints that a person names, each text one or several with commas. Raises `UsageError`."""
    found = tuple(dict.fromkeys(part.strip() for text in texts for part in text.split(",")))
    for each in found:
        if each not in _KINDS and not (each.startswith(TASK) and each != TASK):
            raise UsageError(f"--break-at: {each!r} is no breakpoint", hint="name plan, promote, step or task:ID")
    return found


class Breakpoints(Struct, frozen=True, kw_only=True):
    """Where a mission stops: at `kinds` of points and, with `once`, at the next point of any kind.

    `passed` are the points at which it stopped: it stops at none of them again, whoever goes on with it.
    """

    kinds: tuple[str, ...] = ()
    once: bool = False
    passed: frozenset[str] = frozenset()

    def stop_at(self, point: str, kinds: Iterable[str]) -> bool:
        """Tell whether a mission stops at a point of these kinds."""
        return point not in self.passed and (self.once or any(kind in self.kinds for kind in kinds))

    def after(self, event: Payload) -> Breakpoints:
        """Return them after one more event."""
        match event:
            case MissionCreated():
                return replace(self, kinds=event.request.break_at)
            case BreakpointsChanged():
                return replace(self, kinds=event.kinds, once=event.once)
            case MissionPaused() if event.point:
                return replace(self, once=False, passed=self.passed | {event.point})
        return self
