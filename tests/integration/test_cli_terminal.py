"""A person at a terminal: live progress, questions, and Ctrl-C; every program here is a real process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import secrets
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import forked
from tests.conftest import git, make_repository, repository_state, write_files
from tests.crash_kit import sleepers
from tests.used_state import used_state
from workshop import CHECK, FILES, GOLD

WAIT = 120.0
PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'
COMMAND = (sys.executable, "-m", "chargehand")
GO = ("run", "--red-base", "go")
"""Words of a run whose aim is to mend what the checks of its base show."""


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(self, words: tuple[str, ...], *, cwd: Path, environment: dict[str, str]) -> None:
        environment = environment | {"TERM": "xterm"}
        self._forked: forked.ForkedProcess | None = None
        self._code: int | None = None
        if words[: len(COMMAND)] == COMMAND:
            self.terminal, inside = pty.openpty()
            self._forked = forked.ForkedProcess(
                words[len(COMMAND) :], cwd=cwd, environ=environment, terminal=inside
            )
            os.close(inside)
            self.process_id = self._forked.pid
        else:
            self.process_id, self.terminal = pty.fork()
            if self.process_id == 0:
                os.chdir(cwd)
                os.execve(words[0], words, environment)
        self.raw = ""

    @property
    def shown(self) -> str:
        """What was written so far, without escape sequences."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.raw)

    def until(self, text: str) -> None:
        """Read until `text` is shown; fails when the program ends or time is up before."""
        deadline = time.monotonic() + WAIT
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def say(self, text: str) -> None:
        """Type a line, or a control character."""
        os.write(self.terminal, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C until it is seen: one just before a read begins is seen only after it."""
        deadline = time.monotonic() + WAIT
        while not self._ended():
            assert time.monotonic() < deadline, self.shown
            with contextlib.suppress(OSError):
                os.write(self.terminal, b"\x03")
            again = time.monotonic() + 0.5
            while not self._ended() and time.monotonic() < again:
                if not self._read(0.1):
                    time.sleep(0.02)

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while self._read():
            pass
        wait_for(self._ended)
        os.close(self.terminal)
        assert self._code is not None
        return self._code

    def close(self) -> None:
        """End the program of a test that failed half-way."""
        if not self._ended():
            os.kill(self.process_id, signal.SIGKILL)
            wait_for(self._ended)

    def _ended(self) -> bool:
        if self._forked is not None:
            self._code = self._forked.poll()
        elif self._code is None:
            done, status = os.waitpid(self.process_id, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if done else None
        return self._code is not None

    def _read(self, seconds: float = WAIT) -> bool:
        ready, _, _ = select.select([self.terminal], [], [], seconds)
        try:
            piece = os.read(self.terminal, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        self.raw += piece.decode(errors="replace")
        return bool(piece)


class Desk:
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
        """Start a command in a pipe, in a process group of its own."""
        started = subprocess.Popen(
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
        """End what a failed test left running."""
        for started in self.started:
            with started:
                started.kill()
        for shown in self.terminals:
            shown.close()

    def bytes(self, *words: str) -> bytes:
        return subprocess.run(
            [*COMMAND, *words], cwd=self.repository, env=self.environment, capture_output=True, check=True
        ).stdout

    def json(self, *words: str) -> dict[str, object]:
        _, out, _ = forked.run((*words, "--json"), cwd=self.repository, environ=self.environment)
        document: dict[str, object] = json.loads(out)
        return document


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def mark() -> str:
    """Seconds to sleep that no other process of this machine sleeps."""
    return str(secrets.randbelow(10**8) + 10**8)


def agent(script: str) -> str:
    return f"command:sh -c {shlex.quote(script)}"


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.needs_bwrap
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_an_agent_ends_it_cleanly(desk: Desk, number: int, mark: str) -> None:
    before = repository_state(desk.repository, without="nothing")
    started = desk.start("run", "x", "--agent", agent(f"echo y > new.py; sleep {mark}"), "--json")
    wait_for(lambda: sleepers(mark))
    os.kill(started.pid, number)
    out, err = started.communicate(timeout=WAIT)
    assert started.returncode == 130
    result = json.loads(out)
    assert (result["status"], result["reasons"][0]["code"]) == ("cancelled", "cancelled")
    assert "Traceback" not in err
    assert sleepers(mark) == []
    assert repository_state(desk.repository, without="nothing") == before
    assert desk.json("mission", "show", "last")["status"] == "cancelled"


@pytest.mark.needs_bwrap
def test_a_second_signal_forces_the_end_and_nothing_survives(desk: Desk, mark: str) -> None:
    before = repository_state(desk.repository, without="nothing")
    started = desk.start("run", "x", "--agent", agent(f"sleep {mark}"), "--json")
    wait_for(lambda: sleepers(mark))
    os.kill(started.pid, signal.SIGINT)
    os.kill(started.pid, signal.SIGTERM)
    _, err = started.communicate(timeout=WAIT)
    assert started.returncode == 130
    assert "Traceback" not in err
    wait_for(lambda: not sleepers(mark))
    assert repository_state(desk.repository, without="nothing") == before
    assert desk.json("mission", "show", "last")["status"] == "cancelled"


@pytest.mark.needs_bwrap
def test_another_person_cancels_a_mission_that_runs(desk: Desk, mark: str) -> None:
    started = desk.start("run", "x", "--agent", agent(f"sleep {mark}"), "--json")
    wait_for(lambda: sleepers(mark))
    (listed,) = desk.json("mission", "list")["missions"]
    assert listed["status"] == "running"
    watching = desk.start("mission", "watch", "last", "--json")
    assert desk.json("mission", "cancel", listed["mission"])["status"] == "cancelled"
    out, _ = started.communicate(timeout=WAIT)
    assert started.returncode == 1
    assert json.loads(out)["status"] == "cancelled"
    lines = watching.communicate(timeout=WAIT)[0].splitlines()
    assert watching.returncode == 0
    assert json.loads(lines[-1])["type"] == "mission.finished"
    assert sleepers(mark) == []


@pytest.mark.needs_bwrap
def test_a_terminal_shows_what_goes_on(desk: Desk) -> None:
    shown = desk.terminal(
        *GO, "Mend add()", "--agent", agent(f"printf 'l%sd\\033]0;title\\007\\n' ou; sleep 1; {GOLD}")
    )
    shown.until("agent working")
    shown.until("loud")
    assert shown.end() == 0
    assert shown.shown.index("base      main @ ") < shown.shown.index("agent working")
    for part in (
        "sandbox   process",
        "attempt 1",
        "running checks",
        "promoted",
        "git merge chargehand/mend-add",
    ):
        assert part in shown.shown
    assert "\x1b]0;" not in shown.raw
    assert "\x1b[?25h" in shown.raw


@pytest.mark.needs_bwrap
def test_control_c_at_a_terminal(desk: Desk, mark: str) -> None:
    shown = desk.terminal(*GO, "x", "--agent", agent(f"sleep {mark}"))
    wait_for(lambda: sleepers(mark))
    shown.until("agent working")
    shown.say("\x03")
    shown.until("Ctrl-C again stops")
    shown.say("\x03")
    assert shown.end() == 130
    assert "Stopping. Press Ctrl-C again to force quit." in shown.shown
    assert "cancelled" in shown.shown
    assert "Traceback" not in shown.shown
    assert sleepers(mark) == []


@pytest.mark.needs_bwrap
def test_a_pipe_shows_only_the_result(desk: Desk) -> None:
    started = desk.start("run", "Mend", "--agent", agent(f"printf l%sd ou; {GOLD}"))
    out, err = started.communicate(timeout=WAIT)
    assert started.returncode == 0
    assert err == ""
    assert "loud" not in out
    assert "promoted" in out
    assert "\x1b" not in out


@pytest.mark.needs_bwrap
def test_trust_is_asked_for_once(desk: Desk) -> None:
    write_files(desk.repository, {"chargehand.toml": f"{PROJECT}[limits]\nattempts = 2\n"})
    git(desk.repository, "add", "-A")
    git(desk.repository, "commit", "-q", "-m", "more attempts")
    words = (*GO, "Mend", "--agent", agent(GOLD))
    refusing = desk.terminal(*words)
    refusing.until("Trust this content")
    assert "limits.attempts = 2" in refusing.shown
    refusing.say("n\n")
    assert refusing.end() == 3
    silent = desk.terminal(*words, "--yes")
    assert silent.end() == 3
    assert "Trust this content" not in silent.shown
    trusting = desk.terminal(*words)
    trusting.until("Trust this content")
    trusting.say("y\n")
    assert trusting.end() == 0
    again = desk.start(*words, "--json")
    again.communicate(timeout=WAIT)
    assert again.returncode == 0


def test_control_c_at_a_question_is_an_interruption(desk: Desk) -> None:
    write_files(desk.repository, {"chargehand.toml": "[limits]\nattempts = 2\n"})
    asking = desk.terminal("run", "Mend", "--agent", "command:true")
    asking.until("Trust this content")
    asking.interrupt()
    assert asking.end() == 130
    assert "Traceback" not in asking.shown


def test_init_asks_and_writes_what_is_answered(desk: Desk) -> None:
    (desk.repository / "chargehand.toml").unlink()
    asking = desk.terminal("init")
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
    assert (desk.repository / "chargehand.toml").read_text().splitlines()[-1] == (
        'checks = ["python -m unittest discover", "make lint"]'
    )
    fixer, _ = desk.json("agent", "list")["agents"]
    assert fixer["command"] == ["ruff", "check", "--fix", "a b"]
    assert str(desk.place / ".config") in fixer["origin"]
    again = desk.terminal("init")
    assert again.end() == 0
    assert "nothing was changed" in again.shown


@pytest.mark.needs_bwrap
def test_a_diff_cannot_write_to_the_terminal(desk: Desk) -> None:
    script = "printf '\\033[2Jevil\\n' >> README.md"
    desk.json("run", "x", "--agent", agent(script), "--only-check", "true")
    assert b"\x1b[2Jevil" in desk.bytes("mission", "diff")
    shown = desk.terminal("mission", "diff")
    assert shown.end() == 0
    assert "evil" in shown.raw
    assert "\x1b[2J" not in shown.raw
    running = desk.terminal("exec", "--", "printf", "\\033[2Jevil")
    assert running.end() == 0
    assert "\x1b[2J" not in running.raw
