"""`mission report` of real missions, in every status: its content, and that its commands are right."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.conftest import git
from tests.integration.command_line import Cli, repository, shell
from tests.saved_state import ask

from chargehand.cli.main import chargehand
from chargehand.store.store import open_store

HEADINGS = [
    "## What was asked",
    "## What was done",
    "## Checks that judged the promoted tree",
    "## Attempts and refusals",
    "## Decisions",
    "## Cost and time",
    "## Evidence",
    "## How to undo it",
]


class Place:
    """A person with a repository."""

    def __init__(self, place: Path) -> None:
        self.cli = Cli(place)
        self.repository = repository(place / "repo")

    def report(self, mission: str = "last") -> dict[str, Any]:
        result = self.cli.say("mission", "report", mission, cwd=self.repository)
        assert result.code == 0, result
        return result.document

    def markdown(self, mission: str = "last") -> str:
        path = self.cli.place / f"{os.urandom(4).hex()}.md"
        runner = CliRunner(env=self.cli.environ)
        before = os.getcwd()
        os.chdir(self.repository)
        try:
            done = runner.invoke(chargehand, ["mission", "report", mission])
            written = runner.invoke(chargehand, ["mission", "report", mission, "--output", str(path)])
        finally:
            os.chdir(before)
        assert (done.exit_code, written.exit_code) == (0, 0), (done.output, written.output)
        assert path.read_text() == done.stdout
        assert [line for line in done.stdout.splitlines() if line.startswith("## ")] == HEADINGS
        return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.needs_bwrap
class TestEnds:
    def test_promoted(self, place: Place) -> None:
        result = place.cli.run(place.repository)
        report, text = place.report(), place.markdown()
        assert (report["status"], report["final"]) == ("promoted", True)
        assert report["files"] == [{"path": "f.txt", "added": 1, "removed": 1}]
        assert report["promoted"]["tree"] == report["promoted"]["verdict"]["tree"]
        assert report["undo"]["commands"] == [
            f"chargehand mission rollback {result.document['mission']}",
            "git branch -D chargehand/mend",
        ]
        assert report["details"]["request"]["text"] == "mend"
        assert f"promoted commit `{result.document['commit']}`" in text
        assert "verdict green on the attempt tree" in text
        check = report["promoted"]["verdict"]["checks"][0]["artifact"]
        assert check in {each["id"] for each in report["evidence"]}
        git(place.repository, "branch", "-D", "chargehand/mend")

    def test_the_undo_commands_of_an_applied_mission_work(self, place: Place) -> None:
        place.cli.run(place.repository, "--apply")
        assert (place.repository / "f.txt").read_text() != "aaa\n"
        back, revert = place.report()["undo"]["commands"]
        git(place.repository, *shlex.split(revert)[1:], "--no-edit")
        assert (place.repository / "f.txt").read_text() == "aaa\n"
        git(place.repository, "reset", "-q", "--hard", "HEAD~1")
        assert place.cli.say(*shlex.split(back)[1:], cwd=place.repository).code == 0
        assert (place.repository / "f.txt").read_text() == "aaa\n"
        report = place.report()
        assert report["status"] == "rolled back"
        assert report["promoted"]["undone_by"] == git(place.repository, "rev-parse", "HEAD")
        assert f"undone by commit `{report['promoted']['undone_by']}`" in place.markdown()

    def test_refused_with_the_lines_that_say_why(self, place: Place) -> None:
        check = "echo 'E   AssertionError: 1 != 2'; false"
        place.cli.say(
            "run", "mend", "--agent", shell("echo x >> f.txt"), "--only-check", check, cwd=place.repository
        )
        report, text = place.report(), place.markdown()
        (failure,) = report["attempts"][0]["failures"]
        assert (failure["kind"], failure["status"]) == ("check", "failed")
        assert any("AssertionError: 1 != 2" in line for line in failure["lines"])
        assert "AssertionError: 1 != 2" in text
        assert (report["promoted"], report["undo"]["commands"]) == (None, [])
        assert "nothing was promoted" in text

    def test_reverted_paths_are_reported(self, place: Place) -> None:
        agent = shell("sed -i s/a/b/ f.txt; rm g.txt")
        place.cli.run(place.repository, "--forbid", "g.txt", "--partial", agent=agent)
        assert place.report()["attempts"][0]["reverted"] == [{"path": "g.txt", "rule": "area_forbidden"}]
        assert "reverted `g.txt` by rule `area_forbidden`" in place.markdown()

    def test_waiting_and_then_approved_by_a_person(self, place: Place) -> None:
        result = place.cli.say("run", "mend", "--agent", shell("sed -i s/a/b/ f.txt"), cwd=place.repository)
        mission = result.document["mission"]
        report = place.report()
        assert (report["status"], report["final"]) == ("waiting", False)
        assert report["undo"]["commands"] == [f"chargehand mission discard {mission}"]
        assert "**Not final:**" in place.markdown()
        reason = "I read it; `all` of it"
        assert place.cli.say("mission", "promote", mission, "--reason", reason, cwd=place.repository).code == 0
        report = place.report()
        (approval,) = report["decisions"]
        assert (approval["kind"], approval["text"]) == ("approval.given", reason)
        assert approval["identity"].startswith("os:")
        assert approval["about"] == f"tree {report['promoted']['tree']}"
        assert report["judged_again"][0]["tree"] == report["promoted"]["tree"]
        assert f"`` {reason} ``" in place.markdown() or f"``{reason}``" in place.markdown()

    def test_the_report_of_a_cancelled_detached_mission_is_final(self, place: Place) -> None:
        result = place.cli.run(place.repository, "--detach")
        mission = result.document["mission"]
        try:
            report = place.report(mission)
            assert report["attempts"] == [] or not report["final"] or report["status"] == "promoted"
        finally:
            place.cli.say("mission", "cancel", mission, cwd=place.repository)
        assert place.report(mission)["final"]

    def test_a_damaged_log(self, place: Place) -> None:
        place.cli.run(place.repository)
        with open_store(place.cli.home) as store, store.database.write() as connection:
            connection.execute("UPDATE events SET payload = '{' WHERE type = 'verdict.given'")
        report, text = place.report(), place.markdown()
        assert report["details"]["damaged"]
        assert report["promoted"]["verdict"] is None
        assert "**Its log is damaged:**" in text
        assert "The log no longer has a verdict on that tree." in text

    def test_no_name_or_output_becomes_anything_but_text(self, place: Place) -> None:
        parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
        evil = "\\n# Forged\\n\\n| a | b |\\n|---|---|\\n\\`\\`\\`\\n<script>x</script>\\n[a](http://e.example)\\033[31m"
        agent = shell(f"printf '{evil}'; printf '{evil}' > '# <b>x</b> `[l](u)`|' ; exit 3".replace("`", "\\`"))
        check = "printf '```\\n# Forged\\n<img src=x>\\n'; false"
        result = place.cli.say(
            *("run", "mend\n# Forged\n</pre><h1>x", "--agent", agent, "--only-check", check), cwd=place.repository
        )
        assert result.document["status"] in ("refused", "failed")
        text = place.markdown()
        assert "\033" not in text
        tokens = parser.parse(text)
        heads = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
        assert [f"## {head}" for head in heads[1:]] == HEADINGS
        kinds = {token.type for token in tokens} | {
            child.type for token in tokens for child in token.children or ()
        }
        assert not kinds & {"html_block", "html_inline", "link_open", "image", "table_open", "hr", "code_block"}


def test_every_mission_of_an_earlier_version_has_a_report(saved: Path) -> None:
    """Promoted, refused, failed, exhausted, discarded, waiting and paused ones, a fork and two roll-backs."""
    told = {}
    for mission in ask("mission", "list")["missions"]:
        report = ask("mission", "report", mission["mission"])
        text = CliRunner().invoke(chargehand, ["mission", "report", mission["mission"]])
        assert text.exit_code == 0, text.exception
        assert [line for line in text.stdout.splitlines() if line.startswith("## ")] == HEADINGS
        assert report["details"] == ask("mission", "show", mission["mission"])
        # An unknown cost is shown as unknown in both forms, and a known one is not.
        assert ("- cost not known" in text.stdout) is (report["details"]["cost_usd"] is None)
        told[mission["mission"]] = report
    assert {report["status"] for report in told.values()} > {"refused", "rolled back", "waiting", "paused"}
    assert any(report["forked_from"] in told for report in told.values())
    assert all(report["undo"]["commands"] for report in told.values() if not report["final"])
    old = next(name for name, report in told.items() if report["promoted"])
    assert ask("audit", "provenance", old, code=1)["problems"][0]["kind"] == "provenance_missing"


def test_a_file_is_written_whole_or_not_at_all(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    written = ask("mission", "report", "last", "--output", str(path))
    assert written["bytes"] == path.stat().st_size
    assert json.loads(path.read_text())["mission"] == written["missions"][0]
    before = path.read_bytes()
    refused = CliRunner().invoke(chargehand, ["--json", "mission", "report", "last", "--output", str(path)])
    assert (refused.exit_code, json.loads(refused.stderr)["error"]["code"]) == (2, "output_exists")
    assert path.read_bytes() == before
    nowhere = CliRunner().invoke(chargehand, ["--json", "mission", "report", "--output", str(tmp_path / "no/x")])
    assert (nowhere.exit_code, json.loads(nowhere.stderr)["error"]["code"]) == (2, "output_unwritable")
    assert os.listdir(tmp_path) == ["report.json"]
