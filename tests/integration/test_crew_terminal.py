"""A mission with a plan at a terminal: its picture, the menu over it, and the restored terminal afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cli_terminal import Cli, agent
from tests.crash_kit import MARK, wait_until, wake
from tests.terminal_kit import Terminal

from chargehand.app.composition import App

pytestmark = pytest.mark.needs_bwrap
SHOWN, HIDDEN, CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
OFFER = "p pause   t TEXT"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    made.start("mission", "cancel", "last").communicate()
    made.close()


def plan(cli: Cli, *tasks: dict[str, Any]) -> tuple[str, ...]:
    """Write a plan and return the arguments that run it."""
    file = cli.place / "plan.json"
    file.write_text(json.dumps({"tasks": tasks}))
    return ("run", "--plan", str(file), "--red-base", "go", "--only-check", "cat *.md *.txt", "new dates")


def task(name: str, script: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", "agent": agent(script), **more}


def resize(shown: Terminal, width: int, height: int) -> None:
    fcntl.ioctl(shown.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def is_whole(shown: Terminal) -> bool:
    """Return whether the terminal shows its previous content and the cursor again."""
    begin = shown.raw.rindex(SHOWN)
    return shown.raw.rfind(HIDDEN) > begin and shown.raw.rfind(CURSOR) > begin


def last_picture(shown: Terminal) -> list[str]:
    """Return the rows drawn last, as wide as the terminal."""
    picture = shown.raw.rpartition("\x1b[H")[2].partition("\x1b[?")[0]
    return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", picture).split("\r\n")


SLOW = task("slow", "sleep 300")


def test_a_plan_is_drawn_and_its_question_answered_from_elsewhere(cli: Cli) -> None:
    shown = cli.terminal(
        *plan(
            cli,
            task("first", f"sleep {MARK}; echo x > same.txt", change=["same.txt"]),
            task("second", "echo y > same.txt", change=["same.txt"]),
            task("broken", "exit 3"),
            task("last", "echo z > last.txt", after=["broken", "second"]),
        )
    )
    shown.until("new dates")
    mission = re.findall(r"mission   (m-\S+)", shown.shown)[0]
    shown.until(f"chargehand mission answer {mission} --task broken retry")
    shown.until("held")
    assert wake()
    shown.until("broken needs you")
    assert cli.json("mission", "answer", mission, "--task", "broken", "skip")["mission"] == mission
    shown.until("3 of 4 merged, 1 left out")
    assert shown.end() == 0, shown.shown
    assert is_whole(shown)
    after = shown.raw.rpartition(HIDDEN)[2]
    # The result is the same as without a picture.
    for part in ("promoted", "4 tasks (3 merged, 1 left out)", "git merge chargehand/new-dates"):
        assert part in after
    assert "no worker is running" not in shown.shown


def test_the_menu_opens_below_and_the_picture_comes_back(cli: Cli) -> None:
    shown = cli.terminal(*plan(cli, SLOW, task("other", "sleep 300")))
    shown.until("agent working")
    shown.say("\x03")
    shown.until(OFFER)
    assert is_whole(shown)
    shown.say("what\n")
    shown.until("'what' is not one of these.")
    assert not is_whole(shown)
    assert last_picture(shown)[-1].startswith("'what' is not one of these.")
    shown.raw = shown.raw[-1:]
    shown.say("\x03")
    shown.until(OFFER)
    shown.say("c\n")
    assert shown.end() == 1
    assert is_whole(shown)
    assert "cancelled" in shown.raw.rpartition(HIDDEN)[2]
    assert "Traceback" not in shown.shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_restores_the_terminal_and_does_not_stop_the_mission(cli: Cli, number: signal.Signals) -> None:
    mission = cli.json(*plan(cli, SLOW, task("other", "sleep 300")), "--detach")["mission"]
    shown = cli.terminal("mission", "watch", str(mission))
    shown.until("agent working")
    os.kill(shown.process_id, number)
    if number == signal.SIGINT:  # the second Ctrl-C, at the menu, ends it
        shown.until("q stop watching")
        shown.say("\x03")
    assert shown.end() == (-number if number == signal.SIGHUP else 130)
    assert is_whole(shown)
    assert "Traceback" not in shown.shown
    assert cli.json("mission", "show", str(mission))["status"] == "running"


def test_ctrl_z_restores_the_terminal_and_resuming_redraws_the_display(cli: Cli) -> None:
    mission = cli.json(*plan(cli, SLOW, task("other", "sleep 300")), "--detach")["mission"]
    shown = cli.terminal("mission", "watch", str(mission))
    shown.until("agent working")
    shown.say("\x1a")
    wait_until(lambda: "T" in Path(f"/proc/{shown.process_id}/stat").read_text().split(")")[1].split()[0])
    wait_until(lambda: is_whole(shown) or not shown._read(0.1))
    assert is_whole(shown)
    os.kill(shown.process_id, signal.SIGCONT)
    shown.raw = ""
    shown.until("agent working")
    assert SHOWN in shown.raw


def test_the_display_follows_the_size_of_the_terminal(cli: Cli) -> None:
    tasks = [task(f"task-{number}", "sleep 300", after=["slow"] * (number > 3)) for number in range(30)]
    mission = cli.json(*plan(cli, SLOW, *tasks), "--detach")["mission"]
    shown = cli.terminal("mission", "watch", str(mission))
    for width, height in ((100, 40), (60, 12)):
        resize(shown, width, height)
        wait_until(lambda: shown._read() and "agent working" in shown.shown.rpartition("0 of 31 merged")[2])
        wait_until(lambda height=height: shown._read() and len(last_picture(shown)) == height)
        rows = last_picture(shown)
        assert {len(row.rstrip()) <= width for row in rows} == {True}
        assert any(row.startswith("  and ") for row in rows) is (height < 32)


def test_no_color_prints_no_colours_and_quiet_shows_no_display(cli: Cli) -> None:
    words = plan(cli, task("one", "sleep 2; echo x > one.txt"), task("two", "echo y > two.txt"))
    shown = cli.terminal("--no-color", *words)
    assert shown.end() == 0, shown.shown
    assert SHOWN in shown.raw
    assert not re.search(r"\x1b\[[0-9;]*m", shown.raw)
    for quiet in ("--quiet", "--verbose"):
        lines = cli.terminal("mission", "watch", "last", quiet)
        assert lines.end() == 0
        assert SHOWN not in lines.raw
    piped = cli.start("mission", "watch", "last")
    out, err = piped.communicate()
    assert "task one merged at" in out
    assert "\x1b" not in out + err


def test_a_question_of_a_plan_is_asked_at_the_terminal_and_its_answer_continues_the_plan(cli: Cli) -> None:
    words = plan(cli, task("only", "echo x > made.txt"))
    file = cli.place / "plan.json"
    unclear = [{"id": "format", "question": "Which format?", "options": ["long", "short"]}]
    file.write_text(json.dumps({**json.loads(file.read_text()), "ambiguities": unclear}))
    shown = cli.terminal(*words)
    shown.until("Chargehand asks:")
    shown.until("Which format?")
    shown.until("2  short")
    shown.until("Your answer")
    shown.say("2\n")
    shown.until("promoted")
    assert shown.end() == 0
    with App.open(environ=cli.environment, cwd=cli.repository) as app:
        state = app.mission_state("last")
    (question,) = state.questions.values()
    assert (question.text, question.answer) == ("Which format?", "short")
