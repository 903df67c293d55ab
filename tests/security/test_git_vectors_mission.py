"""The same vectors, planted by the agent of a real mission: no command that a person gives afterwards runs one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import git, repository_state
from tests.integration.command_line import Cli, Completed, repository
from tests.security.test_git_vectors import CHANGE, VECTORS, Canary, naive, plant
from tests.workspace_kit import FILES

pytestmark = pytest.mark.needs_bwrap

DANGEROUS = (
    *("fsmonitor", "filter-clean", "filter-smudge", "filter-process", "textconv", "diff-command", "diff-external"),
    *("hooks", "hooks-path", "include", "include-if", "worktree-config", "core-worktree", "gpg", "merge-driver"),
    *(
        "uploadpack",
        "pack-objects-hook",
        "alternate-refs",
        "ext-remote",
        "instead-of",
        "submodule-update",
        "alias",
    ),
    *("planted-refs", "credential", "pager", "editor"),
)
CRITICAL = (("planted-bare", "nested-git", "commondir"), ("git-file",))


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path / "canary")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def planting(place: Path, script: str) -> Path:
    """Make a repository whose file `plant.sh` holds the agent's script."""
    return repository(place, {**FILES, "plant.sh": script})


def test_no_command_runs_planted_vectors(cli: Cli, canary: Canary, tmp_path: Path) -> None:
    assert set(DANGEROUS) <= VECTORS.keys()
    repo = planting(tmp_path / "repo", f"{CHANGE}\n{plant(DANGEROUS, canary)}\n{CHANGE}\n")

    def quiet(*words: str, codes: tuple[int, ...] = (0,)) -> Completed:
        result = cli.say(*words, cwd=repo)
        assert result.code in codes, result
        assert canary.fired() == set(), words
        return result

    agent = ("--agent", "command:sh plant.sh", "--only-check", "true")
    ran = quiet("run", "plant", *agent, "--apply", codes=(0, 3))
    mission = ran.document["mission"]
    if ran.document["status"] == "waiting":
        quiet("mission", "promote", mission)
    state = cli.state(ran)
    assert state.status == "promoted"
    assert git(repo, "rev-parse", "main") == state.commit
    point = state.checkpoints[-1].commit
    assert "+changed" in quiet("mission", "diff", mission, "--checkpoint", point).document["patch"]
    quiet("mission", "rollback", mission)
    quiet("checkpoint", "restore", mission, "base")
    quiet("checkpoint", "restore", mission, point)
    quiet("mission", "promote", mission, codes=(0, 3))
    # The control: the repository is quiet now; the files that the agent planted would not have been.
    naive(repo, "git status; git log -1; git diff HEAD~1")
    assert canary.fired() == set()
    naive(tmp_path, f"cp -r repo control; cd control; sh plant.sh; {CHANGE}; git status; git diff")
    assert canary.fired()


def test_critical_vectors_are_refused_and_never_run(cli: Cli, canary: Canary, tmp_path: Path) -> None:
    for names in CRITICAL:
        repo = planting(tmp_path / names[0], f"{plant(names, canary)}\n")
        before = repository_state(repo)
        result = cli.say("run", "plant", "--agent", "command:sh plant.sh", "--only-check", "true", cwd=repo)
        assert (result.code, result.document["status"]) == (1, "refused"), result
        assert canary.fired() == set()
        assert repository_state(repo) == before
