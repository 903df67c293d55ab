"""The choices of agent and model in a mission, with their explanations."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from chargehand.core.choices import render_reasons
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AgentSelected, MissionCreated, RetryDeclined
from chargehand.core.plan_events import TaskStarted
from chargehand.core.records import ChoiceReason
from chargehand.decisions.explanation import ChoiceExplanation, explain_choice
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader
from chargehand.store.rows import MissionFilter

_TYPES = (MissionCreated.type, AgentSelected.type, TaskStarted.type, RetryDeclined.type)


class ExplainedChoice(Document, frozen=True):
    """One choice; `line` is its line in the mission's log, `task` the task of a plan that it was made for.

    `learned` is present if the choice was computed from outcomes, and its record, the evidence, can be read.
    """

    line: int
    time: str
    task: str
    chosen: str
    why: str
    learned: ChoiceExplanation | None
    has_evidence: bool


class MissionChoices(Document, frozen=True):
    """All choices of agent and model in a mission, the oldest first."""

    mission: str
    choices: tuple[ExplainedChoice, ...]


class ListedChoice(ExplainedChoice, frozen=True):
    """A choice in a list over missions."""

    mission: str


class ChoiceList(Document, frozen=True):
    """The choices of the newest missions, the newest first."""

    choices: tuple[ListedChoice, ...]


class ReplayedChoices(Document, frozen=True):
    """Learned choices computed again from their records: how many gave the same numbers, and those that did not.

    `skipped` counts those of other versions, and those that need an optional part which is not installed.
    """

    same: int
    skipped: int
    different: tuple[ListedChoice, ...]


def explain_choices(reader: StateReader, name: str) -> MissionChoices:
    """Return the choices of a mission. Raises `NotFoundError` and `StoreError`."""
    mission = reader.find_mission(name)
    return MissionChoices(mission=mission, choices=tuple(_read_choices(reader, mission)))


def list_choices(reader: StateReader, *, limit: int) -> ChoiceList:
    """Return the choices of the newest `limit` missions of all projects. Raises `StoreError`."""
    missions = reader.store.log.summaries(wanted=MissionFilter(limit=limit))
    return ChoiceList(choices=tuple(each for row in reversed(missions) for each in _list(reader, row.summary.id)))


def replay_choices(reader: StateReader, name: str | None = None) -> ReplayedChoices:
    """Compute the learned choices of a mission, or of all, again. Raises `NotFoundError` and `StoreError`."""
    if name is not None:
        missions = [reader.find_mission(name)]
    else:
        missions = [row.summary.id for row in reader.store.log.summaries()]
    same, skipped, different = 0, 0, list[ListedChoice]()
    for each in (choice for mission in missions for choice in _list(reader, mission)):
        if each.learned is not None and each.learned.replayed is not None:
            same += each.learned.replayed
            different += [] if each.learned.replayed else [each]
        elif each.has_evidence:
            skipped += 1
    return ReplayedChoices(same=same, skipped=skipped, different=tuple(different))


def _list(reader: StateReader, mission: str) -> Iterator[ListedChoice]:
    for each in reversed([*_read_choices(reader, mission)]):
        yield ListedChoice(mission=mission, **msgspec.structs.asdict(each))


def _read_choices(reader: StateReader, mission: str) -> Iterator[ExplainedChoice]:
    seen: tuple[str, tuple[ChoiceReason, ...]] = ("", ())
    for line in reader.store.log.read(mission, types=_TYPES):
        task, chosen = "", ""
        match read_payload(line):
            case MissionCreated(request=request, chosen=reasons):
                chosen = _name(request.agent, request.model)
            case AgentSelected(agent=agent, reasons=reasons):
                chosen = agent
            case RetryDeclined(task=task, action=action, reasons=reasons):
                chosen = "a person is asked" if action == "ask" else "no further attempt"
            case TaskStarted(task=task, model=model, reasons=reasons):
                chosen = model or ""
            case _:
                continue
        if not reasons or (task, reasons) == seen:  # an attempt keeps the choice for its mission
            continue
        seen = (task, reasons)
        learned = next(filter(None, map(explain_choice, reasons)), None)
        yield ExplainedChoice(
            line=line.seq,
            time=line.time,
            task=task,
            chosen=learned.chosen if learned and learned.chosen else chosen,
            why=render_reasons(reasons),
            learned=learned,
            has_evidence=any(isinstance(each.evidence, str) for each in reasons),
        )


def _name(agent: str, model: str | None) -> str:
    return f"{agent} with {model}" if model else agent
