"""Every failure is one message and one documented exit code; stdout stays empty; Ctrl-C ends the work."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import pytest
from click.testing import CliRunner

from chargehand.app.composition import App
from chargehand.app.runs import RunOutcome
from chargehand.cli.main import chargehand
from chargehand.cli.terminal.failures import guarded, keep_traceback
from chargehand.cli.terminal.interrupt import Stop, run_async
from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.running import show_outcome
from chargehand.core.errors import (
    ChargehandError,
    ConfigError,
    ExhaustedError,
    InfrastructureError,
    RefusedError,
    StoreError,
    TierUnavailableError,
    WaitingError,
)
from chargehand.core.records import MissionStatus, Reason
from chargehand.core.state import MissionState


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """An interrupted command ignores signals before its process exits; this process continues."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raising(error: BaseException) -> object:
    def work() -> object:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RefusedError("no", hint="try\nagain"), 1),
        (ConfigError("no"), 2),
        (WaitingError("no"), 3),
        (ExhaustedError("no"), 4),
        (TierUnavailableError("no", hint="apt-get install bubblewrap"), 5),
        (InfrastructureError("no"), 6),
    ],
)
def test_each_error_has_its_exit_code_and_shape(
    error: ChargehandError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raising(error), ["run", "--json"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err) == {"error": {"code": error.code, "message": "no", "hint": error.hint}}
    assert guarded(raising(error), ["run"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: no\n" + "".join(f"hint: {line}\n" for line in error.hint.splitlines())


def test_an_unexpected_exception_is_short_and_its_traceback_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    assert guarded(raising(ZeroDivisionError("by zero")), ["run", "--json"]) == 6
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "internal"
    assert "ZeroDivisionError: by zero" in error["message"]
    kept = Path(error["hint"].removeprefix("the traceback was saved to "))
    assert kept.parent == tmp_path / "state" / "errors"
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "Traceback" not in error["message"]


def test_the_newest_tracebacks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "state"))
    place = tmp_path / "state" / "errors"
    place.mkdir(parents=True)
    for number in range(250):
        (place / f"error-{number}.txt").touch()
        os.utime(place / f"error-{number}.txt", (number, number))
    (place / "a note of mine.txt").touch()
    kept = Path(keep_traceback(ZeroDivisionError()))
    left = {path.name for path in place.iterdir()}
    assert left == {kept.name, "a note of mine.txt", *(f"error-{number}.txt" for number in range(51, 250))}


def test_a_state_directory_that_cannot_be_had_does_not_lose_the_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CHARGEHAND_HOME", str(tmp_path / "file" / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert guarded(raising(ZeroDivisionError()), []) == 6
    assert f"the traceback was saved to {tmp_path}/error-" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_so(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(error), []) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


LOST_ONCE = """
import os, signal, sys, time
from chargehand.cli.terminal.failures import guarded
from chargehand.cli.main import listen_for_signals

class Finaliser:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def work():
    Finaliser()
    time.sleep(60)

listen_for_signals()
sys.exit(guarded(work, []))
"""


def test_an_interrupt_in_a_finaliser_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", LOST_ONCE], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_control_characters_are_removed_from_error_messages(capsys: pytest.CaptureFixture[str]) -> None:
    guarded(raising(RefusedError("a\x1b[31mb\x07", hint="\x1b]0;title\x07c")), [])
    assert capsys.readouterr().err == "error: ab\nhint: c\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nosuch"],
        ["run", "--nosuch"],
        ["mission", "nosuch"],
        ["completion", "tcsh"],
        ["mission", "cancel"],
        ["exec"],
        ["checkpoint", "restore", "x"],
    ],
)
def test_wrong_words_are_usage_errors_in_both_forms(words: list[str]) -> None:
    runner = CliRunner()
    plain = runner.invoke(chargehand, words)
    assert plain.exit_code == 2
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ")
    assert plain.stderr.splitlines()[-1].endswith("chargehand list shows all") or "--help" in plain.stderr
    for given in ([*words, "--json"], ["--json", *words]):
        done = runner.invoke(chargehand, given)
        assert done.exit_code == 2
        assert done.stdout == ""
        assert json.loads(done.stderr)["error"]["code"] == "usage"


def test_an_unknown_option_suggests_the_nearest_option() -> None:
    done = CliRunner().invoke(chargehand, ["run", "x", "--only-chek", "true"])
    assert done.exit_code == 2
    assert "--only-check" in done.stderr


def test_json_after_two_dashes_belongs_to_the_other_program(tmp_path: Path) -> None:
    environment = {"CHARGEHAND_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    done = CliRunner().invoke(chargehand, ["exec", "--repo", str(tmp_path), "--", "ls", "--json"], env=environment)
    assert done.exit_code == 125
    assert done.stderr.startswith("error: ")


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m chargehand completion bash | true; echo ${{PIPESTATUS[0]}}"
    environment = os.environ | {"CHARGEHAND_HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert done.stderr == ""


class KeyPressed(asyncio.DefaultEventLoopPolicy):
    """Ctrl-C arrives while a loop is being created."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        os.kill(os.getpid(), signal.SIGINT)
        return super().new_event_loop()


@pytest.fixture
def pressed() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    asyncio.set_event_loop_policy(KeyPressed())
    yield
    asyncio.set_event_loop_policy(None)
    assert signal.signal(signal.SIGINT, before) is interrupt


@pytest.mark.usefixtures("pressed")
def test_ctrl_c_during_creation_of_the_loop_is_raised_before_work_begins() -> None:
    begun = []

    async def work(stop: Stop) -> None:
        begun.append(stop)

    with pytest.raises(KeyboardInterrupt):
        run_async(work)
    assert begun == []


@pytest.mark.parametrize(
    ("status", "reason", "code", "exit_code"),
    [
        ("paused", "worker_lost", "store_full", 3),  # not even the waiting state could be written
        ("paused", "worker_lost", "no_space", 3),
        ("failed", "internal", "store_full", 6),
        ("paused", "worker_lost", "store_corrupt", 6),
    ],
)
def test_a_full_disk_is_no_internal_error_if_the_mission_is_paused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    status: MissionStatus,
    reason: str,
    code: str,
    exit_code: int,
) -> None:
    state = MissionState(id="m-1m8455nrdyh2yn", status=status, reasons=(Reason(code=reason, message="why"),))
    outcome = RunOutcome(state=state, failure=StoreError("the disk is full", code=code))
    environ = {"HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "state"), "PATH": "/usr/bin"}
    with App.open(environ=environ, cwd=tmp_path) as app:
        assert show_outcome(app, Output(as_json=True), outcome) == exit_code
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == status
    assert json.loads(shown.err)["error"]["code"] == code
