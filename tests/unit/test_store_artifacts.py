from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, StoreError, UsageError
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.ports import ArtifactSink
from chargehand.core.records import MissionRequest
from chargehand.store.audit import verify
from chargehand.store.store import Store, open_store

LONG = b"the same line again and again\n" * 1000
CREATED = MissionCreated(
    project="p", repository="/r", request=MissionRequest(text="x", agent="a", command=(), slug="x")
)
STEP = StepFinished(step="s", input="i", output="o", seconds=1.0)


def files(store: Store) -> list[Path]:
    return sorted(path for path in (store.home / "artifacts").rglob("*") if path.is_file())


def test_an_id_names_the_content_and_the_file(store: Store) -> None:
    sink: ArtifactSink = store.artifacts
    name = sink.put(b"short", kind="output", mission="m-1")
    assert name == hashlib.sha256(b"short").hexdigest()
    (path,) = files(store)
    assert path == store.home / "artifacts" / name[:2] / name
    assert path.read_bytes() == b"short"


@given(content=st.binary(max_size=200) | st.integers(4000, 9000).map(bytes) | st.just(LONG), durable=st.booleans())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_artifact_round_trips_unchanged(store: Store, content: bytes, durable: bool) -> None:
    assert store.artifacts.get(store.artifacts.put(content, kind="output", durable=durable)) == content


def test_long_content_is_packed_when_that_saves_space(store: Store) -> None:
    name = store.artifacts.put(LONG, kind="output")
    (path,) = files(store)
    assert path.name == name + ".z"
    assert path.stat().st_size < len(LONG) / 10
    noise = hashlib.shake_256(b"seed").digest(20_000)
    assert store.artifacts.get(store.artifacts.put(noise, kind="output")) == noise
    assert sum(path.suffix == ".z" for path in files(store)) == 1


def test_equal_content_is_kept_once_and_noted_for_each_use(store: Store, clock: SteppedClock) -> None:
    names = set()
    for mission, kind in (
        ("m-1", "stdout"),
        ("m-1", "stdout"),
        ("m-2", "stdout"),
        ("m-1", "diff"),
        (None, "diff"),
    ):
        names.add(store.artifacts.put(LONG, kind=kind, mission=mission))
        clock.advance(1)
    assert len(names) == len(files(store)) == 1
    assert [(row.kind, row.size) for row in store.artifacts.list("m-1")] == [("stdout", 30_000), ("diff", 30_000)]
    assert [row.mission for row in store.artifacts.list()] == ["m-1", "m-2", "m-1", ""]


@pytest.mark.parametrize("content", [b"short", LONG])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_changed_content_is_never_handed_out_and_is_mended_by_the_next_put(
    store: Store, content: bytes, damage: str
) -> None:
    name = store.artifacts.put(content, kind="output")
    (path,) = files(store)
    kept = path.read_bytes()
    path.write_bytes({"flip": kept[:2] + bytes([kept[2] ^ 1]) + kept[3:], "cut": kept[:-1], "empty": b""}[damage])
    with pytest.raises(StoreError) as caught:
        store.artifacts.get(name)
    assert caught.value.code == "artifact_corrupt"
    assert name in caught.value.message
    assert store.artifacts.put(content, kind="output") == name
    assert store.artifacts.get(name) == content


def test_other_content_that_unpacks_well_is_refused(store: Store) -> None:
    name = store.artifacts.put(LONG, kind="output")
    files(store)[0].write_bytes(zlib.compress(b"something else"))
    with pytest.raises(StoreError):
        store.artifacts.get(name)


def test_lost_content_is_not_the_same_as_an_unknown_id(store: Store) -> None:
    name = store.artifacts.put(b"x", kind="output")
    files(store)[0].unlink()
    with pytest.raises(StoreError):
        store.artifacts.get(name)
    for unknown in ("0" * 64, "", "../../store.db", name[:10], f"{name[:2]}/../../store.db"):
        with pytest.raises(NotFoundError):
            store.artifacts.get(unknown)


def test_putting_artifacts_leaves_no_temporary_files(store: Store) -> None:
    for number in range(5):
        store.artifacts.put(b"%d" % number * 5000, kind="output", durable=True)
    assert len(files(store)) == 5


def test_a_backup_is_an_independent_store(store: Store, tmp_path: Path) -> None:
    lines = store.log.append("m-1", CREATED, STEP, durable=True)
    name = store.artifacts.put(LONG, kind="output", mission="m-1")
    store.backup(tmp_path / "copies" / "first")
    store.log.append("m-1", STEP, durable=True)
    with open_store(tmp_path / "copies" / "first") as copy:
        assert copy.log.read("m-1") == lines
        assert copy.artifacts.get(name) == LONG
        assert verify(copy).ok
        copy.log.append("m-1", STEP, STEP)
        assert verify(copy).ok
    assert len(store.log.read("m-1")) == 3
    assert (tmp_path / "copies" / "first").stat().st_mode & 0o077 == 0


def test_a_backup_never_overwrites_and_leaves_no_half(store: Store, tmp_path: Path) -> None:
    store.artifacts.put(b"x", kind="output")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UsageError):
        store.backup(tmp_path / "taken")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        store.backup(tmp_path / "file" / "below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "home", "taken"]
