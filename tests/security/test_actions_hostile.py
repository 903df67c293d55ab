"""Git by hand in a repository with hostile configuration and files: nothing that they name is run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.conftest import git
from tests.integration.actions_kit import ActionsKit
from tests.security.test_git_vectors import VECTORS, Canary, plant
from tests.workspace_kit import FILES

pytestmark = pytest.mark.needs_bwrap

LEADS_ELSEWHERE = {"ext-remote", "instead-of"}
BREAKS = {"commondir", "core-worktree", "git-file", "nested-git", "planted-bare", "planted-refs"}
PLANTED = sorted(VECTORS.keys() - LEADS_ELSEWHERE - BREAKS)
"""All but those that redirect the remote (tested separately) and those after which git opens no repository."""


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "canary")


def test_planted_programs_do_not_run(canary: Canary, tmp_path: Path) -> None:
    kit = ActionsKit(tmp_path / "crashes", FILES)
    mission = kit.run("echo more >> README.md", checks=("true",))
    assert mission.status == "promoted", mission.reasons
    subprocess.run(["sh", "-ec", plant(PLANTED, canary)], cwd=kit.repository, check=True)
    more = (
        f'[remote "origin"]\n\tuploadpack = {canary.run("uploadpack")}\n\treceivepack = {canary.run("hooks")}\n'
        f'\tvcs = {canary.run("ext-remote")}\n[credential]\n\thelper = "!{canary.run("credential")}"\n'
    )
    with (kit.repository / ".git/config").open("a") as config:
        config.write(more)
    assert canary.fired() == set()
    fetched = kit.act("fetch", remote="origin")
    assert fetched.status == "done", fetched
    pushed = kit.act("push", mission.id, remote="origin")
    assert pushed.status == "done", pushed
    assert kit.act("merge", mission.id, tip="origin/main").status == "done"
    asked = kit.act("push", mission.id, remote="origin", delete=True)
    assert kit.answered(asked.id, yes=True).status == "done"
    assert canary.fired() == set()


@pytest.mark.parametrize("scheme", ["ext::sh -c '{run}'", "sh -c '{run}'::x"])
def test_an_address_is_never_a_program(canary: Canary, tmp_path: Path, scheme: str) -> None:
    kit = ActionsKit(tmp_path / "crashes", FILES)
    evil = scheme.format(run=canary.run("ext-remote"))
    git(kit.repository, "config", f"url.{evil}.insteadOf", f"file://{kit.origin}")
    assert kit.act("fetch", remote="origin").status == "failed"
    assert canary.fired() == set()


def test_hooks_of_the_remote_run_but_not_those_in_the_project(canary: Canary, tmp_path: Path) -> None:
    """The control: a hook of the remote runs, as for any push; a hook among the project's files does not."""
    kit = ActionsKit(tmp_path / "crashes", FILES)
    mission = kit.run("echo more >> README.md", checks=("true",))
    for place in (kit.origin, kit.repository / "inner.git"):
        if not place.exists():
            git(kit.place, "clone", "-q", "--bare", str(kit.origin), str(place))
        hook = place / "hooks/pre-receive"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{canary.run('hooks')}\nexit 0\n")
        os.chmod(hook, 0o755)
    git(kit.repository, "remote", "add", "inner", str(kit.repository / "inner.git"))
    refused = kit.act("push", mission.id, remote="inner")
    assert [reason.code for reason in refused.reasons] == ["remote_inside"]
    assert canary.fired() == set()
    assert kit.act("push", mission.id, remote="origin").status == "done"
    assert canary.fired() == {"hooks"}
