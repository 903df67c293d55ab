"""Output on a terminal: colours, width, encodings, zones, verbosity, and lists."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import sys
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from test_cli_commands import Cli
from test_cli_help import COMMANDS

from chargehand.app.composition import App
from chargehand.app.missions import message_document
from chargehand.app.runs import record_mission
from chargehand.cli.main import chargehand, write_what_streams_take
from chargehand.configuration.run_options import RunRequest

ESCAPE = "\x1b["
_END = "\x04"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    return Cli(tmp_path, monkeypatch)


class Screen:
    """A pseudo terminal as stdout and stderr of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ours, theirs = pty.openpty()
        tty.setraw(theirs)
        self._stream = os.fdopen(theirs, "w", encoding="utf-8")
        self._monkeypatch = monkeypatch
        self._shown = b""
        # An unread terminal buffers only 4 kB.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed
            while True:
                self._shown += os.read(self._ours, 65536)

    def say(self, *words: str, columns: int = 80, code: int = 0) -> str:
        """Run a command on a terminal of that width and return the output."""
        with self._monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "stdout", self._stream)
            patch.setattr(sys, "stderr", self._stream)
            # The colour of an error depends on the process's arguments: it may occur before any are parsed.
            patch.setattr(sys, "argv", ["chargehand", *words])
            with pytest.raises(SystemExit) as ended:
                chargehand.main(list(words))
        assert ended.value.code == code
        self._stream.write(_END)
        self._stream.flush()
        while not self._shown.endswith(_END.encode()):
            assert self._reader.is_alive()
            time.sleep(0.001)
        shown, self._shown = self._shown, b""
        return shown.decode().removesuffix(_END)

    def close(self) -> None:
        """Close the terminal."""
        self._stream.close()
        self._reader.join()
        os.close(self._ours)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    made = Screen(monkeypatch)
    yield made
    made.close()


# --- colours


@pytest.mark.parametrize(
    ("environment", "words", "coloured"),
    [
        ({"TERM": "xterm"}, ("mission", "list"), True),
        ({"TERM": "xterm", "NO_COLOR": ""}, ("mission", "list"), True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ("mission", "list"), False),
        ({"TERM": "dumb"}, ("mission", "list"), False),
        ({"TERM": "xterm"}, ("--no-color", "mission", "list"), False),
        ({"TERM": "xterm"}, ("mission", "list", "--no-color"), False),
        ({"TERM": "xterm"}, ("mission", "show", "nosuch"), True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ("mission", "show", "nosuch"), False),
        ({"TERM": "dumb"}, ("mission", "show", "nosuch"), False),
        ({"TERM": "xterm"}, ("mission", "show", "nosuch", "--no-color"), False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    cli: Cli,
    screen: Screen,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    words: tuple[str, ...],
    coloured: bool,
) -> None:
    cli.mission("first")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (ESCAPE in screen.say(*words, code=2 if "nosuch" in words else 0)) == coloured
    # A pipe never gets colours.
    assert ESCAPE not in CliRunner().invoke(chargehand, list(words)).output


# --- width


LONG = "make the totals of every cart right, fractions of a cent included, whatever the currency is " * 3


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize(
    "words", [("mission", "list"), ("model", "stats"), ("agent", "list"), ("project", "list")]
)
def test_tables_fit_the_terminal(cli: Cli, screen: Screen, columns: int, words: tuple[str, ...]) -> None:
    cli.mission(LONG, id="m-1m8455nrdyh2yn")
    cli("config", "set", "agents.fixer.command", '["ruff", "check", "--fix", "."]')
    shown = screen.say(*words, "--no-color", columns=columns)
    assert [line for line in shown.splitlines() if len(line) > columns] == []


@pytest.mark.parametrize("columns", [80, 140])
def test_long_lines_are_wrapped_at_words_and_indented(cli: Cli, screen: Screen, columns: int) -> None:
    cli.mission(LONG.strip(), id="m-1m8455nrdyh2yn")
    lines = screen.say("mission", "show", "--no-color", columns=columns).splitlines()
    # A path is one word, and is not broken.
    assert [line for line in lines if len(line) > columns and not line.startswith("project")] == []
    first = next(number for number, line in enumerate(lines) if line.startswith("request   "))
    last = next(number for number, line in enumerate(lines) if line.startswith("agent     "))
    assert last - first > 1
    assert all(line.startswith(" " * 10) for line in lines[first + 1 : last])
    assert " ".join(line[10:] for line in lines[first:last]) == LONG.strip()


def test_commands_are_not_wrapped(cli: Cli, screen: Screen) -> None:
    cli.mission("first")
    cli("init", "--yes")
    (cli.repository / "chargehand.toml").unlink()
    shown = screen.say("init", "--yes", "--no-color", columns=30)
    assert "          chargehand run --agent " in shown
    assert [line for line in shown.splitlines() if "git add" in line and "git commit" not in line] == []


def test_the_branch_column_is_omitted_on_a_narrow_terminal(cli: Cli, screen: Screen) -> None:
    cli.mission("make the totals of every cart right", id="m-1m8455nrdyh2yn")
    assert "BRANCH" not in screen.say("mission", "list", columns=80)
    assert "BRANCH" in screen.say("mission", "list", columns=140)


# --- encodings and zones


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_help_can_be_written_in_any_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    for path in ((), *COMMANDS):
        written = io.BytesIO()
        with monkeypatch.context() as patch:
            stream = io.TextIOWrapper(written, encoding=encoding, write_through=True)
            patch.setattr(sys, "stdout", stream)
            write_what_streams_take()
            with pytest.raises(SystemExit) as ended:
                chargehand.main([*path, "--help"])
            assert ended.value.code == 0
            stream.flush()
        # click assumes ASCII for a locale that was never set, and writes UTF-8.
        shown = written.getvalue().decode("utf-8" if encoding == "ascii" else encoding)
        assert shown.startswith("Usage: chargehand"), path
        assert "?" not in shown.replace("?", "", _questions(path)), path


def _questions(path: Sequence[str]) -> int:
    """Return the number of question marks in a command's help."""
    context = click.Context(COMMANDS[tuple(path)] if path else chargehand)
    return context.get_help().count("?")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_times_have_their_zone(cli: Cli, monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        cli.mission("first")
        name = time.strftime("%Z")
        for words in (("mission", "list"), ("mission", "log", "last"), ("mission", "show", "last")):
            assert name in cli(*words).stdout, words
    finally:
        monkeypatch.undo()
        time.tzset()


# --- verbosity


def test_verbosity_options_of_watch_select_its_output(cli: Cli) -> None:
    cli.mission("first")
    watched = {way: cli("mission", "watch", "last", *way).stdout for way in ((), ("--quiet",), ("--verbose",))}
    assert all("no_change: nothing" in shown for shown in watched.values())
    assert [("requested" in shown, "mission   m-first" in shown) for shown in watched.values()] == [
        (False, True),
        (False, False),
        (True, True),
    ]
    assert cli.error("mission", "watch", "last", "-q", "-v", code=2)["code"] == "usage"


# --- listed missions, and the delivery of a message


def listed(cli: Cli, *words: str) -> list[str]:
    """Return the missions that a person sees, in order."""
    return [line.split()[0] for line in cli("mission", "list", *words).stdout.splitlines() if line[:2] == "m-"]


def test_missions_are_listed_by_status_age_and_number(cli: Cli) -> None:
    names = [cli.mission(text) for text in ("a", "b", "c")]
    with App.open() as app:
        app.steering.discard("m-b")
    assert listed(cli) == names[::-1]
    assert listed(cli, "--status", "refused") == ["m-c", "m-a"]
    assert listed(cli, "--status", "refused", "--status", "discarded") == names[::-1]
    assert listed(cli, "--limit", "1") == ["m-c"]
    assert "2 older missions not listed" in cli("mission", "list", "--limit", "1").stdout
    assert listed(cli, "--limit", "1", "--status", "discarded") == ["m-b"]
    assert listed(cli, "--since", "1h") == names[::-1]
    later = (datetime.now(UTC) + timedelta(days=2)).date().isoformat()  # in every time zone
    assert cli("mission", "list", "--since", later).stdout == "No such missions.\n"
    document = cli.json("mission", "list", "--limit", "2")
    assert [each["mission"] for each in document["missions"]] == ["m-c", "m-b"]
    assert document["left_out"] == 1
    assert cli.json("mission", "list", "--limit", "0")["left_out"] == 0
    for words in (("--since", "soon"), ("--status", "nosuch"), ("--limit", "-1")):
        error = cli.error("mission", "list", *words, code=2)
        assert words[1] in error["message"]
        assert error["hint"]


def test_twenty_missions_are_shown_and_all_are_in_the_document(cli: Cli) -> None:
    for number in range(22):
        cli.mission(f"{number:02}")
    assert len(listed(cli)) == 20
    assert len(listed(cli, "--limit", "0")) == 22
    assert len(cli.json("mission", "list")["missions"]) == 22


@pytest.mark.parametrize(
    ("agent", "status", "attempts", "critical", "delivery"),
    [
        ("command:true", "planned", 1, False, "on_resume"),
        ("command:true", "paused", 1, False, "on_resume"),
        ("command:true", "running", 2, False, "next_attempt"),
        ("command:true", "running", 1, False, "no_attempt_left"),
        ("command:true", "running", 1, True, "next_attempt"),
        ("native:ollama:x", "running", 1, False, "next_step"),
    ],
)
def test_message_delivery_depends_on_agent_status_and_attempts(
    cli: Cli, agent: str, status: str, attempts: int, critical: bool, delivery: str
) -> None:
    with App.open() as app:
        request = RunRequest(text="mend", agent=agent, attempts=str(attempts), only_checks=("true",))
        mission = record_mission(app, request)
        state = app.steering.send(mission, "look at the cart", critical=critical)
        assert state.request is not None
        assert json.loads(cli("mission", "send", mission, "again", "--json").stdout)["delivery"] == "on_resume"
    # The state while its first attempt is running.
    started = replace(state, status=status, attempts=(None,) * (status == "running"))  # type: ignore[arg-type]
    assert message_document(started).delivery == delivery
