"""The Ctrl-C menu at a terminal while a mission runs; every program here is a real process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli_terminal import Cli, agent
from tests.crash_kit import MARK, wake

from chargehand.app.composition import App
from chargehand.core.mission_events import MessageSent, MissionPaused, MissionResumed
from mission_kit import GOLD

pytestmark = pytest.mark.needs_bwrap
SLOW = f"echo began; sleep {MARK}; {GOLD}"
OFFER = "p pause   t TEXT"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.close()


def told(cli: Cli, *kinds: Any) -> list[dict[str, Any]]:
    """Return the payloads of these events of the newest mission."""
    with App.open(environ=cli.environment, cwd=cli.repository) as app:
        lines = app.store.log.read(app.find_mission("last"), types=tuple(kind.type for kind in kinds))
    return [json.loads(line.payload or b"{}") for line in lines]


def test_a_run_is_paused_messaged_and_resumed_from_its_menu(cli: Cli) -> None:
    shown = cli.terminal("run", "--red-base", "go", "Mend add()", "--agent", agent(SLOW))
    shown.until("    began")
    shown.say("\x03")
    shown.until(OFFER)
    shown.say("p\n")
    shown.until("Paused. Enter resumes it.")
    shown.say("what\n")
    shown.until("'what' is not one of these")
    shown.say("\n")
    shown.until("resumed by")
    shown.raw = ""
    shown.say("\x03")
    shown.until(OFFER)
    shown.say("t be quick\n")
    shown.until("Not delivered")
    assert wake()
    assert shown.end() == 0, shown.shown
    assert (len(told(cli, MissionPaused)), len(told(cli, MissionResumed))) == (1, 1)
    assert [each["text"] for each in told(cli, MessageSent)] == ["be quick"]


@pytest.mark.parametrize("choice", ["c\n", "\x03"])
def test_cancel_and_a_second_ctrl_c_end_the_run_cleanly(cli: Cli, choice: str) -> None:
    shown = cli.terminal("run", "--red-base", "go", "Mend add()", "--agent", agent("echo began; sleep 60"))
    shown.until("    began")
    shown.say("\x03")
    shown.until(OFFER)
    shown.say(choice)
    assert shown.end() == 130, shown.shown
    assert "cancelled" in shown.shown
    assert "Traceback" not in shown.shown


def test_a_watcher_can_stop_watching_without_ending_the_mission(cli: Cli) -> None:
    cli.json("run", "--red-base", "go", "Mend add()", "--agent", agent(SLOW), "--detach")
    shown = cli.terminal("mission", "watch", "last")
    shown.until("    began")
    shown.say("\x03")
    shown.until("q stop watching")
    shown.say("t hello\n")
    shown.until("Not delivered")
    shown.raw = ""
    shown.say("\x03")
    shown.until("q stop watching")
    shown.say("q\n")
    assert shown.end() == 130, shown.shown
    again = cli.terminal("mission", "watch", "last")
    assert wake()
    assert again.end() == 0
    assert "promoted" in again.shown
    assert [each["text"] for each in told(cli, MessageSent)] == ["hello"]
