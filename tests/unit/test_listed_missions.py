"""Lists of missions: a plan's tasks appear with their coordinator only; and lists of teams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from chargehand.app.composition import App
from chargehand.cli.main import chargehand
from chargehand.core.mission_events import MissionFinished
from chargehand.core.records import MissionRequest
from chargehand.missions.journal import MissionSubmission, create_mission

ASKED = MissionRequest(text="change it", agent="", command=(), slug="change-it")


def ask(app: App, parent: str | None = None, task: str | None = None) -> str:
    found, more = app.preparation.find(), {} if parent is None else {"parent": parent, "task": task}
    return create_mission(
        app.store,
        MissionSubmission(
            project=found.project.id, request=ASKED, repository=str(app.cwd), base=found.base, config={}, **more
        ),
    )


def end(app: App, mission: str, status: Any) -> None:
    app.store.log.append(mission, MissionFinished(status=status), epoch=app.store.log.get(mission).epoch)


def run(*words: str) -> Result:
    return CliRunner().invoke(chargehand, list(words))


def listed(*words: str) -> tuple[list[str], int]:
    document = json.loads(run("mission", "list", "--json", *words).stdout)
    return [each["mission"] for each in document["missions"]], document["left_out"]


def test_tasks_of_a_plan_do_not_count_towards_the_limit(app: App) -> None:
    single, coordinator = ask(app), ask(app)
    children = [ask(app, coordinator, f"t{number}") for number in range(4)]
    newest = ask(app)
    assert listed("--limit", "1") == ([newest], 2)
    assert listed("--limit", "2") == ([newest, *children[::-1], coordinator], 1)
    assert listed("--limit", "3") == ([newest, *children[::-1], coordinator, single], 0)
    assert listed() == ([newest, *children[::-1], coordinator, single], 0)
    lines = run("mission", "list", "--limit", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == [newest, coordinator, *children]
    assert all(line.startswith("  ") for line in lines[3:7])
    assert lines[-1] == "1 older mission not listed; --limit 0 lists all."


def test_a_task_without_a_listed_coordinator_is_listed_alone(app: App) -> None:
    coordinator = ask(app)
    first, second = ask(app, coordinator, "a"), ask(app, coordinator, "b")
    for child in (first, second):
        end(app, child, "failed")
    assert listed("--status", "failed") == ([second, first], 0)
    assert listed("--status", "failed", "--limit", "1") == ([second], 1)


def test_teams_are_listed_with_problems_of_their_files(app: App, tmp_path: Path) -> None:
    shown = run("team", "list")
    assert shown.exit_code == 0, shown.output
    assert "test-first  tester, developer" in shown.stdout
    teams = tmp_path / ".config/chargehand/teams"
    teams.mkdir(parents=True)
    (teams / "reviewed.toml").write_text('summary = "mine"\nsteps = ["developer"]\n')
    (teams / "broken.toml").write_text("steps = [\n")
    (teams / "notes.txt").write_text("no team")
    shown = run("team", "list", "--json")
    assert shown.exit_code == 1
    teams_now = {each["name"]: each for each in json.loads(shown.stdout)["teams"]}
    assert list(teams_now) == ["broken", "reviewed", "test-first"]
    assert (teams_now["reviewed"]["shipped"], teams_now["reviewed"]["team"]["summary"]) == (False, "mine")
    assert "broken.toml" in teams_now["broken"]["problem"]
    assert "team" not in teams_now["broken"]
    assert "invalid: " in run("team", "list").stdout
