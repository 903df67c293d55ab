"""A terminal and a pipe: coloured patches, the pager, wrapped lines, steps of a run, and no repetition."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click import unstyle
from msgspec.structs import replace

from chargehand.app.composition import App
from chargehand.cli.terminal import picking, progress
from chargehand.cli.terminal.lines import wrap_lines
from chargehand.cli.terminal.notices import call_person, notice_text, popup_sequence
from chargehand.cli.terminal.options import ContinueCommand, follow_up_options, json_option
from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.pager import colour_patch, show_in_pager
from chargehand.cli.terminal.progress import StepLines
from chargehand.cli.terminal.prompts import forget_typed_ahead
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.mission_events import MissionCreated, VerdictGiven
from chargehand.core.records import CheckResult, MissionRequest, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.reports.story import MissionStory
from chargehand.store.store import Store, open_store

PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n same\n"
REQUEST = MissionRequest(text="mend", agent="command:true", command=("true",), slug="mend")

EVIL = "mend\x1b]0;title\x07 the\nlogin\x9b31m" + " page" * 40
SETTLED = MissionState(id="m-1", status="waiting", request=replace(REQUEST, text=EVIL))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path) as opened:
        opened.log.append("m-1", MissionCreated(project="p", repository="/r", request=REQUEST))
        yield opened


@contextlib.contextmanager
def terminal() -> Iterator[int]:
    """Put a terminal in place of stdout, and yield the descriptor from which its text is read."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield ours
    os.close(ours)


def test_a_patch_is_coloured_without_changing_its_text() -> None:
    coloured = colour_patch(PATCH)
    assert unstyle(coloured) == PATCH
    styles = {unstyle(line): line.partition("m")[0] for line in coloured.splitlines() if "\x1b" in line}
    assert styles["-old"] != styles["+new"] != styles["@@ -1 +1 @@"]
    assert styles["--- a/x"] == styles["+++ b/x"] != styles["-old"]
    assert " same" not in styles


@pytest.mark.parametrize(
    ("pager", "term", "shown"),
    [
        ("cat > {}", "xterm", True),
        ("cat > {}", "dumb", False),
        ("cat", "xterm", False),
        ("", "xterm", False),
        ("no-such-pager-here", "xterm", False),
    ],
)
def test_the_pager_is_the_one_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pager: str, term: str, shown: bool
) -> None:
    monkeypatch.setenv("GIT_PAGER", pager.format(tmp_path / "paged"))
    monkeypatch.setenv("TERM", term)
    assert show_in_pager(PATCH) == shown
    assert (tmp_path / "paged").exists() == shown
    if shown:
        assert (tmp_path / "paged").read_text() == PATCH


def test_a_pipe_gets_the_exact_bytes_of_a_patch(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Output(as_json=False).patch(b"+\x1b[31m\xff\r\n")
    assert capfdbinary.readouterr().out == b"+\x1b[31m\xff\r\n"


def test_a_terminal_gets_a_patch_without_a_pager_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("GIT_PAGER", f"cat > {tmp_path / 'paged'}")
    with terminal() as read:
        Output(as_json=False, pages=False).patch(b"+new\x1b[2J\n")
        shown = os.read(read, 1000).decode()
        assert not (tmp_path / "paged").exists()
        assert "\x1b[2J" not in shown
        assert "\x1b[32m" in shown
        Output(as_json=False).patch(b"+new\n")
    assert unstyle((tmp_path / "paged").read_text()) == "+new\n"


def test_lines_wrap_at_words_and_commands_do_not() -> None:
    text = "    model       " + "word " * 20
    lines = wrap_lines(text.rstrip(), 40).split("\n")
    assert max(map(len, lines)) <= 40
    assert all(line.startswith(" " * 16 + "word") for line in lines[1:])
    assert "wo\n" not in "\n".join(lines)
    command = "next:     chargehand exec --mission m-1 -- sh -c 'python -m pytest -q'"
    assert wrap_lines(command, 40) == command


def test_a_line_of_the_log_is_no_command() -> None:
    line = "  31  promotion    export.changed        export done (chargehand/say-hello)"
    assert max(map(len, wrap_lines(line, 60).splitlines())) <= 60
    assert wrap_lines(command := f"  export KEY={'x' * 60}", 60) == command


@pytest.mark.parametrize("width", [50, 60, 80])
def test_a_table_breaks_no_word_while_it_fits(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/srv/project/.venv/bin/python"
    monkeypatch.setattr(Output, "width", width)
    Output(as_json=False).table(("TOOL", "FROM", "INSIDE"), [("python", path, "shown at its own path")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert set(lines[1].split()) >= {"python", path}


def test_keys_pressed_before_a_question_do_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, terminal = pty.openpty()
    with open(terminal, encoding="utf-8", closefd=True) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.write(ours, b"y\n")
        select.select([stdin], [], [], 60)
        forget_typed_ahead()
        assert select.select([stdin], [], [], 0)[0] == []
        os.write(ours, b"n\n")
        assert stdin.readline() == "n\n"
    os.close(ours)


def test_what_a_person_saw_is_not_repeated_only_on_their_terminal() -> None:
    out = Output(as_json=False)
    out.note_seen("    model       The reply.\nsecond")
    with terminal():
        assert out.has_seen("The reply.\n\n  second")
        assert not out.has_seen("The reply.\nthird")
    assert not out.has_seen("second")


def verdict(number: int) -> VerdictGiven:
    check = CheckResult(name=f"check {number}", status="passed", seconds=1.0, tests=2)
    return VerdictGiven(verdict=Verdict(tree="a" * 40, scope="attempt", status="green", checks=(check,)))


def watch(store: Store, lines: StepLines, count: int) -> None:
    store.log.append("m-1", *map(verdict, range(count)))
    for event, number in zip(store.log.read("m-1")[1:], range(count), strict=True):
        lines.watch(event, verdict(number))


def test_a_pipe_gets_one_bounded_line_per_step(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_MOST_LINES", 4)
    watch(store, StepLines(Output(as_json=False), MissionStory(store)), 9)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert [line.split()[0] for line in shown.err.splitlines()] == ["green", "green", "green", "…"]
    assert "chargehand mission log m-1" in shown.err


def test_with_verbose_a_pipe_gets_every_event(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    watch(store, StepLines(Output(as_json=False, detail="events"), None), 3)
    assert capsys.readouterr().err.count("on the attempt's tree") == 3


def test_details_of_a_step_are_for_terminals(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    started = AttemptStarted(attempt="a-1", number=1, agent="command:true", workspace="w", tree="a" * 40)
    store.log.append("m-1", started)
    lines = StepLines(Output(as_json=False), MissionStory(store))
    lines.watch(store.log.read("m-1")[-1], started)
    lines.output("stdout", b"the agent's words\n")
    lines.check_output("stdout", b"$ pytest\n.....\n")
    assert capsys.readouterr().err == "  attempt 1\n"


@pytest.mark.parametrize(
    ("seconds", "terminal_there", "wanted", "rings"),
    [(31, True, True, True), (29, True, True, False), (31, False, True, False), (31, True, False, False)],
)
def test_the_bell_rings_for_a_person_who_waited_long(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    terminal_there: bool,
    wanted: bool,
    rings: bool,
) -> None:
    monkeypatch.setattr(Output, "shows_progress", terminal_there)
    places = {"CHARGEHAND_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    with App.open(environ=places | {"CHARGEHAND_ALERTS_BELL": str(wanted).lower()}, cwd=tmp_path) as app:
        call_person(app, Output(as_json=False), time.monotonic() - seconds, SETTLED)
    assert ("\a" in capsys.readouterr().err) == rings


ITERM, URXVT = {"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, {"TERM": "rxvt-unicode-256color"}


@pytest.mark.parametrize(
    ("environ", "begin"),
    [
        (ITERM, "\x1b]9;"),
        ({"TERM": "xterm-kitty"}, "\x1b]9;"),
        (URXVT, "\x1b]777;notify;Chargehand;"),
        ({"TERM": "foot"}, "\x1b]777;notify;Chargehand;"),
        (ITERM | {"TMUX": "/tmp/tmux"}, ""),
        ({"TERM": "xterm-256color", "WT_SESSION": "1"}, ""),
        ({}, ""),
    ],
)
def test_only_terminals_known_for_it_get_a_popup_sequence(environ: dict[str, str], begin: str) -> None:
    shown = popup_sequence(text := notice_text(SETTLED), environ)
    assert shown == (f"{begin}{text}\x1b\\" if begin else "")
    assert len(text) == 120
    assert text.startswith("Chargehand: waiting: mend the login")
    assert text == printable(text)


@pytest.mark.parametrize(
    ("terminal_there", "wanted", "environ", "shown", "sent"),
    [
        (True, True, ITERM, True, False),
        (True, True, {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/none"}, False, True),
        (True, True, ITERM | {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/none"}, True, False),
        (True, True, {}, False, False),
        (True, False, ITERM | {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/none"}, False, False),
        (False, True, ITERM | {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/none"}, False, False),
    ],
)
def test_one_popup_reaches_a_person_who_waited_long_unless_they_turned_it_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal_there: bool,
    wanted: bool,
    environ: dict[str, str],
    shown: bool,
    sent: bool,
) -> None:
    monkeypatch.setattr(Output, "shows_progress", terminal_there)
    (fake := tmp_path / "notify-send").write_text('#!/bin/sh\nprintf "%s" "$4" > "$0.sent"\n')
    fake.chmod(0o755)
    places = {"CHARGEHAND_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    found = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CHARGEHAND_ALERTS_DESKTOP": str(wanted).lower()}
    with App.open(environ=places | found | environ, cwd=tmp_path) as app:
        call_person(app, Output(as_json=False), time.monotonic() - 31, SETTLED)
    assert ("\x1b]9;Chargehand: waiting" in capsys.readouterr().err) == shown
    told = tmp_path / "notify-send.sent"
    assert (told.read_text() if told.exists() else "") == (notice_text(SETTLED) if sent else "")


def test_a_configuration_that_broke_meanwhile_hides_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Output, "shows_progress", True)
    (tmp_path / "chargehand").mkdir()
    (tmp_path / "chargehand/config.toml").write_text("[alerts\n")
    places = {"CHARGEHAND_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
    with App.open(environ=places, cwd=tmp_path) as app:
        call_person(app, Output(as_json=False), time.monotonic() - 31, SETTLED)
    assert capsys.readouterr().err == ""


def test_one_argument_is_the_text_and_the_mission_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "pick_mission", lambda: "m-picked")
    monkeypatch.setattr(click, "prompt", lambda question, err: "asked")
    monkeypatch.setattr(Output, "can_ask", True)
    seen = list[tuple[str, str]]()

    @click.command(cls=ContinueCommand)
    @click.argument("mission", required=False)
    @click.argument("text", required=False)
    @follow_up_options
    @json_option
    def again(mission: str, text: str, **others: object) -> None:
        seen.append((mission, text))

    for words in ([], ["do more"], ["m-0abc"], ["sec", "do more"]):
        again.main(words, standalone_mode=False)
    assert seen == [("m-picked", "asked"), ("m-picked", "do more"), ("m-0abc", "asked"), ("sec", "do more")]
