"""A state directory that an earlier version wrote opens, lists, verifies and goes on.

`tests/data/saved-state.tar.xz` holds what the version before projected rows left after a demo and fourteen more
missions: promoted, refused, failed, exhausted, discarded, waiting and paused ones, a fork, two roll-backs, its
configuration, its script and its repository.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conftest import git

from chargehand.cli.main import chargehand

SAVED = Path(__file__).parents[1] / "data/saved-state.tar.xz"
# Missions record the path of their repository, so it lies where it lay.
PLACE = Path("/tmp/chargehand-saved")
WAITING, PAUSED, NATIVE = "m-1m8455nrdyh2yn", "m-1m8456575ep42y", "m-1m844j2qadjc8p"


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Unpack the state where it was made, alone on this machine, and be the person who made it."""
    lock = os.open("/tmp/chargehand-saved.lock", os.O_CREAT | os.O_RDWR, 0o666)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        shutil.rmtree(PLACE, ignore_errors=True)
        with tarfile.open(SAVED) as archive:
            archive.extractall(PLACE, filter="fully_trusted")
        (top,) = PLACE.iterdir()
        for name, value in {
            "CHARGEHAND_HOME": top / "state",
            "XDG_CONFIG_HOME": top / "config",
            "HOME": top,
        }.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(top / "shop")
        yield top
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
        os.close(lock)


def ask(*words: str, code: int = 0) -> Any:
    """Give a command with --json and return its document."""
    done = CliRunner().invoke(chargehand, ["--json", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def test_everything_of_an_earlier_version_is_listed_shown_and_verified(saved: Path) -> None:
    missions = ask("mission", "list")["missions"]
    assert Counter(mission["status"] for mission in missions) == {
        "refused": 8,
        "promoted": 3,
        "waiting": 2,
        "failed": 1,
        "exhausted": 1,
        "discarded": 1,
        "paused": 1,
    }
    for mission in missions:
        shown = ask("mission", "show", mission["mission"])
        for key in ("status", "branch", "commit", "export", "reverted", "cost_usd", "cost_known", "reasons"):
            assert shown[key] == mission[key], key
        assert len(shown["checkpoints"]) == mission["checkpoints"]
    verified = ask("audit", "verify")
    assert (verified["ok"], verified["missions"], verified["signed_heads"]) == (True, 17, 5)
    assert ask("store", "rebuild")["differing"] == []


@pytest.mark.needs_bwrap
def test_what_waited_in_an_earlier_version_goes_on(saved: Path) -> None:
    promoted = ask("mission", "promote", WAITING, "--reason", "read it")
    assert promoted["status"] == "promoted"
    assert git(saved / "shop", "show", f"{promoted['branch']}:shop/w3.py") == "W"
    assert ask("mission", "cancel", PAUSED)["status"] == "cancelled"
    assert ask("mission", "rollback", promoted["mission"])["commit"] != promoted["commit"]
    assert ask("audit", "verify")["ok"] is True


@pytest.mark.needs_bwrap
def test_replies_that_an_earlier_version_recorded_are_given_again(saved: Path) -> None:
    forked = ask("mission", "fork", NATIVE, "--at", "1.2")
    assert forked["status"] == "promoted"
