"""The workspaces, bases and layers that missions still need; `gc` may remove all others."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from chargehand.core.state import MissionSummary

if TYPE_CHECKING:
    from collections.abc import Iterable

# Missions with these statuses continue in their workspaces.
OPEN = ("planned", "running", "waiting", "paused")


class StillNeeded:
    """Decides whether a mission that has not ended needs a workspace, base or layer: a `Needed` of `gc`."""

    def __init__(self, states: Iterable[MissionSummary]) -> None:
        self._missions: dict[str, bool] = {}
        self._workspaces: set[str] = set()
        self._bases: set[tuple[str, str]] = set()
        self._since: dict[str, float] = {}
        for state in states:
            still = state.status in OPEN
            self._missions[state.id] = still
            if still:
                self._workspaces |= {attempt.workspace for attempt in state.attempts}
                if state.base is not None:
                    self._bases.add((state.project, state.base.commit))
                since = datetime.fromisoformat(state.created).timestamp()
                self._since[state.project] = min(since, self._since.get(state.project, since))

    def __call__(self, root: Path, kind: str, name: str, used: float, /) -> bool | None:
        """Return whether it is needed; `None` if it belongs to no mission, as for `exec`."""
        project = root.name
        if kind == "base":
            return (project, name) in self._bases
        if kind == "layer":  # a mission finds its layer when it begins or is resumed
            return used >= self._since.get(project, float("inf"))
        if name in self._workspaces:
            return True
        return self._missions.get(mission_of(name))


def mission_of(workspace: str) -> str:
    """Return the mission of a workspace from its name: `w-<mission>-<purpose>-<claim>`."""
    return f"m-{workspace.split('-')[1]}" if workspace.count("-") else ""
