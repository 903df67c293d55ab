"""An agent's output, followed from another process while a worker runs the mission."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from tests.crash_kit import MARK, wait_until, wake
from tests.forked import ForkedPopen

pytestmark = pytest.mark.needs_bwrap
SLOW = shell(f"echo first words; sleep {MARK}; echo last words >&2; echo right > f.txt")


def test_watch_shows_the_live_output_of_a_detached_agent(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    mission = cli.run(repo, "--detach", agent=SLOW).document["mission"]
    words = [sys.executable, "-m", "chargehand", "mission", "watch", mission]
    with ForkedPopen(words, cwd=repo, env=cli.environ, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines: list[str] = []
        for line in watching.stdout:
            lines.append(line.strip())
            if line.strip() == "first words":
                wait_until(wake)
    assert watching.returncode == 0
    begun = next(number for number, line in enumerate(lines) if line == "attempt 1")
    ended = next(number for number, line in enumerate(lines) if line == "attempt 1 succeeded")
    assert begun < lines.index("first words") < lines.index("last words") < ended
    assert list((cli.home / "output").iterdir()) == []  # an ended mission's output is gone
    followed = cli.say("mission", "watch", mission, cwd=repo).stdout
    assert all("seq" in json.loads(line) for line in followed.splitlines())  # programs get only events
