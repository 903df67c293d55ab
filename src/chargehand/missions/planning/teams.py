"""Teams: files that define the roles for a request, their agents and models, and the reviewers."""

from __future__ import annotations

import tomllib

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import DEVELOPER, ROLE_NAME
from chargehand.core.codec import convert_to
from chargehand.core.errors import ConfigError
from chargehand.core.plans import Plan, Task, TeamMember
from chargehand.core.text import printable

_MOST_STEPS = 20
_FORM = 'steps = ["tester", "developer"] and [[members]] with role, agent, models, reviewers'


class Team(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request goes through `steps`, roles in this order; `members` configure each role."""

    summary: str
    steps: tuple[str, ...]
    members: tuple[TeamMember, ...] = ()


def parse_team(text: str, place: str) -> Team:
    """Return the team defined in a file; raises `ConfigError` (`team_invalid`) naming `place`."""
    try:
        team = convert_to(tomllib.loads(text), Team)
    except (ValueError, RecursionError) as error:
        raise _invalid(place, printable(str(error)) or "nested too deeply") from error
    if not 0 < len(team.steps) <= _MOST_STEPS:
        raise _invalid(place, f"steps must name 1 to {_MOST_STEPS} roles, got {len(team.steps)}")
    named = [each.role for each in team.members]
    for role in (*team.steps, *named, *(role for each in team.members for role in each.reviewers)):
        if not ROLE_NAME.fullmatch(role):
            raise _invalid(place, f"{role!r} is not a role name")
    twice = next((role for role in named if named.count(role) > 1), None)
    if twice is not None:
        raise _invalid(place, f"two members have the role {twice!r}")
    return team


def plan_for_team(team: Team, text: str) -> Plan:
    """Return the plan by which a team works on a request: each step after the previous one."""
    tasks: list[Task] = []
    for number, role in enumerate(team.steps, 1):
        name = role if role not in team.steps[: number - 1] else f"{role}-{number}"
        tasks.append(Task(id=name, text=text, after=(tasks[-1].id,) if tasks else (), role=role))
    return with_team(Plan(tasks=tuple(tasks)), team)


def with_team(plan: Plan, team: Team) -> Plan:
    """Return a plan whose tasks take missing values from a team's members; the plan's own members come first."""
    own = {each.role for each in plan.team}
    whole = replace(plan, team=(*plan.team, *(each for each in team.members if each.role not in own)))
    return replace(whole, tasks=tuple(fill_task(task, whole) for task in whole.tasks))


def fill_task(task: Task, plan: Plan) -> Task:
    """Return a task with missing values taken from the team member for its role."""
    member = plan.member(task.role or DEVELOPER)
    return replace(
        task,
        agent=task.agent or member.agent,
        models=task.models or member.models,
        reviewers=task.reviewers or member.reviewers,
    )


def _invalid(place: str, problem: str) -> ConfigError:
    return ConfigError(f"{place}: {problem}", code="team_invalid", hint=f"write {_FORM}")
