"""Real agent CLIs do the tasks of one plan in parallel, and repair results that do not fit together.

Like those of tests/integration/test_agents_real.py they have to be on PATH; a script answers for their models.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import repository
from msgspec.structs import replace
from test_coordinator import Crew, branch
from tests.conftest import git
from tests.crash_kit import nothing_survives
from tests.integration.test_agents_real import CANARY, installed
from tests.native_kit import call, says, scripted

from chargehand.app.composition import App
from chargehand.core.plan_events import TaskMerged, TaskReturned, TaskStarted
from chargehand.models.scripts import Script
from chargehand.store.rows import MissionFilter

pytestmark = [pytest.mark.agents_real, pytest.mark.needs_bwrap, pytest.mark.timeout(300)]
LAST = says("Done as asked.")


def edits(old: str, new: str) -> tuple[object, ...]:
    return (
        says("I look at it.", call("read", path="sub/h.txt")),
        says("I change it.", call("edit", path="sub/h.txt", old=old, new=new)),
        LAST,
    )


# Both change the same line; the later one combines both changes. The third uses their result.
WORDS: dict[str, Script] = {
    "one": scripted(edits("hhh", "bbb"), edits("ccc", "bbb ccc")),
    "two": scripted(edits("hhh", "ccc"), edits("bbb", "bbb ccc")),
    "both": scripted(
        (
            says("I look at it.", call("read", path="sub/h.txt")),
            says("I copy it.", call("bash", command="cat sub/h.txt g.txt > sub/both.txt")),
            LAST,
        )
    ),
}
AGENTS: dict[str, str] = {"one": "claude", "two": "codex", "both": "codex"}


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    place = tmp_path / "place"
    (place / "config/chargehand").mkdir(parents=True)
    lines = []
    for name, words in WORDS.items():
        file = place / f"{name}.jsonl"
        file.write_bytes(replace(words, neutral=True).dump())
        lines += [f"[models.{name}]", 'provider = "script"', f"script = {json.dumps(str(file))}", "price = 10.0"]
        lines += [f"[agents.real-{name}]", 'kind = "cli"', f'cli = "{AGENTS[name]}"', f'model = "{name}"']
    (place / "config/chargehand/config.toml").write_text("\n".join(lines) + "\n")
    crew = Crew(place, repository(tmp_path / "repo"))
    crew.environ |= {"PATH": os.environ["PATH"], "OPENAI_API_KEY": CANARY, "ANTHROPIC_API_KEY": CANARY}
    return crew


def test_agents_work_in_parallel_and_the_later_resolves_the_conflict(crew: Crew) -> None:
    for name in AGENTS.values():
        installed("cli", name)
    tasks = [
        {"id": name, "text": f"Make {name}", "agent": f"real-{name}", "models": [name], "after": after}
        for name, after in (("one", []), ("two", []), ("both", ["one", "two"]))
    ]
    with nothing_survives():
        mission = crew.record(tasks)
        state = crew.work(mission)
    assert (state.status, state.reasons) == ("promoted", ()), crew.children(mission)
    events = crew.events(mission, TaskStarted, TaskMerged, TaskReturned)
    assert [(type(each), each.task) for each in events[:2]] == [(TaskStarted, "one"), (TaskStarted, "two")]
    (back,) = (each for each in events if isinstance(each, TaskReturned))
    assert back.reason.code == "merge_conflict"
    made = branch(crew, state)
    assert git(crew.repo, "show", f"{made}:sub/h.txt") == "bbb ccc"
    assert git(crew.repo, "show", f"{made}:sub/both.txt").split() == ["bbb", "ccc", "ggg"]
    assert len(git(crew.repo, "log", "--format=%s", f"main..{made}").splitlines()) == 3
    with App.open(environ=crew.environ, cwd=crew.repo) as app:
        costs = [
            child.attempts[-1].cost_usd for child in map(app.mission_reader.state, app_children(app, mission))
        ]
    assert all(cost is not None and cost > 0 for cost in costs)


def app_children(app: App, mission: str) -> list[str]:
    return [each.summary.id for each in app.store.log.summaries(app.workers.live, MissionFilter(parent=mission))]
