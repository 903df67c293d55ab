"""A person at a terminal: live progress, questions and Ctrl-C. Every program here is a real process."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import forked
from tests.conftest import git, make_repository, repository_state, write_files
from tests.crash_kit import sleepers, wait_until, waking
from tests.terminal_kit import COMMAND, WAIT, Terminal
from tests.used_state import used_state

from mission_kit import CHECK, FILES, GOLD

PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'
GO = ("run", "--red-base", "go")
"""Words of a run whose aim is to mend what the checks of its base show."""


class Cli:
    """A repository with a bug, and the environment of one person."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.started: list[subprocess.Popen[str]] = []
        self.terminals: list[Terminal] = []
        self.repository = make_repository(place / "repo", {**FILES, "chargehand.toml": PROJECT})
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "LANG": "C.UTF-8",
        }

    def terminal(self, *words: str) -> Terminal:
        shown = Terminal((*COMMAND, *words), cwd=self.repository, environment=self.environment)
        self.terminals.append(shown)
        return shown

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command in a pipe, in a new process group."""
        started = forked.ForkedPopen(
            [*COMMAND, *words],
            cwd=self.repository,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(started)
        return started

    def close(self) -> None:
        """End the processes that a failed test left running."""
        for started in self.started:
            with started:
                started.kill()
        for shown in self.terminals:
            shown.close()

    def text(self, *words: str) -> str:
        code, out, _ = forked.run(words, cwd=self.repository, environ=self.environment)
        assert code == 0
        return out

    def json(self, *words: str) -> dict[str, object]:
        _, out, _ = forked.run((*words, "--json"), cwd=self.repository, environ=self.environment)
        document: dict[str, object] = json.loads(out)
        return document


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.close()


@pytest.fixture
def mark() -> str:
    """Return a number of seconds that no other process of this machine sleeps."""
    return str(secrets.randbelow(10**8) + 10**8)


def agent(script: str) -> str:
    return f"command:sh -c {shlex.quote(script)}"


@pytest.mark.needs_bwrap
@pytest.mark.parametrize(
    ("number", "status", "reasons"), [(signal.SIGINT, "cancelled", ["cancelled"]), (signal.SIGTERM, "planned", [])]
)
def test_a_signal_ends_a_running_agent_cleanly(
    cli: Cli, number: int, status: str, reasons: list[str], mark: str
) -> None:
    before = repository_state(cli.repository, without="nothing")
    started = cli.start("run", "x", "--agent", agent(f"echo y > new.py; sleep {mark}"), "--json")
    wait_until(lambda: sleepers(mark))
    os.kill(started.pid, number)
    out, err = started.communicate(timeout=WAIT)
    assert started.returncode == 130
    result = json.loads(out)
    # SIGTERM comes from a machine that shuts down: no person cancelled the mission, and any worker resumes it.
    assert (result["status"], [reason["code"] for reason in result["reasons"]]) == (status, reasons)
    assert "Traceback" not in err
    assert sleepers(mark) == []
    assert repository_state(cli.repository, without="nothing") == before
    assert cli.json("mission", "show", "last")["status"] == status
    assert "+y" in cli.text("mission", "diff", "last")


@pytest.mark.needs_bwrap
def test_a_closed_terminal_keeps_the_mission_and_its_changes(cli: Cli, mark: str) -> None:
    shown = cli.terminal(*GO, "x", "--agent", agent(f"echo y > new.py; sleep {mark}"))
    wait_until(lambda: sleepers(mark))
    os.kill(shown.process_id, signal.SIGHUP)
    wait_until(lambda: not sleepers(mark))
    wait_until(lambda: cli.json("mission", "show", "last")["status"] != "running")
    assert cli.json("mission", "show", "last")["status"] == "planned"
    assert "+y" in cli.text("mission", "diff", "last")


@pytest.mark.needs_bwrap
def test_a_second_signal_forces_the_end_without_leftover_processes(cli: Cli, mark: str) -> None:
    before = repository_state(cli.repository, without="nothing")
    started = cli.start("run", "x", "--agent", agent(f"sleep {mark}"), "--json")
    wait_until(lambda: sleepers(mark))
    os.kill(started.pid, signal.SIGINT)
    os.kill(started.pid, signal.SIGTERM)
    _, err = started.communicate(timeout=WAIT)
    assert started.returncode == 130
    assert "Traceback" not in err
    wait_until(lambda: not sleepers(mark))
    assert repository_state(cli.repository, without="nothing") == before
    assert cli.json("mission", "show", "last")["status"] == "cancelled"


@pytest.mark.needs_bwrap
def test_another_person_cancels_a_mission_that_runs(cli: Cli, mark: str) -> None:
    started = cli.start("run", "x", "--agent", agent(f"sleep {mark}"), "--json")
    wait_until(lambda: sleepers(mark))
    (listed,) = cli.json("mission", "list")["missions"]
    assert listed["status"] == "running"
    watching = cli.start("mission", "watch", "last", "--json")
    assert cli.json("mission", "cancel", listed["mission"])["status"] == "cancelled"
    out, _ = started.communicate(timeout=WAIT)
    assert started.returncode == 1
    assert json.loads(out)["status"] == "cancelled"
    lines = watching.communicate(timeout=WAIT)[0].splitlines()
    assert watching.returncode == 0
    assert json.loads(lines[-1])["type"] == "mission.finished"
    assert sleepers(mark) == []


@pytest.mark.needs_bwrap
def test_a_terminal_shows_live_progress(cli: Cli, mark: str) -> None:
    loud = f"printf 'l%sd\\033]0;title\\007\\n' ou; sleep 1; {GOLD}"
    shown = cli.terminal(*GO, "Mend add()", "--agent", agent(loud), "--check", f"sleep {mark} || true")
    shown.until(f"sleep {mark} || true  ")  # a step is shown if it lasts, so this check sleeps until it was seen
    with waking(mark):
        shown.until("agent working")
        shown.until("loud")
        assert shown.end() == 0
    assert shown.shown.index("base      main @ ") < shown.shown.index("agent working")
    for part in (
        "sandbox   process",
        "attempt 1",
        "promoted",
        "git merge chargehand/mend-add",
    ):
        assert part in shown.shown
    assert "\x1b]0;" not in shown.raw
    assert "\x1b[?25h" in shown.raw


@pytest.mark.needs_bwrap
def test_control_c_at_a_terminal(cli: Cli, mark: str) -> None:
    shown = cli.terminal(*GO, "x", "--agent", agent(f"sleep {mark}"))
    wait_until(lambda: sleepers(mark))
    shown.until("agent working")
    shown.say("\x03")
    shown.until("c cancel")
    shown.say("\x03")
    assert shown.end() == 130
    assert "Stopping. Press Ctrl-C again to force quit." in shown.shown
    assert "cancelled" in shown.shown
    assert "Traceback" not in shown.shown
    assert sleepers(mark) == []


@pytest.mark.needs_bwrap
def test_a_pipe_gets_the_result_on_stdout_and_one_line_per_step_on_stderr(cli: Cli) -> None:
    started = cli.start("run", "Mend", "--agent", agent(f"printf l%sd ou; {GOLD}"))
    out, err = started.communicate(timeout=WAIT)
    assert started.returncode == 0
    assert out.startswith("mission   m-")
    assert out.count("mission   m-") == 1
    steps = [line.split()[0] for line in err.splitlines()]
    assert steps == ["before", "attempt", "green", "attempt"]
    assert "loud" not in out + err
    assert "promoted" in out
    assert "\x1b" not in out


@pytest.mark.needs_bwrap
def test_trust_is_asked_for_once(cli: Cli) -> None:
    write_files(cli.repository, {"chargehand.toml": f"{PROJECT}[limits]\nattempts = 2\n"})
    git(cli.repository, "add", "-A")
    git(cli.repository, "commit", "-q", "-m", "more attempts")
    words = (*GO, "Mend", "--agent", agent(GOLD))
    refusing = cli.terminal(*words)
    refusing.until("Trust this content")
    assert "limits.attempts = 2" in refusing.shown
    refusing.say("n\n")
    assert refusing.end() == 3
    silent = cli.terminal(*words, "--yes")
    assert silent.end() == 3
    assert "Trust this content" not in silent.shown
    trusting = cli.terminal(*words)
    trusting.until("Trust this content")
    trusting.say("y\n")
    assert trusting.end() == 0
    again = cli.start(*words, "--json")
    again.communicate(timeout=WAIT)
    assert again.returncode == 0


def test_control_c_at_a_question_is_an_interruption(cli: Cli) -> None:
    write_files(cli.repository, {"chargehand.toml": "[limits]\nattempts = 2\n"})
    asking = cli.terminal("run", "Mend", "--agent", "command:true")
    asking.until("Trust this content")
    asking.interrupt()
    assert asking.end() == 130
    assert "Traceback" not in asking.shown


def test_init_asks_questions_and_writes_the_answers(cli: Cli) -> None:
    (cli.repository / "chargehand.toml").unlink()
    asking = cli.terminal("init")
    asking.until("Project repo")
    asking.until("Check with `python -m unittest discover`")
    asking.say("y\n")
    asking.until("Another check")
    asking.say("make lint\n")
    asking.until("Which one?")
    (command,) = [line.split()[0] for line in asking.shown.splitlines() if "a command of your own" in line]
    asking.say(f"{command}\n")
    asking.until("Its name")
    asking.say("a b\n")
    asking.until("A name is at most 64 letters")
    asking.say("fixer\n")
    asking.until("Its command")
    asking.say("ruff check --fix 'a b'\n")
    assert asking.end() == 0
    assert (cli.repository / "chargehand.toml").read_text().splitlines()[-1] == (
        'checks = ["python -m unittest discover", "make lint"]'
    )
    fixer, _ = cli.json("agent", "list")["agents"]
    assert fixer["command"] == ["ruff", "check", "--fix", "a b"]
    assert str(cli.place / ".config") in fixer["origin"]
    again = cli.terminal("init")
    again.until("Set up another one?")
    again.say("n\n")
    assert again.end() == 0
    assert "nothing was changed" in again.shown


@pytest.mark.needs_bwrap
def test_a_diff_cannot_write_to_the_terminal(cli: Cli) -> None:
    script = "printf '\\033[2Jevil\\n' >> README.md"
    cli.json("run", "x", "--agent", agent(script), "--only-check", "true")
    assert "\x1b[2Jevil" in cli.text("mission", "diff")
    shown = cli.terminal("mission", "diff")
    assert shown.end() == 0
    assert "evil" in shown.raw
    assert "\x1b[2J" not in shown.raw
    running = cli.terminal("exec", "--", "printf", "\\033[2Jevil")
    assert running.end() == 0
    assert "\x1b[2J" not in running.raw
