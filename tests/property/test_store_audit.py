"""Every change to the log behind our back is found, and its place is named."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, StoreError
from chargehand.core.events import chain_hash, payload_digest
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.audit import AuditReport, verify
from chargehand.store.store import open_store

REQUEST = MissionRequest(text="x", agent="a", command=(), slug="x")
CREATED = MissionCreated(project="p-ü", repository="/r", request=REQUEST)
LINES, DURABLE, OTHER = 12, 7, 5  # lines of m-1, its last durable line, lines of m-2
COLUMNS = ("mission", "time", "type", "payload", "digest", "prev", "hash")
seqs = st.integers(1, LINES)
bits = st.integers(0, 10_000)


def step(number: int) -> StepFinished:
    return StepFinished(step=f"step-{number}", input="i", output="o" * (number % 5), seconds=1.0)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kept") / "home"
    clock = SteppedClock()
    with open_store(home, clock=clock) as store:
        for mission, lines in (("m-1", LINES), ("m-2", OTHER)):
            store.log.append(mission, CREATED)
            for number in range(2, lines + 1):
                clock.advance(1)
                store.log.append(mission, step(number), durable=mission == "m-1" and number == DURABLE)
    return home


@contextmanager
def copied(kept: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        shutil.copytree(kept, home)
        yield home


def audited(kept: Path, change: Callable[[sqlite3.Connection], object], mission: str | None = None) -> AuditReport:
    """Verify a copy of the store after a change made by SQL."""
    with copied(kept) as home:
        raw = sqlite3.connect(home / "store.db")
        with raw:
            change(raw)
        raw.close()
        with open_store(home) as store:
            return verify(store, mission)


def places(report: AuditReport) -> set[tuple[str, int | None]]:
    return {(problem.mission, problem.seq) for problem in report.problems}


def flipped(content: bytes, bit: int) -> bytes:
    at = bit % (len(content) * 8)
    return content[: at // 8] + bytes([content[at // 8] ^ (1 << at % 8)]) + content[at // 8 + 1 :]


def put(raw: sqlite3.Connection, seq: int, column: str, value: object) -> None:
    kind = "?" if column in ("payload", "seq") else "CAST(? AS TEXT)"
    raw.execute(f"UPDATE events SET {column} = {kind} WHERE mission = 'm-1' AND seq = ?", (value, seq))


def get(raw: sqlite3.Connection, seq: int, column: str) -> bytes:
    query = f"SELECT CAST({column} AS BLOB) FROM events WHERE mission = 'm-1' AND seq = ?"
    value = raw.execute(query, (seq,)).fetchone()[0]
    assert isinstance(value, bytes)
    return value


def set_head(raw: sqlite3.Connection, seq: int) -> None:
    """Make the mission's row fit a log that ends at `seq`."""
    head = (seq, get(raw, seq, "hash").decode())
    raw.execute("UPDATE missions SET last_seq = ?, last_hash = ? WHERE id = 'm-1'", head)


def test_an_untouched_log_is_whole(kept: Path) -> None:
    report = audited(kept, lambda raw: None)
    assert (report.ok, report.missions, report.events, report.problems) == (True, 2, LINES + OTHER, ())


@example(seq=1, column="payload", bit=495)  # a project's name that is no longer UTF-8
@given(seqs, st.sampled_from(COLUMNS), bits)
@settings(max_examples=examples(50), deadline=None)
def test_a_flipped_bit_of_any_column(kept: Path, seq: int, column: str, bit: int) -> None:
    report = audited(kept, lambda raw: put(raw, seq, column, flipped(get(raw, seq, column), bit)))
    assert ("m-1", seq) in places(report)
    assert all(place[0] != "m-2" for place in places(report))
    if column not in ("mission", "prev"):
        assert {place for place in places(report) if place[1] is not None} == {("m-1", seq)}, (
            "one change, one place"
        )


@given(seqs, st.integers(-3, 30))
@settings(max_examples=examples(25), deadline=None)
def test_a_changed_number(kept: Path, seq: int, number: int) -> None:
    assume(number not in range(1, LINES + 1))
    assert ("m-1", seq) in places(audited(kept, lambda raw: put(raw, seq, "seq", number)))


@given(seqs, st.sampled_from((*COLUMNS[1:], "seq")), st.sampled_from(["text", "blob", "integer", "spaces"]))
@settings(max_examples=examples(30), deadline=None)
def test_a_value_of_another_type(kept: Path, seq: int, column: str, kind: str) -> None:
    made = {
        "text": f"CAST({column} AS TEXT)",
        "blob": f"CAST({column} AS BLOB)",
        "integer": "7000",
        "spaces": f"' ' || {column} || '_'",
    }[kind]
    before: list[object] = []
    after: list[object] = []

    def change(raw: sqlite3.Connection) -> None:
        look = f"SELECT typeof({column}), CAST({column} AS BLOB) FROM events WHERE mission = 'm-1' ORDER BY seq"
        before.extend(raw.execute(look))
        raw.execute(f"UPDATE events SET {column} = {made} WHERE mission = 'm-1' AND seq = ?", (seq,))
        after.extend(raw.execute(look))

    report = audited(kept, change)
    assert report.ok == (before == after)
    assert report.ok or ("m-1", seq) in places(report)


@pytest.mark.parametrize(
    ("column", "made"),
    [
        ("payload", "CAST(payload AS TEXT)"),
        ("payload", "7"),
        ("time", "CAST(time AS BLOB)"),
        ("hash", "x'ff'"),
        ("type", "CAST(x'ff' AS TEXT)"),
    ],
)
def test_a_line_that_cannot_have_been_written_is_read_and_named(kept: Path, column: str, made: str) -> None:
    with copied(kept) as home:
        raw = sqlite3.connect(home / "store.db")
        with raw:
            raw.execute(f"UPDATE events SET {column} = {made} WHERE mission = 'm-1' AND seq = 3")
        raw.close()
        with open_store(home) as store:
            assert [line.seq for line in store.log.read("m-1")] == list(range(1, LINES + 1))
            assert ("m-1", 3) in places(verify(store))
            with pytest.raises(StoreError) as refused:  # no one continues a log that no one wrote
                store.log.check("m-1")
            assert refused.value.code == "mission_damaged"


@given(seqs, st.sampled_from(COLUMNS[1:]))
@settings(max_examples=examples(30), deadline=None)
def test_swapped_columns_of_two_events_are_found(kept: Path, seq: int, column: str) -> None:
    other = seq % LINES + 1

    def change(raw: sqlite3.Connection) -> None:
        mine, theirs = get(raw, seq, column), get(raw, other, column)
        assume(mine != theirs)
        put(raw, seq, column, theirs)
        put(raw, other, column, mine)

    assert places(audited(kept, change)) >= {("m-1", seq), ("m-1", other)}


@given(seqs)
@settings(max_examples=examples(12), deadline=None)
def test_a_dropped_line(kept: Path, seq: int) -> None:
    report = audited(kept, lambda raw: raw.execute("DELETE FROM events WHERE mission = 'm-1' AND seq = ?", (seq,)))
    assert ("m-1", seq) in places(report)


@given(seqs, seqs)
@settings(max_examples=examples(30), deadline=None)
def test_two_swapped_lines(kept: Path, one: int, other: int) -> None:
    assume(one != other)

    def change(raw: sqlite3.Connection) -> None:
        for old, new in ((one, 99), (other, one), (99, other)):
            put(raw, old, "seq", new)

    assert places(audited(kept, change)) >= {("m-1", one), ("m-1", other)}


def forge(raw: sqlite3.Connection, seq: int, *, number: int) -> None:
    """Write a line that is valid in itself and follows the one before it."""
    prev = get(raw, seq - 1, "hash").decode()
    payload = f'{{"forged":{number}}}'.encode()
    line = {"mission": "m-1", "seq": seq, "time": "2026-01-01", "type": "step.finished"}
    line |= {"digest": payload_digest(payload), "prev": prev}
    line |= {"payload": payload, "hash": chain_hash(**line)}
    names = ", ".join(line)
    raw.execute(f"REPLACE INTO events ({names}) VALUES ({', '.join('?' * len(line))})", tuple(line.values()))


@given(st.integers(2, LINES + 1), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_an_inserted_line(kept: Path, seq: int, fit: bool) -> None:
    def change(raw: sqlite3.Connection) -> None:
        for old in range(LINES, seq - 1, -1):
            put(raw, old, "seq", old + 1)
        forge(raw, seq, number=0)
        if fit and seq <= LINES:
            set_head(raw, LINES + 1)

    assert places(audited(kept, change)) & {("m-1", seq), ("m-1", seq + 1)}


@given(seqs)
@settings(max_examples=examples(12), deadline=None)
def test_a_cut_tail(kept: Path, seq: int) -> None:
    report = audited(
        kept, lambda raw: raw.execute("DELETE FROM events WHERE mission = 'm-1' AND seq >= ?", (seq,))
    )
    assert ("m-1", seq) in places(report)
    assert "tail_missing" in {problem.kind for problem in report.problems}


@given(st.integers(2, LINES))
@settings(max_examples=examples(12), deadline=None)
def test_a_cut_tail_with_a_fitting_row_is_found_down_to_the_last_durable_line(kept: Path, seq: int) -> None:
    def change(raw: sqlite3.Connection) -> None:
        set_head(raw, seq - 1)
        raw.execute("DELETE FROM events WHERE mission = 'm-1' AND seq >= ?", (seq,))

    report = audited(kept, change)
    assert report.ok == (seq > DURABLE), "what the docstring of `verify` says, no more and no less"
    assert report.ok or ("m-1", seq) in places(report)


@given(st.integers(2, LINES))
@settings(max_examples=examples(12), deadline=None)
def test_a_rewritten_chain_is_found_up_to_the_last_durable_event(kept: Path, seq: int) -> None:
    def change(raw: sqlite3.Connection) -> None:
        for number in range(seq, LINES + 1):
            forge(raw, number, number=number)
        set_head(raw, LINES)

    report = audited(kept, change)
    assert report.ok == (seq > DURABLE)
    assert report.ok or places(report) == {("m-1", DURABLE)}


@given(seqs)
@settings(max_examples=examples(8), deadline=None)
def test_an_unordered_erasure_of_a_payload_is_found(kept: Path, seq: int) -> None:
    report = audited(kept, lambda raw: put(raw, seq, "payload", None))
    assert places(report) == {("m-1", seq)}
    assert [problem.kind for problem in report.problems] == ["payload_missing"]


@given(st.sampled_from(["id", "project", "created", "last_hash"]), bits)
@settings(max_examples=examples(25), deadline=None)
def test_a_flipped_bit_of_the_missions_row(kept: Path, column: str, bit: int) -> None:
    def change(raw: sqlite3.Connection) -> None:
        old = raw.execute(f"SELECT CAST({column} AS BLOB) FROM missions WHERE id = 'm-1'").fetchone()[0]
        raw.execute(f"UPDATE missions SET {column} = CAST(? AS TEXT) WHERE id = 'm-1'", (flipped(old, bit),))

    report = audited(kept, change)
    assert "m-1" in {problem.mission for problem in report.problems}


@given(st.integers(-2, 30))
@settings(max_examples=examples(15), deadline=None)
def test_a_changed_end_in_the_missions_row(kept: Path, last: int) -> None:
    assume(last != LINES)
    report = audited(kept, lambda raw: raw.execute("UPDATE missions SET last_seq = ? WHERE id = 'm-1'", (last,)))
    assert {problem.mission for problem in report.problems} == {"m-1"}


@given(bits)
@settings(max_examples=examples(20), deadline=None)
def test_a_flipped_bit_of_a_kept_head(kept: Path, bit: int) -> None:
    with copied(kept) as home:
        head = home / "heads" / "m-1"
        content = head.read_bytes().rstrip()
        head.write_bytes(flipped(content, bit))
        with open_store(home) as store:
            assert {problem.mission for problem in verify(store).problems} == {"m-1"}


@given(
    st.sampled_from([b"step-2", b"step-11", b"step.finished", b"mission.created", b"2026-01-01T00:00:03"]), bits
)
@settings(max_examples=examples(25), deadline=None)
def test_a_flipped_bit_of_the_file_itself(kept: Path, what: bytes, bit: int) -> None:
    with copied(kept) as home:
        file = home / "store.db"
        content = file.read_bytes()
        at = content.index(what)
        file.write_bytes(content[:at] + flipped(what, bit) + content[at + len(what) :])
        with open_store(home) as store:
            assert not verify(store).ok


@given(st.integers(0, 10**6), st.integers(1, 400), st.binary(min_size=1, max_size=4))
@settings(max_examples=examples(30), deadline=None)
def test_no_damage_of_the_file_makes_the_audit_itself_fail(kept: Path, at: int, length: int, what: bytes) -> None:
    """Damage is reported or raises a typed error, never another exception; or it hits nothing that we keep."""
    with copied(kept) as home:
        content = bytearray((home / "store.db").read_bytes())
        start = at % len(content)
        content[start : start + length] = (what * length)[: len(content[start : start + length])]
        (home / "store.db").write_bytes(content)
        try:
            with open_store(home) as store:
                report = verify(store)
                same = report.ok and [line.hash for name in ("m-1", "m-2") for line in store.log.read(name)]
        except StoreError:
            return
        if report.ok:
            with open_store(kept, read_only=True) as store:
                assert same == [line.hash for name in ("m-1", "m-2") for line in store.log.read(name)]


def test_a_mission_that_is_gone_but_for_its_head(kept: Path) -> None:
    def change(raw: sqlite3.Connection) -> None:
        raw.execute("DELETE FROM events WHERE mission = 'm-1'")
        raw.execute("DELETE FROM missions WHERE id = 'm-1'")

    assert {problem.kind for problem in audited(kept, change).problems} == {"mission_missing", "tail_missing"}


def test_a_table_that_is_gone_is_a_problem_not_a_crash(kept: Path) -> None:
    report = audited(kept, lambda raw: raw.execute("DROP TABLE events"))
    assert {problem.kind for problem in report.problems} == {"store_damaged"}


def test_a_single_mission_can_be_audited(kept: Path) -> None:
    assert audited(kept, lambda raw: put(raw, 3, "type", "x"), "m-2").ok
    alone = audited(kept, lambda raw: put(raw, 3, "type", "x"), "m-1")
    assert (places(alone), alone.events, alone.missions) == ({("m-1", 3)}, LINES, 1)
    with pytest.raises(NotFoundError, match="'m-3'"):
        audited(kept, lambda raw: None, "m-3")
