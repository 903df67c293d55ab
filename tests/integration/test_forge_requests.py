"""How many requests a forge gets for an issue that is found, delivered, reviewed on three lines, and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.forges import AIM_REQUESTS, list_requests

pytestmark = pytest.mark.needs_bwrap


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("github", marks=pytest.mark.real),
        "gitlab",
        pytest.param("gitea", marks=pytest.mark.needs_gitea),
    ],
)
def test_a_mission_with_one_review_costs_few_requests(kind: str, tmp_path: Path) -> None:
    sent = list_requests(kind, tmp_path / "work")
    assert len(sent) <= AIM_REQUESTS, "\n".join(sent)
