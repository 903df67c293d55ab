"""Plan files become plain tasks; errors have a place, the value and a way out."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from chargehand.core.errors import UsageError
from chargehand.core.plans import MOST_TASKS, Ambiguity, Estimate, Loop, Obligation, Plan, Task, order_tasks
from chargehand.missions.plan_documents import parse_plan


def plan(text: str) -> Plan:
    return parse_plan(text.encode(), "plan.yaml")


def problems(content: str | bytes, name: str = "plan.yaml") -> list[str]:
    """Return the lines of the error for a plan."""
    with pytest.raises(UsageError) as raised:
        parse_plan(content.encode() if isinstance(content, str) else content, name)
    assert raised.value.code == "plan_invalid"
    return [raised.value.message, *raised.value.hint.splitlines()]


def after(made: Plan) -> dict[str, tuple[str, ...]]:
    return {task.id: task.after for task in made.tasks}


def test_all_that_a_task_can_say_is_read() -> None:
    made = plan("""
        obligations: {login: Users can log in}
        ambiguities:
          - {id: how, question: By password or key?, options: [password, key]}
        at_once: 3
        tasks:
          - {id: first, text: Begin}
          - id: login
            text: |
              Add a login.
              Keep sessions.
            after: first
            role: developer
            agent: native
            models: [a, b]
            needs: [browser]
            areas: ["*.py", /docs]
            make: src/login.py
            change: [src/app.py, "src/views/*.py"]
            delete: old.py
            contracts: api:login
            covers: login
            acceptance: A user logs in.
            checks: pytest -q tests/login
            done_when: test -e src/login.py
            when: test -d src
            until: pytest -q
            most: 4
            candidates: 2
            attempts: 3
            timeout: 1h30m
            deadline: 2h
            budget: 2.50
            priority: -5
            risk: high
            estimate: {usd: 0.5, seconds: 20m}
    """)
    task = made.tasks[1]
    assert made.obligations == (Obligation(id="login", text="Users can log in"),)
    assert made.ambiguities == (Ambiguity(id="how", question="By password or key?", options=("password", "key")),)
    assert (made.at_once, made.tasks[0].text, task.text) == (3, "Begin", "Add a login.\nKeep sessions.")
    assert (task.after, task.make, task.delete, task.covers) == (
        ("first",),
        ("src/login.py",),
        ("old.py",),
        ("login",),
    )
    assert (task.areas, task.change) == (("*.py", "/docs"), ("src/app.py", "src/views/*.py"))
    assert (task.contracts, task.acceptance, task.checks) == (
        ("api:login",),
        ("A user logs in.",),
        ("pytest -q tests/login",),
    )
    assert (task.role, task.agent, task.models, task.needs) == ("developer", "native", ("a", "b"), ("browser",))
    assert (task.done_when, task.when, task.loop) == (
        "test -e src/login.py",
        "test -d src",
        Loop(most=4, until="pytest -q"),
    )
    assert (task.candidates, task.attempts, task.seconds, task.budget_usd) == (2, 3, 5400.0, 2.5)
    assert (task.priority, task.risk, task.estimate) == (-5, "high", Estimate(usd=0.5, seconds=1200.0))


def test_plain_yaml_scalars_are_read_as_strings() -> None:
    made = plan("tasks: [{id: no, text: 1.10}, {id: 1, text: on, after: no}, {id: 'null', text: 2024-01-01}]")
    assert [(task.id, task.text) for task in made.tasks] == [("no", "1.10"), ("1", "on"), ("null", "2024-01-01")]
    assert made.tasks[1].after == ("no",)


@pytest.mark.parametrize(
    "text",
    [
        "[{id: a, text: x}, {id: b, text: y}]",
        '[{"id": "a", "text": "x"}, {"id": "b", "text": "y"}]',
        "tasks: {a: x, b: {text: y}}",
        "tasks:\n- id: a\n  text: x\n  role:\n  after: []\n- id: b\n  text: 'y'\n  after: ''\n",
        "\ufefftasks: {parallel: [{id: a, text: x}, {id: b, text: y}]}",
    ],
)
def test_short_forms_say_the_same(text: str) -> None:
    assert plan(text) == plan("tasks: [{id: a, text: x}, {id: b, text: y}]")


def test_groups_become_dependencies() -> None:
    made = plan("""
        tasks:
          - {id: start, text: x}
          - id: middle
            after: start
            sequence:
              - {id: s1, text: x}
              - parallel:
                  - {id: p1, text: x}
                  - sequence: [{id: p2, text: x}, {id: p3, text: x}]
              - {id: s2, text: x, after: [start]}
          - {id: end, text: x, after: middle}
    """)
    assert after(made) == {
        "start": (),
        "s1": ("start",),
        "p1": ("s1",),
        "p2": ("s1",),
        "p3": ("p2",),
        "s2": ("start", "p1", "p3"),
        "end": ("s2",),
    }


def test_each_expands_to_a_task_per_value_with_valid_ids() -> None:
    made = plan("""
        tasks:
          - id: ports
            each:
              in: [src/A.py, 2]
              as: module
              do:
                sequence:
                  - {id: "port-{module}", text: "Port {module}, {item}", change: "{module}"}
                  - {id: "test-{module}", text: x, after: "port-{module}"}
          - {id: end, text: x, after: [ports]}
          - each: {in: one, do: {id: "only-{item}", text: x}}
    """)
    assert after(made) == {
        "port-src-a.py": (),
        "test-src-a.py": ("port-src-a.py",),
        "port-2": (),
        "test-2": ("port-2",),
        "end": ("test-src-a.py", "test-2"),
        "only-one": (),
    }
    assert (made.tasks[0].text, made.tasks[0].change) == ("Port src/A.py, {item}", ("src/A.py",))


@pytest.mark.parametrize(
    "command", ["true", "exit 3", "false; true", 'test "it\'s" = x', "true | false", "if", ""]
)
@pytest.mark.parametrize("shell", [("bash", "-eo", "pipefail", "-c"), ("sh", "-e", "-c")])
def test_decide_selects_a_single_branch(command: str, shell: tuple[str, ...]) -> None:
    """In any shell that runs checks, for any command, even if the shell cannot parse it."""
    table = {"id": "a", "text": "x"}, {"id": "b", "text": "y"}
    decide = {"if": command or "false # why", "then": table[0], "else": table[1]}
    yes, no = plan(json.dumps({"tasks": [{"decide": decide}]})).tasks

    def succeeds(when: str) -> bool:
        return subprocess.run([*shell, when], capture_output=True, check=False).returncode == 0

    assert succeeds(yes.when) != succeeds(no.when)


@pytest.mark.parametrize(
    ("loop", "made"),
    [
        ("repeat: 3", Loop(most=3)),
        ("while: test -e todo", Loop(most=5, while_="test -e todo")),
        ("until: make, repeat: 7", Loop(most=7, until="make")),
        ("loop: {most: 2, while: make}", Loop(most=2, while_="make")),
    ],
)
def test_loops(loop: str, made: Loop) -> None:
    assert plan(f"tasks: [{{id: a, text: x, {loop}}}]").tasks[0].loop == made


FIRST = "plan.yaml:1: task 'a': "


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ("afer: b", "unknown key 'afer'", "did you mean 'after'?"),
        ("budget: -1", "'budget' must be more than 0 and at most 1000000 USD, got '-1'", "choose an amount"),
        ("budget: lots", "'budget' must be an amount in USD, got 'lots'", "write a number, such as 2.50"),
        ("budget: 1, budget_usd: 2", "'budget' and 'budget_usd' mean the same", "remove one of them"),
        ("timeout: 0", "'timeout' must be more than 0 and at most 8784h, got '0'", "choose a duration"),
        ("seconds: soon", "'seconds' must be a duration, got 'soon'", "write '90s', '30m'"),
        ("candidates: 0", "'candidates' must be from 1 to 8, got 0", "choose a number in that range"),
        ("candidates: 9", "'candidates' must be from 1 to 8, got 9", "choose a number in that range"),
        ("attempts: 0", "'attempts' must be from 1 to 1000000, got 0", "choose a number in that range"),
        ("repeat: 21", "'repeat' must be from 1 to 20, got 21", "choose a number in that range"),
        ("repeat: often", "'repeat' must be a whole number, got 'often'", "write repeat: 1"),
        (
            "most: 3",
            "'most' needs 'while' or 'until', and both are missing",
            "write repeat: N, or add a condition",
        ),
        ("while: x, until: z", "has both 'while' and 'until'", "keep one of them"),
        ("repeat: 1, loop: {most: 1}", "'repeat' and 'loop' mean the same", "remove one of them"),
        ("loop: {many: 3}", "'loop': unknown key 'many'", "known: most, until, while"),
        ("loop: 3", "'loop' must be a table, got '3'", "write loop: {most: …}"),
        ("risk: huge", "'risk' is 'huge'", "use one of: low, medium, high"),
        ("role: A/B", "'role' is not a role name: 'A/B'", "`chargehand role list` lists them"),
        ("agent: [a]", "'agent' must be a text, got a list of 1", "put quotes around it"),
        ("checks: [[a]]", "'checks' must be a list of texts, got a list of 1", "put quotes around it"),
        ("checks: ['']", "'checks' has an entry that is empty", "remove it"),
        ('done_when: "a\\0b"', "'done_when' has the control character '\\x00'", "remove it"),
        ('role: "a\\nb"', "'role' must be one line of at most 1000 characters, got 'a\\nb'", "shorten it"),
        ("after: [[b]]", "'after' must be a list of ids, got a list of 1", "write after: [add-login]"),
        ("after: b", "'after' names the unknown task 'b'", "known: a"),
        ("covers: b", "'covers' names the unknown obligation 'b'", "known: none"),
        ("make: /etc/passwd", "'make': '/etc/passwd' leads out of the repository", "paths begin at the top"),
        ("change: a/../../b", "'change': 'a/../../b' leads out of the repository", "paths begin at the top"),
        ("areas: ['../b']", "'areas': '../b' leads out of the repository", "paths begin at the top"),
        ("delete: .GIT/config", "'delete': '.GIT/config' is in git's own directory", "a plan changes files"),
        ("make: a//b", "'make': 'a//b' is not a plain path", "without '.' and '//'"),
        ("make: '!a'", "'make': '!a' begins with '!'", "write '\\!…'"),
        ("make: 'a[b'", "'make': 'a[b' has a bracket that is not closed", "write '\\[' for a bracket"),
        ("make: 'a[z-a]'", "'make': 'a[z-a]' has 'z-a' in brackets, which is not in order", "write '\\['"),
        ("areas: C:/Windows", "'areas': 'C:/Windows' leads out of the repository", "paths begin at the top"),
    ],
)
def test_an_invalid_task_is_an_error_with_the_value_and_a_hint(keys: str, message: str, hint: str) -> None:
    found, way, *_ = problems(f"tasks: [{{id: a, text: x, {keys}}}]")
    assert found.startswith(FIRST + message)
    assert hint in way


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.yaml: the plan is empty"),
        ("tasks: []", "plan.yaml: the plan has no tasks"),
        ("5", "plan.yaml: the plan must be a table, got '5'"),
        ("task: []", "plan.yaml:1: unknown key 'task'"),
        ("tasks: 5", "plan.yaml:1: 'tasks' must be a list, got '5'"),
        ("tasks: [a]", "plan.yaml: tasks[1]: a task must be a table, got 'a'"),
        ("{tasks: {a: x}, team: [{role: a b}]}", "plan.yaml: team: 'a b' is not a role name"),
        ("{tasks: {a: x}, team: [{role: a}, {role: a}]}", "plan.yaml: team: the role 'a' appears twice"),
        ("tasks: [{text: Mend it!}]", "plan.yaml:1: tasks[1]: has no id"),
        ("tasks: [{id: a}]", "plan.yaml:1: task 'a': 'text' is missing"),
        ("tasks: [{id: a, text: ''}]", "plan.yaml:1: task 'a': 'text' is empty"),
        ("tasks: [{id: A b, text: x}]", "plan.yaml:1: task 'A b': the id cannot be used"),
        ("tasks: [{id: a, text: x}, {id: a, text: x}]", "plan.yaml:1: task 'a': the id appears twice"),
        ("at_once: 65\ntasks: [{id: a, text: x}]", "plan.yaml:1: 'at_once' must be from 0 to 64, got 65"),
        ("at_once: -1\ntasks: [{id: a, text: x}]", "plan.yaml:1: 'at_once' must be from 0 to 64, got -1"),
        ("tasks: [{sequence: []}]", "plan.yaml:1: tasks[1].sequence: has no tasks"),
        ("tasks: [{sequence: x}]", "plan.yaml:1: tasks[1].sequence: must be a list, got 'x'"),
        ("tasks: [{each: {in: [a]}}]", "plan.yaml:1: tasks[1].each: 'do' is missing"),
        ("tasks: [{each: {in: [[]], do: {id: a, text: x}}}]", "plan.yaml:1: tasks[1].each: no value for {item}"),
        (
            "tasks: [{each: {in: [b], as: 1x, do: {id: a}}}]",
            "plan.yaml:1: tasks[1].each: 'as' is not a name",
        ),
        (
            "tasks: [{decide: {if: [x], then: {id: a}}}]",
            "plan.yaml:1: tasks[1].decide: 'if' is not a command",
        ),
        (
            "tasks: [{decide: {if: x, then: {sequence: [{id: a, text: x}]}}}]",
            "plan.yaml:1: tasks[1].decide.then.sequence: `decide` needs single tasks",
        ),
        (
            "tasks: [{decide: {if: x, then: {id: a, text: x, when: y}}}]",
            "plan.yaml:1: task 'a': has another `when` inside `decide`",
        ),
        ("tasks: [{sequence: [{id: a, text: x}], text: y}]", "plan.yaml:1: tasks[1].sequence: unknown key 'text'"),
        ("tasks: [{id: a, sequence: [{id: a, text: x}]}]", "plan.yaml:1: task 'a': a group has the same id"),
        (
            "tasks: [{id: a, text: x, after: c}, {id: b, text: x, after: a}, {id: c, text: x, after: b}]",
            "plan.yaml:1: the tasks wait for each other in a circle: a after c after b after a",
        ),
        (
            "tasks: [{id: a, text: x, after: a}]",
            "plan.yaml:1: the tasks wait for each other in a circle: a",
        ),
        ("obligations: {o: x}\ntasks: {a: x}", "plan.yaml: obligation 'o': no task covers it"),
        ("obligations: [x]\ntasks: {a: x}", "plan.yaml: obligations[1]: must be a table, got 'x'"),
        ("obligations: {O: x}\ntasks: {a: x}", "plan.yaml: obligation 'O': the id cannot be used"),
        ("ambiguities: [{id: a}]\ntasks: {a: x}", "plan.yaml:1: ambiguities[1]: 'question' is missing"),
        (
            "obligations: {o: x}\ntasks: [{id: a, text: x, covers: o}]",
            "plan.yaml:2: task 'a': covers o and has no acceptance",
        ),
        (
            "tasks: [{id: a, text: x, make: f}, {id: b, text: x, make: f}]",
            "plan.yaml:1: task 'a': wants to make 'f', as does task 'b'",
        ),
        (
            "tasks: [{id: a, text: x, delete: d/}, {id: b, text: x, change: d/f}]",
            "plan.yaml:1: task 'b': wants to change 'd/f', which task 'a' wants to delete",
        ),
        (
            "tasks: [{id: a, text: x, delete: f}, {id: b, text: x, delete: f}]",
            "plan.yaml:1: task 'a': wants to delete 'f', which task 'b' wants to delete",
        ),
    ],
)
def test_an_invalid_plan_is_an_error_with_the_location(text: str, message: str) -> None:
    found, way, *_ = problems(text)
    assert found.startswith(message)
    assert way


@pytest.mark.parametrize(
    "text",
    [
        "tasks: [{id: a, text: x, make: f}, {id: b, text: x, make: f, after: c}, {id: c, text: x, after: a}]",
        "tasks: [{id: a, text: x, change: f}, {id: b, text: x, change: f}]",
        "tasks: [{id: a, text: x, make: 'src/*'}, {id: b, text: x, make: src/a}]",
    ],
)
def test_ordered_writers_and_shared_changes_of_a_file_are_accepted(text: str) -> None:
    assert order_tasks(plan(text))


def test_all_problems_come_at_once_up_to_twenty() -> None:
    found = problems("tasks:\n" + "".join(f"- {{id: t{n}, text: '', ro: 1}}\n" for n in range(15)))
    assert found[:2] == ["plan.yaml:2: task 't0': unknown key 'ro'", "did you mean 'role'?"]
    assert found[2] == "also plan.yaml:2: task 't0': 'text' is empty (write text: …)"
    assert len(found) == 22
    assert found[-1] == "and 10 more"


HOSTILE = {
    "alias": b"a: &x [1]\nb: *x",
    "bomb": b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\ntasks: *c",
    "merge": b"a: &x {id: a}\ntasks: [{<<: *x, text: y}]",
    "twice": b"tasks: []\ntasks: []",
    "twice in JSON": b'{"tasks": [], "tasks": []}',
    "tag": b"!!python/object/apply:os.system [id]",
    "documents": b"tasks: {a: x}\n---\ntasks: {a: x}",
    "key": b"? [a, b]\n: c",
    "deep": b"- " * 100_000,
    "deep flow": b"[" * 100_000,
    "deep lines": b"[\n" * 100_000,
    "deep tables": b"{a: " * 100_000,
    "deep JSON": b'{"tasks":' * 41 + b"1" + b"}" * 41,
    "too large": b"a" * 1_000_001,
    "no UTF-8": b"tasks: \xff",
    "zero": b"tasks: \x00",
    "control": b"tasks: {a: \x1b[31m}",
    "no number": b'{"tasks": NaN}',
    "digits": b'{"tasks": [{"id": "a", "text": "x", "repeat": ' + b"9" * 5_000 + b"}]}",
    "digits of YAML": b"tasks: [{id: a, text: x, repeat: " + b"9" * 5_000 + b"}]",
    "open": b"tasks: [",
    "quote": b"'" * 999_999,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_at_once(name: str) -> None:
    before = time.process_time()
    for file in ("plan.yaml", "plan.json"):
        assert len("".join(problems(HOSTILE[name], file))) < 2_000
    assert time.process_time() - before < 2


def test_task_count_and_text_size_are_limited_before_expansion() -> None:
    def each(count: int, text: str, inner: dict[str, Any] | None = None) -> str:
        do = inner or {"id": "t-{item}", "text": text}
        return json.dumps({"tasks": [{"each": {"in": [str(n) for n in range(count)], "do": do}}]})

    many = "tasks:\n" + "".join(f"- {{id: t{n}, text: x}}\n" for n in range(10_000))
    assert problems(many)[0] == f"plan.yaml: the plan has 10000 tasks, more than {MOST_TASKS}"
    nested = each(900, "", {"each": {"in": ["x"] * 900, "as": "x", "do": {"each": {"in": ["y"] * 900, "do": {}}}}})
    assert problems(nested)[0] == f"plan.yaml: the plan has {900**3} tasks, more than {MOST_TASKS}"
    assert len(plan(each(MOST_TASKS, "x")).tasks) == MOST_TASKS
    assert "more text than a plan may have" in problems(each(MOST_TASKS, "x" * 40_000))[0]
    assert (
        "more text than a plan may have"
        in problems(each(1, "{item}" * 150_000).replace('"0"', f'"{"0" * 400}"'))[0]
    )
    files = {"id": "t{item}", "text": "x", "make": [f"f{n}" for n in range(201)]}
    assert problems(each(2, "", files))[0] == "plan.yaml: task 't0': 'make' has 201 entries, more than 200"


def test_names_of_the_file_cannot_break_out_of_the_message() -> None:
    found = problems(json.dumps({"tasks": [{"id": "a\n\x1b[31m\u202e", "text": "x", "b\nc\x9b": 1}]}))
    assert all(line.isprintable() for line in found)


def test_importing_plan_documents_does_not_import_yaml() -> None:
    script = "import sys, chargehand.missions.plan_documents as p; print('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_a_delegation_becomes_a_task_of_the_delegated_role() -> None:
    made = plan("""
        tasks:
          - {id: api, text: Change the API}
          - sequence:
              - id: docs
                after: [api]
                areas: [docs/**]
                delegate: {to: writer, deadline: 10m, text: Describe it}
              - {id: tests, text: Test it, delegate: tester}
              - {id: look, delegate: {needs: [browser], text: Look at it}}
        team: [{role: writer, agent: quick, reviewers: [reviewer]}]
    """)
    docs, tests, look = made.tasks[1:]
    assert docs == Task(
        id="docs",
        text="Describe it",
        after=("api",),
        role="writer",
        agent="quick",
        areas=("docs/**",),
        reviewers=("reviewer",),
        deadline=600.0,
    )
    assert (tests.text, tests.role, tests.after) == ("Test it", "tester", ("docs",))
    assert (look.needs, look.role, look.after) == (("browser",), "", ("tests",))


@pytest.mark.parametrize(
    ("delegate", "said"),
    [
        ("{}", "`delegate` has neither `to` nor `needs`"),
        ("[tester]", "`delegate` has neither `to` nor `needs`"),
        ("{text: Do it}", "`delegate` has neither `to` nor `needs`"),
        ("{to: [tester]}", "'role' must be a text"),
        ("{to: tester, who: me}", "unknown key 'who'"),
        ("{to: tester, text: Do it}", "'text' is also given beside `delegate`"),
        ("{to: tester, deadline: soon}", "'deadline' must be a duration, got 'soon'"),
        ("{to: tester, deadline: 0}", "'deadline' must be more than 0"),
    ],
)
def test_an_invalid_delegation_is_an_error(delegate: str, said: str) -> None:
    found = problems(f"tasks:\n  - {{id: a, text: x, delegate: {delegate}}}\n")
    assert len(found) == 2  # the error and its hint
    assert said in found[0]
