"""A roll-back of a mission that was applied: the person's own branch moves forward, never back."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli, repository
from tests.conftest import git

pytestmark = pytest.mark.needs_bwrap


@pytest.mark.parametrize("moved", [False, True])
def test_rollback_of_an_applied_mission_adds_a_commit_or_shows_the_command(tmp_path: Path, moved: bool) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    start = git(repo, "rev-parse", "HEAD^{tree}")
    result = cli.run(repo, "--apply")
    assert result.document["status"] == "promoted", result
    applied = git(repo, "rev-parse", "HEAD")
    assert (repo / "f.txt").read_text() == "baa\n"
    if moved:
        git(repo, "commit", "--allow-empty", "-qm", "mine")
    mine = git(repo, "rev-parse", "HEAD")
    result = cli.say("mission", "rollback", result.document["mission"], cwd=repo)
    assert result.code == 0, result
    shown = cli.state(result).applied
    assert shown is not None
    if moved:
        assert git(repo, "rev-parse", "HEAD") == mine
        assert shown.state == "blocked"
        git(repo, *shown.reason.split("`")[1].split()[1:2], "--no-edit", shown.reason.split("`")[1].split()[2])
    else:
        assert shown.state == "done"
        assert git(repo, "rev-parse", "HEAD^") == applied
    assert git(repo, "rev-parse", "HEAD^{tree}") == start
    assert git(repo, "status", "--porcelain") == ""
