"""Fixtures that most tests use: a person in a repository, a store, workspaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import make_repository
from tests.workspace_kit import WorkspaceKit

from chargehand.app.composition import App
from chargehand.core.clock import SteppedClock
from chargehand.store.store import Store, open_store


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    repository = make_repository(tmp_path / "repo", {"f.txt": "a\n"})
    monkeypatch.chdir(repository)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    with App.open() as app:
        yield app


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def store(tmp_path: Path, clock: SteppedClock) -> Iterator[Store]:
    with open_store(tmp_path / "home", clock=clock) as opened:
        yield opened


@pytest.fixture
def kit(tmp_path: Path) -> WorkspaceKit:
    return WorkspaceKit(tmp_path)
