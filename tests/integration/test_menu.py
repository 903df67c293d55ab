"""The Ctrl-C menu at a terminal while a mission runs; every program here is a real process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli_terminal import Desk, agent
from tests.crash_kit import MARK, wake
from workshop import GOLD

from chargehand.app.composition import App
from chargehand.core.mission_events import MessageSent, MissionPaused, MissionResumed

pytestmark = pytest.mark.needs_bwrap
SLOW = f"echo began; sleep {MARK}; {GOLD}"
OFFER = "p pause, t TEXT"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def told(desk: Desk, *kinds: Any) -> list[dict[str, Any]]:
    """Return the payloads of these events of the newest mission."""
    with App.open(environ=desk.environment, cwd=desk.repository) as app:
        lines = app.store.log.read(app.find_mission("last"), types=tuple(kind.type for kind in kinds))
    return [json.loads(line.payload or b"{}") for line in lines]


def test_a_run_is_paused_told_and_resumed_from_its_menu(desk: Desk) -> None:
    shown = desk.terminal("run", "--red-base", "go", "Mend add()", "--agent", agent(SLOW))
    shown.until("    began")
    shown.say("\x03")
    shown.until(OFFER)
    shown.say("p\n")
    shown.until("Paused. Enter resumes it.")
    shown.say("what\n")
    shown.until("'what' is none of these")
    shown.say("\n")
    shown.until("resumed by")
    shown.raw = ""
    shown.say("\x03")
    shown.until(OFFER)
    shown.say("t be quick\n")
    shown.until("Sent")
    assert wake()
    assert shown.end() == 0, shown.shown
    assert (len(told(desk, MissionPaused)), len(told(desk, MissionResumed))) == (1, 1)
    assert [each["text"] for each in told(desk, MessageSent)] == ["be quick"]


@pytest.mark.parametrize("choice", ["c\n", "\x03"])
def test_cancel_and_a_second_control_c_end_it_in_good_order(desk: Desk, choice: str) -> None:
    shown = desk.terminal("run", "--red-base", "go", "Mend add()", "--agent", agent("echo began; sleep 60"))
    shown.until("    began")
    shown.say("\x03")
    shown.until(OFFER)
    shown.say(choice)
    assert shown.end() == 130, shown.shown
    assert "cancelled" in shown.shown
    assert "Traceback" not in shown.shown


def test_who_watches_may_stop_watching_and_the_mission_goes_on(desk: Desk) -> None:
    desk.json("run", "--red-base", "go", "Mend add()", "--agent", agent(SLOW), "--detach")
    shown = desk.terminal("mission", "watch", "last")
    shown.until("    began")
    shown.say("\x03")
    shown.until("q stop watching")
    shown.say("t hello\n")
    shown.until("Sent")
    shown.raw = ""
    shown.say("\x03")
    shown.until("q stop watching")
    shown.say("q\n")
    assert shown.end() == 130, shown.shown
    again = desk.terminal("mission", "watch", "last")
    assert wake()
    assert again.end() == 0
    assert "promoted" in again.shown
    assert [each["text"] for each in told(desk, MessageSent)] == ["hello"]
