"""Holds between missions: a new mission waits for an earlier one with overlapping work on the same branch.

It waits before it takes its base, so that it starts from the earlier one's result. Only missions that declare what
they will touch wait, and only for earlier ones: two never wait for each other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from chargehand.core.errors import NotFoundError
from chargehand.core.events import Payload, encode_json, read_payload
from chargehand.core.mission_events import (
    MISSIONS,
    BaseResolved,
    MissionAdmitted,
    MissionAllowed,
    MissionCreated,
    MissionQueued,
)
from chargehand.core.plan_events import PlanMade, TaskEnded
from chargehand.core.plans import Task
from chargehand.core.state import MissionState, MissionSummary
from chargehand.missions.planning.collisions import Footprint, collision, footprint
from chargehand.missions.planning.patterns import pattern_problem
from chargehand.missions.reading import MissionReader
from chargehand.missions.waiting import goes_on_by_itself
from chargehand.store.rows import MissionFilter, MissionListing
from chargehand.store.store import Store

if TYPE_CHECKING:  # a person's command looks at holds without loading the code that runs missions
    from chargehand.missions.control import Control
    from chargehand.missions.journal import Journal
    from chargehand.missions.services import Services


async def must_wait(services: Services, journal: Journal, control: Control) -> bool:
    """Return, and record, whether a mission that has not begun waits for an earlier one.

    A mission that waited starts from the branch's current tip.
    """
    from chargehand.workspace.remotes import moved_base

    state = journal.state
    if not _is_to_be_applied(state) or has_begun(state) or not services.config.engine.hold_collisions:
        return False
    while True:
        changes = control.changes
        held = await control.unpaused(partial(asyncio.to_thread, _find_hold, services, state))
        if changes == control.changes:  # otherwise a person set another plan meanwhile
            break
    if held is not None:
        journal.record(held, durable=True)
        return True
    if state.was_held and state.first_base is not None:
        tip = await asyncio.to_thread(moved_base, services.depot, state.first_base)
        if tip is not None:
            journal.record(BaseResolved(base=tip, begins=True), durable=True)
    return False


def has_begun(state: MissionState) -> bool:
    """Return whether any work was done on a mission's base; for a coordinator, whether a task was started."""
    if state.plan is not None:
        return any(known.runs or known.end for known in state.plan.tasks.values())
    return bool(state.steps or state.attempts)


def is_still_held(look: MissionReader, held: MissionQueued) -> bool:
    """Return whether nothing has happened since that could end a mission's wait for another one."""
    try:
        other = look.store.log.summary(held.mission, look.workers.live)
    except NotFoundError:
        return False
    news = look.store.log.read(held.mission, after=held.seen, types=(PlanMade.type, TaskEnded.type), limit=1)
    return _holds_others(other) and not news


def events_of_start(look: MissionReader, state: MissionState, *, identity: str) -> tuple[Payload, ...]:
    """Return the events by which a person starts a mission despite the earlier ones in their current state."""
    beside = {each.id: _digest(look.state(each.id)) for each in _earlier_missions(look, state)}
    allowed = MissionAllowed(identity=identity, digest=_digest(state), beside=beside)
    return (allowed, MissionAdmitted(waits_for=MISSIONS, seconds=0.0))


def _find_hold(services: Services, state: MissionState) -> MissionQueued | None:
    """Return the mission to wait for and why, `None` if it may begin; may block."""
    own = _mission_footprint(services.store, state)
    if not (own.paths or own.areas or own.contracts):
        return None
    look = MissionReader(store=services.store, workers=services.workers)
    for each in _earlier_missions(look, state):
        seen = services.store.log.last_seq(each.id)
        other = look.state(each.id)
        if _is_allowed(services.store, state, other):
            continue
        theirs = _mission_footprint(services.store, other, written=_written_paths(services, look, other))
        why = collision(own, theirs, between=f"mission {other.id} and this one")
        if why is not None:
            ways = f"once {other.id} has ended, or by `chargehand mission resume {state.id}`"
            message = f"{why.message}; it starts automatically {ways}"
            reason = type(why)(code=why.code, message=message)
            return MissionQueued(
                waits_for=MISSIONS, before=0, places=1, reason=reason, mission=other.id, seen=seen
            )
    return None


def _is_allowed(store: Store, state: MissionState, other: MissionState) -> bool:
    """Return whether a person allowed a mission to start despite another one, both in their current form."""
    for line in reversed(store.log.read(state.id, types=(MissionAllowed.type,))):
        allowed = read_payload(line)
        if isinstance(allowed, MissionAllowed):  # the last one counts
            return allowed.digest == _digest(state) and allowed.beside.get(other.id) == _digest(other)
    return False


def _is_to_be_applied(state: MissionSummary) -> bool:
    applies = state.request is not None and state.request.apply and not state.parent
    return applies and state.base is not None and state.base.branch is not None


def _holds_others(listing: MissionListing) -> bool:
    """Return whether other missions wait for this one: only if it continues without a person."""
    state, row = listing.summary, listing.row
    # Not a mission set aside because its log is damaged: no worker resumes it.
    is_looked_at = row.runnable or row.owner is not None or row.wakes is not None or state.asleep
    return is_looked_at and (state.status in ("planned", "running") or goes_on_by_itself(state))


def _earlier_missions(look: MissionReader, state: MissionState) -> Iterator[MissionSummary]:
    """Yield earlier missions that are unfinished and are applied to the same branch."""
    listed = look.store.log.summaries(
        look.workers.live,
        MissionFilter(
            project=state.project, statuses=("planned", "running", "waiting", "paused"), before=state.id
        ),
    )
    for listing in listed:
        each = listing.summary
        if not _is_to_be_applied(each) or not _holds_others(listing) or each.repository != state.repository:
            continue
        if each.base is not None and state.base is not None and each.base.branch == state.base.branch:
            yield each


def _mission_footprint(store: Store, state: MissionState, *, written: tuple[str, ...] = ()) -> Footprint:
    """Return the changes that a mission still declares, and those it has `written`.

    That is the union over its unfinished tasks; a task without a declaration, or a mission without a plan, is
    taken to stay in the areas that a person gave with the request.
    """
    given = Footprint(task=state.id, areas=_given_areas(store, state))
    planless = state.plan is None or state.plan.wanted  # a planner may be working on it
    # Without an open task the result is about to be applied: the branch does not have it yet.
    open_tasks = _open_tasks(state)
    prints = [given] if planless or not open_tasks else [footprint(task) for task, _ in open_tasks]
    prints = [each if each.paths or each.areas or each.contracts else given for each in prints]
    areas = {area: None for each in prints for area in each.areas if not pattern_problem(area, areas=True)[0]}
    return Footprint(
        task=state.id,
        paths=tuple(dict.fromkeys(path for each in prints for path in each.paths)),
        # `docs` may match below any path, and so collides with each: between missions it means the top-level one.
        areas=tuple(area if set("*?[/") & set(area.rstrip("/")) else f"/{area}" for area in areas),
        contracts=tuple(dict.fromkeys(name for each in prints for name in each.contracts)),
        written=written,
    )


def _open_tasks(state: MissionState) -> list[tuple[Task, tuple[str, ...]]]:
    """Return the unfinished tasks of a mission, each with its missions so far."""
    if state.plan is None:
        return []
    known = state.plan.tasks
    return [
        (task, tuple(run.mission for run in known[task.id].runs))
        for task in state.plan.plan.tasks
        if known[task.id].end is None
    ]


def _given_areas(store: Store, state: MissionState) -> tuple[str, ...]:
    """Return a request's areas if a person gave them with it: a project's areas apply to all missions."""
    if state.request is None or not state.request.allow:
        return ()
    (first,) = store.log.read(state.id, limit=1)
    created = read_payload(first)
    origins = created.config.get("origins") if isinstance(created, MissionCreated) else None
    given = isinstance(origins, dict) and "--allow" in str(origins.get("project.allow"))
    return state.request.allow if given else ()


def _written_paths(services: Services, look: MissionReader, state: MissionState) -> tuple[str, ...]:
    """Return the paths that a mission has changed so far, including those of its unmerged tasks."""
    found = set[str]()
    runs = (look.state(run) for _, missions in _open_tasks(state) for run in missions)
    for each in (state, *runs):
        # A coordinator's merges are compared with `promoted_on`: its base moves just before a merge.
        base, tree = (each.base, each.checkpoints[-1].tree) if each.checkpoints else (each.promoted_on, each.tree)
        if base is not None and tree is not None:
            found.update(change.path for change in services.depot.diff(base.tree, tree))
    return tuple(sorted(found))


def _digest(state: MissionState) -> str:
    """Return a digest of a mission's work order: 16 hex digits of a SHA-256."""
    what = state.plan.plan if state.plan is not None else state.request
    return hashlib.sha256(encode_json(what)).hexdigest()[:16]
