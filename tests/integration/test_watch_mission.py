"""In a mission: the agent's changes to its files are logged, and lead to checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.crash_kit import MARK, wake
from tests.integration.mission_kit import GOLD, MissionKit

import chargehand.missions.attempt.watching as watching
from chargehand.app.composition import App
from chargehand.core.attempt_events import CheckpointMade, FilesSeen
from chargehand.core.events import Payload, decode
from chargehand.core.state import MissionState
from chargehand.reports.story import describe
from chargehand.workspace.watching import inotify as _watch_inotify

pytestmark = pytest.mark.needs_bwrap
QUICK = replace(watching.PACE, quiet=0.1, settle=0.5, note=0.1, seconds=60.0)


def ran(
    place: Path, script: str, pace: watching.CheckpointPacing, monkeypatch: pytest.MonkeyPatch
) -> list[Payload]:
    """Run a mission to its end and return its log; its first checkpoint wakes processes that sleep for `MARK`."""
    made = watching.WorkspaceWatch.__init__
    monkeypatch.setattr(
        watching.WorkspaceWatch,
        "__init__",
        lambda self, *given, **more: made(self, *given, **{**more, "pace": pace}),
    )
    kit = MissionKit(place)

    async def work(app: App) -> MissionState:
        running = asyncio.create_task(kit.run_async(script, checks=("true",)))
        while not running.done():
            if any(state.checkpoints for state in app.mission_reader.all()):
                wake()
            await asyncio.sleep(0.05)
        return await running

    with contextlib.closing(kit.app()) as app:
        lines = app.store.log.read(asyncio.run(work(app)).id)
    return [decode(line.type, line.payload or b"{}") for line in lines]


def changes(log: list[Payload]) -> list[tuple[str, str]]:
    return [change for line in log if isinstance(line, FilesSeen) for change in line.changes]


def triggers(log: list[Payload]) -> list[tuple[str, int]]:
    made = [line.checkpoint for line in log if isinstance(line, CheckpointMade)]
    return [(point.trigger, point.changed) for point in made]


def files(count: int) -> str:
    return f"for i in $(seq {count}); do echo $i > f$i; done"


@pytest.mark.parametrize("count", [49, 50])
def test_fifty_files_make_a_checkpoint_and_no_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    wait = f"sleep {MARK}" if count == 50 else "sleep 1.2"
    log = ran(tmp_path, f"{files(count)}; {wait}; {GOLD}", QUICK, monkeypatch)
    expected = [("count", 50), ("end", 1)] if count == 50 else [("end", 50)]
    assert triggers(log) == expected
    assert {path for _, path in changes(log)} == {*(f"f{i}" for i in range(1, count + 1)), "calc/core.py"} | {
        path for _, path in changes(log) if path.startswith("calc/sed")
    }


def test_a_checkpoint_follows_a_change_but_not_an_idle_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = replace(QUICK, seconds=0.8)
    log = ran(tmp_path, f"sleep 1.2; {GOLD}; sleep {MARK} || true", pace, monkeypatch)
    assert triggers(log) == [("time", 1)]


def test_all_that_was_done_is_in_the_log_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"echo 1 > n; echo 2 >> n; rm n; printf x > 'a\\nb'; mkdir build; echo > build/o; {GOLD}"
    log = ran(tmp_path, script, QUICK, monkeypatch)
    told = [change for change in changes(log) if change[1] == "n"]
    assert told == [("created", "n"), ("modified", "n"), ("deleted", "n")]
    assert sum(line.skipped.get("ignored", 0) for line in log if isinstance(line, FilesSeen)) >= 1
    # The file of `sed -i`, in a directory that was not yet watched, is either seen or covered by a gap.
    gaps = [line for line in log if isinstance(line, FilesSeen) and line.gap]
    assert all(line.reasons == ("new_directory",) for line in gaps)
    assert gaps or [path for _, path in changes(log) if path.startswith("calc/sed")]
    assert all("files: " in describe(line) for line in log if isinstance(line, FilesSeen) and line not in gaps)


def test_without_a_watcher_the_log_says_so_once_and_checkpoints_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(self: _watch_inotify.Inotify) -> None:
        raise OSError(24, "none is left")

    monkeypatch.setattr(_watch_inotify.Inotify, "__init__", none)
    log = ran(tmp_path, f"{files(60)}; sleep {MARK}; {GOLD}", replace(QUICK, look=0.3), monkeypatch)
    seen = [line for line in log if isinstance(line, FilesSeen)]
    assert [(line.gap, line.reasons, line.changes) for line in seen] == [(True, ("no_watcher",), ())]
    assert triggers(log)[0][0] == "count"
