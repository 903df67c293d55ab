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


class Cli:
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
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    return Cli(tmp_path)


def test_verify_reports_signed_heads_and_their_keys(cli: Cli) -> None:
    report = cli.json("verify")
    expected = {"ok": True, "missions": 2, "events": 4, "signed_heads": 1, "keys": [cli.head.key], "problems": []}
    assert report == expected
    assert cli.head.key in cli("verify", "first").stdout


def test_an_external_head_reveals_a_truncated_log(cli: Cli) -> None:
    assert cli.json("verify", "--head", str(cli.note))["ok"] is True
    cli.cut()
    assert cli.json("verify")["ok"] is True, "nothing here can tell"
    (problem,) = cli.json("verify", "--head", str(cli.note), code=1)["problems"]
    assert (problem["mission"], problem["seq"], problem["kind"]) == ("m-first", 2, "tail_missing")
    piped = cli("verify", "first", "--head", "-", code=1, stdin=cli.note.read_bytes())
    assert "m-first line 2: tail_missing" in piped.stdout


def test_invalid_heads_are_refused(cli: Cli) -> None:
    cli.note.write_bytes(b"\n")
    assert cli.error("verify", "--head", str(cli.note)) == "head_malformed"
    cli.note.write_bytes(cli.head.encode() + b"\nmore\n")
    assert cli.error("verify", "--head", str(cli.note)) == "head_malformed"
    cli.note.write_bytes(cli.head.encode())
    assert cli.error("verify", "second", "--head", str(cli.note)) == "head_of_other_mission"
    assert cli.error("verify", "--head", str(cli.place / "nosuch")) == "usage"


def test_an_export_is_written_to_stdout_as_json_lines_and_verifies(cli: Cli) -> None:
    written = cli("export", "--all").stdout_bytes
    assert written == cli("export", "--all", "--json").stdout_bytes
    assert b"\x1b" not in written
    report = verify_export(written.splitlines(keepends=True))
    assert (report.ok, report.missions, report.events, report.signed_heads) == (True, 2, 4, 1)
    one = [json.loads(line) for line in cli("export", "first").stdout.splitlines()]
    assert {line["mission"] for line in one if line["record"] == "event"} == {"m-first"}


def test_an_export_verifies_without_the_store(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cli.export("first")
    monkeypatch.setenv("CHARGEHAND_HOME", "not/absolute")
    report = cli.json("verify", "--export", str(path), "--head", str(cli.note))
    assert (report["ok"], report["events"], report["keys"]) == (True, 3, [cli.head.key])
    path.write_bytes(path.read_bytes().replace(b"step.finished", b"step.f1nished", 1))
    (problem,) = cli.json("verify", "--export", str(path), code=1)["problems"]
    assert (problem["mission"], problem["seq"], problem["kind"]) == ("m-first", 2, "line_changed")
    assert cli.error("verify", "first", "--export", str(path)) == "usage"


def test_an_export_never_overwrites(cli: Cli) -> None:
    path = cli.export("--all")
    before = path.read_bytes()
    assert cli.error("export", "--all", "--output", str(path)) == "output_exists"
    assert path.read_bytes() == before
    assert cli.error("export", "--all", "--output", str(cli.place / "no/such")) == "output_unwritable"
    path.unlink()
    document = cli.json("export", "first", "--output", str(path))
    assert document == {"output": str(path), "missions": ["m-first"], "bytes": path.stat().st_size}


def test_an_export_that_fails_leaves_no_file(cli: Cli) -> None:
    (cli.home / "heads/m-first.2.signed").write_bytes(b"nonsense")
    path = cli.place / "export.jsonl"
    cli("export", "first", "--output", str(path), code=6)
    assert not path.exists()


def test_export_requires_a_mission_or_all(cli: Cli) -> None:
    assert cli.error("export") == "usage"
    assert cli.error("export", "first", "--all") == "usage"
    assert cli.error("export", "nosuch") == "not_found"


def test_the_file_of_a_head_decodes_to_the_head(cli: Cli) -> None:
    assert SignedHead.decode((cli.home / "heads/m-first.2.signed").read_bytes()) == cli.head
