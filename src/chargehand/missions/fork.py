"""New missions that share another one's recorded steps: up to a reply (a fork), or all of them (a follow-up)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.attempt_events import AttemptStarted, CheckpointMade, ReportMade, RoleChosen
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.events import Payload, read_payload
from chargehand.core.ids import new_id
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    BaseResolved,
    ChangesReverted,
    CheckpointRestored,
    MessageSent,
    MissionContinued,
    MissionCreated,
    MissionReleased,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    StepFinished,
    VerdictGiven,
)
from chargehand.core.records import Base, Checkpoint, ChoiceReason, MissionRequest, Verdict
from chargehand.core.state import MissionState
from chargehand.missions.journal import load_step_output, store_step_output
from chargehand.missions.promotion.rebase import Rebase, rebase_onto, union_of
from chargehand.missions.transcript import acts_prefix, parse_act
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.workspace.depot import Depot

# Events that another mission may copy. Claims, costs and promotions belong to the source alone.
_COPIED = (
    AgentSelected,
    AttemptFinished,
    AttemptStarted,
    BaseResolved,
    ChangesReverted,
    CheckpointMade,
    MessageSent,
    MissionContinued,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
    ReportMade,
    RoleChosen,
    StepFinished,
    VerdictGiven,
)


_REPLY_FORM = '{"text": "…", "tools": [{"name": "bash", "arguments": {"command": "ls"}}]}'


class ForkPoint(Struct, frozen=True, kw_only=True):
    """The reply to fork at: the `turn`-th one of an attempt, both from 1."""

    attempt: int
    turn: int

    @property
    def step(self) -> str:
        """The name of the reply's recorded step."""
        from chargehand.agents.recorded import reply_step

        return acts_prefix(self.attempt) + reply_step(self.turn)

    def __str__(self) -> str:
        return f"{self.attempt}.{self.turn}"


class ReplyEdit(Struct, frozen=True, kw_only=True):
    """A reply that replaces the recorded one: its text and its calls, each with `name` and `arguments`."""

    text: str
    tools: tuple[dict[str, Any], ...] = ()


def parse_reply(given: str) -> ReplyEdit:
    """Return a reply from a text, a JSON document, or `@FILE` with either.

    Raises `UsageError`, `NotFoundError`.
    """
    text = given
    if given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            hint = "name a file of UTF-8 text, with @ before its path"
            raise NotFoundError(f"--reply: {given[1:]!r} cannot be read: {error}", hint=hint) from error
    if not text.lstrip().startswith("{"):
        return ReplyEdit(text=text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--reply: not a JSON document: {error}", hint=_REPLY_FORM) from error
    tools, words = document.get("tools", []), document.get("text", "")
    are_calls = isinstance(tools, list) and all(
        isinstance(tool, dict)
        and isinstance(tool.get("name"), str)
        and isinstance(tool.get("arguments", {}), dict)
        for tool in tools
    )
    if not are_calls:
        raise UsageError("--reply: `tools` is not a list of calls", hint=_REPLY_FORM)
    if not isinstance(words, str):
        raise UsageError(f"--reply: `text` is not a string: {words!r:.100}", hint=_REPLY_FORM)
    return ReplyEdit(text=words, tools=tuple(tools))


def create_fork(
    store: Store,
    depot: Depot,
    mission: str,
    point: ForkPoint | None,
    *,
    model: str | None = None,
    edit: ReplyEdit | None = None,
    user: str = "",
) -> str:
    """Record a new mission that continues from just before a reply of another, and return its id.

    `point` is the last reply by default; `model` answers from there on; with `edit` that reply is used instead.
    Earlier calls are neither made nor paid again; `user` pays for the rest, by default the user of the source.
    Raises `RefusedError` (`not_forkable`) for a mission without recorded replies, `NotFoundError` for an unknown
    reply.
    """
    source = _read_source(store, mission)
    steps = [payload.step for payload in source if isinstance(payload, StepFinished)]
    acts = [act for act in map(parse_act, steps) if act is not None]
    points = [ForkPoint(attempt=number, turn=step.turn) for number, step in acts if step.kind == "reply"]
    if not points:
        raise RefusedError(
            f"mission {mission!r} has no recorded replies",
            code="not_forkable",
            hint="only native agents record them",
        )
    point = point or points[-1]
    if point not in points:
        known = ", ".join(map(str, dict.fromkeys(points)))
        raise NotFoundError(f"mission {mission!r} has no reply {point}", hint=f"it has: {known}")
    made = new_id("mission")
    created = next(payload for payload in source if isinstance(payload, MissionCreated))
    created = replace(created, forked_from=mission, forked_at=str(point), user=user or created.user)
    created = replace(created, parent="", task="")  # no coordinator knows this mission
    if model is not None:
        created = replace(created, request=replace(created.request, model=model))
    copied = list(_copy_until(point, source, made, edited=edit is not None))
    if edit is not None:
        from chargehand.agents.recorded import edited_reply

        replies = [each for each in source if isinstance(each, StepFinished) and each.step == point.step]
        recorded = replies[-1]
        # Usage and model stay as recorded: the edited reply counts as paid like the original.
        output = {**load_step_output(store, recorded), "message": edited_reply(edit.text, edit.tools)}
        copied.append(store_step_output(store, made, replace(recorded, output=output, seconds=0.0)))
    _record_copy(store, depot, made, created, copied)
    return made


def create_follow_up(
    store: Store,
    depot: Depot,
    mission: str,
    request: MissionRequest,
    continued: MissionContinued,
    *,
    user: str = "",
    made: str = "",
    chosen: tuple[ChoiceReason, ...] = (),
) -> str:
    """Record a new mission that continues a promoted one on `continued.base`; return its id.

    Its agent has the earlier conversation; no earlier call is made or paid again. `user` pays for the rest, by
    default the user of the source. `made` is the new mission's id if it is known before; it then keeps the
    coordinator of the source.
    """
    source = _read_source(store, mission)
    created = _created_from(source, mission, request, user)
    created = replace(created, chosen=chosen or created.chosen)
    if not made:  # a person's own mission, not a coordinator's
        made, created = new_id("mission"), replace(created, parent="", task="")
    # A plan's mission has no attempts of its own: the new one begins on `continued.base`.
    copied = list(_copy_until(None, source, made)) if continued.after else []
    if continued.base is not None:
        _keep_commits(depot, made, continued.base, request)
        copied.append(BaseResolved(base=continued.base))
    copied.append(continued)
    _record_copy(store, depot, made, created, copied)
    return made


def rebase_result(depot: Depot, state: MissionState, tip: Base, *, made: str) -> Rebase | None:
    """Merge a promoted result with a tip, for a mission `made`; `None` if the tip has all of its changes.

    Raises `RefusedError` (`unrelated`) if their histories have no commit in common.
    """
    assert state.commit is not None
    fork = depot.merge_base(state.commit, tip.commit)
    if fork is None:
        raise RefusedError(
            f"{tip.revision} was replaced: its history has nothing in common with the result {state.commit[:12]}",
            code="unrelated",
            hint="start a new mission from the branch as it is now",
        )
    common = Base(commit=fork, tree=depot.tree_of(fork), revision=fork)
    return rebase_onto(depot, common, tip, depot.tree_of(state.commit), mission=made, union=union_of(state))


def create_rejudged(
    store: Store,
    depot: Depot,
    mission: str,
    request: MissionRequest,
    base: Base,
    checkpoint: Checkpoint,
    *,
    made: str,
) -> None:
    """Record a mission `made` that judges a promoted one's result on another base, and promotes it if it is green.

    `checkpoint` has that tree. No agent works on it unless the new mission is continued.
    """
    source = _read_source(store, mission)
    _keep_commits(depot, made, base, request)
    missing = VerdictGiven(verdict=Verdict(tree=checkpoint.tree, scope="merged", status="missing"))
    moved = (BaseResolved(base=base), CheckpointRestored(workspace="", checkpoint=checkpoint), missing)
    created = _created_from(source, mission, request, "")
    _record_copy(store, depot, made, created, [*_copy_until(None, source, made), *moved])


def _created_from(source: Sequence[Payload], mission: str, request: MissionRequest, user: str) -> MissionCreated:
    created = next(payload for payload in source if isinstance(payload, MissionCreated))
    return replace(created, request=request, forked_from=mission, forked_at="", user=user or created.user)


def _keep_commits(depot: Depot, made: str, base: Base, request: MissionRequest) -> None:
    """Keep the commits that the new mission needs: they must outlive the branch of the source mission."""
    _keep_ref(depot, f"refs/chargehand/forks/{made}-base", base.commit)
    if request.issue is not None and request.issue.onto:
        _keep_ref(depot, f"refs/chargehand/forks/{made}-onto", request.issue.onto)


def _keep_ref(depot: Depot, ref: str, commit: str) -> None:
    # The id of a mission may be known before it is made: an attempt to make it may have ended right after this.
    before = depot.read_ref(ref)
    if before != commit:
        depot.swap(ref, commit, before)


def _read_source(store: Store, mission: str) -> list[Payload]:
    # Unreadable events, such as a later version's, are omitted: only its own kinds of event are copied anyway.
    return [payload for line in store.log.read(mission) if (payload := read_payload(line)) is not None]


def _record_copy(
    store: Store, depot: Depot, made: str, created: MissionCreated, copied: Sequence[Payload]
) -> None:
    commits = [payload.checkpoint.commit for payload in copied if isinstance(payload, CheckpointMade)]
    if commits:  # its checkpoints outlive those of the source mission
        _keep_ref(depot, f"refs/chargehand/forks/{made}", commits[-1])
    # Released without a worker, like a mission that its worker released: any worker may resume it.
    store.log.append(made, created, *copied, MissionReleased(worker=""), durable=True)


def _copy_until(
    point: ForkPoint | None, source: Sequence[Payload], made: str, *, edited: bool = False
) -> Iterator[Payload]:
    """Yield the events before the point, or all of them, with new names."""
    attempts: dict[str, str] = {}
    for payload in source:
        if not isinstance(payload, _COPIED):
            continue
        act = parse_act(payload.step) if isinstance(payload, StepFinished) else None
        if point is not None and act is not None and (act[0], act[1].turn) == (point.attempt, point.turn):
            if act[1].kind == "reply":
                return
            if not edited:  # acts that led to the recorded reply (e.g. a roll-back) are repeated for a new reply
                continue
        if isinstance(payload, AttemptStarted):
            attempts[payload.attempt] = new_id("attempt")
            # Named like its own workspace: resuming finds no files there and writes the tree again.
            workspace = f"w-{made.removeprefix('m-')}-attempt-{payload.number}-0"
            payload = replace(payload, workspace=workspace)
        yield _rename_attempt(payload, attempts)


def _rename_attempt(payload: Payload, attempts: dict[str, str]) -> Payload:
    """Return a payload with its attempt's new name, and without cost or time: those stay with the source."""
    changes: dict[str, Any] = {}
    attempt = getattr(payload, "attempt", None)
    if attempt is not None:
        changes["attempt"] = attempts.get(attempt, attempt)
    if isinstance(payload, AttemptFinished):
        changes |= {"cost_usd": 0.0, "cost_known": True}
    if isinstance(payload, StepFinished):
        changes["seconds"] = 0.0
    question = getattr(payload, "question", None)
    if question is not None:  # an agent's question is named after its attempt
        owner, slash, rest = question.partition("/")
        changes["question"] = attempts.get(owner, owner) + slash + rest
    untyped: Any = payload  # the fields are known by now, but not to the type checker
    renamed: Payload = replace(untyped, **changes)
    return renamed
