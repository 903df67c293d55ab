"""All generated pages and tables, by their path in the repository."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from chargehand.server.openapi import ROUTES
from scripts.reference.causes import render_causes
from scripts.reference.configuration import render_reference
from scripts.reference.documents import render_documents, render_schemas
from scripts.reference.limits import render_limits
from scripts.reference.messages import render_messages
from scripts.reference.plan_schema import render_schema


def render_pages() -> Mapping[str, str]:
    """Return the content of every generated file."""
    signatures = msgspec.to_builtins([route.signature for route in ROUTES])
    return {
        "docs/reference/causes.md": render_causes(),
        "docs/reference/configuration.md": render_reference(),
        "docs/reference/limits.md": render_limits(),
        "docs/reference/documents.md": render_documents(),
        "docs/reference/documents.json": render_schemas(),
        "docs/reference/plan.schema.json": render_schema(),
        **{f"docs/reference/{name}": text for name, text in render_messages().items()},
        "src/chargehand/server/routes.json": json.dumps(signatures, indent=1) + "\n",
    }
