"""The JSON schema of plan files: it is generated, and takes what the documentation, the planner and we write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from chargehand.agents.roles import parse_role, shipped_roles
from chargehand.missions.plan_documents import parse_plan
from chargehand.missions.planning.schema import render_schema

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
PLANNER = parse_role("planner", shipped_roles()["planner"], place="planner").prompt
GROUPS = """
tasks:
  sequence:
    - {id: a, text: A, timeout: 30m, budget: 2.50, candidates: 2}
    - {id: both, parallel: [{id: b, text: B, until: make, most: 3}, {id: c, text: C, repeat: 2}]}
    - {each: {in: [x, y], as: name, do: {id: "{name}", text: "Do {name}", checks: make}}}
    - {decide: {if: test -e x, then: {id: d, text: D}, else: {id: e, text: E}}}
"""


def is_valid(document: Any) -> bool:
    return jsonschema.Draft202012Validator(json.loads(render_schema())).is_valid(document)


def test_the_schema_is_up_to_date() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(render_schema()))
    written = (DOCS / "reference/plan.schema.json").read_text()
    command = "python -m chargehand.missions.planning.schema > docs/reference/plan.schema.json"
    assert written == render_schema(), f"run: {command}"


@pytest.mark.parametrize(
    "text", [*EXAMPLE.findall((DOCS / "how-to/plans.md").read_text()), *EXAMPLE.findall(PLANNER), GROUPS]
)
def test_examples_and_what_they_are_read_as_conform(text: str) -> None:
    made = parse_plan(text.encode(), "plan.yaml")
    assert is_valid(yaml.safe_load(text))
    assert is_valid(json.loads(msgspec.json.encode(made)))


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"tasks": "a"},
        {"tasks": [{"id": "a"}]},
        {"tasks": [{"id": "a", "text": "A", "colour": "red"}]},
        [{"id": "a", "text": ["A"]}],
        {"tasks": [{"each": {"in": ["x"]}}]},
        {"tasks": [{"id": "a", "text": "A", "risk": "huge"}]},
    ],
)
def test_what_is_no_plan_does_not_conform(document: Any) -> None:
    assert not is_valid(document)
