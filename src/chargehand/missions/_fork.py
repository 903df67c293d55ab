"""Forking: a new mission that shares another one's recorded steps up to a reply, and goes on differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from chargehand.agents.recorded import edited_reply, reply_step
from chargehand.core.agent_events import ReportMade, RoleChosen
from chargehand.core.attempt_events import AttemptStarted, CheckpointMade
from chargehand.core.errors import NotFoundError, RefusedError
from chargehand.core.events import Event, Payload, decode
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    BaseResolved,
    ChangesReverted,
    MessageSent,
    MissionCreated,
    MissionReleased,
    QuestionAnswered,
    QuestionAsked,
    StepFinished,
    VerdictGiven,
)
from chargehand.missions._context import acts_prefix, parse_act
from chargehand.missions._journal import kept_step, recalled
from chargehand.store._store import Store
from chargehand.workspace._depot import Depot

_COPIED = (
    AgentSelected,
    AttemptFinished,
    AttemptStarted,
    BaseResolved,
    ChangesReverted,
    CheckpointMade,
    MessageSent,
    QuestionAnswered,
    QuestionAsked,
    ReportMade,
    RoleChosen,
    StepFinished,
    VerdictGiven,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """The reply to fork at: the `turn`-th one of an attempt, both from 1."""

    attempt: int
    turn: int

    @property
    def step(self) -> str:
        """The name of the recorded step that is the reply."""
        return acts_prefix(self.attempt) + reply_step(self.turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A reply in place of the recorded one: its text and its calls, each with `name` and `arguments`."""

    text: str
    tools: tuple[dict[str, Any], ...] = ()


def fork_points(events: tuple[Event, ...]) -> list[ForkPoint]:
    """Return the replies that a mission can be forked at, in the order they came."""
    found = []
    for payload in _payloads(events):
        act = parse_act(payload.step) if isinstance(payload, StepFinished) else None
        if act is not None and act[1].kind == "reply":
            found.append(ForkPoint(attempt=act[0], turn=act[1].turn))
    return list(dict.fromkeys(found))


def fork(
    store: Store,
    depot: Depot,
    mission: str,
    point: ForkPoint | None,
    *,
    model: str | None = None,
    edit: Edit | None = None,
    user: str = "",
) -> str:
    """Record a new mission that goes on from just before a reply of another, and return its id.

    `point` is the last reply by default; `model` answers from there on; with `edit` that reply is taken instead.
    What was before is neither asked nor paid again; `user` pays for the rest, who paid before where none is named.
    Raises `RefusedError` (`not_forkable`) for a mission without
    recorded replies, `NotFoundError` for a reply it does not have.
    """
    events = store.log.read(mission)
    points = fork_points(events)
    if not points:
        raise RefusedError(
            f"mission {mission!r} has no recorded replies",
            code="not_forkable",
            hint="only native agents record them",
        )
    point = point or points[-1]
    if point not in points:
        raise NotFoundError(
            f"mission {mission!r} has no reply {point.attempt}.{point.turn}",
            hint="it has: " + ", ".join(f"{known.attempt}.{known.turn}" for known in points),
        )
    made = new_id("mission")
    lines = list(_copied(events, point, made, edited=edit is not None))
    if edit is not None:
        lines.append(_edited(store, events, point, edit, mission=made))
    created = _created(events, mission, point, model, user=user)
    commits = [line.checkpoint.commit for line in lines if isinstance(line, CheckpointMade)]
    if commits:  # its checkpoints outlive those of the mission it comes from
        depot.swap(f"refs/chargehand/forks/{made}", commits[-1], None)
    store.log.append(made, created, *lines, MissionReleased(worker=""), durable=True)
    return made


def _payloads(events: tuple[Event, ...]) -> Iterator[Payload]:
    for line in events:
        try:
            payload = decode(line.type, line.payload) if line.payload is not None else None
        except (KeyError, msgspec.ValidationError):  # of a later version
            payload = None
        if payload is not None:
            yield payload


def _created(
    events: tuple[Event, ...], mission: str, point: ForkPoint, model: str | None, *, user: str
) -> MissionCreated:
    before = next(payload for payload in _payloads(events) if isinstance(payload, MissionCreated))
    request = before.request if model is None else replace(before.request, model=model)
    at = f"{point.attempt}.{point.turn}"
    return replace(before, request=request, forked_from=mission, forked_at=at, user=user or before.user)


def _copied(events: tuple[Event, ...], point: ForkPoint, made: str, *, edited: bool) -> Iterator[Payload]:
    """Yield what came before the point, under names of its own."""
    attempts: dict[str, str] = {}
    for payload in _payloads(events):
        if not isinstance(payload, _COPIED):
            continue
        act = parse_act(payload.step) if isinstance(payload, StepFinished) else None
        if act is not None and (act[0], act[1].turn) == (point.attempt, point.turn):
            if act[1].kind == "reply":
                return
            if not edited:  # what was done to get the reply is done anew for another one
                continue
        if isinstance(payload, AttemptStarted):
            attempts[payload.attempt] = new_id("attempt")
            workspace = f"w-{made.removeprefix('m-')}-attempt-{payload.number}-0"
            payload = replace(payload, workspace=workspace)
        yield _renamed(payload, attempts)


def _renamed(payload: Payload, attempts: dict[str, str]) -> Payload:
    """Return a payload with the new name of its attempt; a fork pays its own money under its own name."""
    changes: dict[str, Any] = {}
    made: Any = payload
    attempt = getattr(payload, "attempt", None)
    if attempt is not None:
        changes["attempt"] = attempts.get(attempt, attempt)
    if isinstance(payload, AttemptFinished):  # the mission it comes from paid
        changes |= {"cost_usd": 0.0, "cost_known": True}
    if isinstance(payload, StepFinished):  # and took its time
        changes["seconds"] = 0.0
    question = getattr(payload, "question", None)
    if question is not None:
        owner, slash, rest = question.partition("/")
        changes["question"] = attempts.get(owner, owner) + slash + rest
    renamed: Payload = replace(made, **changes)
    return renamed


def _edited(
    store: Store, events: tuple[Event, ...], point: ForkPoint, edit: Edit, *, mission: str
) -> StepFinished:
    recorded = [
        payload
        for payload in _payloads(events)
        if isinstance(payload, StepFinished) and payload.step == point.step
    ][-1]
    output = {**recalled(store, recorded), "message": edited_reply(edit.text, edit.tools)}
    return kept_step(store, mission, replace(recorded, output=output, seconds=0.0))
