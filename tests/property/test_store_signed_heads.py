"""Every change of a log with signed heads, of the heads, the key or an export is found, and its place is named."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.conftest import examples

from chargehand.core.errors import UsageError
from chargehand.core.events import chain_hash, payload_digest
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.audit import AuditReport, verify
from chargehand.store.export import export_log, verify_export
from chargehand.store.heads import SignedHead
from chargehand.store.store import open_store

REQUEST = MissionRequest(text="ü x", agent="a", command=(), slug="x")
CREATED = MissionCreated(project="p", repository="/r", request=REQUEST)
LINES, FIRST, SIGNED, OTHER, ERASED = 12, 4, 8, 5, 3  # lines of m-1, its two signed ones, lines of m-2 (signed)
Change = Callable[[Path], object]
seqs = st.integers(1, LINES)
bits = st.integers(0, 10_000)


def step(number: int) -> StepFinished:
    return StepFinished(step=f"step-{number}", input="i", output="o" * (number % 5), seconds=1.0)


def build(home: Path) -> None:
    with open_store(home) as store:
        for mission, lines, signed in (("m-1", LINES, (FIRST, SIGNED)), ("m-2", OTHER, (OTHER,))):
            store.log.append(mission, CREATED)
            for number in range(2, lines + 1):
                store.log.append(mission, step(number), durable=number in signed)
                if number in signed:
                    store.sign_head(mission)
        store.erase_payload("m-1", ERASED, reason="asked for")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("kept") / "home"
    build(home)
    return home


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the same missions and another key."""
    home = tmp_path_factory.mktemp("other") / "home"
    build(home)
    return home


@pytest.fixture(scope="module")
def exported(kept: Path) -> list[bytes]:
    with open_store(kept, read_only=True) as store:
        return list(export_log(store, ["m-1", "m-2"]))


@contextmanager
def changed(kept: Path, *changes: Change) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        shutil.copytree(kept, home)
        for change in changes:
            change(home)
        yield home


def audited(kept: Path, *changes: Change, witnesses: tuple[SignedHead, ...] = ()) -> AuditReport:
    with changed(kept, *changes) as home, open_store(home) as store:
        return verify(store, witnesses=witnesses)


def found(report: AuditReport) -> set[tuple[str, int | None, str]]:
    return {(problem.mission, problem.seq, problem.kind) for problem in report.problems}


def flipped(content: bytes, bit: int) -> bytes:
    at = bit % (len(content) * 8)
    return content[: at // 8] + bytes([content[at // 8] ^ (1 << at % 8)]) + content[at // 8 + 1 :]


def head(home: Path, seq: int, mission: str = "m-1") -> SignedHead:
    return SignedHead.decode((home / f"heads/{mission}.{seq}.signed").read_bytes())


@contextmanager
def database(home: Path) -> Iterator[sqlite3.Connection]:
    raw = sqlite3.connect(home / "store.db")
    try:
        with raw:
            yield raw
    finally:
        raw.close()


def cut(seq: int) -> Change:
    """Return the change that ends the log before `seq` and makes everything unsigned fit."""

    def change(home: Path) -> None:
        with database(home) as raw:
            raw.execute("DELETE FROM erasures WHERE mission = 'm-1' AND seq >= ?", (seq,))
            raw.execute("DELETE FROM events WHERE mission = 'm-1' AND seq >= ?", (seq,))
            fit(raw, seq - 1)

    return change


def fit(raw: sqlite3.Connection, seq: int) -> None:
    last = raw.execute("SELECT seq, hash FROM events WHERE mission = 'm-1' AND seq = ?", (seq,)).fetchone()
    raw.execute("UPDATE missions SET last_seq = ?, last_hash = ? WHERE id = 'm-1'", last)


def rewritten(seq: int) -> Change:
    """Return the change that makes a whole new chain from `seq` on."""

    def change(home: Path) -> None:
        with database(home) as raw:
            for number in range(seq, LINES + 1):
                (prev,) = raw.execute(
                    "SELECT hash FROM events WHERE mission = 'm-1' AND seq = ?", (number - 1,)
                ).fetchone()
                payload = f'{{"forged":{number}}}'.encode()
                line = {"mission": "m-1", "seq": number, "time": "2026-01-01", "type": "step.finished"}
                line |= {"digest": payload_digest(payload), "prev": prev}
                line |= {"payload": payload, "hash": chain_hash(**line)}
                sets = ", ".join(f"{name} = ?" for name in line)
                values = (*line.values(), number)
                raw.execute(f"UPDATE events SET {sets} WHERE mission = 'm-1' AND seq = ?", values)
            raw.execute("DELETE FROM erasures WHERE seq >= ?", (seq,))
            fit(raw, LINES)

    return change


def without(*patterns: str) -> Change:
    """Return the change that removes files."""

    def change(home: Path) -> None:
        for pattern in patterns:
            for path in home.glob(pattern):
                path.unlink()

    return change


def test_an_untouched_log_is_whole(kept: Path) -> None:
    report = audited(kept)
    assert (report.problems, report.signed_heads, len(report.keys)) == ((), 3, 1)


@given(st.integers(2, LINES))
@settings(max_examples=examples(11), deadline=None)
def test_a_cut_tail_is_found_by_signed_heads_alone(kept: Path, seq: int) -> None:
    report = audited(kept, cut(seq), without("heads/m-1"))
    assert report.ok == (seq > SIGNED), "what the docstring of `verify` says, no more and no less"
    assert report.ok or ("m-1", seq, "tail_missing") in found(report)


@given(st.integers(2, LINES))
@settings(max_examples=examples(11), deadline=None)
def test_a_rewritten_chain_is_found_by_signed_heads_alone(kept: Path, seq: int) -> None:
    report = audited(kept, rewritten(seq), without("heads/m-1"))
    assert report.ok == (seq > SIGNED)
    signed = {("m-1", number, "head_changed") for number in (FIRST, SIGNED) if number >= seq}
    assert found(report) == signed


@given(st.integers(2, SIGNED))
@settings(max_examples=examples(7), deadline=None)
def test_an_external_witness_finds_tampering_of_all_local_files(kept: Path, seq: int) -> None:
    witness = head(kept, SIGNED)
    hidden = (without("heads/*"), cut(seq))
    assert audited(kept, *hidden).ok
    report = audited(kept, *hidden, witnesses=(witness,))
    assert found(report) == {("m-1", seq, "tail_missing")}
    anew = audited(kept, without("heads/*"), rewritten(seq), witnesses=(witness,))
    assert found(anew) == {("m-1", SIGNED, "head_changed")}


def test_a_witness_that_holds_counts_once(kept: Path) -> None:
    witness = head(kept, SIGNED)
    assert audited(kept, witnesses=(witness, witness)).signed_heads == 3
    assert audited(kept, without("heads/*"), witnesses=(witness,)).signed_heads == 1
    with open_store(kept, read_only=True) as store:
        assert verify(store, "m-1", witnesses=[witness]).signed_heads == 2
        with pytest.raises(UsageError) as caught:
            verify(store, "m-2", witnesses=[witness])
    assert caught.value.code == "head_of_other_mission"


def test_a_witness_of_a_mission_that_is_gone(kept: Path) -> None:
    def forget(home: Path) -> None:
        with database(home) as raw:
            for table in ("erasures", "events"):
                raw.execute(f"DELETE FROM {table} WHERE mission = 'm-1'")
            raw.execute("DELETE FROM missions WHERE id = 'm-1'")

    report = audited(kept, forget, without("heads/m-1*"), witnesses=(head(kept, FIRST),))
    assert found(report) == {("m-1", None, "mission_missing"), ("m-1", 1, "tail_missing")}


@given(st.sampled_from([FIRST, SIGNED]), bits)
@settings(max_examples=examples(60), deadline=None)
def test_a_flipped_bit_of_a_signed_head(kept: Path, seq: int, bit: int) -> None:
    path = f"heads/m-1.{seq}.signed"
    content = (kept / path).read_bytes()[:-1]
    report = audited(kept, lambda home: (home / path).write_bytes(flipped(content, bit)))
    assert {(mission, place) for mission, place, _ in found(report)} == {("m-1", seq)}


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("hash", "0" * 64, "head_forged"),
        ("time", "2020-01-01T00:00:00.000000+00:00", "head_forged"),
        ("signature", "0" * 128, "head_forged"),
        ("key", "0" * 64, "key_unknown"),
        ("mission", "m-2", "head_changed"),
        ("seq", 5, "head_changed"),
    ],
)
def test_a_changed_field_of_a_signed_head(kept: Path, field: str, value: object, kind: str) -> None:
    forged = replace(head(kept, SIGNED), **{field: value})
    path = f"heads/m-1.{SIGNED}.signed"
    report = audited(kept, lambda home: (home / path).write_bytes(forged.encode()))
    assert found(report) == {("m-1", SIGNED, kind)}


def test_a_head_of_another_event_is_rejected(kept: Path) -> None:
    moved = audited(kept, lambda home: (home / "heads/m-1.4.signed").rename(home / "heads/m-1.6.signed"))
    assert found(moved) == {("m-1", 6, "head_changed")}


def test_a_head_by_another_key_is_named(kept: Path, other: Path) -> None:
    """Another key signs the true head as well as a false one: neither counts."""
    forged = head(other, SIGNED)
    path = f"heads/m-1.{SIGNED}.signed"
    report = audited(kept, lambda home: (home / path).write_bytes(forged.encode()))
    assert ("m-1", SIGNED, "key_unknown") in found(report)
    assert ("m-1", SIGNED, "key_unknown") in found(audited(kept, witnesses=(forged,)))
    posing = replace(forged, key=head(kept, SIGNED).key)
    assert found(audited(kept, witnesses=(posing,))) == {("m-1", SIGNED, "head_forged")}


def copied(source: Path, *names: str) -> Change:
    def change(home: Path) -> None:
        for name in names:
            shutil.copy(source / "keys" / name, home / "keys" / name)

    return change


def test_a_replaced_public_key_is_named(kept: Path, other: Path) -> None:
    assert found(audited(kept, copied(other, "audit.pub"))) == {("", None, "key_changed")}


def test_a_replaced_pair_of_keys_is_named_by_every_head(kept: Path, other: Path) -> None:
    report = audited(kept, copied(other, "audit.pub", "audit.key"))
    heads = {("m-1", FIRST), ("m-1", SIGNED), ("m-2", OTHER)}
    assert found(report) == {(*place, "key_unknown") for place in heads}
    assert report.signed_heads == 0


def test_keys_that_are_gone_are_named_and_heads_still_compared(kept: Path) -> None:
    gone = without("keys/*")
    assert found(audited(kept, gone)) == {("", None, "key_missing")}
    both = found(audited(kept, gone, without("heads/m-1"), cut(6)))
    assert both == {("", None, "key_missing"), ("m-1", 6, "tail_missing")}


@given(st.sampled_from(["audit.key", "audit.pub"]), bits)
@settings(max_examples=examples(150), deadline=None)
def test_a_flipped_bit_of_a_key_is_named(kept: Path, name: str, bit: int) -> None:
    content = (kept / "keys" / name).read_bytes()
    report = audited(kept, lambda home: (home / "keys" / name).write_bytes(flipped(content, bit)))
    kinds = {kind for _, _, kind in found(report)}
    assert {"key_changed"} <= kinds <= {"key_changed", "key_unknown"}


def test_a_directory_in_place_of_a_head_is_reported(kept: Path) -> None:
    def change(home: Path) -> None:
        (home / "heads/m-1").unlink()
        (home / "heads/m-1").mkdir()

    assert found(audited(kept, change)) == {("m-1", None, "head_changed")}


# --- exports


def test_an_export_proves_itself(kept: Path, exported: list[bytes]) -> None:
    report = verify_export(exported)
    assert (report.problems, report.missions, report.events, report.signed_heads) == ((), 2, LINES + OTHER, 3)
    assert report.keys == (head(kept, SIGNED).key,)
    assert verify_export(exported, witnesses=[head(kept, SIGNED)]).ok
    documents = [json.loads(line) for line in exported]
    (erased,) = [line for line in documents if line["record"] == "event" and line["payload"] is None]
    assert (erased["seq"], erased["erased"]["reason"]) == (ERASED, "asked for")


def test_an_export_can_be_verified_without_the_product(exported: list[bytes]) -> None:
    """Follow the page on the format with a program that imports nothing of the product."""
    documents = [json.loads(line) for line in exported]
    keys = {one["id"]: load_pem_public_key(one["public"].encode()) for one in documents if one["record"] == "key"}
    hashes: dict[tuple[str, int], str] = {}
    for line in documents:
        if line["record"] != "event":
            continue
        mission, seq = line["mission"], line["seq"]
        assert line["prev"] == hashes.get((mission, seq - 1), "0" * 64)
        assert line["payload"] is None or hashlib.sha256(line["payload"].encode()).hexdigest() == line["digest"]
        parts = (line["prev"], mission, str(seq), line["time"], line["type"], line["digest"])
        hashes[mission, seq] = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        assert hashes[mission, seq] == line["hash"]
    heads = [line["head"] for line in documents if line["record"] == "head"]
    assert len(heads) == 3
    for one in heads:
        assert hashes[one["mission"], one["seq"]] == one["hash"]
        fields = ("chargehand signed head v1", one["mission"], one["seq"], one["hash"], one["time"], one["key"])
        message = "".join(f"{value}\n" for value in fields).encode()
        keys[one["key"]].verify(bytes.fromhex(one["signature"]), message)
    end = documents[-1]
    assert end["sha256"] == hashlib.sha256(b"".join(exported[:-1])).hexdigest()


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_flipped_bit_anywhere_in_an_export(exported: list[bytes], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(exported) - 1))
    line = exported[number]
    bit = data.draw(st.integers(0, len(line) * 8 - 1))
    assume(bit // 8 != len(line) - 1 or number < len(exported) - 1)  # the last newline carries no information
    tampered = b"".join((*exported[:number], flipped(line, bit), *exported[number + 1 :]))
    assert not verify_export(tampered.splitlines(keepends=True)).ok


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_a_dropped_line_of_an_export(exported: list[bytes], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(exported) - 1))
    report = verify_export([*exported[:number], *exported[number + 1 :]])
    assert not report.ok
    line = json.loads(exported[number])
    if line["record"] == "event":
        last = line["seq"] == {"m-1": LINES, "m-2": OTHER}[line["mission"]]
        places = {(problem.mission, problem.seq) for problem in report.problems}
        assert (line["mission"], line["seq"]) in places or last


@given(seqs, seqs)
@example(LINES - 1, LINES)
@settings(max_examples=examples(30), deadline=None)
def test_two_swapped_lines_of_an_export(exported: list[bytes], one: int, two: int) -> None:
    assume(one != two)
    lines = list(exported)
    lines[one], lines[two] = lines[two], lines[one]  # line 0 is the header, then m-1 from 1 on
    places = {(problem.mission, problem.seq) for problem in verify_export(lines).problems}
    last_two = {one, two} == {LINES - 1, LINES}  # no line follows that would expose the second one
    assert places >= {("m-1", min(one, two))} | ({("m-1", max(one, two))} if not last_two else set())


def test_the_end_record_covers_data_outside_the_chain(exported: list[bytes]) -> None:
    tampered = [line.replace(b"asked for", b"asked f0r") for line in exported]
    assert found(verify_export(tampered)) == {("", None, "export_malformed")}


def sealed(documents: list[dict[str, object]]) -> list[bytes]:
    """Return lines with an end that fits them, as a forger would write it."""
    body = [json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in documents if one["record"] != "end"]
    counts = {kind: sum(one["record"] == kind for one in documents) for kind in ("event", "head")}
    end = {"record": "end", "events": counts["event"], "heads": counts["head"]}
    end["sha256"] = hashlib.sha256(b"".join(body)).hexdigest()
    return [*body, json.dumps(end).encode() + b"\n"]


def documents_of(lines: list[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines]


@given(st.integers(2, LINES))
@settings(max_examples=examples(11), deadline=None)
def test_a_truncated_and_resealed_export_is_found(exported: list[bytes], seq: int) -> None:
    documents = [one for one in documents_of(exported) if one.get("mission") != "m-1" or one["seq"] < seq]
    report = verify_export(sealed(documents))
    assert report.ok == (seq > SIGNED)
    assert report.ok or ("m-1", seq, "tail_missing") in found(report)


def test_an_export_signed_by_another_key_is_found_by_a_witness(
    kept: Path, other: Path, exported: list[bytes]
) -> None:
    with open_store(other, read_only=True) as store:
        forged = list(export_log(store, ["m-1"]))
    report = verify_export(forged)
    assert report.ok
    assert report.keys != verify_export(exported).keys
    told = verify_export(forged, witnesses=[head(kept, SIGNED)])
    assert ("m-1", SIGNED, "key_unknown") in found(told)


def test_heads_without_their_key_and_a_key_under_a_false_name(exported: list[bytes]) -> None:
    documents = documents_of(exported)
    bare = sealed([one for one in documents if one["record"] != "key"])
    assert found(verify_export(bare)) == {("", None, "key_missing")}
    renamed = sealed([one | {"id": "0" * 64} if one["record"] == "key" else one for one in documents])
    assert ("", None, "export_malformed") in found(verify_export(renamed))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"{}\n", b"\xff\xfe", b'{"record":"export","format":2,"missions":[]}\n', b"[1]\n" * 3]
)
def test_an_invalid_export_is_reported(content: bytes) -> None:
    report = verify_export(content.splitlines(keepends=True))
    assert "export_malformed" in {problem.kind for problem in report.problems}


def test_an_unordered_erasure_in_an_export_is_found(exported: list[bytes]) -> None:
    documents = [one | {"payload": None} if one.get("seq") == 5 else one for one in documents_of(exported)]
    report = verify_export(sealed(documents))
    assert found(report) == {("m-1", 5, "payload_missing"), ("m-2", 5, "payload_missing")}


def test_an_empty_store_has_an_export(tmp_path: Path) -> None:
    with open_store(tmp_path / "home") as store:
        assert verify_export(export_log(store, [])).ok
