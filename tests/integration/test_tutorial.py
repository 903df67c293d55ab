"""The tutorial as a new user follows it: files are saved, commands run in order, and the output is as shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.page_kit import Reader, answer, comes_out, find_replies, is_drawn, normalise, steps

PAGE = Path(__file__).parents[2] / "docs/tutorial/first-crew.md"


@pytest.mark.needs_bwrap
def test_the_output_matches_the_tutorial(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    reader, drawn, checked = Reader(tmp_path / "work"), "", 0
    for step in steps(PAGE.read_text()):
        if step.file:
            reader.save(step)
        elif "mission watch" in step.command:
            drawn = reader.watch(step.command)
        elif replies := find_replies(step.text):
            raw = answer(reader.open(step.command), replies)
            assert is_drawn(step.text, raw), raw
            checked += 1
        elif step.command:
            out = reader.run(step.command)
            assert comes_out(step.text, out), f"$ {step.command}\n{out}"
            checked += 1
        elif drawn:  # each row was shown at some moment
            rows = set(normalise(drawn.replace("\r", "")))
            assert [row for row in normalise(step.text) if row not in rows] == [], drawn
            checked += 1
    assert checked > 22


@pytest.mark.parametrize(
    ("shown", "out", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nb\nc\n", False),
        ("a\n", "b\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("a\n…\n", "a\nb\n", True),
        ("a\n…\n", "b\na\n", False),
        ("…\nb\n", "a\nb\n", True),
        ("…\nb\n", "b\na\n", False),
        ("…\nb\n…\nd\n", "a\nb\nc\nd\n", True),
        ("…\nd\n…\nb\n", "a\nb\nc\nd\n", False),
        ("m-1m89xb14a05rgn @ 92089894b063 1.6 s\n", "m-1m89xb14a05rgz @ 1208989aaaaa 22.1 s\n", True),
    ],
)
def test_comparison_of_shown_and_actual_output(shown: str, out: str, same: bool) -> None:
    assert comes_out(shown, out) is same


def test_comparison_with_a_terminal() -> None:
    shown = "a b\n…\nWhich one? [1]: 2\nend\n"
    assert find_replies(shown) == [("Which one? [1]: ", "2")]
    assert is_drawn(shown, "⠋ working\r\x1b[2Ka\r\nb\r\nmore\r\nWhich one? [1]: 2\r\n\x1b[1mend\x1b[0m\r\n")
    assert not is_drawn(shown, "a b\r\nend\r\nWhich one? [1]: 2\r\n")
