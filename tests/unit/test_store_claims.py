"""A mission has at most one holder, and a holder that was replaced writes nothing more."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.older_stores import as_of_version_6

from chargehand.core.errors import FencedError, NotFoundError, RefusedError
from chargehand.core.events import Payload
from chargehand.core.mission_events import (
    CancelAsked,
    MessageSent,
    MissionCreated,
    MissionFinished,
    MissionPaused,
    MissionResumed,
)
from chargehand.core.records import MissionRequest
from chargehand.store.audit import verify
from chargehand.store.store import Store, open_store

CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
)
SAID = MessageSent(identity="me", text="x")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        opened.log.append("m-1", CREATED)
        yield opened


def test_a_claim_moves_the_epoch_and_names_the_owner(store: Store) -> None:
    assert store.log.claim("m-1", owner="k-1", epoch=0) == 1
    row = store.log.get("m-1")
    assert (row.epoch, row.owner, row.runnable) == (1, "k-1", True)
    store.log.release("m-1", epoch=1)
    assert store.log.get("m-1").owner is None
    assert store.log.claim("m-1", owner="k-2", epoch=1) == 2


def test_only_a_single_concurrent_claim_succeeds(store: Store) -> None:
    won, lost = [], []
    start = threading.Barrier(8)

    def claim(number: int) -> None:
        start.wait()
        try:
            won.append(store.log.claim("m-1", owner=f"k-{number}", epoch=0))
        except RefusedError as error:
            lost.append(error.code)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (won, lost) == ([1], ["mission_held"] * 7)


def test_claiming_a_missing_mission_raises(store: Store) -> None:
    with pytest.raises(NotFoundError, match="m-2"):
        store.log.claim("m-2", owner="k-1", epoch=0)


def test_the_overtaken_can_neither_write_nor_let_go(store: Store) -> None:
    first = store.log.claim("m-1", owner="k-1", epoch=0)
    store.log.append("m-1", SAID, epoch=first)
    second = store.log.claim("m-1", owner="k-2", epoch=first)
    for durable in (False, True):
        with pytest.raises(FencedError, match="m-1"):
            store.log.append("m-1", SAID, epoch=first, durable=durable)
    store.log.release("m-1", epoch=first)
    assert store.log.get("m-1").owner == "k-2"
    store.log.append("m-1", SAID, epoch=second)
    assert [line.seq for line in store.log.read("m-1")] == [1, 2, 3]
    assert verify(store).ok


@pytest.mark.parametrize(
    ("payloads", "runnable"),
    [
        ((MissionFinished(status="refused"),), False),
        ((MissionPaused(identity="me"),), False),
        ((CancelAsked(identity="me"),), False),
        ((MissionPaused(identity="me"), MissionResumed(identity="me")), True),
        ((MissionPaused(identity="me"), SAID), False),
        ((SAID,), True),
    ],
)
def test_runnable_missions_follow_from_their_events(
    store: Store, payloads: tuple[Payload, ...], runnable: bool
) -> None:
    for payload in payloads:
        store.log.append("m-1", payload)
    assert store.log.get("m-1").runnable is runnable
    assert [row.id for row in store.log.takeable()] == (["m-1"] if runnable else [])
    store.log.append("m-2", CREATED, *payloads)
    assert store.log.get("m-2").runnable is runnable


def test_a_claimed_mission_is_takeable_although_settled(store: Store) -> None:
    store.log.append("m-1", MissionFinished(status="waiting"))
    assert store.log.takeable() == ()
    epoch = store.log.claim("m-1", owner="k-1", epoch=0)
    assert [row.id for row in store.log.takeable()] == ["m-1"]
    store.log.release("m-1", epoch=epoch)
    assert store.log.takeable() == ()


def test_unfinished_missions_of_a_version_1_store_are_takeable(tmp_path: Path) -> None:
    home = tmp_path / "old"
    with open_store(home) as store:
        store.log.append("m-open", CREATED)
        store.log.append("m-waits", CREATED, MissionFinished(status="waiting"), durable=True)
    as_version_1(home)
    with open_store(home) as store:
        assert [(row.id, row.epoch, row.owner) for row in store.log.takeable()] == [("m-open", 0, None)]
        assert store.log.claim("m-waits", owner="k-1", epoch=0) == 1
        store.log.append("m-waits", SAID, epoch=1)
        assert verify(store).ok


def as_version_1(home: Path) -> None:
    """Remove everything from a store that the first version did not have."""
    with sqlite3.connect(home / "store.db") as raw:
        as_of_version_6(raw)
        for table in ("spending", "spending_alerts", "spending_totals", "inspections"):
            raw.execute(f"DROP TABLE {table}")
        for index in ("missions_to_take", "missions_to_wake"):
            raw.execute(f"DROP INDEX {index}")
        for column in ("epoch", "owner", "runnable", "wakes"):
            raw.execute(f"ALTER TABLE missions DROP COLUMN {column}")
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    raw.close()
