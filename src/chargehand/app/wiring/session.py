"""A project at a base: found, configured, and opened as a session that missions run in."""

from __future__ import annotations

from dataclasses import dataclass

from chargehand.app.config.records import ResolvedConfig
from chargehand.app.selection.agents import named_agent
from chargehand.core.config import AgentConfig
from chargehand.core.ports import DriverName
from chargehand.core.records import Base, TierChoice
from chargehand.missions.missions import Missions
from chargehand.store.projects import ProjectRow
from chargehand.workspace.depot import Depot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectBase:
    """A project, its depot and the base that work starts from."""

    project: ProjectRow
    depot: Depot
    base: Base


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredBase(ProjectBase):
    """A project at a base, with the configuration in force there."""

    resolved: ResolvedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One project at one base, configured, with everything needed to work on it."""

    project: ProjectRow
    depot: Depot
    base: Base
    resolved: ResolvedConfig
    missions: Missions
    driver: DriverName
    choice: TierChoice

    def agent(self, option: str) -> AgentConfig:
        """Return the agent that `--agent` names: a configured one, or `command:PROGRAM ARG…`."""
        return named_agent(self.resolved, option)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedChecks:
    """What a tree says of its checks (with what speaks for each, in `why`) and its setup; nothing was run."""

    checks: tuple[str, ...]
    why: tuple[str, ...]
    setup: str | None
