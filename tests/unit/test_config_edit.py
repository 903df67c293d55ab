"""`config set` changes one value and leaves the rest as the person wrote it; it finds every key's line."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest

from chargehand.configuration.edit import set_user_value, set_user_values
from chargehand.configuration.lines import key_lines, scan
from chargehand.core.errors import ConfigError

_TEXT = """\
# my settings
[limits]            # be careful
  time = "10m"      # ten minutes
  # attempts = 7

[project]
forbid = [
    "secret/**",    # never
]
"""


def _set(tmp_path: Path, text: str, key: str, value: str) -> str:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())
    set_user_value(path, key, value)
    return path.read_bytes().decode()


def test_a_value_is_replaced_in_place(tmp_path: Path) -> None:
    assert _set(tmp_path, _TEXT, "limits.time", "2h") == _TEXT.replace('"10m"', '"2h"')
    assert _set(tmp_path, _TEXT, "limits.time", "90") == _TEXT.replace('"10m"', "90")


def test_a_key_is_added_to_its_table(tmp_path: Path) -> None:
    text = _set(tmp_path, _TEXT, "limits.attempts", "3")
    assert text == _TEXT.replace("# ten minutes\n", "# ten minutes\n  attempts = 3\n")


def test_a_multiline_list_becomes_a_single_line(tmp_path: Path) -> None:
    text = _set(tmp_path, _TEXT, "project.forbid", 'a/**,b "c"/**')
    assert text.endswith('[project]\nforbid = ["a/**", "b \\"c\\"/**"]\n')


def test_a_table_is_added_at_the_end(tmp_path: Path) -> None:
    assert _set(tmp_path, _TEXT, "sandbox.memory_mb", "99") == _TEXT + "\n[sandbox]\nmemory_mb = 99\n"
    assert _set(tmp_path, "", "sandbox.tier", "none") == '[sandbox]\ntier = "none"\n'
    assert _set(tmp_path, "# x", "sandbox.tier", "none") == '# x\n\n[sandbox]\ntier = "none"\n'


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("limits = { time = 5 } # c", "limits.time", "6", "limits = { time = 6 } # c"),
        ("limits = { time = 5 } # c", "limits.attempts", "6", "limits = { time = 5, attempts = 6 } # c"),
        ("limits = {} # c", "limits.attempts", "6", "limits = { attempts = 6 } # c"),
        ("limits.time = 5 # c\n", "limits.attempts", "6", "limits.time = 5 # c\nlimits.attempts = 6\n"),
        ("limits.time = 5", "limits.attempts", "6", "limits.time = 5\nlimits.attempts = 6\n"),
        ("[limits]", "limits.attempts", "6", "[limits]\nattempts = 6\n"),
        ("[limits]\r\ntime = 5\r\n", "limits.attempts", "6", "[limits]\r\ntime = 5\r\nattempts = 6\r\n"),
        ("['limits']\n\"time\" = 5\n", "limits.time", "6", "['limits']\n\"time\" = 6\n"),
        ("[agents]\nf.command = ['a']\n", "agents.f.command", "b", '[agents]\nf.command = ["b"]\n'),
        ("[agents]\nf.command = ['a']\n", "agents.f.kind", "command", None),
        ("[agents.f]\ncommand = ['a']\n", "agents.g.command", "b", None),
    ],
)
def test_every_layout(tmp_path: Path, text: str, key: str, value: str, after: str | None) -> None:
    written = _set(tmp_path, text, key, value)
    assert after is None or written == after
    assert tomllib.loads(written) != tomllib.loads(text)


def test_several_keys_are_changed_atomically(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    values = {
        "models.local.base_url": "http://127.0.0.1:8000/v1",
        "models.local.price": "0.25",
        "models.local.tools": "false",
        "agents.native.kind": "native",
        "agents.native.model": "local",
    }
    set_user_values(path, values)
    assert tomllib.loads(path.read_text()) == {
        "models": {"local": {"base_url": "http://127.0.0.1:8000/v1", "price": 0.25, "tools": False}},
        "agents": {"native": {"kind": "native", "model": "local"}},
    }
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="no model named 'gone'"):
        set_user_values(path, {"models.local.model": "x", "agents.native.model": "gone"})
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_edited_safely_is_unchanged(tmp_path: Path) -> None:
    text = "agents = { f = { command = ['a'] } }\n"
    with pytest.raises(ConfigError, match="cannot be edited safely"):
        _set(tmp_path, text, "agents.g.command", "b")
    assert (tmp_path / "config.toml").read_text() == text


@pytest.mark.parametrize(
    ("text", "key", "value", "message"),
    [
        (_TEXT, "limits.time", "soon", "time must be a duration"),
        (_TEXT, "limits.tme", "1", "unknown key 'limits.tme'"),
        (_TEXT, "agents.f.kind", "command", "no command"),
        (_TEXT, "limits", "1", "unknown key"),
        ("[limits\n", "limits.time", "1", ":1: not valid TOML"),
        ("[limits]\nattempts = 0\n", "limits.time", "1", ":2: attempts must be"),
        ("limits = 3\n", "limits.time", "1", "cannot be edited safely"),
    ],
)
def test_an_error_leaves_the_file(tmp_path: Path, text: str, key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _set(tmp_path, text, key, value)
    assert (tmp_path / "config.toml").read_text() == text
    assert os.listdir(tmp_path) == ["config.toml"]


def test_a_wrong_value_can_be_set_right(tmp_path: Path) -> None:
    assert _set(tmp_path, "[limits]\nattempts = 0\n", "limits.attempts", "1") == "[limits]\nattempts = 1\n"


def test_a_missing_file_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "chargehand" / "config.toml"
    set_user_value(path, "limits.time", "10m")
    assert path.read_text() == '[limits]\ntime = "10m"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_mode_and_link_are_kept(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("[limits]\n")
    real.chmod(0o640)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    set_user_value(link, "limits.time", "1m")
    assert link.is_symlink()
    assert real.read_text() == '[limits]\ntime = "1m"\n'
    assert stat.S_IMODE(real.stat().st_mode) == 0o640


def test_an_inaccessible_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        set_user_value(tmp_path / "file" / "config.toml", "limits.time", "1m")
    with pytest.raises(ConfigError, match="cannot be read"):
        set_user_value(tmp_path, "limits.time", "1m")


_TOML = '''\
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
    lines = key_lines(_TOML)
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
    assert tomllib.loads(_TOML)
    assert {path: lines.get(path) for path in expected} == expected


def test_a_value_is_cut_out_exactly() -> None:
    for entry in scan(_TOML):
        if entry.kind in {"line", "inline"}:
            value = tomllib.loads(f"v = {_TOML[entry.value : entry.end]}")["v"]
            assert value is not None


def test_quotes_at_the_end_of_a_multiline_string_are_part_of_the_string() -> None:
    text = 'a = """"x"""""\nb = \'\'\'\'y\'\'\'\'\'\nc = """"""\nd = 1\n'
    assert tomllib.loads(text)["a"] == '"x""'
    assert key_lines(text) == {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4}


def test_other_line_ends_count_the_same() -> None:
    assert key_lines(_TOML.replace("\n", "\r\n")) == key_lines(_TOML)


def test_invalid_toml_has_no_key_lines() -> None:
    for text in ("a", "= 1", "[a", "a = {", "a = " + "[" * 10_000, 'a = "'):
        assert scan(text) == ()
