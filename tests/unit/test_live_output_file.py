"""The file of a mission's output: whole lines, bounded, without secrets, readable after its removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from chargehand.core.clock import SystemClock
from chargehand.core.state import MissionState
from chargehand.reports import live_output
from chargehand.reports.live_output import OutputReader, OutputWriter, remove_settled_output, writing_output


def test_complete_lines_are_read_while_output_is_written(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path, "m-1", clock=SystemClock())
    with OutputReader(tmp_path, "m-1") as reader:
        writer.write("stdout", b"one\ntw")
        assert [line.line for line in reader.read()] == ["one"]
        writer.write("stdout", b"o\n")
        writer.write("stderr", b"three")
        assert [line.line for line in reader.read()] == ["two"]
        writer.close()
        assert [(line.stream, line.line) for line in reader.read()] == [("stderr", "three")]


def test_a_reader_that_comes_first_waits_for_the_file(tmp_path: Path) -> None:
    with OutputReader(tmp_path, "m-1") as reader:
        assert list(reader.read()) == []
        with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
            write("stdout", b"here\n")
        remove_settled_output(tmp_path, MissionState(id="m-1", status="waiting"))
        assert [line.line for line in reader.read()] == ["here"]
        with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
            write("stdout", b"again\n")
        remove_settled_output(tmp_path, MissionState(id="m-1", status="promoted"))
        assert [line.line for line in reader.read()] == ["again"]  # it had the file open
    assert list((tmp_path / "output").iterdir()) == []


def test_the_output_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_output, "_LIMIT_BYTES", 200)
    with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
        for number in range(1000):
            write("stdout", f"line {number}\n".encode())
    with OutputReader(tmp_path, "m-1") as reader:
        lines = [line.line for line in reader.read()]
    assert lines[0] == "line 0"
    assert lines[-1].startswith("(the output exceeds")
    assert len(lines) < 10


def test_secrets_are_not_kept(tmp_path: Path) -> None:
    with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
        write("stdout", b"key sk-ant-api03-" + b"a" * 60 + b"\n")
    assert b"api03-aaaa" not in (tmp_path / "output/m-1.jsonl").read_bytes()


def test_an_overlong_line_is_split_between_characters(tmp_path: Path) -> None:
    with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, write_check):
        write("stdout", "é".encode() * 7_001 + b"\nafter\n")
        write_check("stderr", b"x" + "\N{GRINNING FACE}".encode() * 3_000)
    with OutputReader(tmp_path, "m-1") as reader:
        lines = list(reader.read())
    assert [len(each.line) for each in lines if each.stream == "stdout"] == [5_000, 2_001, 5]
    assert {each.stream for each in lines[3:]} == {"check"}
    assert "".join(each.line for each in lines[3:]) == "x" + "\N{GRINNING FACE}" * 3_000


def test_a_damaged_part_does_not_prevent_reading_later_lines(tmp_path: Path) -> None:
    with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
        write("stdout", b"before\n")
    path = tmp_path / "output" / "m-1.jsonl"
    with path.open("ab") as file:
        file.write(b"\0" * 300_000 + b"\n" + b'{"half a li')
    with OutputReader(tmp_path, "m-1") as reader:
        assert [each.line for each in reader.read(100_000)] == ["before"]
        for _ in range(4):
            assert list(reader.read(100_000)) == []
        with path.open("ab") as file:
            file.write(b"ne\n")
        with writing_output(tmp_path, "m-1", clock=SystemClock()) as (write, _):
            write("stdout", b"after\n")
        assert [each.line for each in reader.read(100_000)] == ["after"]
