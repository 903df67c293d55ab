"""Statistics: how missions ended, what they cost and how long they took; how each model did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from chargehand.app.documents import Document
from chargehand.app.reading import StateReader, parse_since
from chargehand.core.errors import UsageError
from chargehand.missions.model_statistics import ModelStats, gather_model_statistics
from chargehand.missions.statistics import (
    AttemptStats,
    CheckpointStats,
    MissionStats,
    NetworkStats,
    Rates,
    SandboxStats,
    gather_statistics,
)


class CountedCause(Document, frozen=True):
    """How many missions and attempts ended for one cause."""

    kind: str = msgspec.field(name="class")
    code: str | None
    remedy: str
    missions: int
    attempts: int


class StatisticsDocument(Document, frozen=True):
    """`stats`: the missions of one project (`project`), or of all, created at `since` or later."""

    project: str | None
    since: str | None
    missions: MissionStats
    rates: Rates
    attempts: AttemptStats
    causes: list[CountedCause]
    agents: Mapping[str, AttemptStats]
    checkpoints: CheckpointStats
    sandboxes: SandboxStats
    network: NetworkStats


class ModelStatisticsDocument(Document, frozen=True):
    """`model stats`: one entry for each model, provider and address that was asked."""

    project: str | None
    since: str | None
    models: list[ModelStats]


class StatisticsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which missions count: of a repository (the working directory's by default) or of all; created since when."""

    repo: Path | None = None
    everywhere: bool = False
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    project: str | None
    since: datetime | None

    @property
    def since_text(self) -> str | None:
        return None if self.since is None else self.since.isoformat(timespec="seconds")


def mission_statistics(reader: StateReader, request: StatisticsRequest) -> StatisticsDocument:
    """Return how missions ended. Raises `UsageError`, `StoreError`."""
    chosen = _select(reader, request)
    counted = gather_statistics(reader.mission_reader, project=chosen.project, since=chosen.since)
    return StatisticsDocument(
        project=chosen.project,
        since=chosen.since_text,
        missions=counted.missions,
        rates=counted.rates,
        attempts=counted.attempts,
        causes=[
            CountedCause(
                kind=one.cause.kind,
                code=one.cause.code,
                remedy=one.cause.remedy,
                missions=one.missions,
                attempts=one.attempts,
            )
            for one in counted.causes
        ],
        agents=counted.agents,
        checkpoints=counted.checkpoints,
        sandboxes=counted.sandboxes,
        network=counted.network,
    )


def model_statistics(reader: StateReader, request: StatisticsRequest) -> ModelStatisticsDocument:
    """Return how each model did. Raises `UsageError`, `StoreError`."""
    chosen = _select(reader, request)
    models = gather_model_statistics(reader.mission_reader, project=chosen.project, since=chosen.since)
    return ModelStatisticsDocument(project=chosen.project, since=chosen.since_text, models=list(models))


def _select(reader: StateReader, request: StatisticsRequest) -> _Selection:
    if request.repo is not None and request.everywhere:
        raise UsageError(f"both --repo {str(request.repo)!r} and --all were given", hint="give one of them")
    since = None if request.since is None else parse_since(request.since, now=reader.clock.now())
    project = None if request.everywhere else reader.current_project(request.repo)
    return _Selection(project=project.id if project else None, since=since)
