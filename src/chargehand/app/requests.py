"""Records missions for a worker: with a plan, under a caller's own key, as a fork or a follow-up."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from chargehand.app import runs
from chargehand.app.runs import allowed_attempts, branch_slug, request_text
from chargehand.app.wiring.session import ConfiguredBase
from chargehand.app.worker import ensure_worker
from chargehand.configuration.areas import meet_areas
from chargehand.configuration.records import ResolvedConfig
from chargehand.configuration.run_options import RunRequest
from chargehand.core.config import RequestsConfig
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.events import read_payload
from chargehand.core.ids import keyed_id
from chargehand.core.mission_events import MissionContinued
from chargehand.core.plan_events import PlanMade, PlanWanted
from chargehand.core.plans import PLANNER, Plan
from chargehand.core.records import Base, IssueLink, MissionRequest
from chargehand.core.state import ENDED, MissionState
from chargehand.missions.breakpoints import parse_breakpoints
from chargehand.reports.documents import Document
from chargehand.reports.outcome import exported_branch

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.configuration.trust import ConfirmTrust

# Values of `--plan`: no plan, whatever is configured, and a plan made by a planner.
NO_PLAN = "none"
AUTO_PLAN = "auto"
_LARGEST_PLAN_BYTES = 1 << 20
_REPLY = re.compile(r"(?:([1-9][0-9]{0,5})\.)?([1-9][0-9]{0,5})")
_FILE_HINT = "name a file of YAML or JSON, such as `tasks: [{id: add-login, text: add a login page}]`"


def read_plan_file(app: App, name: str, *, option: str = "--plan") -> Plan:
    """Read the plan in a file. Raises `UsageError`."""
    from chargehand.missions.plan_documents import parse_plan

    path = app.cwd / name
    try:
        if not path.is_file():
            raise UsageError(f"{option}: {name!r} is not a file", hint=_FILE_HINT)
        with path.open("rb") as file:
            content = file.read(_LARGEST_PLAN_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{option}: {name!r} cannot be read: {error.strerror}", hint=_FILE_HINT) from error
    return parse_plan(content, name)


def plan_request(app: App, request: RunRequest) -> tuple[RunRequest, Plan | PlanWanted | None]:
    """Return a request with its text, and the plan to record with it; without a plan if that has one plain task.

    With one task there is nothing to coordinate: it becomes the request. Raises `UsageError`.
    """
    request, plan = _resolve_plan(app, request)
    # The tasks of a plan that a planner will make are not known yet.
    known = tuple(task.id for task in plan.tasks) if isinstance(plan, Plan) else () if plan is None else None
    parse_breakpoints(request.break_at, known)
    return request, plan


def prepare_issue(
    app: App, request: RunRequest, read: Callable[[], RequestsConfig], *, confirm_trust: ConfirmTrust | None
) -> tuple[RunRequest, Plan | PlanWanted | None, RequestsConfig]:
    """Return the request of an issue with its plan and the settings that `read` returns, if it can be carried out.

    Role and team of the settings count unless the request names its own. Raises as `plan_request`, `prepare_run`.
    """
    settings = read()
    while True:
        asked = request
        if not (request.role or request.team or request.plan):
            asked = dataclasses.replace(request, role=settings.role or None, team=settings.team or None)
        asked, plan = plan_request(app, asked)
        runs.prepare_run(app, asked, confirm_trust=confirm_trust)
        # A person may have trusted the repository's file just now.
        before, settings = settings, read()
        if settings == before:
            return asked, plan, settings


def _resolve_plan(app: App, request: RunRequest) -> tuple[RunRequest, Plan | PlanWanted | None]:
    if request.plan in (None, NO_PLAN) and request.team is None:
        return request, None
    if request.plan == AUTO_PLAN:
        if request.team is not None:
            raise UsageError("--team and --plan auto both define the steps", hint="leave one of them out")
        return dataclasses.replace(request, text=request_text(request), file=None), PlanWanted()
    from chargehand.app.selection.teams import find_team
    from chargehand.missions.plan_documents import plan_for_team, with_team

    team = find_team(app.environ, request.team) if request.team is not None else None
    said = request.text is not None or request.file is not None
    if request.plan in (None, NO_PLAN):
        assert team is not None
        text = request_text(request)
        plan = plan_for_team(team, text)
    else:
        text = request_text(request) if said else f"Carry out the plan {Path(str(request.plan)).name}"
        plan = read_plan_file(app, str(request.plan))
        plan = plan if team is None else with_team(plan, team)
    only = plan.tasks[0]
    conditional = only.done_when or only.when or only.loop is not None
    # An ordinary mission cannot declare which files it will touch, and other missions on the branch wait for that.
    touches = request.apply and (only.make or only.change or only.delete or only.contracts)
    # A task's own limits apply in addition to those of the whole, and its models are tried one after the other.
    limits = only.budget_usd or only.seconds or only.deadline or len(only.models) > 1
    shared = only.candidates > 1 or only.reviewers or only.needs
    if len(plan.tasks) == 1 and not (touches or plan.ambiguities or conditional or limits or shared):
        whole = f"{text}\n\n{only.text}" if said and text != only.text else only.text
        covered = [each.text for each in plan.obligations if each.id in only.covers]
        duties = "".join(f"\n- {each}" for each in (*covered, *only.acceptance))
        return dataclasses.replace(
            request,
            text=f"{whole}\n\nIt is done when:{duties}" if duties else whole,
            file=None,
            # As in a larger plan, the task's own settings take precedence over those of the whole.
            role=only.role or request.role,
            agent=only.agent or request.agent,
            model=next(iter(only.models), request.model),
            checks=(*request.checks, *only.checks),
            allow=meet_areas(request.allow, only.areas),
            attempts=str(only.attempts) if only.attempts else request.attempts,
        ), None
    reviews = {role for task in plan.tasks for role in task.reviewers}
    named = all(task.agent for task in plan.tasks) and all(plan.member(role).agent for role in reviews)
    # If every task and review names its agent, the request needs no agent.
    return dataclasses.replace(
        request, text=text, file=None, agent=request.agent or (only.agent if named else None)
    ), plan


def record_mission(
    app: App,
    request: RunRequest,
    *,
    plan: Plan | PlanWanted | None,
    confirm_trust: ConfirmTrust | None = None,
    mission: str | None = None,
    noted: Mapping[str, object] | None = None,
    issue: IssueLink | None = None,
) -> str:
    """Record a mission; with a plan, or a request for one, it coordinates the plan's tasks.

    Raises as `runs.record_mission`, for the agent of each task, or of the planner, too.
    """

    def check(found: ConfiguredBase, asked: MissionRequest) -> None:
        if isinstance(plan, Plan):
            app.preparation.plan_check(found, found.resolved)(asked, plan)
        elif plan is not None:
            app.preparation.plan_check(found, found.resolved).check_task(asked, PLANNER)

    return runs.record_mission(
        app,
        request,
        confirm_trust=confirm_trust,
        mission=mission,
        noted=noted,
        issue=issue,
        plan=PlanMade(plan=plan, identity=app.identity()) if isinstance(plan, Plan) else plan,
        check=check,
    )


class PlanChangeDocument(Document, frozen=True):
    """`mission plan --set`: the tasks that differ from the previous plan, made by `replaced`."""

    mission: str
    status: str
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    changed: tuple[str, ...]
    replaced: str
    worker_started: bool


def change_plan(app: App, name: str, file: str) -> PlanChangeDocument:
    """Replace the plan of a coordinator by the plan in a file, whether or not a worker holds the mission.

    Raises `UsageError` (`plan_invalid`), `RefusedError` (`no_plan`, `not_plannable`, `plan_fixed`), and the errors
    of `record_mission` for the agent of each task.
    """
    state = app.mission_state(name)
    plan = read_plan_file(app, file, option="--set")
    known = state.plan.plan if state.plan is not None else plan
    new = tuple(task for task in plan.tasks if known.task(task.id) != task)
    # An agent must be able to start on each of the new tasks.
    if state.config is not None and state.base is not None and state.request is not None:
        found = app.preparation.find(revision=state.base.commit, mission=state)
        # Its worker assigns tasks by the configuration recorded with the mission.
        resolved = ResolvedConfig(config=state.config, origins={})
        configured = ConfiguredBase(**msgspec.structs.asdict(found), resolved=resolved)
        app.preparation.plan_check(configured, resolved)(state.request, msgspec.structs.replace(plan, tasks=new))
    text = msgspec.json.encode(plan).decode()
    app.steer(state.id, "plan", lambda: app.steering.change_plan(state.id, plan), plan=text)
    started = ensure_worker(app).started
    # Read from the log: another person may have changed the plan since it was read above.
    events = map(read_payload, app.store.log.read(state.id, types=(PlanMade.type,)))
    made = [event for event in events if isinstance(event, PlanMade)]
    at = max(number for number, event in enumerate(made) if event.plan == plan)
    before = made[at - 1] if at else PlanMade(plan=Plan(tasks=()), identity=PLANNER.id)
    old, now = ({task.id: task for task in each.plan.tasks} for each in (before, made[at]))
    return PlanChangeDocument(
        mission=state.id,
        status=app.mission_reader.state(state.id).status,
        added=tuple(each for each in now if each not in old),
        dropped=tuple(each for each in old if each not in now),
        changed=tuple(each for each in now if each in old and old[each] != now[each]),
        replaced=before.identity,
        worker_started=started,
    )


class TaskAllowedDocument(Document, frozen=True):
    """`mission plan --start`: a held `task` begins while the tasks in `beside` work on the same files."""

    mission: str
    task: str
    beside: tuple[str, ...]
    worker_started: bool


def start_held_task(app: App, name: str, task: str) -> TaskAllowedDocument:
    """Let a held task of a coordinator begin, whether or not a worker holds the mission.

    Raises `RefusedError` (`no_plan`, `not_plannable`, `not_held`), `NotFoundError` for a missing task.
    """
    mission = app.mission_state(name).id
    app.steer(mission, "allow", lambda: app.steering.allow_task(mission, task), task=task)
    started = ensure_worker(app).started
    plan = app.mission_reader.state(mission).plan
    allowed = plan.tasks[task].allowed if plan is not None else None
    beside = tuple(allowed.beside) if allowed is not None else ()
    return TaskAllowedDocument(mission=mission, task=task, beside=beside, worker_started=started)


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A caller's own key for a mission; `asked` is a digest of everything requested with it.

    `via` distinguishes the interfaces, so that two callers do not share a mission by accident.
    """

    via: Literal["mcp", "rest", "run"]
    key: str
    asked: str


def record_once(
    app: App,
    request: RunRequest,
    key: IdempotencyKey,
    *,
    confirm_trust: ConfirmTrust | None = None,
    plan: Plan | PlanWanted | None = None,
) -> tuple[str, bool]:
    """Record a mission, or find the mission of the key; return its id and whether it is new.

    Raises `RefusedError` (`key_reused`) for a key of another request, and the errors of `record_mission`.
    """
    # Clients of the MCP server had keys first: their keys have no prefix, so that recorded ones stay valid.
    mission = keyed_id("mission", key.key if key.via == "mcp" else f"{key.via} {key.key}")
    if not _is_recorded(app, mission, key):
        noted: dict[str, object] = {key.via: {"key": key.key, "asked": key.asked}}
        try:
            made = record_mission(
                app, request, plan=plan, confirm_trust=confirm_trust, mission=mission, noted=noted
            )
            return made, True
        except UsageError as error:
            if error.code != "mission_exists":
                raise
        _is_recorded(app, mission, key)  # another call with this key came first: the store accepts only one
    return mission, False


def _is_recorded(app: App, mission: str, key: IdempotencyKey) -> bool:
    """Return whether a key already has its mission. Raises `RefusedError` if the request was a different one."""
    try:
        app.store.log.get(mission)
    except NotFoundError:
        return False
    first = app.store.log.read(mission, types=("mission.created",))[0].payload
    # If the payload was erased, nothing can be compared, and the key still identifies its mission.
    if first is not None and msgspec.json.decode(first)["config"][key.via]["asked"] != key.asked:
        raise RefusedError(
            f"the key {key.key!r} belongs to mission {mission!r}, which was requested with other arguments",
            code="key_reused",
            hint=f"use a new key for a new request; `chargehand mission show {mission}` shows its status",
        )
    return True


def key_request(app: App, request: RunRequest, key: str) -> tuple[RunRequest, IdempotencyKey]:
    """Return a request with its text read, and the key for this request in its repository."""
    # An empty key is usually a variable that is not set: it would merge all requests into one mission.
    if not key or not key.isprintable():
        raise UsageError(
            f"--idempotency-key: {key!r} is empty or has characters that are not printable",
            hint="use a short text, a different one for each request",
        )
    request = dataclasses.replace(request, text=request_text(request), file=None)
    meant = dataclasses.replace(request, repo=(app.cwd / (request.repo or ".")).resolve(), yes=False, detach=True)
    content = msgspec.json.encode(meant, order="sorted", enc_hook=str)
    return request, IdempotencyKey("run", key, hashlib.sha256(content).hexdigest())


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of a mission to fork at, and the source of the replies from there on.

    `at` is TURN or ATTEMPT.TURN (the last reply by default), `model` the model that replies, `reply` a replacement
    for that reply: a text, a JSON document, or @FILE with either.
    """

    mission: str
    at: str | None = None
    model: str | None = None
    reply: str | None = None


def fork_mission(app: App, request: ForkRequest) -> tuple[str, str]:
    """Record a new mission that continues differently from one of a mission's replies.

    Returns its id and the reply, as ATTEMPT.TURN. Raises `NotFoundError`, `UsageError`, `ConfigError`.
    """
    from chargehand.missions.fork import ForkPoint, create_fork, parse_reply

    source = app.mission_state(request.mission)
    point = None
    if request.at is not None:
        match = _REPLY.fullmatch(request.at)
        if match is None:
            hint = "write TURN or ATTEMPT.TURN, as in `mission log --transcript`"
            raise UsageError(f"--at: {request.at!r} is not a reply", hint=hint)
        point = ForkPoint(attempt=int(match[1] or max(1, len(source.attempts))), turn=int(match[2]))
    edit = parse_reply(request.reply) if request.reply is not None else None
    # Called only for its errors: nothing is recorded for an unknown model, or a missing agent.
    app.preparation.require_recorded_agent(source, request.model)
    depot = app.projects.mission_depot(source)
    made = create_fork(app.store, depot, source.id, point, model=request.model, edit=edit, user=app.user)
    created = json.loads(app.store.log.read(made)[0].payload or b"{}")
    return made, str(created.get("forked_at", ""))


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """A person's further request to a mission that ended, with limits as for `run`."""

    mission: str
    text: str
    attempts: str | None = None
    time: str | None = None
    budget: str | None = None


def follow_up_mission(app: App, request: FollowUp, *, issue: IssueLink | None = None, made: str = "") -> str:
    """Continue an ended mission with a person's further request; return the id of the mission to run.

    This is the mission itself, or a new one based on its promotion, which never changes: that gets the id `made`,
    if given, and works on `issue`. Raises `UsageError`,
    `ConfigError`, `RefusedError` (`not_continuable`).
    """
    from chargehand.missions.reading import has_open_tasks
    from chargehand.missions.steering import check_continuable_plan

    state = app.mission_state(request.mission)
    before = state.request
    base = state.base
    given = RunRequest(text=request.text, attempts=request.attempts, time=request.time, budget=request.budget)
    text = request_text(given)
    going_on = state.status in ("planned", "running", "paused")
    if before is None or base is None or going_on or state.open_question is not None:
        verb = "answer" if state.open_question else "send" if going_on else ""
        hint = f"chargehand mission {verb} {state.id} TEXT" if verb else "start a new mission"
        raise RefusedError(f"mission {state.id!r} cannot be continued now", code="not_continuable", hint=hint)
    check_continuable_plan(state)
    if state.parent and state.status != "promoted" and app.mission_reader.state(state.parent).status in ENDED:
        message = f"mission {state.id!r} is a task of {state.parent!r}, which has ended: its result is not needed"
        hint = f"chargehand mission show {state.parent} shows what you can do with that one"
        raise RefusedError(message, code="not_continuable", hint=hint)
    app.preparation.require_recorded_agent(state)
    found = app.preparation.find(revision=base.commit, mission=state)
    resolved = app.preparation.configuration(found, options=given.configuration(), head=False)
    limits = resolved.config.limits
    attempts = allowed_attempts(resolved, before.agent)
    budget = limits.budget_usd if request.budget is not None else None  # `None` keeps the budget
    spent = app.store.spending.total(mission=state.id).booked_usd  # those of a plan's child missions too
    limit = budget or (state.config.limits.budget_usd if state.config is not None else None)
    # A plan with a partial export continues itself: a new mission would not have the remaining tasks.
    goes_on = state.status != "promoted" or has_open_tasks(state)
    if goes_on and limit is not None and spent >= limit:
        raise UsageError(
            f"mission {state.id!r} has spent {spent:.2f} of its {limit:.2f} USD",
            hint="give a larger one: --budget USD is for the whole mission",
        )
    if goes_on:
        app.steering.follow_up(state.id, text, attempts=attempts, seconds=limits.time, budget_usd=budget)
        return state.id
    return _follow_up_promoted(
        app, state, text, attempts=attempts, seconds=limits.time, budget=budget, issue=issue, made=made
    )


def is_recorded(app: App, mission: str) -> bool:
    """Return whether a mission of that id exists."""
    try:
        app.store.log.get(mission)
    except NotFoundError:
        return False
    return True


def _follow_up_promoted(
    app: App,
    state: MissionState,
    text: str,
    *,
    attempts: int,
    seconds: float,
    budget: float | None,
    issue: IssueLink | None,
    made: str,
) -> str:
    from chargehand.missions.reading import is_applied

    assert state.request is not None
    assert state.base is not None
    assert state.commit is not None
    depot = app.projects.mission_depot(state)
    depot.keep_base(state.commit)  # the repository may have lost the commit, or never had it
    applied = state.base.branch if state.request.apply and is_applied(state) else None
    base = Base(
        commit=state.commit,
        tree=depot.tree_of(state.commit),
        revision=applied or exported_branch(state) or f"mission {state.id}",
        branch=applied,
    )
    return record_follow_up(
        app,
        state,
        text,
        base,
        attempts=attempts,
        seconds=seconds,
        budget=budget,
        apply=applied is not None,
        issue=issue,
        made=made,
    )


def record_follow_up(
    app: App,
    state: MissionState,
    text: str,
    base: Base,
    *,
    tree: str = "",
    attempts: int,
    seconds: float,
    budget: float | None = None,
    apply: bool = False,
    issue: IssueLink | None,
    made: str,
) -> str:
    """Record a mission that continues a promoted one on a base, with `tree` in its workspace; return its id.

    It has the checks of all merged tasks, and the id `made`, if given.
    """
    from chargehand.missions.fork import create_follow_up
    from chargehand.missions.reading import merged_checks
    from chargehand.missions.steering import last_whole_attempt

    assert state.request is not None
    after = last_whole_attempt(state)
    continued = MissionContinued(
        identity=app.identity(),
        after=after,
        attempts=after + attempts,
        seconds=seconds,
        budget_usd=budget,
        base=base,
        tree=tree,
    )
    request = msgspec.structs.replace(
        state.request,
        text=text,
        slug=branch_slug(text),
        attempts=continued.attempts,
        seconds=seconds,
        apply=apply,
        issue=issue,
        extra_checks=tuple(dict.fromkeys((*state.request.extra_checks, *merged_checks(state)))),
    )
    depot = app.projects.mission_depot(state)
    return create_follow_up(app.store, depot, state.id, request, continued, user=app.user, made=made)
