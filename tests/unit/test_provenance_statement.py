"""The pure parts of provenance and reports: signed envelopes, the statement of a log, advice on undoing."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.workspace_kit import WorkspaceKit

from chargehand.core.attempt_events import ActionJudged, AttemptStarted, ModelCalled, RoleChosen
from chargehand.core.errors import StoreError
from chargehand.core.events import Event, Payload, encode
from chargehand.core.mission_events import (
    ApprovalGiven,
    BaseResolved,
    MissionCreated,
    MissionRolledBack,
    PromotionDone,
    StepFinished,
    VerdictGiven,
)
from chargehand.core.records import (
    Base,
    CheckResult,
    MissionRequest,
    Verdict,
    VerdictScope,
    VerdictStatus,
)
from chargehand.missions.provenance import build_statement
from chargehand.store.envelopes import Envelope, _signed_bytes
from chargehand.store.heads import LogHead
from chargehand.store.store import open_store
from chargehand.workspace.export import export_branch, export_notes, exported_provenance

NOTES, PROVENANCE = "refs/notes/chargehand", "refs/notes/chargehand-provenance"

BASE = Base(commit="b" * 40, tree="c" * 40, revision="HEAD")
REQUEST = MissionRequest(
    text="mend \udcff it", agent="native", command=(), slug="x", check_files=(("aa", "t.py"),)
)
HEAD = LogHead(seq=99, hash="f" * 64)


def lines(*payloads: Payload) -> list[Event]:
    return [
        Event("m-1", seq, f"2026-01-01T00:00:{seq:02}+00:00", each.type, encode(each), f"d{seq}", "", f"h{seq}")
        for seq, each in enumerate(payloads, 1)
    ]


def verdict(
    tree: str, scope: VerdictScope = "attempt", status: VerdictStatus = "green", **check: Any
) -> VerdictGiven:
    checks = (CheckResult(name="pytest", status="passed", seconds=1.0, **check),)
    return VerdictGiven(verdict=Verdict(tree=tree, scope=scope, status=status, checks=checks))


CREATED = MissionCreated(project="p", repository="/r", request=REQUEST, config={"values": {"a": 1}})
STARTED = AttemptStarted(attempt="a-1", number=1, agent="native", workspace="w", tree="c" * 40)
DONE = PromotionDone(ref="refs/x", commit="1" * 40, tree="2" * 40)
BACK = MissionRolledBack(ref="refs/x", commit="3" * 40, tree="c" * 40)


def test_the_verdict_is_that_of_the_promoted_tree_and_no_other() -> None:
    log = lines(
        *(CREATED, BaseResolved(base=BASE), STARTED),
        verdict("2" * 40, "base", artifact="99"),
        verdict("2" * 40, artifact="77", warm=True, outside=True),
        verdict("4" * 40, status="red"),
        DONE,
    )
    run = build_statement(log, HEAD, version="1")["predicate"]["runDetails"]
    (judged, check, head) = run["byproducts"]
    assert (judged["uri"], judged["digest"]) == ("urn:chargehand:log:m-1:5", {"sha256": "h5"})
    assert check["digest"] == {"sha256": "77"}
    assert check["annotations"]["warm"]
    assert check["annotations"]["outside"]
    assert head["digest"] == {"sha256": HEAD.hash}
    assert run["metadata"]["finishedOn"] == "2026-01-01T00:00:07+00:00"


def test_the_statement_lists_present_and_absent_parts_of_the_log() -> None:
    bare = build_statement(lines(CREATED, BaseResolved(base=BASE), DONE), HEAD, version="1")
    absent = bare["predicate"]["buildDefinition"]["internalParameters"]["absent"]
    assert set(absent) == {"prompts", "role", "policy", "recorded-steps"}
    role = RoleChosen(
        role="tester", digest="dd", artifact="a", origin="/o", agent="native", models=(), writes=True, why=""
    )
    judged = ActionJudged(attempt="a-1", kind="shell", text="ls", effect="allow", rule="r", reason="", rules="rr")
    called = ModelCalled(
        call="c", attempt="a-1", turn=1, model="m-9", upstream="u", status="ok", http_status=200, seconds=1.0
    )
    step = StepFinished(step="s", input="i", output="o", seconds=1.0)
    log = lines(CREATED, BaseResolved(base=BASE), role, STARTED, judged, called, step, DONE)
    definition = build_statement(log, HEAD, version="1")["predicate"]["buildDefinition"]
    assert set(definition["internalParameters"]["absent"]) == {"prompts"}
    assert definition["internalParameters"]["policy"] == ["rr"]
    asked = definition["externalParameters"]
    assert (asked["role"], asked["agent"], asked["model"]) == ("tester", "native", "m-9")
    names = [part["name"] for part in definition["resolvedDependencies"]]
    assert names == ["base", "role", "check-file:t.py", "recorded-steps", "model-calls"]
    assert "mend" not in json.dumps(definition)


def test_lines_after_the_head_are_not_looked_at() -> None:
    later = BaseResolved(base=Base(commit="d" * 40, tree="e" * 40, revision="HEAD"))
    log = lines(CREATED, BaseResolved(base=BASE), DONE, later, BACK, DONE)
    first = build_statement(log, LogHead(seq=3, hash="x"), version="1")
    back = build_statement(log, LogHead(seq=5, hash="x"), version="1")
    again = build_statement(log, HEAD, version="1")
    bases = [each["predicate"]["buildDefinition"]["externalParameters"]["base"] for each in (first, back, again)]
    assert bases == ["b" * 40, "b" * 40, "d" * 40]
    assert first["predicate"]["buildDefinition"]["buildType"] == "urn:chargehand:promotion:v1"
    definition = back["predicate"]["buildDefinition"]
    assert definition["buildType"] == "urn:chargehand:rollback:v1"
    assert definition["resolvedDependencies"][1] == {"name": "reverted", "digest": {"gitCommit": "1" * 40}}
    assert [part["name"] for part in back["predicate"]["runDetails"]["byproducts"]] == ["log-head"]


def test_an_approval_appears_only_in_the_statement_of_its_promotion() -> None:
    approval = ApprovalGiven(tree="2" * 40, identity="os:ada", reason="secret")
    log = lines(CREATED, BaseResolved(base=BASE), approval, DONE, BACK, DONE)
    first = build_statement(log, LogHead(seq=4, hash="x"), version="1")["predicate"]["runDetails"]["byproducts"]
    assert [part["annotations"]["identity"] for part in first if part["name"] == "approval"] == ["os:ada"]
    again = build_statement(log, HEAD, version="1")
    assert "os:ada" not in json.dumps(again)
    assert "secret" not in json.dumps(first)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_statement_without_a_required_event_is_an_error(missing: int) -> None:
    log = lines(CREATED, BaseResolved(base=BASE), DONE)
    del log[missing]
    with pytest.raises(StoreError):
        build_statement(log, HEAD, version="1")


def test_an_envelope_is_signed_as_dsse_says(tmp_path: Path) -> None:
    assert _signed_bytes("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    with open_store(tmp_path / "state") as store:
        made, known = store.sign_envelope(b"body", kind="a/b"), store.known_keys()
    assert Envelope.decode(made.encode()) == made
    (key,) = known.keys.values()
    assert key.verifies(base64.b64decode(made.signatures[0].sig), b"DSSEv1 3 a/b 4 body")
    assert made.signer(known) == key.id
    with open_store(tmp_path / "other") as other:
        other.sign_envelope(b"body", kind="a/b")
        assert made.signer(other.known_keys()) == ""
    document = json.loads(made.encode())
    assert set(document) == {"payload", "payloadType", "signatures"}
    document["payloadType"] = "a/c"
    assert Envelope.decode(json.dumps(document).encode()).signer(known) is None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"payload":"=","payloadType":"a","signatures":[]}', b"\xff"]
)
def test_decoding_an_invalid_envelope_raises(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Envelope.decode(content)


# --- notes of two kinds


def test_both_notes_are_annotated_and_exported_together(kit: WorkspaceKit) -> None:
    commit = kit.depot().commit(kit.base().tree, (kit.base().commit,), "work")
    assert kit.depot().annotate(commit, "head", provenance="statement")
    assert not kit.depot().annotate(commit, "head", provenance="statement")
    assert (kit.depot().annotation(commit), kit.depot().provenance(commit)) == ("head\n", "statement\n")
    assert export_branch(kit.depot(), commit, branch="chargehand/x", expected_old=None).state == "done"
    assert exported_provenance(kit.depot(), commit) is None
    assert export_notes(kit.depot(), commit)
    assert exported_provenance(kit.depot(), commit) == "statement\n"
    assert git(kit.repository, "notes", "--ref", NOTES, "show", commit) == "head"
    assert git(kit.repository, "notes", "--ref", PROVENANCE, "show", commit) == "statement"
    assert not export_notes(kit.depot(), commit)


def test_both_notes_are_rebuilt_if_a_note_ref_moves_concurrently(kit: WorkspaceKit) -> None:
    """Another process moves one of the refs between the read and the write: both notes are rebuilt on top."""
    commit = kit.depot().commit(kit.base().tree, (kit.base().commit,), "work")
    seen: list[tuple[str | None, str | None]] = []

    def interfere(point: str) -> None:
        if point == "notes:written":
            seen.append((kit.depot().read_ref(NOTES), kit.depot().read_ref(PROVENANCE)))
            if len(seen) == 1:
                git(kit.depot().path, "notes", "--ref", PROVENANCE, "add", "-m", "theirs", commit)

    assert kit.open(fault=interfere).annotate(commit, "head", provenance="statement")
    assert len(seen) == 2
    assert seen[1][0] is None
    assert kit.depot().provenance(commit) == "theirs\nstatement\n"
    assert kit.depot().annotation(commit) == "head\n"


# --- advice
