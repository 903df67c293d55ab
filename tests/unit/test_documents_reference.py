"""The page and the schemas of the `--json` documents are current, and what is printed is what they say."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from chargehand.app.documents import MissionDetails, mission_details, mission_document, to_json
from chargehand.app.reference.documents import DOCUMENTS, render_documents, render_schemas
from chargehand.core.state import MissionState

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
COMMAND = "python -m chargehand.app.reference.documents"


def test_the_page_is_current() -> None:
    page = (REFERENCE / "documents.md").read_text()
    assert page == render_documents(), f"run: {COMMAND} > docs/reference/documents.md"


def test_the_schemas_are_current() -> None:
    schemas = (REFERENCE / "documents.json").read_text()
    assert schemas == render_schemas(), f"run: {COMMAND} --schemas > docs/reference/documents.json"


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
