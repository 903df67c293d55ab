"""Signed heads: made from the state on disk, kept for good, with a key that is made once."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, StoreError, UsageError
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.audit import verify
from chargehand.store.heads import SignedHead
from chargehand.store.store import Store, open_store

REQUEST = MissionRequest(text="x", agent="a", command=(), slug="x")
CREATED = MissionCreated(project="p", repository="/r", request=REQUEST)
STEP = StepFinished(step="s", input="i", output="o", seconds=1.0)
HEAD = SignedHead(
    mission="m-1", seq=3, hash="a" * 64, time="2026-01-01T00:00:00.000000+00:00", key="b" * 64, signature="c" * 128
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Store:
    with open_store(home, clock=SteppedClock()) as store:
        store.log.append("m-1", CREATED)
        store.log.append("m-1", STEP, durable=True)
        yield store


def fails(store: Store, mission: str = "m-1") -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.sign_head(mission)
    assert caught.value.hint
    return caught.value


def test_signing_covers_the_last_durable_event(store: Store) -> None:
    durable = store.log.read("m-1")[-1]
    store.log.append("m-1", STEP)
    head = store.sign_head("m-1")
    assert (head.mission, head.seq, head.hash) == ("m-1", durable.seq, durable.hash)
    assert head.time == "2026-01-01T00:00:00.000000+00:00"
    report = verify(store)
    assert (report.ok, report.signed_heads, report.keys) == (True, 1, (head.key,))


def test_an_event_is_signed_once_and_later_events_add_signed_heads(store: Store, home: Path) -> None:
    first = store.sign_head("m-1")
    content = (home / "heads/m-1.2.signed").read_bytes()
    with open_store(home) as later:
        assert later.sign_head("m-1") == first
    assert (home / "heads/m-1.2.signed").read_bytes() == content == first.encode() + b"\n"
    store.log.append("m-1", STEP, durable=True)
    assert store.sign_head("m-1").seq == 3
    assert verify(store).signed_heads == 2


def test_the_signing_key_is_private_and_reused(store: Store, home: Path) -> None:
    store.sign_head("m-1")
    before = (home / "keys/audit.key").read_bytes()
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "keys/audit.key").stat().st_mode) == 0o600
    store.log.append("m-2", CREATED, durable=True)
    assert store.sign_head("m-2").key == store.sign_head("m-1").key
    assert (home / "keys/audit.key").read_bytes() == before


def test_cryptography_is_imported_only_for_signing(home: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from chargehand.store.store import open_store
from chargehand.store.audit import verify
with open_store(Path({str(home)!r})) as store:
    assert verify(store).ok
assert "cryptography" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not (home / "keys").exists()


def test_openssl_knows_key_and_signature(store: Store, home: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    head = store.sign_head("m-1")
    (tmp_path / "message").write_bytes(head.message)
    (tmp_path / "signature").write_bytes(bytes.fromhex(head.signature))
    public = str(home / "keys/audit.pub")
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", "message"]
    subprocess.run([*check, "-sigfile", "signature"], cwd=tmp_path, check=True, capture_output=True)
    der = ["openssl", "pkey", "-pubin", "-in", public, "-outform", "DER", "-out", "der"]
    subprocess.run(der, cwd=tmp_path, check=True, capture_output=True)
    summed = subprocess.run(["sha256sum", "der"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert summed.stdout.split()[0] == head.key


def test_signing_a_missing_or_undurable_mission_raises(store: Store, home: Path) -> None:
    with pytest.raises(NotFoundError, match="'m-9'"):
        store.sign_head("m-9")
    store.log.append("m-2", CREATED)
    assert fails(store, "m-2").code == "head_missing"
    (home / "heads/m-1").write_text("nonsense")
    assert fails(store).code == "store_corrupt"


def test_a_log_that_lost_the_kept_line_is_not_signed(store: Store, home: Path) -> None:
    with store.database.write() as connection:
        connection.execute("UPDATE events SET hash = 'x' WHERE seq = 2")
    assert fails(store).code == "log_changed"
    with store.database.write() as connection:
        connection.execute("DELETE FROM events WHERE seq = 2")
    assert fails(store).code == "log_changed"
    assert not list((home / "heads").glob("*.signed"))


def test_a_line_that_was_signed_otherwise_is_not_signed_again(store: Store, home: Path) -> None:
    store.sign_head("m-1")
    shutil.rmtree(home / "keys")
    assert fails(store).code == "log_changed", "by another key"
    (home / "heads/m-1.2.signed").write_bytes(b"{}")
    assert fails(store).code == "store_corrupt"
    assert (home / "heads/m-1.2.signed").read_bytes() == b"{}", "evidence stays as it is"


def test_a_broken_pair_of_keys_is_never_replaced(store: Store, home: Path, tmp_path: Path) -> None:
    store.sign_head("m-1")
    key, public = home / "keys/audit.key", home / "keys/audit.pub"
    whole, known = key.read_bytes(), public.read_bytes()
    key.write_bytes(b"garbage")
    assert fails(store).code == "key_damaged"
    assert key.read_bytes() == b"garbage"
    key.unlink()
    assert fails(store).code == "key_missing"
    assert not key.exists()
    assert verify(store).ok, "the public key is enough to verify"
    key.write_bytes(whole)
    public.write_bytes(other_home(tmp_path))
    assert fails(store).code == "key_damaged"
    public.unlink()
    assert store.sign_head("m-1").seq == 2, "as a crash between the two files leaves it"
    assert public.read_bytes() == known


def other_home(place: Path) -> bytes:
    """Return the public key of another state directory."""
    with open_store(place / "other") as store:
        store.log.append("m-1", CREATED, durable=True)
        store.sign_head("m-1")
    return (place / "other/keys/audit.pub").read_bytes()


def test_a_backup_contains_signed_heads_and_keys_and_can_sign(store: Store, tmp_path: Path) -> None:
    head = store.sign_head("m-1")
    store.backup(tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        assert verify(copy, witnesses=[head]).signed_heads == 1
        copy.log.append("m-1", STEP, durable=True)
        assert copy.sign_head("m-1").key == head.key
    assert stat.S_IMODE((tmp_path / "copy/keys/audit.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "copy/keys").stat().st_mode) == 0o700


def test_an_emptied_database_is_refused_for_its_signed_heads_alone(store: Store, home: Path) -> None:
    store.sign_head("m-1")
    store.close()
    (home / "heads/m-1").unlink()
    for name in ("store.db-wal", "store.db-shm"):
        (home / name).unlink(missing_ok=True)
    (home / "store.db").write_bytes(b"")
    with pytest.raises(StoreError) as caught:
        open_store(home)
    assert caught.value.code == "store_corrupt"


def test_a_partially_written_head_is_ignored(store: Store, home: Path) -> None:
    store.sign_head("m-1")
    (home / "heads/.tmp-torn").write_bytes(b'{"format":"charge')
    assert verify(store).signed_heads == 1


def test_concurrent_processes_sign_with_the_same_key(home: Path) -> None:
    """Each waits at a gate before the key exists; all sign the same mission and a separate one each."""
    script = """
import os, sys
from pathlib import Path
from chargehand.core.mission_events import MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.store.store import open_store
home = Path(sys.argv[1])
request = MissionRequest(text="x", agent="a", command=(), slug="x")
created = MissionCreated(project="p", repository="/r", request=request)
with open_store(home) as store:
    for number in range(5):
        store.log.append(f"m-{number}", created, durable=True)
gate, opener = os.pipe()
children = []
for number in range(1, 5):
    child = os.fork()
    if not child:
        os.read(gate, 1)
        with open_store(home) as store:
            os.write(1, store.sign_head("m-0").encode() + b"\\n")  # at once: the others write there too
            store.sign_head(f"m-{number}")
        os._exit(0)
    children.append(child)
os.write(opener, b"1234")
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, home], env=os.environ, capture_output=True, text=True, check=True
    )
    signed = done.stdout.splitlines()
    assert (len(signed), len(set(signed))) == (4, 1)
    with open_store(home) as store:
        report = verify(store)
    assert (report.ok, report.signed_heads, len(report.keys)) == (True, 5, 1)


def test_a_signed_head_round_trips_through_text() -> None:
    assert SignedHead.decode(HEAD.encode()) == HEAD
    assert SignedHead.decode(b" " + HEAD.encode() + b"\n") == HEAD
    assert b"\n" not in HEAD.encode()
    lines = HEAD.message.decode().splitlines()
    assert lines == ["chargehand signed head v1", "m-1", "3", HEAD.hash, HEAD.time, HEAD.key]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"\xff",
        HEAD.encode()[:-2],
        HEAD.encode().replace(b"chargehand-head-1", b"chargehand-head-2"),
        HEAD.encode().replace(b'"seq":3', b'"seq":"3"'),
        HEAD.encode().replace(b'"seq":3', b'"seq":0'),
        HEAD.encode().replace(b'"seq":3', b'"seq":3,"more":1'),
        replace(HEAD, mission="m-1\nm-2").encode(),
        replace(HEAD, mission="../x").encode(),
        replace(HEAD, hash="A" * 64).encode(),
        replace(HEAD, hash="a" * 64 + "\n").encode(),
        replace(HEAD, time="yesterday").encode(),
        replace(HEAD, signature="c" * 127).encode(),
        HEAD.encode() + b" " * 5000,
    ],
)
def test_decoding_a_malformed_head_raises(content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        SignedHead.decode(content)
    assert caught.value.code == "head_malformed"
    assert caught.value.hint
