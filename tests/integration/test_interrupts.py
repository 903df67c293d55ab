"""Ctrl-C at any moment of a command, from its first import to its last exit handler: exit 130, and no traceback.

Moments are counted, not timed: the interpreter reports each import, opened file and started process to an audit
hook, and the signal comes at one of these. The suite tries a few moments of some commands, `scripts/soak` every
`CHARGEHAND_SOAK_STEP`th (20) moment of all commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import git
from tests.crash_kit import nothing_survives
from tests.integration.command_line import MEND, PASSES, Cli, repository

from chargehand.core.state import SETTLED

pytestmark = pytest.mark.needs_bwrap
soak = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

STEP = int(os.environ.get("CHARGEHAND_SOAK_STEP", "20"))
SAMPLE = 4
# Moments before the first handler belong to the interpreter's start, which the program cannot control.
DRIVER = """
import _signal, os, runpy, sys
place, at, passed = sys.argv.pop(1), int(sys.argv.pop(1)), 0
def press_key(event, words):
    global passed
    if _signal.getsignal(_signal.SIGINT) is not _signal.default_int_handler:
        passed += 1
        if passed == at:
            os.kill(os.getpid(), _signal.SIGINT)
        if at == 0:
            os.pwrite(descriptor, b"%d" % passed, 0)
descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
sys.addaudithook(press_key)
runpy.run_module("chargehand", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """Exit code and output of an interrupted command."""

    code: int
    stdout: str
    stderr: str


class Keyboard:
    """A person who runs commands and presses Ctrl-C at a chosen moment."""

    def __init__(self, place: Path) -> None:
        self.cli = Cli(place / "person")
        self.repository = repository(place / "repo")
        self._count = place / "passed"

    def moments(self, words: Sequence[str]) -> int:
        """Return how many moments an undisturbed command passes."""
        assert self.interrupt(words, 0).code == 0
        return int(self._count.read_text())

    def interrupt(self, words: Sequence[str], moment: int) -> Interrupted:
        """Run a command and press Ctrl-C at the given moment; 0 means never."""
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, str(self._count), str(moment), *words],
            cwd=self.repository,
            env=self.cli.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Interrupted(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture
def keyboard(tmp_path: Path) -> Iterator[Keyboard]:
    with nothing_survives():
        yield Keyboard(tmp_path)


COMMANDS = {
    "help": ("--help",),
    "version": ("--version",),
    "list": ("mission", "list"),
    "show": ("mission", "show"),
    "config": ("config", "show"),
    "doctor": ("doctor",),
    "agents": ("agent", "list"),
    "demo": ("demo",),
    "run": ("run", "mend", "--agent", MEND, *PASSES),
}
OFTEN = ("help", "list", "run")


@pytest.mark.parametrize(
    ("name", "sampled"),
    [*((name, True) for name in OFTEN), *(pytest.param(name, False, marks=soak) for name in COMMANDS)],
)
def test_ctrl_c_ends_a_command_quietly(keyboard: Keyboard, name: str, sampled: bool) -> None:
    words, faults = COMMANDS[name], []
    assert keyboard.cli.run(keyboard.repository).code == 0
    last = keyboard.moments(words)
    chosen = [last * number // SAMPLE for number in range(1, SAMPLE)] if sampled else range(1, last + 1, STEP)
    for moment in chosen:
        done = keyboard.interrupt(words, moment)
        # A command may pass fewer moments than before, because it keeps its findings: then it ends with 0.
        quiet = done.code in (130, 0) and not any(
            word in done.stderr for word in ("Traceback", "Exception ignored", "Error:", "internal")
        )
        if not quiet:
            faults.append((moment, done))
    print(f"{name}: {len(list(chosen))} of {last} moments")
    assert faults == []
    for state in keyboard.cli.missions(keyboard.repository):
        assert state.status in SETTLED | {"planned"}
    assert git(keyboard.repository, "status", "--porcelain") == ""
