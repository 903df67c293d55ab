"""Signed provenance on promoted commits: made once, true to the log, and all tampering is reported."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.crash_kit import SCENES, CrashKit, nothing_survives
from tests.integration.command_line import Cli, repository

from chargehand.store.database.keys import AuditKey, KeyFiles
from chargehand.store.envelopes import Envelope, sign_envelope
from chargehand.store.store import open_store

pytestmark = pytest.mark.needs_bwrap
REF = "chargehand-provenance"
BRANCH = "chargehand/mend"


class Place:
    """A promoted mission and its repository."""

    def __init__(self, place: Path, *words: str) -> None:
        self.cli = Cli(place)
        self.repository = repository(place / "repo")
        self.run = self.cli.run(self.repository, *words)
        self.mission = self.run.document["mission"]
        self.commit = git(self.repository, "rev-parse", BRANCH)
        self.depot = next(self.cli.home.glob("projects/*/depot.git"))

    def verify(self, *words: str, code: int = 0) -> Any:
        result = self.cli.say("audit", "provenance", *(words or (self.mission,)), cwd=self.repository)
        assert result.code == code, result
        return result.document

    def kinds(self, *words: str) -> set[str]:
        """Return the kinds of problems that verification reports."""
        document = self.verify(*words, code=1)
        assert not document["ok"]
        return {problem["kind"] for problem in document["problems"]}

    def note(self, commit: str = BRANCH) -> str:
        return git(self.repository, "notes", "--ref", REF, "show", commit)

    def write(self, note: str, commit: str | None = None, *, depot: bool = True) -> None:
        """Replace the note in the repository and, by default, in the depot."""
        for place in (self.repository, *([self.depot] if depot else [])):
            git(place, "notes", "--ref", REF, "add", "-f", "-m", note, commit or self.commit)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def statement(envelope: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def test_a_promotion_has_a_single_statement_of_its_inputs_and_outputs(place: Place) -> None:
    (found,) = place.verify()["commits"]
    assert [json.loads(line) for line in place.note().splitlines()] == [found["envelope"]]
    result = statement(found["envelope"])
    assert found["statement"] == result
    assert (result["_type"], result["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    tree = git(place.repository, "rev-parse", f"{BRANCH}^{{tree}}")
    assert result["subject"][0]["digest"] == {"gitCommit": place.commit, "gitTree": tree}
    definition, run = result["predicate"]["buildDefinition"], result["predicate"]["runDetails"]
    asked = definition["externalParameters"]
    assert asked["request"] == {"sha256": hashlib.sha256(b"mend").hexdigest()}
    assert asked["base"] == git(place.repository, "rev-parse", "main")
    assert (asked["role"], asked["model"]) == ("developer", None)
    named = {part["name"]: part for part in definition["resolvedDependencies"]}
    assert named["base"]["digest"]["gitTree"] == git(place.repository, "rev-parse", "main^{tree}")
    assert set(named) == {"base", "role", "recorded-steps"}
    products = {part["name"]: part for part in run["byproducts"]}
    assert products["verdict"]["annotations"]["status"] == "green"
    assert products["check:true"]["annotations"]["status"] == "passed"
    state = place.cli.state(place.run)
    assert products["check:true"]["digest"]["sha256"] == state.verdicts[-1].checks[0].artifact
    head = json.loads(git(place.repository, "notes", "--ref", "chargehand", "show", BRANCH))
    assert products["log-head"]["digest"]["sha256"] == head["hash"]
    assert run["metadata"]["invocationId"] == f"{place.mission}/attempt/1"


def test_the_statement_does_not_contain_the_request_text(tmp_path: Path) -> None:
    cli, home = Cli(tmp_path), repository(tmp_path / "repo")
    cli.run(home, text="mend with the secret hunter2")
    branch = git(home, "for-each-ref", "--format=%(refname)", "refs/heads/chargehand")
    assert "hunter2" not in json.dumps(statement(json.loads(git(home, "notes", "--ref", REF, "show", branch))))


def test_a_rollback_and_a_second_promotion_have_separate_statements(place: Place) -> None:
    assert place.cli.say("mission", "rollback", place.mission, cwd=place.repository).code == 0
    back = git(place.repository, "rev-parse", BRANCH)
    assert place.cli.say("mission", "promote", place.mission, "--reason", "x", cwd=place.repository).code == 0
    document = place.verify()
    kinds = [each["statement"]["predicate"]["buildDefinition"]["buildType"] for each in document["commits"]]
    assert kinds == ["urn:chargehand:promotion:v1", "urn:chargehand:rollback:v1", "urn:chargehand:promotion:v1"]
    assert [each["commit"] for each in document["commits"]][:2] == [place.commit, back]
    named = [part["name"] for part in document["commits"][2]["statement"]["predicate"]["runDetails"]["byproducts"]]
    assert named.count("approval") == 1
    assert place.verify("--commit", BRANCH)["commits"] == document["commits"][2:]


def test_an_unpromoted_result_has_no_provenance(tmp_path: Path) -> None:
    cli, home = Cli(tmp_path), repository(tmp_path / "repo")
    cli.run(home, "--only-check", "false")
    cli.refused("not_promoted", 1, "audit", "provenance", "last", cwd=home)
    cli.refused("not_found", 2, "audit", "provenance", "--commit", "nosuch", cwd=home)
    cli.refused("usage", 2, "audit", "provenance", "last", "--commit", "main", cwd=home)
    result = cli.say("audit", "provenance", "--commit", "main", cwd=home)
    assert (result.code, result.document["problems"][0]["kind"]) == (1, "provenance_missing")


class TestTampering:
    """A change to a note, a key, the log or the branch is reported, with its kind."""

    def test_no_byte_of_the_note_can_be_another(self, place: Place) -> None:
        note = place.note()
        told = set()
        for at in range(3, len(note), len(note) // 12):
            place.write(note[:at] + ("A" if note[at] != "A" else "B") + note[at + 1 :])
            told |= place.kinds()
        assert told <= {"provenance_forged", "provenance_malformed", "key_unknown"}
        assert "provenance_forged" in told
        place.write(note)
        place.verify()

    def test_in_the_repository_alone(self, place: Place) -> None:
        forged = json.loads(place.note())
        result = statement(forged)
        result["predicate"]["buildDefinition"]["externalParameters"]["agent"] = "somebody else"
        forged["payload"] = base64.b64encode(json.dumps(result).encode()).decode()
        place.write(json.dumps(forged), depot=False)
        assert place.kinds() == {"provenance_forged"}

    def test_on_another_commit(self, place: Place) -> None:
        place.write(place.note(), git(place.repository, "rev-parse", "main"), depot=False)
        assert place.kinds("--commit", "main") == {"provenance_differs"}

    def test_by_another_key(self, place: Place) -> None:
        envelope = json.loads(place.note())
        other = place.cli.place / "other"
        with open_store(other) as store:
            made = sign_envelope(
                store.database, base64.b64decode(envelope["payload"]), kind=envelope["payloadType"]
            )
        place.write(made.encode().decode())
        assert place.kinds() == {"key_unknown"}

    def test_a_signed_statement_that_differs_from_the_log_is_reported(self, place: Place) -> None:
        result = statement(json.loads(place.note()))
        result["predicate"]["buildDefinition"]["externalParameters"]["role"] = "saint"
        with open_store(place.cli.home) as store:
            made = store.sign_envelope(json.dumps(result).encode(), kind="application/vnd.in-toto+json")
        place.write(made.encode().decode())
        (problem,) = place.verify(code=1)["problems"]
        assert problem["kind"] == "provenance_differs"
        assert "/predicate/buildDefinition/externalParameters/role" in problem["message"]

    @pytest.mark.parametrize("kind", ["text/plain", "application/vnd.in-toto+json"])
    def test_signed_by_our_key_and_no_statement(self, place: Place, kind: str) -> None:
        with open_store(place.cli.home) as store:
            place.write(store.sign_envelope(b"[]", kind=kind).encode().decode())
        assert place.kinds() == {"provenance_malformed"}

    def test_taken_away(self, place: Place) -> None:
        for each in (place.repository, place.depot):
            git(each, "notes", "--ref", REF, "remove", place.commit)
        assert place.kinds() == {"provenance_missing"}

    def test_the_branch_moved(self, place: Place) -> None:
        ref = f"refs/chargehand/missions/{place.mission}"
        git(place.depot, "update-ref", ref, git(place.repository, "rev-parse", "main"))
        assert place.kinds() == {"branch_moved"}

    def test_the_log_was_changed(self, place: Place) -> None:
        with open_store(place.cli.home) as store, store.database.write() as connection:
            other = "replace(payload, '\"attempt\"', '\"merged\"')"
            connection.execute(f"UPDATE events SET payload = {other} WHERE type = 'verdict.given'")
        assert place.kinds() == {"provenance_differs"}

    def test_the_key_was_replaced(self, place: Place) -> None:
        files = KeyFiles(place.cli.home)
        key = AuditKey.generate()
        files.private.write_bytes(key.to_pem())
        files.public.write_text(key.public.pem)
        assert place.kinds() == {"key_unknown"}


def test_the_documented_commands_verify_a_statement_independently(place: Place) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/reports-and-provenance.md"
    script = re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.S)[-1].replace("COMMIT", BRANCH)
    shutil.copy(place.cli.home / "keys/audit.pub", place.repository)
    done = subprocess.run(["sh", "-ec", script], cwd=place.repository, capture_output=True, text=True, check=True)
    assert "Verified Successfully" in done.stdout
    signed = place.repository / "signed"
    signed.write_bytes(signed.read_bytes().replace(b"green", b"grean"))
    command = script.strip().splitlines()[-1]
    assert subprocess.run(
        ["sh", "-ec", command], cwd=place.repository, capture_output=True, check=False
    ).returncode


def test_a_failure_to_sign_undoes_no_promotion(tmp_path: Path) -> None:
    first = Place(tmp_path)
    KeyFiles(first.cli.home).private.unlink()
    result = first.cli.run(first.repository, text="second")
    assert (result.code, result.document["status"]) == (0, "promoted")
    told = first.cli.say("audit", "provenance", result.document["mission"], cwd=first.repository).document
    assert [problem["kind"] for problem in told["problems"]] == ["provenance_missing"]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[CrashKit]:
    with nothing_survives():
        yield CrashKit(tmp_path)


@pytest.mark.parametrize("point", ["attested#1", "notes:written#1", "signed#1", "notes:written#2", "exported#1"])
def test_a_crash_during_promotion_still_leaves_a_single_statement(kit: CrashKit, point: str) -> None:
    site = kit.site(SCENES["slow"])
    assert kit.run(site, plan=point).wait() == -signal.SIGKILL, kit.output()
    assert kit.worker().wait() == 0, kit.output()
    depot = next(kit.home.glob("projects/*/depot.git"))
    notes = [git(place, "notes", "--ref", REF, "show", "chargehand/mend-it") for place in (site.repository,)]
    commit = git(site.repository, "rev-parse", "chargehand/mend-it")
    notes.append(git(depot, "notes", "--ref", REF, "show", commit))
    assert notes[0] == notes[1]
    assert len(notes[0].splitlines()) == 1
    assert Envelope.decode(notes[0].encode()).payload_type == "application/vnd.in-toto+json"
    assert kit.start("audit", "provenance", kit.mission(site), cwd=site.repository).wait() == 0, kit.output()
