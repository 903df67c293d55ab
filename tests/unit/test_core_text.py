from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.text import printable, shown_path

hostile = st.text(
    st.characters() | st.sampled_from("\x1b[]\x07\\;31m\x9b\x00\n\t\r\u202e\u200b\ud800"), max_size=40
)


@given(hostile)
def test_nothing_that_moves_the_cursor_or_turns_the_text_is_left(text: str) -> None:
    clean = printable(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in clean)
    assert not set(clean) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\ufeff")
    clean.encode()


@given(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")) | st.sampled_from("\n\tüß漢🦊"))
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\rb", "ab"),
        ("abc\u202ecba", "abccba"),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_escapes_go_with_their_tails(given: str, shown: str) -> None:
    assert printable(given) == shown


@given(st.binary(max_size=20))
def test_a_path_is_shown_on_one_line_in_valid_text(name: bytes) -> None:
    shown = shown_path(os.fsdecode(name))
    shown.encode()
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in shown)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("src/a b.py", "src/a b.py"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        (os.fsdecode(b"caf\xe9"), "caf\\xe9"),
        ("a\u202eb", "a\\u202eb"),
        ("é", "é"),
    ],
)
def test_what_a_path_hides_is_written_out(path: str, shown: str) -> None:
    assert shown_path(path) == shown
