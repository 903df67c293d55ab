"""The reference page and the places configuration and state are kept in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chargehand.app.config.keys import entry_keys, section_keys
from chargehand.app.config.locations import load_user_file, state_home, user_config_path
from chargehand.app.config.sources import variable_name
from chargehand.app.reference.configuration import render_reference
from chargehand.core.errors import ConfigError

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_current() -> None:
    command = "python -m chargehand.app.reference.configuration > docs/reference/configuration.md"
    assert _PAGE.read_text() == render_reference(), f"run: {command}"


def test_the_page_is_what_the_module_writes() -> None:
    run = [sys.executable, "-m", "chargehand.app.reference.configuration"]
    written = subprocess.run(run, capture_output=True, check=True, text=True)
    assert written.stdout == render_reference()


def test_every_key_has_its_row() -> None:
    page = render_reference()
    for key in (*section_keys().values(), *entry_keys("agents").values(), *entry_keys("models").values()):
        assert f"| `{key.field}` |" in page
        assert f"| `{variable_name(key.name)}` |" in page


def test_where_the_users_file_is() -> None:
    assert user_config_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/chargehand/config.toml")
    assert user_config_path({"HOME": "/h"}) == Path("/h/.config/chargehand/config.toml")
    assert user_config_path({"XDG_CONFIG_HOME": "rel", "HOME": "/h"}) == Path("/h/.config/chargehand/config.toml")
    assert user_config_path({}).is_absolute()


def test_where_state_is() -> None:
    assert state_home({"CHARGEHAND_HOME": "/s", "XDG_STATE_HOME": "/x"}) == Path("/s")
    assert state_home({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/chargehand")
    assert state_home({"CHARGEHAND_HOME": "", "HOME": "/h"}) == Path("/h/.local/state/chargehand")
    with pytest.raises(ConfigError, match="CHARGEHAND_HOME"):
        state_home({"CHARGEHAND_HOME": "state"})


def test_reading_the_users_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert load_user_file(path) is None
    assert load_user_file(path / "below") is None
    path.write_bytes(b"# \xc3\xa4\r\n")
    read = load_user_file(path)
    assert read is not None
    assert (read.path, read.text) == (path, "# ä\r\n")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_user_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_user_file(tmp_path)
