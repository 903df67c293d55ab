"""`config set` changes one value and leaves the rest as the person wrote it; it finds every key's line."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chargehand.app.configuration import edit_configuration
from chargehand.configuration.edit import set_user_value, set_user_values, unset_user_value
from chargehand.configuration.lines import key_lines, scan
from chargehand.core.errors import ConfigError
from chargehand.reports.reading import StateReader

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


@pytest.mark.parametrize(
    ("text", "key", "after"),
    [
        (
            _TEXT,
            "limits.time",
            _TEXT.replace('[limits]            # be careful\n  time = "10m"      # ten minutes\n', ""),
        ),
        (_TEXT, "project.forbid", _TEXT.partition("[project]")[0]),
        ("limits = { time = 5, attempts = 2 }\n", "limits.time", "limits = { attempts = 2 }\n"),
        ("limits = { time = 5, attempts = 2 }\n", "limits.attempts", "limits = { time = 5 }\n"),
        ("limits = { time = 5 }\n", "limits.time", "limits = { }\n"),
        ("limits.time = 5\nlimits.attempts = 2", "limits.attempts", "limits.time = 5\n"),
        ("[limits]\ntime = 5\n", "limits.attempts", "[limits]\ntime = 5\n"),
        ("[limits]\r\ntime = 5\r\nattempts = 2\r\n", "limits.time", "[limits]\r\nattempts = 2\r\n"),
    ],
)
def test_a_key_is_removed_with_its_empty_table(tmp_path: Path, text: str, key: str, after: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode())
    was_there = key.rpartition(".")[2] in key_names(text)
    assert unset_user_value(path, key) == was_there
    assert path.read_bytes().decode() == after
    assert not unset_user_value(path, key)


def key_names(text: str) -> set[str]:
    return {name for table in tomllib.loads(text).values() for name in table}


def test_a_key_that_the_rest_needs_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = '[agents.fix]\nkind = "command"\ncommand = ["true"]\n'
    path.write_text(text)
    with pytest.raises(ConfigError):
        unset_user_value(path, "agents.fix.command")
    with pytest.raises(ConfigError, match="unknown key"):
        unset_user_value(path, "limits.tim")
    assert path.read_text() == text


class TestWholeFile:
    @pytest.fixture
    def reader(self, tmp_path: Path) -> Iterator[StateReader]:
        environ = {"CHARGEHAND_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path)}
        with StateReader.open(environ=environ) as opened:
            yield opened

    @staticmethod
    def write(*texts: str) -> Callable[[Path], None]:
        left = list(texts)
        return lambda copy: copy.write_text(left.pop(0)) and None

    def test_an_invalid_text_is_edited_again_or_left_out(self, reader: StateReader, tmp_path: Path) -> None:
        path = tmp_path / "chargehand/config.toml"
        bad, good = "[limits]\nattempts = 0\n", "[limits]\nattempts = 4\n"
        done = edit_configuration(reader, edit=self.write(bad, good), ask_again=lambda error: True)
        assert (done.changed, path.read_text()) == (True, good)
        seen = list[str]()
        for text in (bad, "[limits", "[limit]\n"):
            kept = edit_configuration(
                reader, edit=self.write(text), ask_again=lambda error: seen.append(error.message) is not None
            )
            assert (kept.changed, path.read_text()) == (False, good)
        assert all(str(path) in message for message in seen)
        assert len(seen) == 3

    def test_a_file_that_is_broken_now_can_be_repaired(self, reader: StateReader, tmp_path: Path) -> None:
        path = tmp_path / "chargehand/config.toml"
        path.parent.mkdir()
        path.write_text("[limits")
        assert edit_configuration(reader, edit=self.write("[limits]\n"), ask_again=lambda error: False).changed
        assert path.read_text() == "[limits]\n"

    def test_a_change_by_another_program_is_not_lost(self, reader: StateReader, tmp_path: Path) -> None:
        path = tmp_path / "chargehand/config.toml"
        set_user_value(path, "limits.attempts", "2")
        before = path.read_text()

        def edit(copy: Path) -> None:
            copy.write_text("[limits]\nattempts = 3\n")
            set_user_value(path, "limits.attempts", "5")

        with pytest.raises(ConfigError, match="meanwhile"):
            edit_configuration(reader, edit=edit, ask_again=lambda error: True)
        assert path.read_text() == before.replace("2", "5")

    def test_without_a_change_no_file_is_made(self, reader: StateReader, tmp_path: Path) -> None:
        done = edit_configuration(reader, edit=lambda copy: None, ask_again=lambda error: True)
        assert (done.exists, done.changed) == (False, False)
        assert not (tmp_path / "chargehand").exists()
