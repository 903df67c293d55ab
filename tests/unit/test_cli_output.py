"""What reaches stdout and stderr is what was asked for, and safe to show."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.app.documents import to_json
from chargehand.cli.terminal.output import Output, local_time
from chargehand.core.records import Reason
from chargehand.core.text import printable


def test_documents_only_with_json_and_text_only_without(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        out = Output(as_json=as_json)
        out.document({"a": 1})
        out.text("text")
        out.table(("HEAD",), [("cell",)])
        out.notice("not shown where nobody watches")
    read = capsys.readouterr()
    assert read.out == '{"a": 1}\ntext\nHEAD\ncell\n'
    assert read.err == ""


def test_columns_are_aligned_and_cells_stay_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).table(("A", "LONGER"), [("one\ntwo", 1), ("\x1b[31mx", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["A           LONGER", "one\\x0atwo  1", "\\x1b[31mx   y"]


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [*range(1, 13), 40])
def test_a_terminal_may_be_narrower_than_what_a_line_is_indented_by(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for line in ("            refused 3 times: example.org", "a  b c  d", "\t\tx y", "   ", "  " + 50 * "x"):
        terminal = Terminal()
        with contextlib.redirect_stdout(terminal):
            Output(as_json=False).text(line)
            Output(as_json=False).table(("NAME", "WHAT"), [(line, "a b")])
        assert terminal.getvalue().split()[: len(line.split())] == line.split()


def test_text_of_others_is_stripped_of_controls(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).text("a\x1b[2Jb\x07\N{RIGHT-TO-LEFT OVERRIDE}c")
    assert capsys.readouterr().out == "abc\n"


def test_a_pipe_gets_the_very_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    content = b"\x1b[31m\xff\x00\r\n"
    script = (
        "import sys; from chargehand.cli.terminal.output import Output; "
        f"Output(as_json=False).raw({content!r}); Output(as_json=False).raw({content!r}, err=True)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (content, content)


def test_records_become_plain_documents() -> None:
    assert to_json({"reasons": (Reason(code="a", message="b"),)}) == {"reasons": [{"code": "a", "message": "b"}]}


def test_paths_that_are_not_utf8_are_shown() -> None:
    assert to_json({"path": os.fsdecode(b"a\xff")}) == {"path": "a\\xff"}


@given(
    st.recursive(
        st.text(st.characters()) | st.none() | st.integers(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_every_document_can_be_written_and_read(value: object) -> None:
    written = json.dumps(to_json(value))
    assert json.loads(written.encode("utf-8")) == to_json(value)
    written.encode("ascii")


@given(st.text(st.characters()))
def test_text_never_carries_an_escape(text: str) -> None:
    assert "\x1b" not in printable(text)


def test_once_the_reader_is_gone_writing_goes_on_silently() -> None:
    script = (
        "import os, sys\nfrom chargehand.cli.terminal.output import Output\n"
        "out = Output(as_json=False)\n"
        "for _ in range(20000): out.text('x' * 100)\n"
        "print(out.closed, file=sys.stderr)"
    )
    done = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" | head -1; exit ${PIPESTATUS[0]}', sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "True\n"


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC", "12:00 UTC"), ("Asia/Kathmandu", "17:45 +0545"), ("America/New_York", "07:00 EST")]
)
def test_a_time_is_told_in_the_zone_of_whoever_reads_it(
    monkeypatch: pytest.MonkeyPatch, zone: str, shown: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert local_time("2026-01-31T12:00:00+00:00") == f"2026-01-31 {shown}"
    finally:
        monkeypatch.undo()
        time.tzset()
