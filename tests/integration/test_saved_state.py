"""A state directory that an earlier version wrote opens, lists, verifies and resumes.

`tests/data/saved-state.tar.xz` comes from the version before projected rows, after a demo and fourteen more
missions: promoted, refused, failed, exhausted, discarded, waiting and paused ones, a fork, two roll-backs. It
includes the configuration, script and repository.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.conftest import git
from tests.saved_state import ask

WAITING, PAUSED, NATIVE = "m-1m8455nrdyh2yn", "m-1m8456575ep42y", "m-1m844j2qadjc8p"


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
def test_waiting_missions_of_an_earlier_version_resume(saved: Path) -> None:
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
