"""`audit verify` and `audit export` at the command line, on a real state directory with signed heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from chargehand.cli.main import chargehand
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.export import verify_export
from chargehand.store.heads import SignedHead
from chargehand.store.store import open_store

REQUEST = MissionRequest(text="x\x1b[31m", agent="a", command=(), slug="x")
CREATED = MissionCreated(project="p", repository="/r", request=REQUEST)
STEP = StepFinished(step="s", input="i", output="o", seconds=1.0)


class Desk:
    """A person with a state directory in which m-first is signed at its second of three lines."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.home = place / "state"
        with open_store(self.home) as store:
            store.log.append("m-first", CREATED)
            store.log.append("m-first", STEP, durable=True)
            self.head = store.sign_head("m-first")
            store.log.append("m-first", STEP)
            store.log.append("m-second", CREATED)
        self.note = place / "note"
        self.note.write_bytes(self.head.encode() + b"\n")

    def __call__(self, *words: str, code: int = 0, stdin: bytes = b"") -> Result:
        done = CliRunner().invoke(chargehand, ["audit", *words], input=stdin)
        assert done.exit_code == code, done.output
        return done

    def json(self, *words: str, code: int = 0, stdin: bytes = b"") -> Any:
        return json.loads(self(*words, "--json", code=code, stdin=stdin).stdout)

    def error(self, *words: str) -> str:
        """Run a failing command; return the code of its error."""
        done = self(*words, "--json", code=2)
        assert done.stdout == ""
        found = json.loads(done.stderr)["error"]
        assert found["hint"]
        return str(found["code"])

    def export(self, *words: str) -> Path:
        path = self.place / "export.jsonl"
        self("export", *words, "--output", str(path))
        return path

    def cut(self) -> None:
        """Remove the last lines of m-first, and every trace of them in this directory."""
        with open_store(self.home) as store, store.database.write() as connection:
            connection.execute("DELETE FROM events WHERE mission = 'm-first' AND seq > 1")
            connection.execute(
                "UPDATE missions SET last_seq = 1, last_hash = (SELECT hash FROM events "
                "WHERE mission = 'm-first' AND seq = 1) WHERE id = 'm-first'"
            )
        for path in (self.home / "heads").glob("m-first*"):
            path.unlink()


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    return Desk(tmp_path)


def test_verify_tells_what_is_signed_and_by_whom(desk: Desk) -> None:
    report = desk.json("verify")
    expected = {"ok": True, "missions": 2, "events": 4, "signed_heads": 1, "keys": [desk.head.key], "problems": []}
    assert report == expected
    assert desk.head.key in desk("verify", "first").stdout


def test_a_head_from_outside_finds_what_the_directory_hides(desk: Desk) -> None:
    assert desk.json("verify", "--head", str(desk.note))["ok"] is True
    desk.cut()
    assert desk.json("verify")["ok"] is True, "nothing here can tell"
    (problem,) = desk.json("verify", "--head", str(desk.note), code=1)["problems"]
    assert (problem["mission"], problem["seq"], problem["kind"]) == ("m-first", 2, "tail_missing")
    piped = desk("verify", "first", "--head", "-", code=1, stdin=desk.note.read_bytes())
    assert "m-first line 2: tail_missing" in piped.stdout


def test_heads_that_are_none_are_refused(desk: Desk) -> None:
    desk.note.write_bytes(b"\n")
    assert desk.error("verify", "--head", str(desk.note)) == "head_malformed"
    desk.note.write_bytes(desk.head.encode() + b"\nmore\n")
    assert desk.error("verify", "--head", str(desk.note)) == "head_malformed"
    desk.note.write_bytes(desk.head.encode())
    assert desk.error("verify", "second", "--head", str(desk.note)) == "head_of_other_mission"
    assert desk.error("verify", "--head", str(desk.place / "nosuch")) == "usage"


def test_an_export_goes_to_stdout_as_json_lines_and_verifies(desk: Desk) -> None:
    written = desk("export", "--all").stdout_bytes
    assert written == desk("export", "--all", "--json").stdout_bytes
    assert b"\x1b" not in written
    report = verify_export(written.splitlines(keepends=True))
    assert (report.ok, report.missions, report.events, report.signed_heads) == (True, 2, 4, 1)
    one = [json.loads(line) for line in desk("export", "first").stdout.splitlines()]
    assert {line["mission"] for line in one if line["record"] == "event"} == {"m-first"}


def test_an_export_verifies_without_the_store(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    path = desk.export("first")
    monkeypatch.setenv("CHARGEHAND_HOME", "not/absolute")
    report = desk.json("verify", "--export", str(path), "--head", str(desk.note))
    assert (report["ok"], report["events"], report["keys"]) == (True, 3, [desk.head.key])
    path.write_bytes(path.read_bytes().replace(b"step.finished", b"step.f1nished", 1))
    (problem,) = desk.json("verify", "--export", str(path), code=1)["problems"]
    assert (problem["mission"], problem["seq"], problem["kind"]) == ("m-first", 2, "line_changed")
    assert desk.error("verify", "first", "--export", str(path)) == "usage"


def test_an_export_never_overwrites(desk: Desk) -> None:
    path = desk.export("--all")
    before = path.read_bytes()
    assert desk.error("export", "--all", "--output", str(path)) == "output_exists"
    assert path.read_bytes() == before
    assert desk.error("export", "--all", "--output", str(desk.place / "no/such")) == "output_unwritable"
    path.unlink()
    document = desk.json("export", "first", "--output", str(path))
    assert document == {"output": str(path), "missions": ["m-first"], "bytes": path.stat().st_size}


def test_an_export_that_fails_leaves_no_file(desk: Desk) -> None:
    (desk.home / "heads/m-first.2.signed").write_bytes(b"nonsense")
    path = desk.place / "export.jsonl"
    desk("export", "first", "--output", str(path), code=6)
    assert not path.exists()


def test_what_to_export_has_to_be_said(desk: Desk) -> None:
    assert desk.error("export") == "usage"
    assert desk.error("export", "first", "--all") == "usage"
    assert desk.error("export", "nosuch") == "not_found"


def test_the_text_form_of_a_head_is_what_is_in_its_file(desk: Desk) -> None:
    assert SignedHead.decode((desk.home / "heads/m-first.2.signed").read_bytes()) == desk.head
