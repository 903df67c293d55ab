"""Disk space as a person sees it: an agent that writes too much, a disk that fills up inside, and `gc`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conftest import git
from tests.integration.command_line import FILES, MEND, Cli, repository, shell
from tests.integration.test_bad_input_machine import refused_for_space, small_disk
from tests.terminal_kit import Terminal

IGNORING = {**FILES, ".gitignore": "*.log\n"}
FOREVER = shell("n=0; while true; do n=$((n+1)); head -c 3000000 /dev/zero > $n.log; sleep 0.02; done")
AT_ONCE = shell("for n in 1 2 3 4 5 6 7 8 9; do head -c 3000000 /dev/zero > $n.log; done; sed -i s/a/b/ f.txt")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", IGNORING)


@pytest.mark.parametrize("agent", [FOREVER, AT_ONCE])
def test_an_agent_over_the_disk_limit_is_stopped_with_a_reason(tmp_path: Path, repo: Path, agent: str) -> None:
    cli = Cli(tmp_path / "person", CHARGEHAND_SANDBOX_DISK_MB="20")
    result = cli.run(repo, agent=agent)
    assert (result.code, result.document["status"], result.reasons) == (1, "failed", {"disk"}), result
    assert "ignored files included" in result.document["reasons"][0]["message"]
    assert cli.state(result).attempts[0].reasons[0].code == "disk"
    enough = Cli(tmp_path / "person", CHARGEHAND_SANDBOX_DISK_MB="40")
    assert enough.run(repo, agent=AT_ONCE).code == 0


def test_more_files_than_allowed(tmp_path: Path, repo: Path) -> None:
    cli = Cli(tmp_path / "person", CHARGEHAND_SANDBOX_FILES="50")
    result = cli.run(repo, agent=shell("for n in $(seq 60); do touch $n.log; done; sed -i s/a/b/ f.txt"))
    assert (result.code, result.reasons) == (1, {"disk"}), result
    assert cli.run(repo).code == 0


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("agent", "check"),
    [
        ("head -c 14000000 /dev/zero > 1.log || sleep 60; sed -i s/a/b/ f.txt", "true"),
        ("sed -i s/a/b/ f.txt", "head -c 14000000 /dev/zero > 1.log"),
    ],
    ids=["agent", "check"],
)
def test_a_disk_that_fills_up_inside_ends_no_mission(tmp_path: Path, repo: Path, agent: str, check: str) -> None:
    with small_disk(tmp_path / "person", kib=60_000) as cli:
        assert cli.with_spare(None, repo, MEND).code == 0
        result = cli.with_spare(9000, repo, shell(agent), "--only-check", check)
        refused_for_space(result)
        assert cli.go_on() == "promoted"


def test_the_limit_for_all_projects_is_kept(tmp_path: Path, repo: Path) -> None:
    (repo / "big").write_bytes(os.urandom(3_000_000))
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "big")
    cli = Cli(tmp_path / "person")
    assert cli.run(repo).code == 0
    (repo / "big").write_bytes(os.urandom(3_000_000))
    git(repo, "commit", "-qam", "bigger")
    tight = Cli(tmp_path / "person", CHARGEHAND_LIMITS_STATE_MB="14")
    result = tight.run(repo)
    # Not an end: the mission resumes by itself once there is room.
    assert (result.code, result.document["status"], result.reasons) == (3, "waiting", {"no_space"}), result
    assert "limits.state_mb" in result.document["reasons"][1]["message"]
    for meta in cli.home.glob("projects/*/bases/*/meta.json"):
        os.utime(meta, (1, 1))
    told = tight.say("gc", "--max-bytes", "1kB", "--dry-run", cwd=repo).document
    assert len(told["projects"][0]["bases"]) == 1
    assert tight.run(repo).code == 0
    bases = [place.name for place in cli.home.glob("projects/*/bases/*")]
    assert bases == [git(repo, "rev-parse", "main")], "the one that was not needed made room"


def test_gc_removes_checkpoints_only_with_an_explicit_option(tmp_path: Path, repo: Path) -> None:
    cli = Cli(tmp_path / "person")
    done = cli.run(repo, "--only-check", "false").document
    shown = ("checkpoint", "list", done["mission"])
    assert len(cli.say(*shown, cwd=repo).document["checkpoints"]) == 1
    told = cli.say("gc", "--checkpoints", "--max-age", "0s", "--dry-run", cwd=repo).document
    assert told["projects"][0]["checkpoints"]["commits"] == 1
    asked = cli.refused("usage", 2, "gc", "--checkpoints", "--max-age", "0s", cwd=repo)
    assert "1 checkpoint of 1 workspace" in asked["message"]
    assert cli.say("mission", "diff", done["mission"], cwd=repo).code == 0
    gone = cli.say("gc", "--checkpoints", "--max-age", "0s", "--yes", cwd=repo).document
    assert gone["projects"][0]["checkpoints"] == told["projects"][0]["checkpoints"]
    depot = next(cli.home.glob("projects/*/depot.git"))
    assert git(depot, "for-each-ref", "refs/chargehand/workspaces/") == ""
    assert cli.refused("usage", 2, "gc", "--max-bytes", "many", cwd=repo)["hint"]


SETUP = "mkdir -p env.log && cp go.sum env.log/of-setup"
SAME = "cmp go.s*m env.log/of-setup"


def test_a_candidate_with_changed_setup_inputs_gets_a_separate_environment(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {**IGNORING, "go.sum": "x\n"})
    cli = Cli(tmp_path / "person", CHARGEHAND_PROJECT_SETUP=SETUP)
    words = ("run", "mend", "--agent", shell("echo y >> go.sum"), "--only-check", SAME)
    done = cli.say(*words, cwd=repo)
    assert done.code == 0, done.document["reasons"]
    layers = [place.name for place in cli.home.glob("projects/*/layers/*")]
    assert len(layers) == 1, "the base's; the candidate's went with its verdict"
    log = cli.say("mission", "log", done.document["mission"], cwd=repo).stdout
    assert "setup without network" in log


def test_a_tree_whose_setup_needs_a_network_waits_for_a_person(tmp_path: Path) -> None:
    """Its checks ran in the base's environment, not in the environment that it asks for."""
    repo = repository(tmp_path / "repo", {**IGNORING, "go.sum": "x\n"})
    cli = Cli(tmp_path / "person", CHARGEHAND_PROJECT_SETUP=f"test $(wc -l < go.sum) = 1 && {SETUP}")
    words = ("run", "mend", "--agent", shell("echo y >> go.sum"), "--only-check", "test -e env.log/of-setup")
    waiting = cli.say(*words, cwd=repo)
    assert (waiting.code, waiting.reasons) == (3, {"setup_offline"}), waiting
    assert "project.setup_network" in waiting.document["reasons"][0]["message"]
    verdict = cli.state(waiting).verdicts[-1]
    assert (verdict.status, [check.status for check in verdict.checks]) == ("missing", ["passed"])
    promoted = cli.say("mission", "promote", waiting.document["mission"], cwd=repo)
    assert (promoted.code, promoted.document["status"]) == (0, "promoted"), promoted


@pytest.mark.parametrize("result", ["y", "n"])
def test_at_a_terminal_a_person_lets_a_projects_setup_reach_the_registries_once(
    tmp_path: Path, result: str
) -> None:
    repos = [repository(tmp_path / name, {**IGNORING, "go.sum": "x\n"}) for name in ("one", "two")]
    online = f'{{ test $(wc -l < go.sum) = 1 || test -n "$PIP_INDEX_URL"; }} && {SETUP}'
    cli = Cli(tmp_path / "person", CHARGEHAND_PROJECT_SETUP=online)
    words = ("run", "mend", "--agent", shell("echo y >> go.sum"), "--only-check", SAME)
    shown = Terminal(tuple(cli.argv(*words)), cwd=repos[0], environment=cli.environ)
    shown.until("now and from now on? [y/N]")
    assert "setup failed without network" in " ".join(shown.shown.split())  # wrapped at a word
    shown.say(f"{result}\n")
    if result == "n":
        shown.until("Promote it? [y/N]")
        shown.say("n\n")
    assert shown.end() == (0 if result == "y" else 3), shown.shown
    later = cli.say(*words, cwd=repos[0])
    assert later.document["status"] == ("promoted" if result == "y" else "waiting"), later
    # The answer covers this project only, and a user's setting refuses for all projects.
    assert cli.say(*words, cwd=repos[1]).reasons == {"setup_offline"}
    never = Cli(tmp_path / "person", CHARGEHAND_PROJECT_SETUP=online, CHARGEHAND_PROJECT_SETUP_NETWORK="false")
    assert never.say(*words, cwd=repos[0]).reasons == {"setup_offline"}


def test_a_setup_that_fails_with_network_too_is_red(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", {**IGNORING, "go.sum": "x\n"})
    setup = f"test $(wc -l < go.sum) = 1 && {SETUP}"
    cli = Cli(tmp_path / "person", CHARGEHAND_PROJECT_SETUP=setup, CHARGEHAND_PROJECT_SETUP_NETWORK="true")
    words = ("run", "mend", "--agent", shell("echo y >> go.sum"), "--only-check", "test -e env.log/of-setup")
    red = cli.say(*words, cwd=repo)
    assert (red.code, red.reasons) == (1, {"setup_failed"}), red


def test_only_the_user_lets_a_changed_tree_reach_the_registries(tmp_path: Path) -> None:
    own = {"chargehand.toml": "[project]\nsetup_network = true\n"}
    repo = repository(tmp_path / "repo", {**IGNORING, **own})
    refused = Cli(tmp_path / "person").say("run", "m", "--agent", "command:true", cwd=repo)
    assert (refused.code, "setup_network" in refused.stderr) == (3, True), refused
