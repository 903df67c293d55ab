"""The resource use, limits and tier of an attempt, as a person sees them in missions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import MEND, PASSES, Cli, repository, shell

pytestmark = pytest.mark.needs_bwrap

HOLD = "python3 -c 'held = bytes(b\\'x\\') * (400 << 20)'"


def run(cli: Cli, repo: Path, script: str, code: int = 1, **keys: str) -> dict[str, Any]:
    """Run a mission of one attempt under these keys of the configuration; return the output of `mission show`."""
    environ = {f"CHARGEHAND_{name.upper()}": value for name, value in keys.items()}
    done = cli.say("run", "Do it", "--agent", shell(script), *PASSES, cwd=repo, environ=environ)
    assert done.code == code, done
    shown: dict[str, Any] = cli.say("mission", "show", done.document["mission"], cwd=repo).document
    return shown


@pytest.mark.parametrize(
    ("script", "keys", "reason"),
    [
        ("while :; do echo y; done", {"sandbox_output_mb": "1"}, "output"),
        ("while :; do :; done", {"sandbox_cpu_time": "1s"}, "cpu_time"),
        ("exec head -c 3000000 /dev/zero > large", {"sandbox_file_mb": "1"}, "file_size"),
        ("sleep 600", {"limits_time": "3s"}, "time"),
    ],
)
def test_an_attempt_that_meets_a_limit_says_which(
    script: str, keys: dict[str, str], reason: str, tmp_path: Path
) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    shown = run(cli, repo, script, code=4 if reason == "time" else 1, **keys)
    (attempt,) = shown["attempts"]
    assert [each["code"] for each in attempt["reasons"]] == [reason]
    assert (attempt["cause"]["class"], attempt["cause"]["code"]) == ("budget", reason)
    if reason != "time":
        assert f"sandbox.{next(iter(keys)).removeprefix('sandbox_')}" in attempt["cause"]["remedy"]


def test_the_resource_usage_of_an_attempt_is_reported(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    burn = (
        "sed -i s/a/b/ f.txt; head -c 3000000 /dev/zero > g.txt; i=0; while [ $i -lt 99999 ]; do i=$((i+1)); done"
    )
    # If only our samples count processes, a shorter command may end between two of them.
    done = cli.say("run", "Mend f", "--agent", shell(f"{burn}; sleep 3; echo 12345"), *PASSES, cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    (attempt,) = done.document["attempts"]
    used = attempt["usage"]
    assert (used["opened"], used["closed"], used["output"]) == (1, 1, 6)
    assert used["wall_seconds"] > 0
    assert used["disk_used"] >= 3_000_000
    assert used["network_out"] is None, "it had no network: unknown is not 0"
    for name, least in (("cpu_seconds", 0.05), ("peak_memory", 1 << 20), ("peak_processes", 2)):
        assert used[name] is None or used[name] >= least, name
    assert used["disk_written"] is None or used["disk_written"] >= 3_000_000
    shown = cli.say("mission", "show", done.document["mission"], cwd=repo)
    assert shown.document["attempts"][0]["usage"] == used
    assert shown.document["tier"]["tier"] == "process"
    assert shown.document["tier"]["reason"] == "default"
    stats = cli.say("stats", cwd=repo).document
    assert stats["sandboxes"]["cpu"]["known"] + stats["sandboxes"]["cpu"]["unknown"] == 1
    log = cli.say("mission", "log", done.document["mission"], cwd=repo).stdout
    assert '"tier.chosen"' in log


AUTO = {"CHARGEHAND_SANDBOX_TIER": "auto", "CHARGEHAND_SANDBOX_CONTAINER_PROGRAM": "no-such-engine"}


def test_auto_takes_no_weaker_tier_until_a_person_trusts_the_repository(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path, **AUTO), repository(tmp_path / "repo")
    refused = cli.say("run", "Mend f", "--agent", MEND, *PASSES, cwd=repo)
    assert (refused.code, refused.error["code"]) == (5, "sandbox_unavailable")
    assert "'container' or stronger (the repository is not trusted yet)" in refused.error["message"]
    assert "chargehand project trust" in refused.error["hint"]
    assert cli.say("exec", "--", "true", cwd=repo).code == 125

    own_word = cli.say("exec", "--sandbox", "process", "--", "true", cwd=repo)
    documentation = cli.say(
        "run", "Mend f", "--agent", shell("echo x >> README.md"), *PASSES, "--allow", "*.md", cwd=repo
    )
    assert documentation.code == 0, documentation
    tier = cli.say("mission", "show", documentation.document["mission"], cwd=repo).document["tier"]
    assert (tier["tier"], tier["facts"]["documentation"]) == ("process", True)
    assert own_word.code in (0, 2)

    assert cli.say("project", "trust", "--yes", cwd=repo).document["trusted"]
    ran = cli.say("exec", "--", "echo", "x", cwd=repo).document
    assert (ran["tier"], ran["tier_reason"], ran["stdout"]) == ("process", "a person trusts the repository", "x\n")
    done = cli.say("run", "Mend f", "--agent", MEND, *PASSES, "--detach", cwd=repo)
    assert done.code == 0
    shown = cli.say("mission", "watch", done.document["mission"], cwd=repo)
    assert shown.code == 0, shown
    tier = cli.say("mission", "show", done.document["mission"], cwd=repo).document["tier"]
    assert (tier["tier"], tier["facts"]["trusted"]) == ("process", True)
    assert [each["tier"] for each in tier["candidates"]] == ["none", "process", "container", "vm"]
    assert tier["candidates"][1]["offered"] is True


def test_a_changed_file_of_the_repository_is_trusted_no_longer(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path, **AUTO), repository(tmp_path / "repo")
    assert cli.say("project", "trust", "--yes", cwd=repo).document["trusted"]
    (repo / "chargehand.toml").write_text("[project]\nchecks = []\n")
    assert cli.say("exec", "--", "true", cwd=repo).code == 125


def test_doctor_and_configuration_name_the_profile(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    tight = {"CHARGEHAND_ENGINE_MEMORY_MB": "3000"}
    shown = cli.say("config", "show", "--origin", cwd=repo, environ=tight).stdout
    assert "profile small: " in shown
    own = cli.say("config", "show", "--origin", cwd=repo, environ={**tight, "CHARGEHAND_SANDBOX_MEMORY_MB": "777"})
    assert "777" in own.stdout
