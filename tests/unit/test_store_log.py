from __future__ import annotations

import pytest
from msgspec.structs import replace

from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.events import GENESIS, chain_hash, decode, payload_digest
from chargehand.core.fold import fold
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.audit import verify
from chargehand.store.rows import MissionFilter, MissionRow
from chargehand.store.store import Store

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
)
STEP = StepFinished(step="s", input="i", output={"n": [1, None, "ü"]}, seconds=1.5)
STARTED = AttemptStarted(attempt="a-1", number=1, agent="a", workspace="w-1", tree="t")


def test_lines_are_chained_as_the_vocabulary_says(store: Store, clock: SteppedClock) -> None:
    lines = store.log.append("m-1", CREATED)
    clock.advance(2)
    lines += store.log.append("m-1", STEP, STARTED)
    assert [line.seq for line in lines] == [1, 2, 3]
    assert [line.time[17:19] for line in lines] == ["00", "02", "02"]
    assert [decode(line.type, line.payload or b"") for line in lines] == [CREATED, STEP, STARTED]
    prev = GENESIS
    for line in lines:
        assert line.prev == prev
        assert line.digest == payload_digest(line.payload or b"")
        covered = {name: getattr(line, name) for name in ("mission", "seq", "time", "type", "digest", "prev")}
        prev = chain_hash(**covered)
        assert line.hash == prev


def test_appended_events_are_read_back(store: Store) -> None:
    lines = store.log.append("m-1", CREATED, STEP) + store.log.append("m-1", STARTED, durable=True)
    assert store.log.read("m-1") == lines
    assert store.log.read("m-1", after=2) == lines[2:]
    assert store.log.read("m-1", after=3) == ()
    assert store.log.read("m-2") == ()
    assert fold(store.log.read("m-1"), live=True).attempts[0].id == "a-1"


def test_lines_of_some_types_are_read_alone(store: Store) -> None:
    lines = store.log.append("m-1", CREATED, STEP, STARTED, STEP)
    assert store.log.read("m-1", types={STEP.type}) == (lines[1], lines[3])
    assert store.log.read("m-1", types=[STEP.type, CREATED.type], after=1) == (lines[1], lines[3])
    assert store.log.read("m-1", types=["no.such"]) == ()


def test_an_empty_append_has_no_effect(store: Store) -> None:
    assert store.log.append("m-1") == ()
    assert store.log.missions() == ()


def test_missions_have_separate_hash_chains(store: Store) -> None:
    one, other = store.log.append("m-1", CREATED), store.log.append("m-2", CREATED)
    assert one[0].prev == other[0].prev == GENESIS
    assert one[0].hash != other[0].hash


def test_a_batch_is_appended_whole_or_not_at_all(store: Store) -> None:
    lines = store.log.append("m-1", CREATED)
    unkept = replace(STEP, output=object())
    with pytest.raises(TypeError):
        store.log.append("m-1", STEP, unkept)
    with pytest.raises(UsageError):
        store.log.append("m-1", STEP, CREATED)
    assert store.log.read("m-1") == lines
    assert verify(store).ok


def test_a_mission_begins_once_and_with_its_creation(store: Store) -> None:
    with pytest.raises(NotFoundError, match="'m-1'"):
        store.log.append("m-1", STEP)
    store.log.append("m-1", CREATED)
    with pytest.raises(UsageError) as caught:
        store.log.append("m-1", CREATED)
    assert caught.value.code == "mission_exists"
    with pytest.raises(UsageError):
        store.log.append("m-2", CREATED, CREATED)
    assert [row.id for row in store.log.missions()] == ["m-1"]


@pytest.mark.parametrize("name", ["", "../m-1", "a/b", ".", "M-1", "-x", "m" * 65, "m-1\n"])
def test_an_id_that_could_leave_the_directory_is_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError):
        store.log.append(name, CREATED, durable=True)


def test_mission_rows_contain_the_end_of_each_log(store: Store, clock: SteppedClock) -> None:
    first = store.log.append("m-1", CREATED)
    clock.advance(1)
    store.log.append("m-2", replace(CREATED, project="q"))
    last = store.log.append("m-1", STEP)[-1]
    row = MissionRow(id="m-1", project="p", created=first[0].time, last_seq=2, last_hash=last.hash, runnable=True)
    assert store.log.get("m-1") == row
    assert [each.id for each in store.log.missions()] == ["m-1", "m-2"]
    assert [each.id for each in store.log.missions(limit=1)] == ["m-2"]
    assert store.log.missions(project="p") == (row,)
    assert store.log.missions(project="none") == ()


def test_mission_rows_contain_the_user(store: Store) -> None:
    for name, user in (("m-1", "ann"), ("m-2", "")):
        store.log.append(name, replace(CREATED, user=user))
    assert {row.id: row.user for row in store.log.takeable()} == {"m-1": "ann", "m-2": ""}
    assert (
        store.log.get("m-1").user
        == next(each.row.user for each in store.log.summaries(wanted=MissionFilter(user="ann")))
        == "ann"
    )


def test_the_latest_mission_of_a_project_is_the_last_created(store: Store, clock: SteppedClock) -> None:
    assert store.log.latest("p") is None
    for name in ("m-2", "m-3", "m-1"):
        store.log.append(name, CREATED)
        clock.advance(1)
    store.log.append("m-4", replace(CREATED, project="q"))
    store.log.append("m-2", STEP)
    latest = store.log.latest("p")
    assert latest is not None
    assert latest.id == "m-1"


@pytest.mark.parametrize("name", ["m-01aaa111", "m-01aaa", "01aaa", "111", "aaa111", "M-01AAA", " 01aaa111 "])
def test_a_mission_is_found_by_its_beginning_or_end(store: Store, name: str) -> None:
    for each in ("m-01aaa111", "m-01bbb222", "m-01bbb2223"):
        store.log.append(each, CREATED)
    assert store.log.find(name) == "m-01aaa111"


def test_a_complete_id_takes_precedence_over_longer_ids_with_that_prefix(store: Store) -> None:
    for each in ("m-01bbb222", "m-01bbb2223"):
        store.log.append(each, CREATED)
    assert store.log.find("m-01bbb222") == "m-01bbb222"


def test_an_ambiguous_or_unknown_mission_id_is_an_error_with_a_hint(store: Store) -> None:
    for number in range(10):
        store.log.append(f"m-01aaa{number}", CREATED)
    with pytest.raises(UsageError) as ambiguous:
        store.log.find("01a")
    assert ambiguous.value.code == "ambiguous"
    assert "m-01aaa9" in ambiguous.value.hint
    with pytest.raises(NotFoundError, match="'m-01aab3'") as unknown:
        store.log.find("m-01aab3")
    assert "m-01aaa3" in unknown.value.hint
    for nothing in ("", "  "):
        with pytest.raises(UsageError):
            store.log.find(nothing)
    for wild in ("%", "m-01aaa_", "*"):
        with pytest.raises(NotFoundError):
            store.log.find(wild)
    with pytest.raises(NotFoundError):
        store.log.get("01aaa1")


def test_an_erased_payload_is_gone_and_the_chain_whole(store: Store) -> None:
    secret = replace(STEP, output="the-secret-word")
    before = store.log.append("m-1", CREATED, secret, STARTED)
    store.erase_payload("m-1", 2, reason="asked for")
    store.erase_payload("m-1", 2, reason="again")
    after = store.log.read("m-1")
    assert after == (before[0], replace(before[1], payload=None), before[2])
    assert verify(store).ok
    assert fold(after, live=True).unknown_events == 1
    store.log.append("m-1", STEP)
    assert verify(store).ok
    for path in store.home.rglob("*"):
        assert not path.is_file() or b"the-secret-word" not in path.read_bytes(), path


def test_erasing_a_missing_event_raises(store: Store) -> None:
    store.log.append("m-1", CREATED)
    for mission, seq in (("m-1", 2), ("m-2", 1)):
        with pytest.raises(NotFoundError):
            store.erase_payload(mission, seq, reason="")
    assert verify(store).ok
