from __future__ import annotations

import os
import sqlite3
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.records import CheckResult, Finding, Verdict
from chargehand.store.projects import ProjectRow
from chargehand.store.store import Store, open_store

VERDICT = Verdict(
    tree="t1",
    scope="attempt",
    status="red",
    checks=(CheckResult(name="pytest", status="failed", seconds=1.25, exit_code=1, tests=3),),
    findings=(Finding(rule="protected", severity="error", path="ci.yml", message="no", needs_person=True),),
)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "repo"
    path.mkdir(parents=True)
    return path


def test_a_project_keeps_its_id_for_every_form_of_its_path(store: Store, repository: Path, tmp_path: Path) -> None:
    first = store.projects.register(repository, root="c0")
    (tmp_path / "link").symlink_to(repository)
    assert first == ProjectRow(id=first.id, path=repository.resolve(), name="repo")
    assert store.projects.register(tmp_path / "link", root="c0") == first
    assert store.projects.register(repository / ".." / "repo", root="c0") == first
    assert store.projects.list() == (first,)


def test_another_repository_at_a_path_is_another_project(store: Store, repository: Path, tmp_path: Path) -> None:
    first = store.projects.register(repository, root="c0")
    assert store.projects.register(repository, root="c1").id != first.id
    assert store.projects.register(tmp_path, root="c0").id != first.id
    with open_store(tmp_path / "other") as other:
        assert other.projects.register(repository, root="c0").id == first.id


def test_an_explicit_project_name_is_kept_until_renamed(store: Store, repository: Path) -> None:
    assert store.projects.register(repository, name="shop").name == "shop"
    assert store.projects.register(repository).name == "shop"
    assert store.projects.register(repository, name="market").name == "market"
    assert [row.name for row in store.projects.list()] == ["market"]


def test_a_project_path_that_is_not_utf8_is_kept_unchanged(store: Store, tmp_path: Path) -> None:
    strange = tmp_path / os.fsdecode(b"caf\xe9")
    strange.mkdir()
    row = store.projects.register(strange)
    assert store.projects.list() == (row,)
    assert row.path == strange.resolve()
    row.name.encode()


def test_a_project_is_found_by_id_name_and_path(store: Store, repository: Path, tmp_path: Path) -> None:
    row = store.projects.register(repository)
    store.projects.register(tmp_path, name="other")
    for name in (row.id, row.id[:10], row.id[2:10], "repo", str(repository.resolve())):
        assert store.projects.find(name) == row
    with pytest.raises(NotFoundError, match="'rep'") as caught:
        store.projects.find("rep")
    assert "'repo'" in caught.value.hint
    with pytest.raises(NotFoundError):
        store.projects.find("")


def test_finding_an_ambiguous_project_name_raises(store: Store, repository: Path, tmp_path: Path) -> None:
    one, other = store.projects.register(repository), store.projects.register(tmp_path, name="repo")
    with pytest.raises(UsageError) as caught:
        store.projects.find("repo")
    assert caught.value.code == "ambiguous"
    assert one.id in caught.value.hint
    assert other.id in caught.value.hint


def test_trust_is_granted_per_project_and_content_digest(store: Store, clock: SteppedClock) -> None:
    assert not store.trust.is_trusted("p", "d1")
    first = store.trust.grant("p", "d1", identity="ann")
    assert store.trust.is_trusted("p", "d1")
    assert not store.trust.is_trusted("p", "d2")
    assert not store.trust.is_trusted("q", "d1")
    clock.advance(1)
    assert store.trust.grant("p", "d1", identity="bob") == first
    second = store.trust.grant("q", "d2", identity="bob")
    assert store.trust.list() == (first, second)
    assert store.trust.list("p") == (first,)


def test_revoked_trust_is_gone(store: Store) -> None:
    for project, digest in (("p", "d1"), ("p", "d2"), ("p", "d3"), ("q", "d1")):
        store.trust.grant(project, digest, identity="ann")
    assert store.trust.revoke("p", "d1") == 1
    assert store.trust.revoke("p", "d1") == 0
    assert not store.trust.is_trusted("p", "d1")
    assert store.trust.is_trusted("p", "d2")
    assert store.trust.revoke("p") == 2
    assert [(row.project, row.digest) for row in store.trust.list()] == [("q", "d1")]


def test_a_verdict_is_kept_for_its_tree_plan_and_project(store: Store) -> None:
    store.verdicts.put("p", VERDICT, plan_digest="d1")
    assert store.verdicts.get("p", "t1", plan_digest="d1") == VERDICT
    for project, tree, plan in (("q", "t1", "d1"), ("p", "t2", "d1"), ("p", "t1", "d2")):
        assert store.verdicts.get(project, tree, plan_digest=plan) is None


def test_a_later_verdict_replaces_an_earlier_verdict(store: Store) -> None:
    green = Verdict(tree="t1", scope="merged", status="green")
    store.verdicts.put("p", VERDICT, plan_digest="d1")
    store.verdicts.put("p", green, plan_digest="d1")
    assert store.verdicts.get("p", "t1", plan_digest="d1") == green


@pytest.mark.parametrize("kept", [b"{", b"[]", b'{"tree":"t1","scope":"attempt","status":"purple"}', b"\xff"])
def test_a_verdict_that_cannot_be_read_is_a_miss(store: Store, kept: bytes) -> None:
    store.verdicts.put("p", VERDICT, plan_digest="d1")
    with sqlite3.connect(store.home / "store.db") as raw:
        raw.execute("UPDATE verdicts SET verdict = ?", (kept,))
    raw.close()
    assert store.verdicts.get("p", "t1", plan_digest="d1") is None


@pytest.mark.parametrize("field", ["artifact", "ran"])
@pytest.mark.parametrize("damage", ["changed", "gone", "unreadable"])
def test_a_verdict_whose_artifact_is_damaged_is_a_miss(store: Store, field: str, damage: str) -> None:
    """The tree is judged again, instead of ending each mission that needs the verdict."""
    artifact = store.artifacts.put(b"[]" * 4_000, kind="tests")
    check = replace(CheckResult(name="c", status="passed", exit_code=0, seconds=0.0), **{field: artifact})
    judged = Verdict(tree="t", scope="base", status="green", checks=(check,))
    store.verdicts.put("p", judged, plan_digest="d")
    assert store.verdicts.get("p", "t", plan_digest="d") == judged
    (path,) = store.home.glob(f"artifacts/*/{artifact}*")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"x" if damage == "unreadable" else zlib.compress(b"[1]"))
    assert store.verdicts.get("p", "t", plan_digest="d") is None
    assert store.artifacts.put(b"[]" * 4_000, kind="tests") == artifact
    assert store.verdicts.get("p", "t", plan_digest="d") == judged


def test_a_verdict_of_another_tree_is_a_miss(store: Store) -> None:
    store.verdicts.put("p", VERDICT, plan_digest="d1")
    with sqlite3.connect(store.home / "store.db") as raw:
        raw.execute("UPDATE verdicts SET tree = 't2'")
    raw.close()
    assert store.verdicts.get("p", "t2", plan_digest="d1") is None
