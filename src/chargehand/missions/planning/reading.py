"""A loaded plan file becomes a `Plan`, key by key."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import ROLE_NAME
from chargehand.core.plans import Ambiguity, Estimate, Loop, Obligation, Plan, Risk, Task, TeamMember
from chargehand.core.text import LARGEST_AMOUNT
from chargehand.missions.planning.expansion import GROUPS, PlanExpansion, TaskDraft
from chargehand.missions.planning.fields import PlanFields
from chargehand.missions.planning.loading import PlanTable
from chargehand.missions.planning.problems import PlanProblems, quote_value
from chargehand.missions.planning.teams import fill_task

MOST_CANDIDATES = 8
# Largest number of reviewers of one result: each is a mission.
MOST_REVIEWERS = 5
MOST_LOOPS = 20
MOST_AT_ONCE = 64
_MOST_PRIORITY = 1_000
# The bound of a `while` or `until` loop if the file does not give one.
USUAL_LOOPS = 5
# Alternative names that people write for a field.
SUGAR = {"timeout": "seconds", "budget": "budget_usd"}
LOOP_KEYS = ("repeat", "while", "until")
RISKS: tuple[Risk, ...] = get_args(Risk)


class DraftPlan(Struct, kw_only=True):
    """The readable part of a plan, with the drafts of its tasks and the ids of its groups."""

    plan: Plan
    drafts: list[TaskDraft]
    groups: dict[str, tuple[str, ...]]


def read_plan(data: Any, problems: PlanProblems) -> DraftPlan:
    """Return the plan in a loaded file; problems are noted in `problems`, and invalid parts omitted.

    Raises `UsageError` (`plan_invalid`) if it has more tasks than a plan may have.
    """
    if isinstance(data, list):
        data = PlanTable(tasks=data)
    if not isinstance(data, PlanTable):
        shown = "is empty" if data in (None, "") else f"must be a table, got {quote_value(data)}"
        problems.add("", f"the plan {shown}", "write tasks: [{id: …, text: …}]")
        data = PlanTable()
    fields = PlanFields(data, _field_names(Plan), "", problems)
    expansion = PlanExpansion(problems)
    tasks = data.get("tasks")
    # A whole plan may be one group: `tasks: {sequence: […]}`.
    alone = isinstance(tasks, PlanTable) and not set(GROUPS).isdisjoint(tasks)
    expansion.expand([tasks] if alone else fields.read_items("tasks", "text"))
    plan = Plan(
        tasks=tuple(_read_task(draft, expansion.ends, problems) for draft in expansion.drafts),
        obligations=tuple(
            Obligation(id=entry.read_line("id", needed=True), text=entry.read_text("text", needed=True))
            for entry in _read_entries(fields, "obligations", Obligation, problems)
        ),
        ambiguities=tuple(
            Ambiguity(
                id=entry.read_line("id", needed=True),
                question=entry.read_text("question", needed=True),
                options=entry.read_texts("options"),
                default=entry.read_line("default"),
            )
            for entry in _read_entries(fields, "ambiguities", Ambiguity, problems)
        ),
        team=tuple(
            TeamMember(
                role=entry.read_line("role", needed=True),
                agent=entry.read_line("agent"),
                models=entry.read_lines("models"),
                reviewers=_read_reviewers(entry),
            )
            for entry in _read_entries(fields, "team", TeamMember, problems)
        ),
        at_once=fields.read_count("at_once", least=0, most=MOST_AT_ONCE, default=0),
    )
    plan = replace(plan, tasks=tuple(fill_task(task, plan) for task in plan.tasks))
    return DraftPlan(plan=plan, drafts=expansion.drafts, groups=expansion.ends)


def _field_names(record: type[Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(record)]


def _read_entries(fields: PlanFields, key: str, record: type[Struct], problems: PlanProblems) -> list[PlanFields]:
    entries = []
    names = _field_names(record)
    for number, entry in enumerate(fields.read_items(key, names[1]), 1):
        where = f"{key}[{number}]"
        if isinstance(entry, PlanTable):
            entries.append(PlanFields(entry, names, where, problems))
        else:
            hint = f"write {{id: …, {names[1]}: …}}"
            problems.add(where, f"must be a table, got {quote_value(entry)}", hint)
    return entries


def _read_task(draft: TaskDraft, groups: dict[str, tuple[str, ...]], problems: PlanProblems) -> Task:
    fields = PlanFields(draft.table, [*_field_names(Task), *SUGAR, *LOOP_KEYS, "most"], draft.where, problems)
    for sugar, key in SUGAR.items():
        if fields.has(sugar) and fields.has(key):
            fields.note(f"{sugar!r} and {key!r} mean the same", "remove one of them")
    role = fields.read_line("role")
    if role and not ROLE_NAME.fullmatch(role):
        fields.note(f"'role' is not a role name: {quote_value(role)}", "`chargehand role list` lists them")
    # A group is represented by its last tasks.
    after = dict.fromkeys(each for name in draft.after for each in groups.get(name, (name,)))
    return Task(
        id=draft.id,
        text=fields.read_text("text", needed=True),
        after=tuple(after),
        role=role,
        agent=fields.read_line("agent"),
        models=fields.read_lines("models"),
        needs=fields.read_lines("needs"),
        areas=fields.read_patterns("areas", areas=True),
        make=fields.read_patterns("make"),
        change=fields.read_patterns("change"),
        delete=fields.read_patterns("delete"),
        contracts=fields.read_lines("contracts"),
        covers=fields.read_lines("covers"),
        acceptance=fields.read_texts("acceptance"),
        checks=fields.read_texts("checks"),
        done_when=fields.read_text("done_when"),
        when=fields.read_text("when") or draft.when.strip(),
        loop=_read_loop(fields),
        candidates=fields.read_count("candidates", least=1, most=MOST_CANDIDATES, default=1),
        reviewers=_read_reviewers(fields),
        attempts=fields.read_count("attempts", least=1, most=LARGEST_AMOUNT, default=None),
        seconds=fields.read_seconds("seconds") or fields.read_seconds("timeout"),
        deadline=fields.read_seconds("deadline"),
        budget_usd=fields.read_usd("budget_usd") or fields.read_usd("budget"),
        priority=fields.read_count("priority", least=-_MOST_PRIORITY, most=_MOST_PRIORITY, default=0),
        risk=fields.read_choice("risk", RISKS),
        estimate=Estimate(usd=entry.read_usd("usd"), seconds=entry.read_seconds("seconds"))
        if (entry := fields.read_table("estimate", ("usd", "seconds")))
        else None,
        delegated_by=fields.read_line("delegated_by"),
        decision=fields.read_line("decision") or draft.decision,
    )


def _read_reviewers(fields: PlanFields) -> tuple[str, ...]:
    roles = fields.read_lines("reviewers")
    for role in roles:
        if not ROLE_NAME.fullmatch(role):
            message = f"'reviewers': {quote_value(role)} is not a role name"
            fields.note(message, "`chargehand role list` lists them")
    if len(roles) > MOST_REVIEWERS:
        fields.note(f"has {len(roles)} reviewers, more than {MOST_REVIEWERS}", "leave some out")
    return roles


def _read_loop(fields: PlanFields) -> Loop | None:
    table = fields.read_table("loop", ("most", "while", "until"))
    written = [key for key in (*LOOP_KEYS, "most") if fields.has(key)]
    if table is not None and written:
        fields.note(f"{written[0]!r} and 'loop' mean the same", "remove one of them")
    if table is None and not written:
        return None
    source = table or fields
    most = "repeat" if source.has("repeat") else "most"
    if source.has("repeat") and source.has("most"):
        source.note("'repeat' and 'most' mean the same", "remove one of them")
    if source.has("while") and source.has("until"):
        source.note("has both 'while' and 'until'", "keep one of them; `! COMMAND` turns a condition around")
    if source is fields and written == ["most"]:
        fields.note("'most' needs 'while' or 'until', and both are missing", "write repeat: N, or add a condition")
    return Loop(
        most=source.read_count(most, least=1, most=MOST_LOOPS, default=USUAL_LOOPS),
        while_=source.read_text("while"),
        until=source.read_text("until"),
    )
