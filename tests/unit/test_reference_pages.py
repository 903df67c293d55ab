"""The generated pages and schemas of docs/reference are current and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator
from scripts.reference.configuration import render_reference
from scripts.reference.documents import DOCUMENTS, render_schemas
from scripts.reference.limits import LIMITS
from scripts.reference.messages import schemas
from scripts.reference.pages import render_pages

from chargehand.configuration.keys import entry_keys, section_keys
from chargehand.configuration.sources import variable_name
from chargehand.core.messages import MESSAGE_CLASSES, MessageType
from chargehand.core.plans import Task
from chargehand.core.state import MissionState
from chargehand.missions.causes import load_causes
from chargehand.reports.documents import MissionDetails, mission_details, mission_document, to_json
from chargehand.sandbox.contract import LimitName

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
NO_LIMITS = {
    # of [sandbox], keys that are not limits
    *("sandbox.tier", "sandbox.container_program", "sandbox.container_image", "sandbox.toolchain"),
    *("sandbox.network", "sandbox.network_checks", "sandbox.host_packages"),
}


def test_generated_pages_are_current() -> None:
    pages = render_pages()
    assert len(pages) > 15
    stale = [name for name, text in pages.items() if (ROOT / name).read_text() != text]
    assert stale == [], "run: scripts/pages"
    written = {path.name for path in (REFERENCE / "messages").iterdir()}
    assert written == {f"{kind}.json" for kind in MESSAGE_CLASSES}


def test_every_key_has_its_row() -> None:
    page = render_reference()
    for key in (*section_keys().values(), *entry_keys("agents").values(), *entry_keys("models").values()):
        assert f"| `{key.field}` |" in page
        assert (f"| `{variable_name(key.name)}` |" in page) == (key.meet != "file")


def test_every_sandbox_limit_key_is_documented_exactly_once() -> None:
    keys = [key for limit in LIMITS for key in limit.keys]
    assert len(keys) == len(set(keys))
    ours = {name for name in section_keys() if name.startswith("sandbox.")} - NO_LIMITS
    assert set(keys) == ours | {"limits.time", "limits.check_time"}


def test_every_named_limit_is_documented_and_has_a_remedy() -> None:
    named = {limit.name for limit in LIMITS if limit.name}
    assert named == {*get_args(LimitName), "disk"}
    codes = {code for remedy in load_causes().remedies for code in remedy.codes}
    assert named - {"wall_time"} <= codes


def test_every_document_has_its_schema() -> None:
    schemas = json.loads(render_schemas())["$defs"]
    for record in DOCUMENTS:
        names = [field.encode_name for field in msgspec.structs.fields(record)]
        assert list(schemas[record.__name__]["properties"]) == names


def test_the_details_begin_with_the_keys_of_the_result() -> None:
    state = MissionState(id="m-1")
    short, full = to_json(mission_document(state)), to_json(mission_details(state, [], None))
    assert list(full)[: len(short)] == list(short)
    assert list(full) == [field.encode_name for field in msgspec.structs.fields(MissionDetails)]


@pytest.mark.parametrize("kind", get_args(MessageType))
def test_a_message_schema_lists_the_fields_of_its_class(kind: str) -> None:
    schema = schemas()[kind]
    fields = {field.encode_name for field in msgspec.structs.fields(MESSAGE_CLASSES[kind])}
    assert fields | {"type"} <= set(schema["properties"])
    assert not schema["additionalProperties"]
    assert schema["properties"]["type"]["enum"] == [kind]
    assert {"type", "id", "mission", "payload"} <= set(schema["required"])


def test_the_schema_of_plans_takes_the_examples() -> None:
    schema = json.loads((REFERENCE / "plan.schema.json").read_text())
    validator = Draft202012Validator(schema)
    examples = re.findall(r"```yaml\n(.*?)```", (REFERENCE.parent / "how-to/plans.md").read_text(), re.DOTALL)
    assert len(examples) >= 2
    assert all(validator.is_valid(yaml.safe_load(example)) for example in examples)
    assert set(schema["$defs"]["task"]["properties"]) >= {
        field.encode_name for field in msgspec.structs.fields(Task)
    }
    assert not validator.is_valid({"tasks": [{"id": "a"}]})
    assert not validator.is_valid({"tasks": [{"id": "a", "text": "x", "afer": ["b"]}]})
