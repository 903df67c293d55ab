"""Whole missions with the state directory on a file system that can clone, with and without overlayfs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from desk import MEND, Desk, repository
from tests.workspace_kit import cloning_disk

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.needs_root]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with cloning_disk("btrfs", tmp_path) as place:
        yield place


@pytest.fixture
def container(disk: Path) -> Iterator[Path]:
    """A file system as in a container: an overlay, which cannot hold the upper of another overlay."""
    for part in ("lower", "upper", "work", "root"):
        (disk / part).mkdir()
    options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(disk / "root")], check=True)
    try:
        yield disk / "root"
    finally:
        subprocess.run(["umount", "--lazy", str(disk / "root")], check=True)


def test_where_overlayfs_cannot_be_had_workspaces_are_made_of_clones(container: Path, tmp_path: Path) -> None:
    desk, repo = Desk(container), repository(tmp_path / "repo")
    report = desk.say("doctor", cwd=repo).document
    assert (report["ok"], report["drivers"]) == (True, {"shadow": "reflink", "direct": "reflink"})
    (overlay,) = [part for part in report["parts"] if part["name"] == "overlay"]
    assert (overlay["ok"], "mount overlay" in overlay["detail"]) == (False, True)
    said = desk.say("doctor", cwd=repo, as_json=False)
    assert said.code == 0, said
    assert "failed  overlay" in said.stdout
    assert "Sandbox: process works, with reflink workspaces." in said.stdout
    _promotes_by_clones(desk, repo)


def test_strategy_direct_works_in_clones(disk: Path, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"f.txt": "aaa\n", "chargehand.toml": '[project]\nstrategy = "direct"\n'})
    _promotes_by_clones(Desk(disk), repo)


def _promotes_by_clones(desk: Desk, repo: Path) -> None:
    said = desk.run(repo)
    assert (said.code, said.document["status"]) == (0, "promoted"), said
    mission = said.document["mission"]
    assert desk.say("mission", "show", mission, cwd=repo).document["places"] == [
        {"tier": "process", "driver": "reflink"}
    ]
    shown = desk.say("mission", "show", mission, cwd=repo, as_json=False)
    assert shown.code == 0, shown
    assert "sandbox   process, workspace by reflink" in shown.stdout
    assert MEND in shown.stdout
    # The directory holds the base too: its size is not reported as the agent's writes, which are unknown.
    disk = desk.say("stats", cwd=repo).document["sandboxes"]["disk"]
    assert (disk["known"], disk["unknown"], disk["p50"]) == (0, 1, None)
