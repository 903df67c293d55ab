"""Whole missions with the state directory on a file system that can clone, with and without overlayfs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import MEND, Cli, repository
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


def test_workspaces_are_reflink_clones_if_overlayfs_is_unavailable(container: Path, tmp_path: Path) -> None:
    cli, repo = Cli(container), repository(tmp_path / "repo")
    report = cli.say("doctor", cwd=repo).document
    assert (report["ok"], report["drivers"]) == (True, {"shadow": "reflink", "direct": "reflink"})
    (overlay,) = [part for part in report["parts"] if part["name"] == "overlay"]
    assert (overlay["ok"], "mount overlay" in overlay["detail"]) == (False, True)
    result = cli.say("doctor", cwd=repo, as_json=False)
    assert result.code == 0, result
    assert "failed  overlay" in result.stdout
    assert "Sandbox: process works, with reflink workspaces." in result.stdout
    _promotes_by_clones(cli, repo)


def test_strategy_direct_works_in_clones(disk: Path, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {"f.txt": "aaa\n", "chargehand.toml": '[project]\nstrategy = "direct"\n'})
    _promotes_by_clones(Cli(disk), repo)


def _promotes_by_clones(cli: Cli, repo: Path) -> None:
    result = cli.run(repo)
    assert (result.code, result.document["status"]) == (0, "promoted"), result
    mission = result.document["mission"]
    assert cli.say("mission", "show", mission, cwd=repo).document["places"] == [
        {"tier": "process", "driver": "reflink"}
    ]
    shown = cli.say("mission", "show", mission, cwd=repo, as_json=False)
    assert shown.code == 0, shown
    assert "sandbox   process (default), workspace by reflink" in shown.stdout
    assert MEND in shown.stdout
    # The directory holds the base too: its size is not reported as the agent's writes, which are unknown.
    disk = cli.say("stats", cwd=repo).document["sandboxes"]["disk"]
    assert (disk["known"], disk["unknown"], disk["p50"]) == (0, 1, None)
