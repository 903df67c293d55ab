"""Many real missions with known ends: `stats` reports the truth about them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import repository
from msgspec import Struct, field
from tests import forked
from tests.crash_kit import nothing_survives, wait_until
from tests.integration import known_ends as known
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.missions import answer_question, cancel_mission
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.attempt_events import SandboxClosed, SandboxOpened
from chargehand.core.events import read_payload

pytestmark = [pytest.mark.needs_bwrap, pytest.mark.timeout(3600)]


class Site:
    """A state directory with a repository in which many missions run."""

    def __init__(self, place: Path) -> None:
        known.configure(place)
        self.place = place
        self.repo = repository(place / "repo")
        self.environ = {
            "HOME": str(place),
            "PATH": os.environ["PATH"],
            "CHARGEHAND_HOME": str(used_state(place / "state")),
            "XDG_CONFIG_HOME": str(place / "config"),
        }
        self.missions: dict[str, str] = {}

    def app(self, **role: Any) -> App:
        return App.open(environ=self.environ, cwd=self.repo, **role)

    def record(self, name: str) -> str:
        case = known.CASES[name]
        asked = dict(case.asked)
        if case.plan:
            file = self.place / "plan.json"
            file.write_text(json.dumps({"tasks": case.plan}))
            asked["plan"] = str(file)
        else:
            asked["text"] = name
        with self.app() as app:
            wanted = RunRequest(only_checks=(known.CHECK,), yes=True, **asked)
            request, plan = plan_request(app, wanted)
            mission = record_mission(app, request, plan=plan)
        self.missions[mission] = name
        return mission

    def work(self, *cancelled: str) -> None:
        """Work until nothing is left to do; a person cancels some missions as soon as their agents work."""

        async def work() -> None:
            with self.app(role="worker") as app:
                working = asyncio.create_task(Worker(app, slots=4).work(until_idle=True))
                left = set(cancelled)
                while left and not working.done():
                    for each in [each for each in left if self._works(app, each)]:
                        await asyncio.to_thread(cancel_mission, app, each)
                        left.remove(each)
                    await asyncio.sleep(0.1)
                await working

        asyncio.run(work())

    def kill_at_work(self, mission: str) -> None:
        """Start a separate worker for a mission, and kill it while the agent works."""
        with (self.place / "said").open("ab") as result:
            words = ("worker", "--until-idle")
            worker = forked.ForkedProcess(words, cwd=self.repo, environ=self.environ, stdout=result, stderr=result)
        with self.app() as app:
            wait_until(lambda: self._works(app, mission))
        os.kill(worker.pid, signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL

    def _works(self, app: App, mission: str) -> bool:
        """Return whether a mission's agent is at work: its sandbox is open."""
        lines = app.store.log.read(mission, types=(SandboxOpened.type, SandboxClosed.type))
        last = read_payload(lines[-1]) if lines else None
        return isinstance(last, SandboxOpened) and last.purpose == "agent"

    def named(self, act: str) -> list[str]:
        """Return the missions whose case has this act."""
        return [mission for mission, name in self.missions.items() if known.CASES[name].act == act]

    def words(self, *words: str) -> str:
        code, result, error = forked.run(words, cwd=self.repo, environ=self.environ)
        assert code == 0, error
        return result

    def say(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.words("--json", *words))
        return found


@pytest.mark.parametrize(
    "counts",
    [pytest.param(known.SAMPLE, id="sample"), pytest.param(known.ALL, id="all", marks=pytest.mark.soak)],
)
def test_stats_tell_the_truth_of_missions_whose_ends_are_known(tmp_path: Path, counts: dict[str, int]) -> None:
    names = [name for name, count in counts.items() for _ in range(count)]
    random.Random(7).shuffle(names)
    site = Site(tmp_path)
    with nothing_survives():
        for name in names:
            if known.CASES[name].act != "kill":
                site.record(name)
        site.work(*site.named("cancel"))
        for mission in site.named("skip"):
            with site.app() as app:
                answer_question(app, mission, "skip")
        site.work()
        for name in names:
            if known.CASES[name].act == "kill":
                site.kill_at_work(site.record(name))
                site.work()
    expected = truth([known.CASES[name] for name in names])
    check_missions(site, expected)
    check_attempts(site, expected)
    check_models(site, expected)
    # As a person reads it: calls, successful calls, attempts, and attempts with a green result.
    rows = [line.split() for line in site.words("model", "stats").splitlines()]
    (good,) = (row for row in rows if row[:1] == ["good"])
    count = str(counts["model"])
    assert (good[1:3], good[-2:]) == ([str(2 * counts["model"])] * 2, [count, count])
    assert f"({expected.tasks} of them for plans)" in site.words("stats").splitlines()[0]


class Truth(Struct, kw_only=True):
    """Expected totals of many missions, known before they run."""

    statuses: Counter[str] = field(default_factory=Counter)
    mission_causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    attempt_causes: Counter[tuple[str, str]] = field(default_factory=Counter)
    missions: int = 0
    tasks: int = 0
    completed: int = 0
    could: int = 0
    attempts: int = 0
    replies: int = 0
    errors: int = 0


def truth(cases: Sequence[known.Case]) -> Truth:
    """Add up the scripted ends."""
    made = Truth()
    for case in cases:
        made.tasks += len(case.ends) - 1
        made.replies += case.replies
        made.errors += case.errors
        for end in case.ends:
            made.missions += 1
            made.statuses[end.status] += 1
            made.could += case.could
            made.completed += end.cause is None or end.cause[0] != "provider"
            made.attempts += len(end.attempts)
            made.mission_causes.update([end.cause] if end.cause is not None else [])
            made.attempt_causes.update(cause for cause in end.attempts if cause is not None)
    return made


def check_missions(site: Site, expected: Truth) -> None:
    stats = site.say("stats")
    missions, rates = stats["missions"], stats["rates"]
    told = {status: count for status, count in missions["by_status"].items() if count}
    assert told == expected.statuses, tell_others(site)
    assert (missions["total"], missions["tasks"]) == (expected.missions, expected.tasks)
    assert (missions["ended"], missions["completed"]) == (expected.missions, expected.completed)
    assert missions["promoted"] == expected.statuses["promoted"]
    assert (missions["rolled_back"], missions["seconds"]["known"]) == (0, expected.missions)
    assert rates["completion"] == expected.completed / expected.missions
    assert rates["promotion"] == expected.statuses["promoted"] / expected.missions
    # No engine failure, and at least nine in ten missions that could complete do.
    assert (rates["engine_failure"], missions["engine_failures"]) == (0.0, 0)
    assert missions["completed"] >= 0.9 * expected.could
    print(json.dumps({"missions": missions, "rates": rates, "causes": stats["causes"]}))


def check_attempts(site: Site, expected: Truth) -> None:
    stats = site.say("stats")
    attempts, causes = stats["attempts"], stats["causes"]
    failed = expected.attempt_causes
    assert (attempts["ended"], attempts["succeeded"]) == (expected.attempts, expected.attempts - failed.total())
    by_class = Counter[str]()
    for (kind, _), count in failed.items():
        by_class[kind] += count
    assert {kind: count for kind, count in attempts["by_class"].items() if count} == by_class
    for key, counted in (("missions", expected.mission_causes), ("attempts", failed)):
        assert {(each["class"], each["code"]): each[key] for each in causes if each[key]} == counted
    assert sum(each["ended"] for each in stats["agents"].values()) == expected.attempts
    # Programs are known to cost nothing, and so are refused calls.
    usd = expected.replies * (known.IN + known.OUT) * known.USD
    assert (attempts["cost"]["known"], attempts["cost"]["unknown"]) == (expected.attempts, 0)
    assert attempts["cost"]["usd"] == pytest.approx(usd)


def check_models(site: Site, expected: Truth) -> None:
    models = site.say("model", "stats")["models"]
    assert sum(each["by_status"].get("ok", 0) for each in models) == expected.replies
    assert sum(each["calls"] for each in models) == expected.replies + expected.errors
    assert sum(sum(each["errors"].values()) for each in models) == expected.errors
    tokens = [sum(each["tokens"][key] for each in models) for key in ("input", "output", "unknown")]
    assert tokens == [expected.replies * known.IN, expected.replies * known.OUT, 0]
    usd = expected.replies * (known.IN + known.OUT) * known.USD
    assert sum(each["cost"]["usd"] for each in models) == pytest.approx(usd)


def tell_others(site: Site) -> list[object]:
    """Return the missions with an unexpected end, for the message of a failed assertion."""
    found: list[object] = []
    with site.app() as app:
        for listed in app.mission_reader.all():
            name = site.missions.get(listed.id)
            if name is not None and listed.status != known.CASES[name].ends[0].status:
                found.append((name, listed.id, listed.status, listed.reasons))
    return found
