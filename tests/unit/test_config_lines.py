"""The line of each key, whatever stands around it."""

from __future__ import annotations

import tomllib

from chargehand.app.config.lines import key_lines, scan

_TEXT = '''\
# [limits] in a comment
top = 1
"quoted key" = "a = [b]"   # time = 3

[ project ]   # header = "with a comment"
checks = [
  "pytest -k 'a[b]'",  # allow = 1
  "echo ]",
]
setup = """
[limits]
time = 3 \\"""
"""
allow = [ "a\\"]", '[\\' ]

[agents."fix.er"]
command = ["a"]

[limits]
time = "30m"

[[list]]
x = 1979-05-27 07:32:00 # date
[[list]]
y = { deep = { er = [ { z = 1 } ], "q.q" = 2 }, other = \'\'\'
multi\'\'\' }
[a.b]
c.d . "e" = 1
last = true'''


def test_every_kind_of_key_is_found() -> None:
    lines = key_lines(_TEXT)
    expected = {
        ("top",): 2,
        ("quoted key",): 3,
        ("project",): 5,
        ("project", "checks"): 6,
        ("project", "setup"): 10,
        ("project", "allow"): 14,
        ("agents", "fix.er"): 16,
        ("agents", "fix.er", "command"): 17,
        ("limits",): 19,
        ("limits", "time"): 20,
        ("list",): 22,
        ("list", "x"): 23,
        ("list", "y", "deep", "er", "z"): 25,
        ("list", "y", "deep", "q.q"): 25,
        ("list", "y", "other"): 25,
        ("a", "b"): 27,
        ("a", "b", "c"): 28,
        ("a", "b", "c", "d", "e"): 28,
        ("a", "b", "last"): 29,
    }
    assert tomllib.loads(_TEXT)
    assert {path: lines.get(path) for path in expected} == expected


def test_a_value_is_cut_out_exactly() -> None:
    for entry in scan(_TEXT):
        if entry.kind in {"line", "inline"}:
            value = tomllib.loads(f"v = {_TEXT[entry.value : entry.end]}")["v"]
            assert value is not None


def test_quotes_at_the_end_of_a_long_string_belong_to_it() -> None:
    text = 'a = """"x"""""\nb = \'\'\'\'y\'\'\'\'\'\nc = """"""\nd = 1\n'
    assert tomllib.loads(text)["a"] == '"x""'
    assert key_lines(text) == {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4}


def test_other_line_ends_count_the_same() -> None:
    assert key_lines(_TEXT.replace("\n", "\r\n")) == key_lines(_TEXT)


def test_what_is_not_toml_has_no_lines() -> None:
    for text in ("a", "= 1", "[a", "a = {", "a = " + "[" * 10_000, 'a = "'):
        assert scan(text) == ()
