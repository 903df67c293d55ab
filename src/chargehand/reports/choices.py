"""The choices of agent and model in a mission, with their explanations."""

from __future__ import annotations

from chargehand.core.choices import render_reasons
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AgentSelected, MissionCreated, RetryDeclined
from chargehand.core.plan_events import TaskStarted
from chargehand.core.records import ChoiceReason
from chargehand.decisions.explanation import ChoiceExplanation, explain_choice
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader

_TYPES = (MissionCreated.type, AgentSelected.type, TaskStarted.type, RetryDeclined.type)


class ExplainedChoice(Document, frozen=True):
    """One choice; `line` is its line in the mission's log, `task` the task of a plan that it was made for.

    `learned` is present if the choice was computed from outcomes.
    """

    line: int
    time: str
    task: str
    chosen: str
    why: str
    learned: ChoiceExplanation | None


class MissionChoices(Document, frozen=True):
    """All choices of agent and model in a mission, the oldest first."""

    mission: str
    choices: tuple[ExplainedChoice, ...]


def explain_choices(reader: StateReader, name: str) -> MissionChoices:
    """Return the choices of a mission. Raises `NotFoundError` and `StoreError`."""
    mission = reader.find_mission(name)
    found: list[ExplainedChoice] = []
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
        found.append(
            ExplainedChoice(
                line=line.seq,
                time=line.time,
                task=task,
                chosen=learned.chosen if learned and learned.chosen else chosen,
                why=render_reasons(reasons),
                learned=learned,
            )
        )
    return MissionChoices(mission=mission, choices=tuple(found))


def _name(agent: str, model: str | None) -> str:
    return f"{agent} with {model}" if model else agent
