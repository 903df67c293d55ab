"""Changes seen while an attempt runs: inspected, recorded, checkpointed, and reasons to end the attempt."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chargehand.checks.areas import Areas
from chargehand.checks.trees import MemoryTrees
from chargehand.core.attempt_events import FilesSeen
from chargehand.core.clock import SteppedClock
from chargehand.core.events import Payload, decode, encode
from chargehand.core.records import Base, Finding
from chargehand.missions.attempt import inspection as _inspection
from chargehand.missions.attempt.inspection import CriticalFoundError, Inspector, scan_workspace, stopped_by
from chargehand.missions.attempt.watching import CheckpointPacing, CheckpointTimer, FileChangeLog
from chargehand.missions.journal import Journal
from chargehand.reports.story import describe
from chargehand.store.store import Store, open_store
from chargehand.workspace.file_events import Batch, FileEvent, Gap
from chargehand.workspace.scan import Scan

SECRET = "AKIA" + "QWERTYUIOPASDFGH"
CRITICAL = Finding(rule="entry_link_out", severity="critical", path="leak", message="leak leads out")


class HungTrees(MemoryTrees):
    """A disk that does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = threading.Event()
        self.let_go = threading.Event()
        self.reads = 0

    def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
        self.reads += 1
        if self.hangs.is_set():
            self.let_go.wait(200)
        return super().read_blob(id, limit=limit)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def trees() -> Iterator[HungTrees]:
    made = HungTrees()
    yield made
    made.let_go.set()


def inspector(store: Store, trees: MemoryTrees, base: str, **options: Any) -> Inspector:
    services: Any = SimpleNamespace(store=store, project="p1", depot=None)
    commit = Base(commit="c", tree=base, revision="HEAD")
    return Inspector(services, commit, Areas(), reader=trees, **options)


async def test_a_second_inspector_reuses_cached_results(store: Store, trees: HungTrees):
    base, tree = trees.add({}), trees.add({"a.py": f"k = '{SECRET}'\n", "b.py": "x\n"})
    changes = trees.changes(base, tree)
    first = await inspector(store, trees, base).inspect_all(changes)
    reads = trees.reads
    second = await inspector(store, trees, base).inspect_all(changes)
    assert (first.cached, second.cached, trees.reads) == (0, 2, reads)
    assert [found.rule for found in second.findings] == [found.rule for found in first.findings] == ["secret"]


async def test_an_inspection_of_a_hanging_disk_times_out_as_degraded(store: Store, trees: HungTrees):
    base, tree = trees.add({}), trees.add({"a.py": "x\n"})
    changes = trees.changes(base, tree)
    trees.hangs.set()
    slow = inspector(store, trees, base, full_seconds=0.2, running_seconds=0.1)
    began = time.monotonic()
    full = await slow.inspect_all(changes)
    again = await slow.inspect_sample(changes, tree=tree)
    assert time.monotonic() - began < 100
    assert (full.degraded, full.looked, again.degraded) == (True, 0, True)
    assert full.reason == "the disk or the store did not answer within 0.2 s"
    trees.hangs.clear()
    trees.let_go.set()
    await asyncio.sleep(0.05)
    assert not (await inspector(store, trees, base).inspect_all(changes)).degraded


async def test_a_slow_disk_is_given_up_between_two_files(store: Store, trees: HungTrees):
    class Slow(HungTrees):
        def read_blob(self, id: str, /, *, limit: int | None = None) -> bytes:
            time.sleep(0.04)
            return super().read_blob(id, limit=limit)

    slow = Slow()
    base = slow.add({})
    changes = slow.changes(base, slow.add({f"{n}.py": f"{n}\n" for n in range(50)}))
    for options in ({"full_seconds": 1.0}, {"seconds_left": lambda: 0.9}):  # its limit, then the mission's
        found = await inspector(store, slow, base, **options).inspect_all(changes)
        assert found.degraded
        assert 1 <= found.looked < 50
        assert "not looked at within 0.9 s" in found.reason


async def test_cancelling_a_scan_stops_its_thread() -> None:
    """A thread that continued would block the end of its process for as long as it reads."""

    class Endless:
        began, ended = threading.Event(), threading.Event()

        def scan(self, *, trust_cache: bool, stop: threading.Event) -> None:
            self.began.set()
            if stop.wait(200):
                self.ended.set()

    endless: Any = Endless()
    scanning = asyncio.create_task(scan_workspace(endless))
    assert await asyncio.to_thread(endless.began.wait, 120)
    scanning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scanning
    assert await asyncio.to_thread(endless.ended.wait, 120)


async def test_a_locked_store_costs_a_moment_and_no_finding(store: Store, trees: HungTrees, monkeypatch: Any):
    monkeypatch.setattr(_inspection, "_STORE_SECONDS", 0.1)
    base, tree = trees.add({}), trees.add({"a.py": f"k = '{SECRET}'\n"})
    changes = trees.changes(base, tree)
    locking = sqlite3.connect(store.home / "store.db", isolation_level=None)
    locking.execute("BEGIN EXCLUSIVE")
    try:
        began = time.monotonic()
        found = await inspector(store, trees, base).inspect_all(changes)
        assert time.monotonic() - began < 5
    finally:
        locking.execute("ROLLBACK")
        locking.close()
    assert not found.degraded
    assert [each.rule for each in found.findings] == ["secret"]


async def test_a_violation_in_an_unsampled_file_is_found_by_a_full_inspection(store: Store, trees: HungTrees):
    base = trees.add({})
    files = {f"src/m{n}.txt": f"{n}\n" for n in range(400)}
    changes: Any = None
    for number in range(400):  # until the random sample misses one
        tree = trees.add({**files, f"src/m{number}.txt": SECRET})
        changes = trees.changes(base, tree)
        quick = await inspector(store, trees, base).inspect_sample(changes, tree=tree)
        if not quick.findings:
            break
    assert (quick.looked, quick.total, quick.degraded) == (100, 400, False)
    full = await inspector(store, trees, base).inspect_all(changes)
    assert [found.rule for found in full.findings] == ["secret"]
    assert (full.looked, full.degraded) == (400, False)


async def test_only_critical_findings_end_watching(store: Store, trees: HungTrees):
    base, tree = trees.add({}), trees.add({"a.py": f"k = '{SECRET}'\n"})
    scan = Scan(tree=tree, changes=trees.changes(base, tree), findings=(), files=1, bytes=1)
    watching = inspector(store, trees, base)
    assert [found.rule for found in (await watching.inspect_scan(scan)).findings] == ["secret"]
    with pytest.raises(CriticalFoundError) as caught:
        await watching.inspect_scan(Scan(tree=tree, changes=(), findings=(CRITICAL,), files=1, bytes=1))
    assert caught.value.findings == (CRITICAL,)
    assert "leads out" in caught.value.message


async def found_after(seconds: float, error: BaseException | None) -> None:
    await asyncio.sleep(seconds)
    if error is not None:
        raise error


async def test_a_critical_finding_ends_the_block_and_leaves_the_task_usable():
    with pytest.raises(CriticalFoundError):
        async with stopped_by(found_after(0.01, CriticalFoundError([CRITICAL]))):
            await asyncio.sleep(10)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_block_that_ends_by_itself_ends_its_watcher():
    async with stopped_by(found_after(10, None)):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="mine"):
        async with stopped_by(found_after(10, None)):
            raise ValueError("mine")


async def test_another_cancellation_comes_first():
    async def block() -> None:
        async with stopped_by(found_after(0.01, CriticalFoundError([CRITICAL]))):
            await asyncio.sleep(10)

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), stopped_by(found_after(10, None)):
            await asyncio.sleep(10)


async def test_another_error_of_a_watcher_is_raised_at_the_end():
    with pytest.raises(OSError, match="disk"):
        async with stopped_by(found_after(0, OSError("disk"))):
            await asyncio.sleep(0.02)


def test_entries_are_kept_by_project_and_forgotten_after_30_days(tmp_path: Path):
    clock = SteppedClock()
    with open_store(tmp_path / "home", clock=clock) as store:
        many = {f"k{n}": b"\0%d" % n for n in range(1200)}
        store.inspections.put("p1", many)
        assert store.inspections.get("p1", many.keys()) == many
        assert store.inspections.get("p2", many.keys()) == {}
        store.inspections.put("p1", {"k1": b"new"})
        assert store.inspections.get("p1", ["k1", "k2", "k?"]) == {"k1": b"new", "k2": b"\x002"}
        clock.advance(31 * 24 * 3600)
        store.inspections.put("p1", {"later": b"x"})
        assert store.inspections.get("p1", [*many, "later"]) == {"later": b"x"}


PACE = CheckpointPacing(files=50, seconds=30.0, settle=5.0, quiet=0.5)


class Kept:
    """A journal that keeps its records."""

    def __init__(self) -> None:
        self.lines: list[FilesSeen] = []
        self.notes = 0

    def record(self, *payloads: Payload) -> None:
        self.notes += 1
        self.lines += cast(Any, payloads)


def batch(*paths: str) -> Batch:
    return Batch(events=tuple(FileEvent(path, "modified") for path in paths))


def log(**options: int) -> tuple[FileChangeLog, Kept]:
    kept = Kept()
    return FileChangeLog(cast(Journal, kept), "a-1", **options), kept


def test_no_checkpoint_is_due_without_relevant_changes() -> None:
    due = CheckpointTimer(PACE)
    assert due.at is None
    due.see(Batch(ignored=100), now=1.0)
    assert due.at is None


def test_the_first_change_starts_the_time() -> None:
    due = CheckpointTimer(PACE)
    due.see(batch("a"), now=10.0)
    due.see(batch("a", "b"), now=39.0)
    assert due.at == (40.0, "time")
    due.reset()
    assert due.at is None


def test_fifty_changed_paths_make_a_checkpoint_due_after_a_quiet_time() -> None:
    due = CheckpointTimer(PACE)
    due.see(batch(*(f"f{i}" for i in range(49)), "f0", "f1"), now=1.0)
    assert due.at == (31.0, "time")
    due.see(batch("f49"), now=2.0)
    assert due.at == (2.5, "count")
    due.see(batch("f49"), now=2.4)
    assert due.at == (2.9, "count")
    due.see(batch("f49"), now=6.9)
    assert due.at == (7.0, "count")


def test_a_gap_asks_for_a_look() -> None:
    due = CheckpointTimer(PACE)
    due.see(Batch(events=(Gap("overflow"),)), now=3.0)
    assert due.at == (33.0, "time")


def test_many_new_directories_are_named_once_a_line() -> None:
    files, kept = log()
    pairs = [(Gap("new_directory", f"d{i}/"), FileEvent(f"d{i}/f", "created")) for i in range(2000)]
    files.see(Batch(events=tuple(event for pair in pairs for event in pair)))
    files.see(Batch(events=(Gap("new_directory", "e/"), Gap("overflow"), FileEvent("e/f", "created", True))))
    files.write()
    assert len(kept.lines) < 25
    assert sum(len(line.changes) for line in kept.lines) == 2001
    # A line may begin with a change whose gap is in the line before; then the next gap starts another line.
    assert all(one.gap or other.gap for one, other in zip(kept.lines, kept.lines[1:], strict=False))
    # A gap of another kind still starts a separate line.
    assert {line.reasons for line in kept.lines[:-1]} == {(), ("new_directory",)}
    assert (kept.lines[-1].reasons, kept.lines[-1].changes) == (("overflow",), (("found_created", "e/f"),))


def test_five_thousand_files_are_few_lines_of_bounded_size_written_at_once() -> None:
    files, kept = log()
    files.see(batch(*(f"some/directory/file{i}.py" for i in range(5000))))
    files.write()
    assert kept.notes == 1
    assert len(kept.lines) < 60
    assert max(len(encode(line)) for line in kept.lines) <= 8192
    assert sum(len(line.changes) for line in kept.lines) == 5000
    files.write()
    assert kept.notes == 1


def test_a_gap_begins_a_new_line() -> None:
    files, kept = log()
    events = (FileEvent("a", "created"), Gap("overflow"), FileEvent("b", "deleted", found=True))
    files.see(Batch(events=events, ignored=3))
    files.write()
    assert [(line.changes, line.gap, line.reasons, line.skipped) for line in kept.lines] == [
        ((("created", "a"),), False, (), {}),
        ((("found_deleted", "b"),), True, ("overflow",), {}),
        ((), False, (), {"ignored": 3}),
    ]
    assert describe(kept.lines[0]) == "files: 1 created a"
    assert describe(kept.lines[1]) == "changes may have been missed (overflow); files: 1 deleted b"
    assert describe(kept.lines[2]) == "files: 3 ignored"


def test_beyond_its_share_of_the_log_only_numbers_are_kept() -> None:
    files, kept = log(most=10_000)
    for _ in range(5):
        files.see(batch(*(f"f{i}" for i in range(400))))
    files.write()
    listed = sum(len(line.changes) for line in kept.lines)
    assert 0 < listed < 2000
    assert kept.lines[-1].skipped == {"unlisted": 2000 - listed}


def test_hostile_and_endless_names_fit_a_line_and_come_back() -> None:
    files, kept = log()
    files.see(batch("a\nb\x1b[31m", "not\udcffutf8", "x" * 200_000))
    files.write()
    (line,) = (decode(line.type, encode(line)) for line in kept.lines)
    assert isinstance(line, FilesSeen)
    paths = [path for _, path in line.changes]
    assert paths[:2] == ["a\nb\\x1b[31m", "not\\xffutf8"] or paths[0].startswith("a")
    assert "\\xff" in paths[1]
    assert len(encode(line)) <= 8192
    assert "\n" not in describe(line)
    assert "\x1b" not in describe(line)


def test_a_batch_is_described_in_a_short_line() -> None:
    kinds = ("created", "modified", "renamed_from", "renamed_to")
    line = FilesSeen(attempt="a-1", changes=tuple((kind, f"{kind}{i}" * 20) for i in range(300) for kind in kinds))
    assert describe(line) == "files: 300 created, 300 modified, 300 renamed"
