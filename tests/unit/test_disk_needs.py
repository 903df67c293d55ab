"""What of the state directory a mission that has not ended still needs, and what `gc` prints of the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import make_repository

from chargehand.app.composition import App
from chargehand.app.storage import GcOptions, bytes_in_unit
from chargehand.app.wiring.disk import StillNeeded, mission_of
from chargehand.cli.storage import collect
from chargehand.cli.terminal.output import Output
from chargehand.core.errors import UsageError
from chargehand.core.ids import new_id
from chargehand.core.mission_events import BaseResolved, MissionCreated, MissionFinished
from chargehand.core.records import Base, MissionRequest, MissionStatus, Reason
from chargehand.core.state import AttemptState, MissionState
from chargehand.missions.sandboxes.provisioning import workspace_prefix
from chargehand.workspace.workspace import Workspace

ROOT = Path("/state/projects/p-1")
COMMIT = "c" * 40
CREATED = "2026-01-01T00:00:00+00:00"
CREATED_SECONDS = 1767225600.0


def state(status: MissionStatus) -> MissionState:
    base = Base(commit=COMMIT, tree="t" * 40, branch="main", revision="HEAD")
    attempt = AttemptState(id="a-1", number=1, agent="a", workspace="w-odd")
    return MissionState(
        id="m-aaaaaaaaaaaaaa", project="p-1", status=status, base=base, attempts=[attempt], created=CREATED
    )


@pytest.mark.parametrize("status", ["planned", "running", "waiting", "paused"])
def test_an_open_mission_needs_its_workspaces_base_and_layer(status: MissionStatus) -> None:
    needed = StillNeeded([state(status)])
    for purpose in ("setup-0", "checks-3", "attempt-1-2"):
        assert needed(ROOT, "workspace", f"w-aaaaaaaaaaaaaa-{purpose}", 0.0) is True
    assert needed(ROOT, "workspace", "w-odd", 0.0) is True, "as its log names it"
    assert needed(ROOT, "base", COMMIT, 0.0) is True
    assert needed(ROOT, "layer", "key", CREATED_SECONDS + 1) is True


@pytest.mark.parametrize("status", ["promoted", "refused", "failed", "exhausted", "cancelled", "discarded"])
def test_one_that_has_ended_needs_nothing(status: MissionStatus) -> None:
    needed = StillNeeded([state(status)])
    assert needed(ROOT, "workspace", "w-aaaaaaaaaaaaaa-attempt-1-0", 1e12) is False
    assert needed(ROOT, "base", COMMIT, 1e12) is False
    assert needed(ROOT, "layer", "key", 1e12) is False


def test_what_no_mission_tells_of(tmp_path: Path) -> None:
    needed = StillNeeded([state("running")])
    assert needed(ROOT, "workspace", new_id("workspace"), 0.0) is None, "that of an exec"
    assert needed(ROOT, "workspace", "strange", 0.0) is None
    assert needed(ROOT, "base", "d" * 40, 1e12) is False
    assert needed(ROOT, "layer", "key", CREATED_SECONDS - 1) is False, "used before the mission was made"
    assert needed(ROOT.with_name("p-2"), "base", COMMIT, 1e12) is False
    assert needed(ROOT.with_name("p-2"), "layer", "key", 1e12) is False


@given(st.integers(0, 1 << 44))
def test_the_names_of_workspaces_tell_their_mission(moment: int) -> None:
    mission = new_id("mission", now_ms=moment)
    assert mission_of(f"{workspace_prefix(mission)}attempt-1-0") == mission


# --- the command


class Place:
    """One repository with a state directory, and missions in its log."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = make_repository(place / "repo", {"a.txt": "a\n"})
        self.home = place / "state"
        monkeypatch.chdir(self.repository)
        for name in ("HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, str(place))
        monkeypatch.setenv("CHARGEHAND_HOME", str(self.home))

    def left_by(self, id: str, *, ended: bool) -> Workspace:
        """Record a mission with a workspace of its own, all of it last used long ago."""
        with App.open() as app:
            project = app.register_project()
            depot = app.depot(project)
            base = depot.resolve_base()
            request = MissionRequest(text="t", agent="a", command=("true",), slug="do-it")
            created = MissionCreated(project=project.id, repository=str(project.path), request=request)
            reason = Reason(code="no_change", message="nothing")
            end = [MissionFinished(status="refused", reasons=(reason,))] if ended else []
            app.store.log.append(id, created, BaseResolved(base=base), *end)
            made = Workspace.create(depot, base, driver="overlay", id=f"{workspace_prefix(id)}attempt-1-0")
            (made.scan_root() / "x").write_bytes(os.urandom(100_000))
            made.checkpoint("x")
            os.utime(made.directory / "state.json", (1, 1))
            return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def said(capsys: pytest.CaptureFixture[str], *, yes: bool = False, **options: Any) -> Any:
    capsys.readouterr()
    collect(Output(as_json=True), GcOptions(**options), yes=yes)
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_says_what_a_run_then_does(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    over, open_ = place.left_by("m-1", ended=True), place.left_by("m-2", ended=False)
    told = said(capsys, dry_run=True)
    assert told["projects"][0]["workspaces"] == [over.id]
    assert over.directory.exists()
    done = said(capsys)
    assert {**done, "dry_run": True} == told
    assert done["bytes"] > 100_000
    assert (over.directory.exists(), open_.directory.exists()) == (False, True)
    assert said(capsys, max_age="0s", max_bytes="0")["projects"][0]["workspaces"] == [], "it is needed"
    assert said(capsys)["taken"] <= done["taken"] - done["bytes"]


def test_checkpoints_of_what_is_open_stay_even_on_an_order(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    over, open_ = place.left_by("m-1", ended=True), place.left_by("m-2", ended=False)
    order: dict[str, Any] = {"checkpoints": True, "max_age": "0s"}
    open_.discard()
    told = said(capsys, dry_run=True, **order)["projects"][0]["checkpoints"]
    assert (told["refs"], told["commits"]) == ([over.ref], 1)
    with pytest.raises(UsageError, match="1 checkpoint of 1 workspace can never be restored") as caught:
        collect(Output(as_json=True), GcOptions(**order))
    assert "--yes" in caught.value.hint
    assert said(capsys, yes=True, **order)["projects"][0]["checkpoints"] == told
    assert said(capsys, dry_run=True, **order)["projects"][0]["checkpoints"]["refs"] == []


def test_a_person_reads_every_name_and_the_sum(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    over = place.left_by("m-1", ended=True)
    capsys.readouterr()
    collect(Output(as_json=False), GcOptions(dry_run=True))
    text = capsys.readouterr().out
    assert f"  workspace {over.id}\n" in text
    assert "MB would be freed of" in text
    assert "all checkpoints are kept" in text


@pytest.mark.parametrize("options", [{"max_age": "long"}, {"max_bytes": "2 apples"}, {"max_age": "-1s"}])
def test_what_is_no_age_or_size_is_refused(place: Place, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must look like"):
        collect(Output(as_json=True), GcOptions(**options))


def test_sizes_are_read_as_they_are_written() -> None:
    assert [bytes_in_unit(unit) for unit in ("", "k", "M", "Gi")] == [1, 1000, 10**6, 1 << 30]
