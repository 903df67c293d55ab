"""Validation across a plan's tasks: ids, order, obligations, and which tasks make and delete a path."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from graphlib import CycleError

from chargehand.agents.roles import ROLE_NAME
from chargehand.core.errors import nearest
from chargehand.core.plans import Plan, Task, predecessors
from chargehand.core.text import late_pattern
from chargehand.missions.planning.expansion import to_id
from chargehand.missions.planning.patterns import compile_pattern, patterns_meet
from chargehand.missions.planning.problems import PlanProblems, quote_value
from chargehand.missions.planning.reading import DraftPlan

PLAN_ID = late_pattern(r"[a-z0-9][a-z0-9._-]{0,63}")
_PLAIN_PATH = late_pattern(r"[^*?\[\\]+")
# Without a trailing slash, and with an extension: a directory is written with the slash.
_FILE = late_pattern(r"[^/]\.[^./]+\Z")


def check_plan(draft: DraftPlan, problems: PlanProblems) -> None:
    """Note in `problems` the errors of a plan that single keys do not show."""
    plan = draft.plan
    lines = {task.id: task.table.line for task in draft.drafts}
    if not plan.tasks and not problems.count:
        problems.add("", "the plan has no tasks", "one task is enough: tasks: [{id: …, text: …}]")
    _check_ids("task", [task.id for task in plan.tasks if not task.id.startswith("tasks[")], problems, lines)
    _check_ids("group", draft.groups, problems, {})
    _check_ids("obligation", [each.id for each in plan.obligations if each.id], problems, {})
    _check_ids("ambiguity", [each.id for each in plan.ambiguities if each.id], problems, {})
    for name in sorted(draft.groups.keys() & lines.keys()):
        problems.add(f"task {name!r}", "a group has the same id", "choose another", line=lines[name])
    _check_obligations(plan, problems, lines)
    for role, count in Counter(each.role for each in plan.team if each.role).items():
        if not ROLE_NAME.fullmatch(role):
            hint = "`chargehand role list` lists them"
            problems.add("team", f"{quote_value(role)} is not a role name", hint)
        if count > 1:
            problems.add("team", f"the role {role!r} appears twice", "name its agent or model in one entry")
    for task in plan.tasks:
        _check_alone(task, problems, lines[task.id])
    if _check_order(plan, draft.groups, problems, lines):
        _check_writers(plan, problems, lines)


def _check_ids(kind: str, ids: Iterable[str], problems: PlanProblems, lines: dict[str, int]) -> None:
    seen: set[str] = set()
    for name in ids:
        where, line = f"{kind} {quote_value(name)}", lines.get(name, 0)
        if not PLAN_ID.fullmatch(name):
            proposed = f", such as {to_id(name)!r}" if to_id(name) else ""
            hint = f"use at most 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit{proposed}"
            problems.add(where, "the id cannot be used", hint, line=line)
        if name in seen:
            problems.add(where, "the id appears twice", "give each task its own id", line=line)
        seen.add(name)


def _check_alone(task: Task, problems: PlanProblems, line: int) -> None:
    """Note contradictions within one task: no agent could do it."""
    where = f"task {task.id!r}"
    made = {path.rstrip("/") for path in (*task.make, *task.change)}
    for path in task.delete:
        if path.rstrip("/") in made:
            hint = "keep one of the two, or let another task delete it"
            problems.add(where, f"wants to make or change {path!r}, and to delete it", hint, line=line)
    if (outside := outside_areas(task, task.areas)) is not None:
        shown = ", ".join(map(repr, task.areas))
        message = f"wants to {outside}, which is outside its areas: {shown}"
        hint = "add it to 'areas', or leave it to another task; a directory ends with '/'"
        problems.add(where, message, hint, line=line)
    if task.when and task.when == task.done_when:
        message = f"'when' and 'done_when' are the same command, {quote_value(task.when)}: it would never begin"
        problems.add(where, message, "remove one of them", line=line)


def outside_areas(task: Task, areas: Sequence[str]) -> str | None:
    """Return an intended change of a task outside its areas, such as `make 'a.py'`, or `None`."""
    allowed = [compile_pattern(area, floating=True) for area in areas]
    for verb, paths in (("make", task.make), ("change", task.change), ("delete", task.delete)):
        for path in paths if allowed else ():
            pattern = compile_pattern(path)
            # A directory may contain something within an area: `change: src` with the areas `src/api/` and `*.py`.
            pattern = pattern[:-1] if _FILE.search(path) else pattern
            if not any(patterns_meet(pattern, area) for area in allowed):
                return f"{verb} {path!r}"
    return None


def _check_obligations(plan: Plan, problems: PlanProblems, lines: dict[str, int]) -> None:
    known = {each.id for each in plan.obligations}
    for task in plan.tasks:
        where, line = f"task {task.id!r}", lines[task.id]
        for name in task.covers:
            if name not in known:
                problems.add(
                    where, f"'covers' names the unknown obligation {name!r}", nearest(name, known), line=line
                )
        if task.covers and not task.acceptance:
            names = ", ".join(task.covers)
            hint = "write acceptance: [how one sees that it is fulfilled]"
            problems.add(where, f"covers {names} and has no acceptance", hint, line=line)
    covered = {name for task in plan.tasks for name in task.covers}
    for each in plan.obligations:
        if each.id and each.id not in covered:
            problems.add(f"obligation {each.id!r}", "no task covers it", f"add covers: [{each.id}] to a task")


def _check_order(
    plan: Plan, groups: dict[str, tuple[str, ...]], problems: PlanProblems, lines: dict[str, int]
) -> bool:
    """Check the order of the tasks; return whether there is one."""
    whole = len(lines) == len(plan.tasks)
    for task in plan.tasks:
        for name in task.after:
            if name not in lines:
                hint = nearest(name, [*lines, *groups])
                problems.add(
                    f"task {task.id!r}", f"'after' names the unknown task {name!r}", hint, line=lines[task.id]
                )
                whole = False
    if not whole:
        return False
    try:
        predecessors(plan)
    except CycleError as error:
        # The error lists each task before its dependents; people read the dependents first.
        cycle = error.args[1][::-1]
        start = cycle.index(min(cycle))
        cycle = [*cycle[start:-1], *cycle[:start], cycle[start]]
        hint = f"remove {cycle[1]!r} from the 'after' of {cycle[0]!r}, or another of these"
        message = f"the tasks wait for each other in a circle: {' after '.join(cycle)}"
        problems.add("", message, hint, line=lines[cycle[0]])
        return False
    return True


def _check_writers(plan: Plan, problems: PlanProblems, lines: dict[str, int]) -> None:
    """Note plain paths that two unordered tasks make or delete."""
    ordered: dict[str, set[str]] = {task.id: {task.id} for task in plan.tasks}
    for name, before in predecessors(plan).items():
        ordered[name] |= before
        for each in before:
            ordered[each].add(name)
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task in plan.tasks:
        for verb, paths in (("make", task.make), ("change", task.change), ("delete", task.delete)):
            for path in filter(_PLAIN_PATH.fullmatch, paths):
                users[path.rstrip("/"), verb].add(task.id)
    told: set[frozenset[str]] = set()
    for (path, verb), names in sorted(users.items()):
        parts = path.split("/")
        # A task that deletes a directory deletes everything in it.
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        deleting = {each for directory in above for each in users.get((directory, "delete"), ())}
        rivals = deleting | names if verb == "make" else deleting
        # Only one is reported: once two are in order, the next try shows whether others are.
        clash = next(((each, min(found)) for each in sorted(names) if (found := rivals - ordered[each])), None)
        if clash is None or frozenset(clash) in told:
            continue
        told.add(frozenset(clash))
        name, other = clash
        doing = f"{verb} {path!r}, which task {other!r} wants to delete"
        if other not in deleting:
            doing = f"make {path!r}, as does task {other!r}"
        hint = f"add after: [{other}] to it, or leave the path to one of them"
        problems.add(f"task {name!r}", f"wants to {doing}", hint, line=lines[name])
