"""Every document that a command prints or that MCP or REST returns has a JSON schema."""

from __future__ import annotations

import importlib

import msgspec
import pytest

from chargehand.core.codec import json_schema

MODULES = (
    *("agents", "configuration", "demonstration", "diagnosis", "gateways", "models", "onboarding", "projects"),
    "storage",
)
DOCUMENTS = [
    kind
    for module in (*(f"chargehand.app.{name}" for name in MODULES), "chargehand.identity.documents")
    for kind in vars(importlib.import_module(module)).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module
    # The input of a use case is not a document.
    if not kind.__name__.startswith("_") and not kind.__name__.endswith("Options")
]


@pytest.mark.parametrize("kind", DOCUMENTS, ids=lambda kind: kind.__name__)
def test_every_document_has_a_schema(kind: type[msgspec.Struct]) -> None:
    own, parts = json_schema(kind)
    schema = parts[str(own["$ref"]).rpartition("/")[2]]
    assert set(schema["properties"]) == {field.encode_name for field in msgspec.structs.fields(kind)}
    assert schema["description"].strip()


def test_names_of_documents_are_unique() -> None:
    names = [kind.__name__ for kind in DOCUMENTS]
    assert len(names) == len(set(names)) > 40
