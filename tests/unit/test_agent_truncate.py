"""Long text is shortened to head and tail, with a note of the omitted part."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples

from chargehand.agents.prompts import LIMIT, shorten

texts = st.one_of(st.text(max_size=200), st.lists(st.text(max_size=30), max_size=30).map("\n".join))


@settings(max_examples=examples(200), deadline=None)
@given(texts, st.integers(2, 120))
def test_head_and_tail_are_unchanged_parts_within_the_limit(text: str, limit: int) -> None:
    short = shorten(text, limit=limit)
    assert text.startswith(short.head)
    assert text.endswith(short.tail)
    assert len(short.head) + len(short.tail) + short.characters_left_out == len(text)
    assert len(short.head) + len(short.tail) <= limit
    assert short.whole == (len(text) <= limit)
    assert len(short.render("look")) <= limit + 120
    if short.whole:
        assert short.render("look") == text
    else:
        assert short.lines_left_out > 0
        assert len(short.head) > limit // 4 - 1
        assert len(short.tail) >= limit // 4


def test_whole_lines_are_kept_and_the_omitted_part_is_described() -> None:
    text = "".join(f"line {number:05}\n" for number in range(5000))
    short = shorten(text)
    assert short.head.endswith("\n")
    assert short.tail.startswith("line ")
    shown = short.render("all of it: /tmp/x")
    assert f"[... {short.characters_left_out} characters ({short.lines_left_out} lines) left out; " in shown
    assert "all of it: /tmp/x" in shown
    assert shown.count("\n") == 5000 - short.lines_left_out + 1
    assert LIMIT - 100 < len(short.head) + len(short.tail) <= LIMIT


def test_a_single_long_line_is_cut_in_the_middle() -> None:
    short = shorten("x" * 50_000)
    assert (len(short.head), len(short.tail)) == (5000, 5000)
    assert short.lines_left_out == 1
