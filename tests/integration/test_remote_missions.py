"""Missions on a server, started and followed by commands elsewhere: to their end, over restarts, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, repository, shell
from test_remote_commands import Remote
from tests.crash_kit import wait_until
from tests.forked import ForkedProcess
from tests.postgres import free_port
from tests.server_kit import Served, record_missions, serving

from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_bwrap
CHECKED = ("--repo", "repo", "--check", "true")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def served(cli: Cli) -> Iterator[Served]:
    repo = repository(cli.place / "repo")
    assert cli.run(repo).code == 0  # the server knows the project
    with serving(cli.environ, repo, worker=True) as made:
        yield made


@pytest.fixture(scope="module")
def remote(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Remote:
    return Remote(tmp_path_factory.mktemp("elsewhere"), served)


def test_a_mission_is_started_and_followed_to_its_end(cli: Cli, remote: Remote) -> None:
    result = remote.say("run", "mend it", "--agent", "command:sed -i s/a/b/ f.txt", *CHECKED, "--budget", "2.50")
    assert (result.code, result.document["status"]) == (0, "promoted"), result
    state = cli.state(result)
    assert state.config is not None
    assert state.config.limits.budget_usd == 2.5
    shown = cli.say("mission", "show", result.document["mission"], cwd=cli.place).document
    assert {name: shown[name] for name in ("status", "branch", "commit")}.items() <= result.document.items()
    waits = remote.say("run", "mend it", "--agent", shell("touch conftest.py"), *CHECKED, as_json=False)
    assert waits.code == 3
    assert "waiting  m-" in waits.stdout
    assert "chargehand mission promote" in waits.stdout
    failed = remote.say("run", "mend it", "--agent", "command:false", *CHECKED, "--attempts", "1")
    assert (failed.code, failed.document["status"]) == (1, "failed")
    more = remote.say("mission", "continue", failed.document["mission"], "again", "--attempts", "1")
    assert (more.code, more.document["status"]) == (1, "failed")


def test_an_idempotency_key_starts_a_single_mission(remote: Remote) -> None:
    words = ("run", "mend it", "--agent", "command:true", *CHECKED, "--detach", "--idempotency-key", "one")
    first, second = remote.say(*words), remote.say(*words)
    assert first.document["mission"] == second.document["mission"]
    assert remote.say(*words, "--attempts", "2").error["code"] == "key_reused"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "mend it"), "project_needed"),
        (("run", "mend it", "--repo", "nothing"), "not_found"),
        (("run", "mend it", "--repo", "repo", "--only-check", "true"), "option_local"),
        (("run", "--repo", "repo"), "usage"),
        (("run", "mend it", "--repo", "repo", "--budget", "much"), "arguments_invalid"),
        (("run", "mend it", "--repo", "repo", "--idempotency-key", "k"), "usage"),
        (("project", "show"), "project_needed"),
        (("mission", "plan", "last", "--set", "plan.yaml"), "option_local"),
        (("audit", "export"), "usage"),
        (("gc",), "command_local"),
        (("role", "path"), "command_local"),
        (("worker",), "command_local"),
        (("project", "untrust"), "command_local"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_unsupported_remote_commands_and_options_are_a_usage_error(
    remote: Remote, words: tuple[str, ...], code: str
) -> None:
    result = remote.say(*words)
    assert (result.code, result.stdout, result.error["code"]) == (2, "", code)
    assert result.error["hint"]


def test_remote_output_can_be_saved_to_files(cli: Cli, remote: Remote) -> None:
    place = cli.place
    for words in (("audit", "export", "--all"), ("mission", "report", "last")):
        path = place / f"{words[0]}.out"
        result = remote.say(*words, "--output", str(path))
        assert result.document["bytes"] == path.stat().st_size
        assert result.document["missions"]
        assert remote.say(*words, "--output", str(path)).error["code"] == "output_exists"
    assert cli.say("audit", "verify", "--export", str(place / "audit.out"), cwd=place).document["ok"]


def test_a_watched_mission_is_followed_over_a_restart_of_its_server(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with StateReader.open(environ=cli.environ, cwd=tmp_path) as reader:
        (mission,) = record_missions(reader, 1)
    port = free_port()
    with serving(cli.environ, tmp_path, port=port) as served:
        remote = Remote(tmp_path / "elsewhere", served)
        watched = Watched(remote, "mission", "watch", mission)
        followed = Watched(remote, "mission", "log", mission, "--follow")
        for each in (watched, followed):
            wait_until(each.lines)
    cli.say("mission", "send", mission, "while it is away", cwd=tmp_path)
    with serving(cli.environ, tmp_path, port=port):
        for each in (watched, followed):
            wait_until(lambda each=each: len(each.lines()) == 2)
        cli.say("mission", "cancel", mission, cwd=tmp_path)
        assert [each.process.wait(120) for each in (watched, followed)] == [0, 0]
    told = cli.say("mission", "log", mission, cwd=tmp_path).stdout.splitlines()
    assert watched.lines() == followed.lines() == told  # no line is missing or repeated


def test_interrupting_a_remote_watch_shows_how_to_continue(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    with StateReader.open(environ=cli.environ, cwd=tmp_path) as reader:
        (mission,) = record_missions(reader, 1)
    with serving(cli.environ, tmp_path) as served:
        watched = Watched(Remote(tmp_path / "elsewhere", served), "mission", "watch", mission)
        wait_until(watched.lines)
        os.kill(watched.process.pid, signal.SIGINT)
        assert watched.process.wait(120) == 130
        error = json.loads(watched.lines("err")[-1])["error"]
        assert error["code"] == "interrupted"
        assert f"chargehand --server {served.url} mission watch {mission}" in error["hint"]
        assert cli.say("mission", "show", mission, cwd=tmp_path).document["status"] == "planned"


class Watched:
    """A running command elsewhere, and its output so far."""

    def __init__(self, remote: Remote, *words: str) -> None:
        self.place = remote.cli.place / "-".join(words)
        environ = {**remote.cli.environ, "CHARGEHAND_TOKEN": remote.token}
        self.place.mkdir(parents=True)
        with (self.place / "out").open("wb") as out, (self.place / "err").open("wb") as err:
            self.process = ForkedProcess(
                ("--json", "--server", remote.url, *words), cwd=self.place, environ=environ, stdout=out, stderr=err
            )

    def lines(self, stream: str = "out") -> list[str]:
        return (self.place / stream).read_text().splitlines()
