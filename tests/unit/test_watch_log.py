"""When a checkpoint is due, and how what was seen becomes lines of the log."""

from __future__ import annotations

from typing import Any, cast

from chargehand.app.story import describe
from chargehand.core.attempt_events import FilesSeen
from chargehand.core.events import Payload, decode, encode
from chargehand.missions.attempt.watching import CheckpointPacing, CheckpointTimer, FileChangeLog
from chargehand.missions.journal import Journal
from chargehand.workspace.file_events import Batch, FileEvent, Gap

PACE = CheckpointPacing(files=50, seconds=30.0, settle=5.0, quiet=0.5)


class Kept:
    """A journal that keeps what is noted."""

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


def test_nothing_seen_asks_for_nothing() -> None:
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


def test_the_fiftieth_path_asks_once_it_is_quiet_and_soon_at_the_latest() -> None:
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
    # A line may begin with a change whose own gap stands in the line before; then the next gap begins another.
    assert all(one.gap or other.gap for one, other in zip(kept.lines, kept.lines[1:], strict=False))
    # A gap of another kind still begins a line of its own.
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


def test_a_gap_begins_a_line_of_its_own() -> None:
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


def test_a_batch_is_one_short_line_in_words() -> None:
    kinds = ("created", "modified", "renamed_from", "renamed_to")
    line = FilesSeen(attempt="a-1", changes=tuple((kind, f"{kind}{i}" * 20) for i in range(300) for kind in kinds))
    assert describe(line) == "files: 300 created, 300 modified, 300 renamed"
