"""A whole mission in containers, from the command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command_line import MEND, PASSES, Cli, repository, shell

pytestmark = pytest.mark.needs_container


def test_a_mission_in_containers_is_promoted_and_records_its_tier(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    done = cli.say("run", "Mend f", "--agent", MEND, *PASSES, "--sandbox", "container", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    shown = cli.say("mission", "show", done.document["mission"], cwd=repo).document
    assert shown["places"] == [{"tier": "container", "driver": "overlay"}]
    seen = subprocess.run(
        ["git", "-C", str(repo), "show", "chargehand/mend-f:f.txt"], capture_output=True, text=True, check=True
    )
    assert seen.stdout == "baa\n"


def test_a_background_process_in_a_container_does_not_affect_the_verdict(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    agent = shell("(sleep 1000 &) ; echo broken > f.txt")
    words = ("--agent", agent, "--only-check", "grep -q aaa f.txt", "--attempts", "1", "--sandbox", "container")
    done = cli.say("run", "Break f", *words, cwd=repo)
    assert (done.code, done.document["status"]) == (1, "refused"), done
    assert done.document["commit"] is None


def test_a_missing_container_engine_is_an_error(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    cli.environ["CHARGEHAND_SANDBOX_CONTAINER_PROGRAM"] = "no-such-engine"
    done = cli.say("run", "Mend f", "--agent", MEND, *PASSES, "--sandbox", "container", cwd=repo)
    assert done.code == 5
    assert "no-such-engine: not found" in done.error["message"]
