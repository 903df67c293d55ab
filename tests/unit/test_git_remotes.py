"""The git commands that reach a remote: the settings that they take from the user's configuration."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conftest import git, write_files
from tests.workspace_kit import WorkspaceKit

from chargehand.workspace.remotes import REMOTES, find_remote, push_command, remote_branches
from chargehand.workspace.space import gc


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return the environment of a push by a user with some personal settings."""
    settings = "[credential]\n\thelper = one\n\thelper = two\n[http]\n\tsslVerify\n[alias]\n\tx = y\n"
    write_files(tmp_path / "home", {".gitconfig": settings})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    kit = WorkspaceKit(tmp_path)
    git(kit.repository, "remote", "add", "origin", "https://h.invalid/x.git")
    depot = kit.depot()
    remote = find_remote(depot.repository, "origin", ["https"], push=True)
    return push_command(depot, remote, "main", commit="1" * 40, old=None, force=False).environment


def ask(environment: Mapping[str, str], *words: str) -> list[str]:
    """Return the values that git reads for a setting with only this environment."""
    alone = {**environment, "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    found = subprocess.run(["git", "config", *words], env=alone, cwd="/", capture_output=True, text=True)
    return found.stdout.splitlines()


def test_of_a_setting_with_several_values_all_are_taken_in_order(environment: Mapping[str, str]) -> None:
    assert ask(environment, "--get-all", "credential.helper") == ["one", "two"]


def test_a_setting_without_a_value_is_true(environment: Mapping[str, str]) -> None:
    assert ask(environment, "--type=bool", "--get", "http.sslVerify") == ["true"]


def test_other_settings_are_ignored(environment: Mapping[str, str]) -> None:
    assert ask(environment, "--get", "alias.x") == []


def test_unicode_line_breaks_do_not_split_a_branch_name(tmp_path: Path) -> None:
    kit = WorkspaceKit(tmp_path)
    depot, commit = kit.depot(), kit.base().commit
    name = "of\u2028a\x85stranger"
    depot.git("update-ref", f"{REMOTES}origin/{name}", commit)
    assert remote_branches(depot, "origin") == {name: commit}
    assert gc([kit.root], checkpoints=True, dry_run=True).projects[0].refs == ()
