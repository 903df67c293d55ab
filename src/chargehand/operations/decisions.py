"""Routes of recorded choices of agent and model."""

from __future__ import annotations

from chargehand.identity.accounts import Caller
from chargehand.operations.operation import Limit, MissionName, NamedMission, OperationTable, RestArguments
from chargehand.reports import choices
from chargehand.reports.choices import ChoiceList, MissionChoices, ReplayedChoices
from chargehand.reports.reading import StateReader

OPERATIONS = OperationTable()


class ChoicesQuery(RestArguments, frozen=True):
    """The number of newest missions whose choices are listed."""

    limit: Limit = 20


class ReplayQuery(RestArguments, frozen=True):
    """The mission whose choices are computed again, by default all."""

    mission: MissionName | None = None


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
