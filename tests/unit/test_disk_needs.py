"""`gc`'s report on the state directory, the space it frees, and the needs of an unfinished mission."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_cli_commands import Cli

from chargehand.app.composition import App
from chargehand.app.storage import bytes_in_unit
from chargehand.core.mission_events import BaseResolved, MissionCreated, MissionFinished
from chargehand.core.records import MissionRequest, Reason
from chargehand.workspace.workspace import Workspace


class Place(Cli):
    """One repository with a state directory, and missions in its log."""

    def left_by(self, number: int, *, ended: bool) -> Workspace:
        """Record a mission with a workspace, all of it last used long ago."""
        with App.open() as app:
            project = app.preparation.register_project()
            depot = app.projects.depot(project)
            base = depot.resolve_base()
            request = MissionRequest(text="t", agent="a", command=("true",), slug="do-it")
            created = MissionCreated(project=project.id, repository=str(project.path), request=request)
            reason = Reason(code="no_change", message="nothing")
            end = [MissionFinished(status="refused", reasons=(reason,))] if ended else []
            app.store.log.append(f"m-{number}", created, BaseResolved(base=base), *end)
            made = Workspace.create(depot, base, driver="overlay", id=f"w-{number}-attempt-1-0")
            (made.scan_root() / "x").write_bytes(os.urandom(100_000))
            made.checkpoint("x")
            os.utime(made.directory / "state.json", (1, 1))
            return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_a_dry_run_reports_the_effect_of_a_real_run(place: Place) -> None:
    over, open_ = place.left_by(1, ended=True), place.left_by(2, ended=False)
    told = place.json("gc", "--dry-run")
    assert told["projects"][0]["workspaces"] == [over.id]
    assert over.directory.exists()
    done = place.json("gc")
    assert {**done, "dry_run": True} == told
    assert done["bytes"] > 100_000
    assert (over.directory.exists(), open_.directory.exists()) == (False, True)
    ordered = place.json("gc", "--max-age", "0s", "--max-bytes", "0")
    assert ordered["projects"][0]["workspaces"] == [], "it is needed"
    assert place.json("gc")["taken"] <= done["taken"] - done["bytes"]


def test_checkpoints_of_open_missions_are_kept_by_gc_of_checkpoints(place: Place) -> None:
    over, open_ = place.left_by(1, ended=True), place.left_by(2, ended=False)
    order = ("gc", "--checkpoints", "--max-age", "0s")
    open_.discard()
    told = place.json(*order, "--dry-run")["projects"][0]["checkpoints"]
    assert (told["refs"], told["commits"]) == ([over.ref], 1)
    error = place.error(*order, code=2)
    assert "1 checkpoint of 1 workspace can never be restored" in error["message"]
    assert "--yes" in error["hint"]
    assert place.json(*order, "--yes")["projects"][0]["checkpoints"] == told
    left: dict[str, Any] = place.json(*order, "--dry-run")["projects"][0]["checkpoints"]
    assert left["refs"] == []


def test_a_person_reads_every_name_and_the_sum(place: Place) -> None:
    over = place.left_by(1, ended=True)
    text = place("gc", "--dry-run").stdout
    assert f"  workspace {over.id}\n" in text
    assert "MB would be freed of" in text
    assert "all checkpoints are kept" in text


@pytest.mark.parametrize("option", [("--max-age", "long"), ("--max-bytes", "2 apples"), ("--max-age", "-1s")])
def test_an_invalid_age_or_size_is_refused(place: Place, option: tuple[str, str]) -> None:
    assert "must look like" in place.error("gc", *option, code=2)["message"]


def test_units_of_sizes_are_parsed() -> None:
    assert [bytes_in_unit(unit) for unit in ("", "k", "M", "Gi")] == [1, 1000, 10**6, 1 << 30]
