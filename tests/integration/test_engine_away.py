"""The engine's database is unreachable: reading still works, and a recorded mission counts as accepted."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from command_line import MEND, PASSES, Cli, repository
from tests.crash_kit import wait_until
from tests.postgres import cluster, free_port

from chargehand.app.composition import App

RUN = ("run", "mend", "--agent", MEND, *PASSES, "--detach")


@pytest.fixture
def url() -> str:
    """Return the URL of a server that does not exist."""
    return f"postgresql://nobody@127.0.0.1:{free_port()}/engine"


@pytest.mark.needs_bwrap
def test_missions_are_recorded_and_readable_while_the_database_is_down(tmp_path: Path, url: str) -> None:
    cli, repo = Cli(tmp_path / "person"), repository(tmp_path / "repo")
    done = cli.run(repo).document
    away = Cli(tmp_path / "person", CHARGEHAND_ENGINE_URL=url)
    result = away.say(*RUN, "--idempotency-key", "k", cwd=repo)
    assert result.code == 0, result
    mission = result.document["mission"]
    told = away.say(*RUN, "--idempotency-key", "k", cwd=repo)
    assert (told.code, told.document["mission"]) == (0, mission)
    # Two missions, not four: no error asked for a retry, and a retry with the same key adds no mission.
    listed = away.say("mission", "list", cwd=repo)
    assert [(one["mission"], one["status"]) for one in listed.document["missions"]] == [
        (mission, "planned"),  # the newest first
        (done["mission"], "promoted"),
    ]
    assert "workers on other machines cannot be seen" in listed.stderr
    for words in (("mission", "show", mission), ("mission", "log", mission), ("stats",), ("audit", "verify")):
        assert away.say(*words, cwd=repo).code == 0, words
    # A command that depends on which workers are alive does not guess.
    away.refused("engine_database", 6, "mission", "cancel", mission, cwd=repo)
    assert cli.say("worker", "--until-idle", cwd=repo).code == 0
    assert cli.say("mission", "show", mission, cwd=repo).document["status"] == "promoted"


def test_an_idempotency_key_belongs_to_a_single_request(tmp_path: Path, url: str) -> None:
    cli, repo = Cli(tmp_path / "person", CHARGEHAND_ENGINE_URL=url), repository(tmp_path / "repo")
    first = cli.say(*RUN, "--idempotency-key", "k", cwd=repo)
    assert first.code == 0, first
    assert cli.say(*RUN, "--idempotency-key", "other", cwd=repo).document["mission"] != first.document["mission"]
    cli.refused("key_reused", 1, *RUN, "--allow", "src/**", "--idempotency-key", "k", cwd=repo)
    cli.refused("usage", 2, *RUN[:-1], "--idempotency-key", "k", cwd=repo)


def test_up_waits_for_a_database_that_starts_later_and_says_so_once(tmp_path: Path) -> None:
    with cluster() as server:
        cli = Cli(tmp_path, CHARGEHAND_ENGINE_URL=server.database())
        server.stop()
        process = cli.start("up", "--port", "0", cwd=tmp_path)
        assert process.stderr is not None
        result = process.stderr.readline()
        assert "Connection refused" in result
        assert "it is tried again for 120 s" in result
        server.start()
        with App.open(environ=cli.environ, cwd=tmp_path) as app:
            wait_until(lambda: "worker" in [member.role for member in app.workers.members()])
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, "")


def test_up_fails_if_the_database_does_not_exist(tmp_path: Path) -> None:
    with cluster() as server:
        cli = Cli(tmp_path, CHARGEHAND_ENGINE_URL=f"{server.database()}_other")
        process = cli.start("up", "--port", "0", cwd=tmp_path)
        _, stderr = process.communicate(timeout=100)
    assert process.returncode == 6
    error = json.loads(stderr)["error"]  # stderr has nothing else
    assert error["code"] == "worker_failed"
    assert "does not exist" in error["message"]


@pytest.mark.needs_bwrap
def test_a_worker_outlives_a_restart_of_its_database_and_prints_no_traceback(tmp_path: Path) -> None:
    with cluster() as server:
        cli = Cli(tmp_path / "person", CHARGEHAND_ENGINE_URL=server.database())
        repo = repository(tmp_path / "repo")
        worker = cli.start("worker", cwd=repo)

        def run_one(line: str) -> None:
            agent = f"command:sh -c 'echo {line} >>g.txt'"
            assert cli.say("run", "add", "--agent", agent, *PASSES, "--detach", cwd=repo).code == 0
            end = time.monotonic() + 120
            while cli.say("mission", "show", "last", cwd=repo).document["status"] != "promoted":
                assert worker.poll() is None, worker.communicate()
                assert time.monotonic() < end
                time.sleep(0.5)

        try:
            run_one("before")
            server.stop()
            time.sleep(4)  # long enough to be noticed, too short to lose a lease of 20 s
            server.start()
            run_one("after")
        finally:
            worker.terminate()
            _, stderr = worker.communicate(timeout=60)
    assert "Traceback" not in stderr
    assert stderr.count("chargehand.worker: the engine's database") <= 1, stderr
