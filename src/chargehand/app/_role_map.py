"""Who works in a role: what the configuration and the role's own file say, the first that says anything first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chargehand.agents.roles import Role
from chargehand.core.config import Config

DEFAULT_ROLE = "default"
"""[roles.default]: for every role that says nothing itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One place that may say who works in a role; `where` is how people are told of it."""

    where: str
    agent: str | None = None
    model: str | None = None
    fallback: tuple[str, ...] = ()


def levels_of(config: Config, role: Role) -> tuple[Level, ...]:
    """Return the places in their order: [roles.NAME], the role's file, [roles.default]."""
    first, *rest = role.models or ("",)
    levels = (
        _entry(config, role.name),
        Level(where=f"the file of role {role.name}", agent=role.agent, model=first or None, fallback=tuple(rest)),
        _entry(config, DEFAULT_ROLE),
    )
    return tuple(level for level in levels if level.agent or level.model or level.fallback)


def _entry(config: Config, name: str) -> Level:
    entry = config.roles.get(name)
    where = f"[roles.{name}]"
    if entry is None:
        return Level(where=where)
    return Level(where=where, agent=entry.agent, model=entry.model, fallback=entry.fallback)


def agent_of(levels: Sequence[Level]) -> tuple[str, str] | None:
    """Return the agent that is said first and where, `None` where none is."""
    return next(((level.agent, level.where) for level in levels if level.agent), None)


def model_of(levels: Sequence[Level]) -> tuple[str, str] | None:
    """Return the model that is said first and where, `None` where none is."""
    return next(((level.model, level.where) for level in levels if level.model), None)


def fallback_of(levels: Sequence[Level], model: str | None) -> tuple[str, ...]:
    """Return the models to switch to from `model`: those said beside it, else the first that are said below it."""
    places = [number for number, level in enumerate(levels) if level.model == model]
    start = places[0] if places else 0
    said = next((level.fallback for level in levels[start:] if level.fallback), ())
    return tuple(each for each in said if each != model)
