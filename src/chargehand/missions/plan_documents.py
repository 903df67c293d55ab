"""Plan documents: the YAML or JSON file in which a person or a planner writes a plan."""

from __future__ import annotations

from chargehand.core.plans import Plan
from chargehand.missions.planning.collisions import planned_collisions as planned_collisions
from chargehand.missions.planning.loading import load_plan
from chargehand.missions.planning.problems import PlanProblems
from chargehand.missions.planning.reading import read_plan
from chargehand.missions.planning.teams import Team as Team
from chargehand.missions.planning.teams import parse_team as parse_team
from chargehand.missions.planning.teams import plan_for_team as plan_for_team
from chargehand.missions.planning.teams import with_team as with_team
from chargehand.missions.planning.validation import check_plan
from chargehand.missions.planning.validation import outside_areas as outside_areas


def parse_plan(content: bytes, name: str) -> Plan:
    """Return the plan in a file called `name`, with its control flow expanded to plain tasks.

    Raises `UsageError` (`plan_invalid`). Its message names the first problem with place and value; its hint gives
    the way out, followed by up to 19 more problems, one per line.
    """
    problems = PlanProblems(name)
    draft = read_plan(load_plan(content, name), problems)
    check_plan(draft, problems)
    problems.raise_first()
    return draft.plan
