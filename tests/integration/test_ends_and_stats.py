"""Real missions through the real program: each end has its cause, and `stats` counts them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.integration.command_line import Cli, repository, shell

pytestmark = pytest.mark.needs_bwrap


def test_a_promoted_a_refused_and_an_agent_failed_mission_have_the_right_classes(tmp_path: Path) -> None:
    cli, place = Cli(tmp_path), repository(tmp_path / "repo")
    promoted = cli.run(place)
    refused = cli.run(place, "--only-check", "grep -q never f.txt")
    failed = cli.run(place, agent=shell("echo b > f.txt; exit 3"))
    idle = cli.run(place, agent="command:true")
    documents = [result.document for result in (promoted, refused, failed, idle)]
    assert [document["status"] for document in documents] == ["promoted", "refused", "failed", "refused"]
    causes = [document["cause"] for document in documents]
    assert causes[0] is None
    assert [(cause["class"], cause["code"]) for cause in causes[1:]] == [
        ("check", "check_failed"),
        ("agent", "agent_failed"),
        ("agent", "no_change"),
    ]
    assert [document["attempts"][0]["cause"] for document in documents] == causes
    for document in documents:
        shown = cli.say("mission", "show", document["mission"], cwd=place).document
        assert shown["cause"] == shown["attempts"][0]["cause"] == document["cause"]

    stats = cli.say("stats", "--since", "1d", cwd=place).document
    assert stats["rates"] == {"completion": 1.0, "promotion": 0.25, "engine_failure": 0.0}
    assert (stats["attempts"]["ended"], stats["attempts"]["succeeded"]) == (4, 1)
    assert (stats["attempts"]["by_class"]["check"], stats["attempts"]["by_class"]["agent"]) == (1, 2)
    assert stats["missions"]["seconds"]["known"] == stats["attempts"]["seconds"]["known"] == 4
    assert stats["attempts"]["cost"]["unknown"] == 0  # a program's cost is known to be zero
    sandboxes = stats["sandboxes"]
    assert sandboxes["closed"] == sandboxes["ready"]["known"] > 4  # the checks had sandboxes too
    assert sandboxes["freeze"]["known"] >= 4
    assert sandboxes["memory"]["known"] + sandboxes["memory"]["unknown"] == sandboxes["disk"]["known"] == 4
    assert sandboxes["disk"]["p99"] > 0
    log = cli.say("mission", "log", documents[0]["mission"], cwd=place, as_json=False)
    assert log.code == 0, log
    assert re.search(r"sandbox\.closed +sandbox for agent closed after [0-9.]+ s", log.stdout), log


def test_a_setup_that_fails_is_a_persons_to_mend_and_no_engine_failure(tmp_path: Path) -> None:
    files = {"f.txt": "aaa\n", "chargehand.toml": '[project]\nsetup = "exit 4"\n'}
    cli, place = Cli(tmp_path), repository(tmp_path / "repo", files)
    result = cli.run(place)
    assert result.document["status"] == "failed"
    assert (result.document["cause"]["class"], result.document["cause"]["code"]) == ("person", "setup_failed")
    stats = cli.say("stats", cwd=place).document
    assert stats["rates"] == {"completion": 0.0, "promotion": 0.0, "engine_failure": 0.0}
    assert stats["attempts"]["ended"] == 0


def test_the_words_of_a_mission_give_advice_on_its_cause(tmp_path: Path) -> None:
    cli, place = Cli(tmp_path), repository(tmp_path / "repo")
    mission = cli.run(place, agent="command:true").document["mission"]
    done = cli.say("mission", "show", mission, cwd=place, as_json=False)
    assert done.code == 0, done
    lines = [line for line in done.stdout.splitlines() if line.split()[:1] == ["advice"]]
    assert len(lines) == 1
