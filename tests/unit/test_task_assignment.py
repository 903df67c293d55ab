"""The agents of a plan's tasks: a person's choice comes first, a role's choice applies to that role."""

from __future__ import annotations

from pathlib import Path

import pytest

from chargehand.agents.roles import DEVELOPER
from chargehand.app.composition import App
from chargehand.app.runs import assign_role, build_request
from chargehand.configuration.run_options import RunRequest
from chargehand.core.choices import render_reasons
from chargehand.core.plans import PLANNER, Task
from chargehand.core.records import ChoiceReason, MissionRequest
from chargehand.missions.services import TaskWish

MODELS = "".join(
    f'[models.{name}]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "{name}"\nprice = 0.0\n'
    for name in ("own", "x", "critics", "z", "d")
)
AGENTS = """
[agents.native]
kind = "native"
model = "own"
[agents.critic]
kind = "native"
model = "critics"
[agents.plain]
command = ["true"]
"""


def role(name: str, *, agent: str = "") -> Task:
    return Task(id="t", text="t", role=name, agent=agent)


def assigned(app: App, roles: str, asked: RunRequest, task: Task, model: str | None = None) -> MissionRequest:
    """Return the request of a task's mission in a run requested with `asked`."""
    file = Path(app.environ["HOME"]) / ".config/chargehand/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(MODELS + AGENTS + roles)
    found = app.preparation.configured(None, revision=None, directory=None, options=asked.configuration())
    catalogue = app.preparation.roles(found)
    assignment = assign_role(found.resolved, asked, catalogue, environ=app.environ, keys=app.credentials)
    whole = build_request(
        asked,
        found.resolved,
        text="do it",
        assignment=assignment,
        artifacts=app.store.artifacts,
        places=app.preparation.places(found, found.resolved),
        check_files=(),
    )
    assert whole.role == (asked.role or DEVELOPER)
    return app.preparation.task_assigner(found, found.resolved)(whole, task, model)


X = RunRequest(agent="native", model="x")
CRITIC = '[roles.reviewer]\nagent = "critic"\n'


@pytest.mark.parametrize(
    ("roles", "asked", "task", "agent", "model"),
    [
        # A person's model applies to the planner, to roles, and to later rounds of a task.
        ("", X, PLANNER, "native", "x"),
        ("", X, role("reviewer"), "native", "x"),
        ("", X, role(""), "native", "x"),
        ("", X, role(DEVELOPER), "native", "x"),
        ("", RunRequest(agent="native:x"), PLANNER, "native:x", "x"),
        ('[roles.default]\nmodel = "d"\n', X, PLANNER, "native", "x"),
        ('[roles.default]\nmodel = "d"\n', RunRequest(agent="native:x"), role("tester"), "native:x", "x"),
        ('[roles.developer]\nmodel = "d"\n', X, role(DEVELOPER), "native", "x"),
        ('[roles.developer]\nmodel = "d"\n', RunRequest(agent="native:x"), role(""), "native:x", "x"),
        # A role's choice applies to that role, whatever agent does the rest.
        (CRITIC, X, role("reviewer"), "critic", "critics"),
        (CRITIC, RunRequest(agent="plain"), role("reviewer"), "critic", "critics"),
        (CRITIC.replace("reviewer", "planner"), X, PLANNER, "critic", "critics"),
        (CRITIC, X, role("tester"), "native", "x"),
        ('[roles.reviewer]\nmodel = "z"\n', X, role("reviewer"), "native", "z"),
        ('[roles.reviewer]\nagent = "critic"\nmodel = "z"\n', X, role("reviewer"), "critic", "z"),
        ('[roles.default]\nagent = "critic"\n', RunRequest(agent="native"), role("tester"), "native", "own"),
        # The plan's choice comes first.
        (CRITIC, X, role("reviewer", agent="native:z"), "native:z", "z"),
        ("", X, role("", agent="native:z"), "native:z", "z"),
        ("", X, role("", agent="critic"), "critic", "critics"),
        ('[roles.developer]\nmodel = "d"\n', X, role("", agent="native:z"), "native:z", "z"),
        # Without a person's choice roles and agents decide as for one mission.
        ("", RunRequest(agent="native"), PLANNER, "native", "own"),
        ('[roles.default]\nmodel = "d"\n', RunRequest(agent="native"), PLANNER, "native", "d"),
        ("", RunRequest(agent="native"), role("", agent="plain"), "plain", None),
    ],
)
def test_agent_and_model_assigned_to_a_task(
    app: App, roles: str, asked: RunRequest, task: Task, agent: str, model: str | None
) -> None:
    request = assigned(app, roles, asked, task)
    assert (request.agent, request.model) == (agent, model)


def test_the_planner_uses_the_model_of_the_mission_if_its_agent_has_no_model(app: App) -> None:
    """The agent names no model; the whole mission got its model from its role."""
    bare = AGENTS.replace('model = "own"\n', "")
    roles = '[roles.developer]\nmodel = "z"\n'
    file = Path(app.environ["HOME"]) / ".config/chargehand/config.toml"
    assigned(app, roles, RunRequest(agent="native"), PLANNER)
    text = file.read_text().replace(AGENTS, bare)
    file.write_text(text)
    found = app.preparation.configured(None, revision=None, directory=None, options={})
    whole = MissionRequest(text="t", agent="native", command=(), slug="t", model="z", role=DEVELOPER)
    assert app.preparation.task_assigner(found, found.resolved)(whole, PLANNER, None).model == "z"


@pytest.mark.parametrize(
    ("roles", "asked", "task", "why"),
    [
        (CRITIC, X, role("reviewer"), "[roles.reviewer]"),
        ("", X, role("reviewer"), "--agent"),
        ("", X, role("", agent="critic"), "the plan"),
        ('[roles.developer]\nagent = "critic"\n', RunRequest(), role("tester"), "[roles.developer]"),
    ],
)
def test_the_assignment_names_the_source_of_the_agent(
    app: App, roles: str, asked: RunRequest, task: Task, why: str
) -> None:
    assert assigned(app, roles, asked, task).why.startswith(why)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ((ChoiceReason("role_setting", "plain", "default"),), "[roles.default]"),
        ((ChoiceReason("option", "plain", "--agent"),), "--agent, d by [roles.default]"),
        # A log from before structured reasons has only the sentence.
        ((), "as before, d by [roles.default]"),
    ],
)
def test_a_setting_is_named_once_as_the_source_of_agent_and_model(
    app: App, chosen: tuple[ChoiceReason, ...], why: str
) -> None:
    assigned(app, '[roles.default]\nmodel = "d"\n', RunRequest(agent="plain"), PLANNER)
    found = app.preparation.configured(None, revision=None, directory=None, options={})
    whole = MissionRequest(text="t", agent="cli:claude", command=(), slug="t", role="other", why="as before")
    prepared = app.preparation.task_assigner(found, found.resolved).assign(
        whole, role("tester"), TaskWish(chosen=chosen)
    )
    assert prepared.request.why == why
    assert (prepared.request.model, render_reasons(prepared.chosen)) == ("d", why)


def test_the_model_that_a_round_is_to_try_is_taken(app: App) -> None:
    assert assigned(app, CRITIC, X, role("reviewer"), "z").model == "z"
    assert assigned(app, "", X, role("", agent="native:own"), "z").model == "z"
