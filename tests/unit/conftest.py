"""A person in a repository of their own, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import make_repository

from chargehand.app.composition import App


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    repository = make_repository(tmp_path / "repo", {"f.txt": "a\n"})
    monkeypatch.chdir(repository)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    with App.open() as app:
        yield app
