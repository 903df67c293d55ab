"""Routes of recorded choices of agent and model, of the fates of promotions, and of people's feedback."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from chargehand.app import truths
from chargehand.app.composition import App
from chargehand.app.truths import FeedbackDocument, PromotionsDocument, Word
from chargehand.identity.accounts import Caller
from chargehand.operations.operation import (
    Limit,
    MissionName,
    NamedMission,
    OperationTable,
    RestArguments,
    Short,
    Words,
)
from chargehand.reports import choices, predictions
from chargehand.reports.choices import ChoiceList, MissionChoices, ReplayedChoices
from chargehand.reports.predictions import ForecastList, ReliabilityDocument
from chargehand.reports.reading import StateReader

OPERATIONS = OperationTable()


class ChoicesQuery(RestArguments, frozen=True):
    """The number of newest missions whose choices or forecasts are listed."""

    limit: Limit = 20


class ReliabilityQuery(RestArguments, frozen=True):
    """The number of newest missions whose predictions are compared with what happened."""

    limit: Limit = 500


class ReplayQuery(RestArguments, frozen=True):
    """The mission whose choices are computed again, by default all."""

    mission: MissionName | None = None


class FeedbackBody(RestArguments, frozen=True):
    """A word on an attempt, by default the promoted or last one; `retract` takes your earlier words back instead.

    `hunk` is a place of its change, `PATH:LINE`.
    """

    mission: MissionName
    word: Word | None = None
    attempt: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    hunk: Words | None = None
    note: Annotated[str, Meta(max_length=2000)] = ""
    retract: bool = False


class LookBody(RestArguments, frozen=True):
    """The promotions to look for: those of a mission, else the recent ones of a project, by default of all."""

    mission: MissionName | None = None
    project: Short | None = None


@OPERATIONS.add("GET", "/missions/{mission}/choices", action="mission.show", commands=("decision why",))
def explain_choices(reader: StateReader, call: NamedMission, by: Caller) -> MissionChoices:
    """Explain its choices of agent and model."""
    return choices.explain_choices(reader, call.mission)


@OPERATIONS.add("GET", "/choices", action="mission.list", commands=("decision list",))
def list_choices(reader: StateReader, call: ChoicesQuery, by: Caller) -> ChoiceList:
    """List the choices of agent and model in the newest missions."""
    return choices.list_choices(reader, limit=call.limit)


@OPERATIONS.add("GET", "/choices/replay", action="mission.list", commands=("decision replay",))
def replay_choices(reader: StateReader, call: ReplayQuery, by: Caller) -> ReplayedChoices:
    """Compute learned choices again from their records."""
    return choices.replay_choices(reader, call.mission)


@OPERATIONS.add("GET", "/choices/reliability", action="mission.list", commands=("decision reliability",))
def measure_reliability(reader: StateReader, call: ReliabilityQuery, by: Caller) -> ReliabilityDocument:
    """Compare the chances of learned choices and forecasts with what happened."""
    return predictions.measure_reliability(reader, limit=call.limit)


@OPERATIONS.add("GET", "/forecasts", action="mission.list", commands=("decision forecasts",))
def list_forecasts(reader: StateReader, call: ChoicesQuery, by: Caller) -> ForecastList:
    """List recorded forecasts, and compute them again from their seeds."""
    return predictions.list_forecasts(reader, limit=call.limit)


@OPERATIONS.add("POST", "/missions/{mission}/feedback", action="mission.feedback", commands=("feedback",))
def give_feedback(app: App, call: FeedbackBody, by: Caller) -> FeedbackDocument:
    """Judge the result of an attempt, or retract that."""
    given = msgspec.structs.asdict(call)
    return truths.give_feedback(app, given.pop("mission"), **given)


@OPERATIONS.add("POST", "/promotions/look", action="mission.look", commands=("decision look",))
def look_at_promotions(app: App, call: LookBody, by: Caller) -> PromotionsDocument:
    """Look on their branches for the fates of promotions, and record them."""
    project = None if call.project is None else app.store.projects.find(call.project).id
    return truths.look_at_promotions(app, call.mission, project=project)
