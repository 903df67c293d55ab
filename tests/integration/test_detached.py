"""Missions continued by a worker: detached runs, messages, waiting over an upgrade, missions that cannot start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import MEND, PASSES, Cli, Completed, finish, repository, shell
from tests.crash_kit import MARK, sleepers, wait_until, wake
from tests.unit.older_stores import as_of_version_6

from chargehand.app import worker
from chargehand.app.composition import App
from chargehand.app.runs import RunOutcome, RunStart, prepare_run, run_mission
from chargehand.app.worker import start_worker
from chargehand.cli.terminal.logs import LARGEST_FILE
from chargehand.configuration.run_options import RunRequest
from chargehand.core.errors import RefusedError
from chargehand.core.events import Event, Payload
from chargehand.missions.journal import claim_mission
from chargehand.reports.outcome import next_commands

pytestmark = pytest.mark.needs_bwrap
TWO_TRIES = f"case x$CHARGEHAND_REPORT in x) sleep {MARK}; touch half;; *) cp $CHARGEHAND_REPORT said.json;; esac"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    wait_until(lambda: not workers(made))  # each worker ends by itself once nothing is left to do


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


def is_open(file: Path) -> bool:
    """Return whether any process that this user may inspect has a file open."""
    for process in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
        with contextlib.suppress(OSError):  # it just ended, or belongs to another user
            for number in os.listdir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):  # it was closed just now
                    if os.readlink(f"/proc/{process}/fd/{number}") == str(file):
                        return True
    return False


def workers(cli: Cli) -> list[str]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [member.id for member in app.workers.members() if member.role == "worker"]


def detach(cli: Cli, repo: Path, *words: str, agent: str = MEND) -> Completed:
    result = cli.run(repo, "--detach", *words, agent=agent)
    assert result.code == 0, result
    return result


def watched(cli: Cli, result: Completed, repo: Path) -> list[str]:
    """Watch a mission to its end and return the types of its events."""
    seen = cli.say("mission", "watch", result.document["mission"], cwd=repo)
    assert seen.code == 0, seen
    return [json.loads(line)["type"] for line in seen.stdout.splitlines()]


def test_a_detached_mission_is_finished_by_a_worker_that_then_ends(cli: Cli, repo: Path) -> None:
    result = detach(cli, repo)
    assert result.document["status"] in ("planned", "running")
    types = watched(cli, result, repo)
    assert types[0] == "mission.created"
    assert types[-1] == "mission.finished"
    state = cli.state(result)
    assert (state.status, state.claims) == ("promoted", 1)
    assert state.exported == state.commit
    # Check its process, not its membership: a worker that has left looks for work once more.
    wait_until(lambda: not is_open(cli.home / "logs" / "worker.log"))
    assert list((cli.home / "workers").iterdir()) == []


def test_a_detached_worker_logs_as_configured_to_a_file_that_is_cut(cli: Cli, repo: Path) -> None:
    log = cli.home / "logs" / "worker.log"
    log.parent.mkdir(exist_ok=True)
    log.write_bytes(b"x" * (LARGEST_FILE + 1))
    cli.environ |= {"CHARGEHAND_LOG_FORMAT": "json", "CHARGEHAND_LOG_LEVEL": "info"}
    result = detach(cli, repo)
    watched(cli, result, repo)
    wait_until(lambda: not workers(cli))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    mission = result.document["mission"]
    (attempt,) = cli.state(result).attempts
    assert [line["message"] for line in lines] == ["goes on", "attempt 1 begins", "is promoted"]
    assert {line["mission"] for line in lines} == {mission}
    assert lines[1]["attempt"] == attempt.id
    assert (lines[0]["level"], lines[0]["logger"]) == ("info", "chargehand.worker")
    assert log.with_suffix(".log.1").stat().st_size == LARGEST_FILE + 1


def test_a_worker_that_is_just_starting_is_not_started_twice(
    cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "subprocess", subprocess)  # a forked worker would have joined before the signal
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        first = start_worker(app)
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)  # as slow as possible: it has not joined
        try:
            assert [start_worker(app) for _ in range(3)] == [None] * 3
        finally:
            first.kill()
        first.wait()
        again = start_worker(app)
        assert again is not None, "one that died in its start keeps nobody else from it"
        wait_until(lambda: workers(cli) != [])
        assert start_worker(app) is None
        again.kill()
        again.wait()
        third = start_worker(app)
        assert third is not None, "one that has joined holds no start"
        wait_until(lambda: third.poll() == 0)


class TakingWorker:
    """Follows a run and tries to take its mission as a worker does, between its first log line and its work."""

    def __init__(self, cli: Cli, *, breaks: bool = False) -> None:
        self._cli = cli
        self._breaks = breaks
        self.mission = ""
        self.refusal = ""

    def take(self) -> str:
        """Return why the mission cannot be taken, "" if it can."""
        with App.open(environ=self._cli.environ, cwd=self._cli.place) as app:
            log = app.store.log
            try:
                with claim_mission(log, self.mission, worker="another", look=app.mission_reader):
                    return ""
            except RefusedError as error:
                return error.code

    def begin(self, start: RunStart, /) -> None:
        self.mission = start.mission
        self.refusal = self.take()
        if self._breaks:
            raise KeyboardInterrupt

    def watch(self, event: Event, payload: Payload, /) -> None:
        pass

    def output(self, stream: str, piece: bytes, /) -> None:
        pass

    def check_output(self, stream: str, piece: bytes, /) -> None:
        pass


def run_here(cli: Cli, repo: Path, observer: TakingWorker) -> RunOutcome:
    request = RunRequest(text="mend", agent=MEND, only_checks=("true",), repo=repo)
    with App.open(environ=cli.environ, cwd=repo) as app:
        return asyncio.run(run_mission(app, prepare_run(app, request), observer=observer))


def test_no_worker_claims_the_mission_of_a_run_before_it_starts(cli: Cli, repo: Path) -> None:
    observer = TakingWorker(cli)
    outcome = run_here(cli, repo, observer)
    assert observer.refusal == "mission_held"
    assert (outcome.state.status, outcome.failure) == ("promoted", None)


def test_a_run_that_breaks_before_its_work_leaves_its_mission_to_workers(cli: Cli, repo: Path) -> None:
    observer = TakingWorker(cli, breaks=True)
    with pytest.raises(KeyboardInterrupt):
        run_here(cli, repo, observer)
    assert observer.refusal == "mission_held"
    assert observer.take() == ""


CONTINUES = """
import sys
from chargehand.app.composition import App
from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.running import continue_mission, show_outcome

with App.open() as app:
    out = Output(as_json=True)
    outcome = continue_mission(app, out, sys.argv[1])
    print(outcome.failure and outcome.failure.code, file=sys.stderr, flush=True)
    sys.exit(show_outcome(app, out, outcome))
"""


def test_continuing_a_mission_claimed_by_a_worker_follows_the_worker(cli: Cli, repo: Path) -> None:
    waits = f"command:sh -c 'sleep {MARK}; sed -i s/a/b/ f.txt'"
    mission = detach(cli, repo, agent=waits).document["mission"]
    wait_until(sleepers)
    continued = subprocess.Popen(
        [sys.executable, "-c", CONTINUES, mission],
        cwd=repo,
        env=cli.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert continued.stderr is not None
    assert continued.stderr.readline() == "mission_held\n"
    assert wake()
    result, _ = continued.communicate(timeout=120)
    assert (json.loads(result)["status"], continued.returncode) == ("promoted", 0)


def test_several_detached_missions_share_a_worker(cli: Cli, repo: Path) -> None:
    all_of_them = [detach(cli, repo) for _ in range(3)]
    for result in all_of_them:
        watched(cli, result, repo)
    assert [cli.state(result).status for result in all_of_them] == ["promoted"] * 3


def test_the_worker_uses_the_options_of_the_detached_run(cli: Cli, repo: Path) -> None:
    result = detach(cli, repo, "--forbid", "f.txt", "--attempts", "2")
    (cli.place / ".config/chargehand").mkdir(parents=True)
    (cli.place / ".config/chargehand/config.toml").write_text("[limits]\nattempts = 1\n")
    watched(cli, result, repo)
    state = cli.state(result)
    assert (state.status, len(state.attempts)) == ("refused", 2)
    assert {reason.code for reason in state.reasons} == {"area_forbidden"}


def test_no_worker_claims_a_paused_mission_until_resumed(cli: Cli, repo: Path) -> None:
    result = detach(cli, repo, agent=shell("sleep 300"))
    mission = result.document["mission"]
    wait_until(lambda: bool(cli.state(result).attempts))
    paused = cli.say("mission", "pause", mission, "--reason", "lunch", cwd=repo)
    assert (paused.code, paused.document["status"], paused.reasons) == (0, "paused", {"paused"}), paused
    assert "lunch" in paused.document["reasons"][0]["message"]
    again = cli.say("mission", "pause", mission, cwd=repo)
    assert (again.code, again.document["status"]) == (0, "paused")
    resumed = cli.say("mission", "resume", mission, cwd=repo)
    assert (resumed.code, resumed.document["status"]) == (0, "running"), resumed
    cancelled = cli.say("mission", "cancel", mission, cwd=repo)
    assert (cancelled.code, cancelled.document["status"]) == (0, "cancelled"), cancelled
    # A cancelled mission can be resumed too, a discarded one cannot.
    resumed = cli.say("mission", "resume", mission, cwd=repo)
    assert (resumed.code, resumed.document["status"]) in ((0, "planned"), (0, "running")), resumed
    wait_until(lambda: len([each for each in cli.state(result).attempts if each.status == "running"]) == 1)
    assert cli.say("mission", "cancel", mission, cwd=repo).document["status"] == "cancelled"
    assert cli.say("mission", "discard", mission, cwd=repo).code == 0
    late = cli.say("mission", "resume", mission, cwd=repo)
    assert (late.code, late.error["code"]) == (1, "not_resumable")


def test_a_message_reaches_the_next_attempt(cli: Cli, repo: Path) -> None:
    result = detach(cli, repo, "--attempts", "2", "--only-check", "test -e said.json", agent=shell(TWO_TRIES))
    wait_until(lambda: bool(cli.state(result).attempts))
    sent = cli.say("mission", "send", result.document["mission"], "mind the f", cwd=repo)
    assert (sent.code, sent.document["messages"]) == (0, 1), sent
    wait_until(wake)
    watched(cli, result, repo)
    state = cli.state(result)
    assert len(state.attempts) == 2
    told = cli.say("exec", "--mission", state.id, "--", "cat", "said.json", cwd=repo).document["stdout"]
    assert json.loads(told)["messages"] == ["mind the f"]
    over = cli.say("mission", "send", result.document["mission"], "more", cwd=repo)
    assert (over.code, over.error["code"]) == (1, "not_sendable")


def test_an_unacknowledged_critical_message_pauses_and_asks_a_person(cli: Cli, repo: Path) -> None:
    result = detach(cli, repo, agent="command:sh -c 'for i in $(seq 900); do date +%N > ticks; sleep 0.1; done'")
    mission = result.document["mission"]
    wait_until(lambda: bool(cli.state(result).attempts))
    sent = cli.say("mission", "send", mission, "the wrong branch: stop", "--critical", cwd=repo)
    assert (sent.code, sent.document["critical"]) == (0, True), sent
    wait_until(lambda: cli.state(result).open_question is not None)
    state = cli.state(result)
    assert (state.status, state.acknowledged) == ("paused", set())
    asked = cli.say("mission", "answer", mission, cwd=repo)
    assert asked.code == 3
    assert "the wrong branch: stop" in asked.document["text"]
    assert asked.document["options"] == ["go on", "cancel", "deliver with the next attempt"]
    answered = cli.say("mission", "answer", mission, "cancel", cwd=repo)
    assert answered.code == 0, answered
    wait_until(lambda: cli.state(result).status == "cancelled")


def test_a_mission_whose_repository_is_gone_fails_and_says_so(cli: Cli, repo: Path) -> None:
    result = cli.run(repo, "--detach", agent=shell("sleep 300"))
    wait_until(lambda: bool(cli.state(result).attempts))
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        (worker,) = [member for member in app.workers.members() if member.role == "worker"]
    os.kill(worker.pid, signal.SIGKILL)
    repo.rename(cli.place / "away")
    done = cli.say("worker", "--until-idle", cwd=cli.place)
    assert done.code == 0, done
    state = cli.state(result)
    assert (state.status, [reason.code for reason in state.reasons]) == ("failed", ["repository_gone"])
    assert f"chargehand mission resume {state.id}" in next_commands(state)
    # Once the repository is back, the mission resumes where it was.
    (cli.place / "away").rename(repo)
    assert cli.say("mission", "resume", "last", cwd=repo).code == 0
    wait_until(lambda: cli.state(result).status == "running")
    cli.say("mission", "cancel", "last", cwd=repo)


def test_a_waiting_mission_can_be_promoted_after_an_upgrade(cli: Cli, repo: Path) -> None:
    waiting = cli.run(repo, agent=shell("touch conftest.py"))
    assert (waiting.code, waiting.document["status"]) == (3, "waiting"), waiting
    with sqlite3.connect(cli.home / "store.db") as raw:  # as the first version stored it
        as_of_version_6(raw)
        for table in ("spending", "spending_alerts", "spending_totals", "inspections"):
            raw.execute(f"DROP TABLE {table}")
        raw.execute("DROP INDEX missions_to_take")
        raw.execute("DROP INDEX missions_to_wake")
        for column in ("epoch", "owner", "runnable", "wakes"):
            raw.execute(f"ALTER TABLE missions DROP COLUMN {column}")
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    raw.close()
    promoted = cli.say("mission", "promote", waiting.document["mission"], "--reason", "mine", cwd=repo)
    assert (promoted.code, promoted.document["status"]) == (0, "promoted"), promoted


def test_a_mission_of_another_version_resumes_from_its_last_step(cli: Cli, repo: Path) -> None:
    other = (
        "import sys, chargehand; chargehand.__version__ = '0.0.9'; "
        "from chargehand.cli.main import main; sys.argv[0] = 'chargehand'; main()"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            other,
            "run",
            "mend",
            "--agent",
            shell(f"sleep {MARK}; sed -i s/a/b/ f.txt"),
            *PASSES,
        ],
        cwd=repo,
        env=cli.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with process:
        wait_until(sleepers)
        process.kill()
    wait_until(lambda: not sleepers())
    wait_until(lambda: cli.missions(repo)[0].status == "paused")
    (lost,) = cli.missions(repo)
    assert (lost.status, lost.program, lost.attempts[0].status) == ("paused", "0.0.9", "lost")
    working = cli.start("worker", "--until-idle", cwd=repo)
    wait_until(wake)
    assert finish(working).code == 0
    (state,) = cli.missions(repo)
    assert (state.status, state.claims, len(state.attempts)) == ("promoted", 2, 1)
    assert state.program != "0.0.9"
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        steps = [line.type for line in app.store.log.read(state.id)]
    assert steps.count("agent.selected") == 1
    assert steps.count("attempt.resumed") == 1


SECOND = shell("test $CHARGEHAND_ATTEMPT -gt 1 && echo x > b.txt")


def test_a_plan_continues_after_a_person_changes_a_task(cli: Cli, repo: Path) -> None:
    file = cli.place / "plan.json"
    tasks = [
        {"id": "b", "text": "b", "agent": SECOND},
        {"id": "c", "text": "c", "agent": shell("touch conftest.py"), "after": ["b"]},
    ]
    file.write_text(json.dumps({"tasks": tasks}))
    result = cli.say("run", "--plan", str(file), *PASSES, cwd=repo)
    assert (result.code, result.document["status"]) == (3, "waiting"), result

    def child() -> str:
        return next(each.id for each in reversed(cli.missions(repo)) if each.parent)

    again = cli.say("mission", "continue", child(), "once more", cwd=repo)
    assert (again.document["status"], again.document["task"]) == ("promoted", "b"), again
    # No person has to start a worker for the plan.
    wait_until(lambda: cli.state(result).reasons[:1] and cli.state(result).reasons[0].code == "task_waits")
    cli.say("mission", "cancel", child(), cwd=repo)
    wait_until(lambda: cli.state(result).open_question is not None)
    cli.say("mission", "answer", result.document["mission"], "skip", cwd=repo)
    wait_until(lambda: cli.state(result).status == "promoted")
