from __future__ import annotations

import gc
import os
import sys
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.text import parse_python, printable, shown_path

hostile = st.text(
    st.characters() | st.sampled_from("\x1b[]\x07\\;31m\x9b\x00\n\t\r\u202e\u200b\ud800"), max_size=40
)


@given(hostile)
def test_control_and_direction_characters_are_removed(text: str) -> None:
    clean = printable(text)
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") for char in clean)
    assert not set(clean) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f\ufeff")
    clean.encode()


@given(
    st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs")) | st.sampled_from("\n\tüß漢🦊"))
)
def test_ordinary_text_is_unchanged(text: str) -> None:
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
def test_invisible_characters_of_a_path_are_escaped(path: str, shown: str) -> None:
    assert shown_path(path) == shown


class _Cyclic:
    """Garbage that is collected in the middle of a tree and then lets another thread run."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        time.sleep(0)


def test_threads_parse_python_at_the_same_time() -> None:
    """`ast.parse` of Python 3.11.7 raises SystemError here."""
    source = "".join(f"def f{each}(a, b=[a for a in range(3)]):\n    return {{a: b}}\n" for each in range(40))

    def parse(_: int) -> int:
        _Cyclic()
        return len(parse_python(source).body)

    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(1)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert {*pool.map(parse, range(400))} == {40}
    finally:
        gc.set_threshold(*before)
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("text", ["(" * 5000, "x = \0", "1 +", "-" * 100_000 + "1", b"\xff", "\ud800"])
def test_unparsable_python_is_a_syntax_error(text: str | bytes) -> None:
    with pytest.raises(SyntaxError):
        parse_python(text)


def test_parsing_emits_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    assert parse_python(r"x = '\d'").body
    assert not recwarn.list
