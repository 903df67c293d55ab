"""Disk limits of checks, setup and `exec`: those of an attempt, with separate room for setup."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Cli, repository
from tests import vm_kit
from tests.conftest import git, write_files

pytestmark = pytest.mark.needs_bwrap
# In pieces: a single file would hit the limit on file size.
FILL = "for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > big$i; done"
LITTLE = "head -c 4000000 /dev/zero > big; rm big; mkdir many; touch many/a many/b"
MANY = "mkdir many; i=0; while [ $i -lt 400 ]; do : > many/$i; i=$((i+1)); done"


def commit_files(repo: Path, files: dict[str, str]) -> None:
    write_files(repo, files)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "more")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    found = repository(tmp_path / "repo")
    settings = "[sandbox]\ndisk_mb = 16\nfiles = 200\nsetup_disk_mb = 64\nsetup_files = 1000\n"
    commit_files(found, {"chargehand.toml": settings})
    return found


@pytest.mark.parametrize(
    ("command", "reason"),
    [(FILL, "disk"), (MANY, "files"), (f"{FILL}; sleep 300", "disk"), (LITTLE, None)],
)
def test_a_check_over_the_disk_limit_fails(cli: Cli, repo: Path, command: str, reason: str | None) -> None:
    result = cli.say("run", "mend", "--agent", "command:touch new.txt", "--only-check", command, cwd=repo)
    document = result.document
    assert document["status"] == ("promoted" if reason is None else "refused"), result
    state = cli.state(result)
    assert [(each.status, each.reason) for each in state.verdicts[-1].checks] == (
        [("failed", reason)] if reason else [("passed", "")]
    ), document
    left = [path for path in cli.home.rglob("big*") if path.is_file()]
    assert left == []


ELSEWHERE = [
    pytest.param("container", marks=pytest.mark.needs_container),
    pytest.param("vm", marks=[pytest.mark.needs_vm, pytest.mark.soak, pytest.mark.timeout(1500)]),
]


@pytest.mark.parametrize("tier", ELSEWHERE)
def test_in_every_tier(cli: Cli, repo: Path, tier: str) -> None:
    if tier == "vm":
        vm_kit.provide(Path(cli.environ["CHARGEHAND_HOME"]) / "vm")
    words = ("run", "mend", "--agent", "command:touch new.txt", "--sandbox", tier, "--only-check")
    result = cli.say(*words, f"{FILL}; sleep 300", cwd=repo)
    assert [(each.status, each.reason) for each in cli.state(result).verdicts[-1].checks] == [
        ("failed", "disk")
    ], result
    assert cli.say(*words, LITTLE, cwd=repo).document["status"] == "promoted"


@pytest.mark.parametrize(("command", "limit"), [(FILL, "disk"), (MANY, "files"), ("touch one", None)])
def test_exec_names_the_limit(cli: Cli, repo: Path, command: str, limit: str | None) -> None:
    result = cli.say("exec", "--", "sh", "-c", command, cwd=repo)
    assert (result.document["limit"], result.code) == (limit, result.document["exit_code"])
    assert (result.code != 0) is (limit is not None)


def test_setup_has_a_separate_disk_limit(cli: Cli, repo: Path) -> None:
    with (repo / "chargehand.toml").open("a") as file:
        file.write(f'[project]\nsetup = "{FILL}"\n')
    commit_files(repo, {"x.txt": "x"})
    result = cli.run(repo, agent="command:touch new.txt")
    assert result.document["status"] == "promoted", result
    text = (repo / "chargehand.toml").read_text().replace("setup_disk_mb = 64", "setup_disk_mb = 8")
    commit_files(repo, {"chargehand.toml": text.replace(FILL, f"{FILL}; true")})
    result = cli.run(repo, agent="command:touch new.txt")
    assert "setup_failed" in result.stdout + result.stderr, result
    assert "sandbox.setup_disk_mb" in result.stdout + result.stderr
