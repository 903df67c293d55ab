"""Roles from the command line: a report as a result, and files that apply from the next mission on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Cli, finish, repository

pytestmark = pytest.mark.needs_bwrap
WAIT = 120.0
ROLE = 'summary = "writes"\nprompt = "Write."\ntools = ["edit"]\nwrites = true\nagent = "{agent}"\n'


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


@pytest.fixture
def worker(cli: Cli, repo: Path) -> Iterator[Any]:
    running = cli.start("worker", cwd=repo)
    yield running
    assert running.poll() is None  # the same worker runs to the end
    running.terminate()
    running.communicate(timeout=WAIT)


def configure(cli: Cli, *lines: str) -> Path:
    directory = cli.place / ".config" / "chargehand"
    (directory / "roles").mkdir(parents=True, exist_ok=True)
    agents = [f'[agents.{name}]\ncommand = ["touch", "{name}.txt"]\n' for name in ("one", "two")]
    (directory / "config.toml").write_text("\n".join([*agents, *lines]))
    return directory / "roles"


def detached(cli: Cli, repo: Path, *words: str) -> dict[str, Any]:
    """Leave a mission to the worker and return its document once it is settled."""
    reported = cli.say("run", "write", "--detach", "--only-check", "true", *words, cwd=repo)
    assert reported.code == 0, reported
    mission, deadline = reported.document["mission"], time.monotonic() + WAIT
    while True:
        shown = cli.say("mission", "show", mission, cwd=repo).document
        if shown["status"] not in ("planned", "running"):
            return shown
        assert time.monotonic() < deadline, shown
        time.sleep(0.3)


def test_an_edited_map_and_a_dropped_role_count_from_the_next_task_on_in_a_worker_that_runs(
    cli: Cli, repo: Path, worker: Any
) -> None:
    roles = configure(cli, '[roles.developer]\nagent = "one"')
    first = detached(cli, repo)
    configure(cli, '[roles.developer]\nagent = "two"')
    second = detached(cli, repo)
    (roles / "scribe.toml").write_text(ROLE.format(agent="one"))
    third = detached(cli, repo, "--role", "scribe")
    (roles / "scribe.toml").write_text(ROLE.format(agent="two"))
    fourth = detached(cli, repo, "--role", "scribe")
    missions = (first, second, third, fourth)
    assert [each["status"] for each in missions] == ["promoted"] * 4
    assert [each["attempts"][0]["agent"] for each in missions] == ["one", "two", "one", "two"]
    assert [each["role"] for each in missions] == ["developer", "developer", "scribe", "scribe"]
    assert first["role_chosen"]["digest"] == second["role_chosen"]["digest"]
    assert third["role_chosen"]["digest"] != fourth["role_chosen"]["digest"]


def test_a_report_is_a_result_without_a_commit(cli: Cli, repo: Path) -> None:
    configure(cli)
    before = finish(cli.start("role", "list", cwd=repo)).document
    assert "reviewer" in [each["name"] for each in before["roles"]]
    reported = cli.run(repo, "--role", "reviewer", agent="command:echo 'f.txt:1: it says aaa'", text="review it")
    assert reported.code == 0, reported
    result = reported.document
    assert (result["status"], result["commit"], result["branch"]) == ("promoted", result["base"], None)
    assert (result["export"]["state"], result["role"]) == ("done", "reviewer")
    assert [reason["code"] for reason in result["reasons"]] == ["report"]
    assert result["report"]["text"].strip() == "f.txt:1: it says aaa"
    mission = result["mission"]
    kept = cli.say("artifact", "show", result["report"]["artifact"], cwd=repo)
    assert "it says aaa" in kept.stdout
    refused = cli.say("mission", "rollback", mission, cwd=repo)
    assert refused.error["code"] == "not_promoted"
    lines = [json.loads(line) for line in cli.say("mission", "log", mission, cwd=repo).stdout.splitlines()]
    steps = [line["step"] for line in lines if line["step"]]
    assert {"analyse", "repository", "selection", "execution", "validation", "promotion"} <= set(steps)
    assert [line["step"] for line in lines if line["type"] == "role.chosen"] == ["selection"]
    wrote = cli.run(repo, "--role", "reviewer", agent="command:touch new.txt", text="review it")
    assert (wrote.code, wrote.document["status"]) == (1, "failed")  # the file system refused touch
