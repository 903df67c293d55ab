"""Plan files: every valid plan survives YAML and JSON, and damage is never worse than a usage error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conftest import examples

from chargehand.core.errors import UsageError
from chargehand.core.plans import (
    Ambiguity,
    Estimate,
    Loop,
    Obligation,
    Plan,
    Task,
    order_tasks,
    predecessors,
)
from chargehand.missions.plan_documents import outside_areas, parse_plan

IDS = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,6}\Z")
TEXTS = st.one_of(
    st.sampled_from(["no", "null", "~", "1.5", "1e3", "0x1f", "12:30", "<<", "- a", "a: b", "#", "é\n\tß", "{a}"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\ufeff"), max_size=12),
).map(lambda text: text.strip() or "x")
LINES = TEXTS.map(lambda text: " ".join(text.split()) or "x")
PATHS = st.lists(st.sampled_from(["a", "b*", "[ab]", "**", "?é"]), min_size=1, max_size=3).map("/".join)
COMMANDS = st.just("") | TEXTS


def lists(of: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(of, max_size=2, unique=True).map(tuple)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = draw(st.lists(IDS, min_size=1, max_size=6, unique=True))
    order = draw(st.permutations(names))
    duties = draw(lists(IDS))
    loops = st.none() | st.builds(Loop, most=st.integers(1, 20), until=COMMANDS)
    amounts = st.none() | st.integers(1, 100_000).map(lambda cents: cents / 100)
    tasks = []
    for name in names:
        before = order[: order.index(name)]
        covers = duties if name == names[0] else ()
        made = st.builds(
            Task,
            id=st.just(name),
            text=TEXTS,
            after=lists(st.sampled_from(before)) if before else st.just(()),
            role=st.sampled_from(["", "developer"]),
            agent=st.just("") | LINES,
            models=lists(LINES),
            needs=lists(LINES),
            areas=lists(PATHS),
            make=st.just(()) if not before else st.just((f"made/{name}",)),
            change=lists(PATHS),
            delete=st.just(()),
            contracts=lists(LINES),
            covers=st.just(covers),
            acceptance=st.tuples(TEXTS),
            checks=lists(TEXTS),
            done_when=COMMANDS,
            when=COMMANDS,
            loop=loops,
            candidates=st.integers(1, 8),
            attempts=st.none() | st.integers(1, 9),
            seconds=amounts,
            deadline=amounts,
            delegated_by=st.just("") | IDS,
            budget_usd=amounts,
            priority=st.integers(-9, 9),
            risk=st.sampled_from(["low", "medium", "high"]),
            estimate=st.none() | st.builds(Estimate, usd=amounts, seconds=amounts),
        )
        task = draw(made)
        # A task that contradicts itself cannot be done.
        if outside_areas(task, task.areas) is not None:
            task = replace(task, areas=())
        tasks.append(replace(task, done_when="") if task.when == task.done_when else task)
    ambiguities = st.lists(
        st.builds(Ambiguity, id=IDS, question=TEXTS, options=lists(TEXTS)),
        max_size=2,
        unique_by=lambda each: each.id,
    )
    return Plan(
        tasks=tuple(tasks),
        obligations=tuple(Obligation(id=name, text=draw(TEXTS)) for name in duties),
        ambiguities=tuple(draw(ambiguities)),
        at_once=draw(st.integers(0, 64)),
    )


@given(plans(), st.booleans())
@settings(max_examples=examples(60))
def test_a_plan_comes_back_from_yaml_and_json(plan: Plan, unicode: bool) -> None:
    data = msgspec.to_builtins(plan)
    written = yaml.safe_dump(data, allow_unicode=unicode, sort_keys=False)
    assert parse_plan(written.encode(), "plan.yaml") == plan
    assert parse_plan(msgspec.json.encode(plan), "plan.json") == plan
    assert parse_plan(json.dumps(data, ensure_ascii=not unicode).encode(), "plan") == plan


@given(plans())
@settings(max_examples=examples(20))
def test_predecessors_precede_a_task_in_the_order(plan: Plan) -> None:
    order = order_tasks(plan)
    before = predecessors(plan)
    assert sorted(order) == sorted(task.id for task in plan.tasks)
    for task in plan.tasks:
        assert before[task.id] == set(task.after).union(*(before[name] for name in task.after))
        assert all(order.index(name) < order.index(task.id) for name in before[task.id])


VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats()
    | TEXTS
    | st.sampled_from(["\0", "\ud800", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
GROUPS = st.sampled_from(
    [
        "sequence",
        "parallel",
        "each",
        "decide",
        "delegate",
        "in",
        "as",
        "do",
        "if",
        "then",
        "id",
        "after",
        "to",
        "needs",
    ]
)


@given(plans(), st.data())
@settings(max_examples=examples(30))
def test_a_damaged_plan_is_a_usage_error_or_a_plan(plan: Plan, data: st.DataObject) -> None:
    document = msgspec.to_builtins(plan, builtin_types=(tuple,))
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(keys) if len(keys) else st.just("tasks"))
            inner = place[key] if len(keys) else None
            if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
                break
            place = inner
        if isinstance(place, dict):
            place[data.draw(GROUPS) if data.draw(st.booleans()) else key] = data.draw(VALUES)
        elif place:
            place[key] = data.draw(VALUES)
    content = json.dumps(document).encode()
    check(content, "plan.json")
    cut = data.draw(st.integers(0, len(content)))
    check(content[:cut] + data.draw(st.binary(max_size=3)) + content[cut + data.draw(st.integers(0, 3)) :], "plan")


@given(st.text(max_size=60) | st.from_regex(r"\A[\[\]{}:,\-?&*!|>'\"%@`# \n~a]{0,40}\Z"))
@settings(max_examples=examples(200))
def test_any_text_is_a_usage_error_or_a_plan(text: str) -> None:
    check(text.encode(errors="surrogatepass"), "plan.yaml")


def check(content: bytes, name: str) -> None:
    try:
        plan = parse_plan(content, name)
    except UsageError as error:
        told = error
    else:
        assert order_tasks(plan)
        assert parse_plan(msgspec.json.encode(plan), "again.json") == plan
        return
    assert told.message.startswith(name)
    assert told.code == "plan_invalid"
