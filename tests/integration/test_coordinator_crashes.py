"""A coordinator and its tasks under `kill -9`: however often workers die, the plan ends as if undisturbed.

The suite kills at a fixed sample of all points; `scripts/soak` kills at every point, and at random moments with
two concurrent workers: `CHARGEHAND_SOAK_SEED` and `CHARGEHAND_SOAK_KILLS` set which.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.conftest import git, make_repository, repository_state
from tests.crash_kit import CrashKit, kill_some, nothing_survives, once_only, sample

from chargehand.app.missions import answer_question
from chargehand.app.requests import plan_request, record_mission
from chargehand.configuration.run_options import RunRequest
from chargehand.core.events import read_payload
from chargehand.core.mission_events import HeadSigned
from chargehand.core.plan_events import PLAN_EVENTS, ReviewStarted, TaskDelegated, TaskMerged, TaskStarted
from chargehand.core.records import MissionStatus
from chargehand.core.state import ENDED

pytestmark = pytest.mark.needs_bwrap
soak = [pytest.mark.soak, pytest.mark.timeout(4 * 3600)]

VOTE = {"summary": "looked", "evidence": ["read it"], "open_points": []}
VOTE_MESSAGE = {"type": "task_completion", "status": "success", "payload": VOTE}
PARTS = [{"id": "p", "text": "Write p", "role": "developer"}, {"id": "q", "text": "Write q", "role": "nobody"}]
HANDS_ON = {
    f"hands-{part['id']}.json": json.dumps(VOTE_MESSAGE | {"payload": VOTE | {"delegate": [part]}})
    for part in PARTS
}
FILES = {"g.txt": "ggg\n", "sub/h.txt": "hhh\n", "vote.json": json.dumps(VOTE_MESSAGE), **HANDS_ON}
# It names no file: only a person may change a file that a check names.
CHECK = "cat *.txt sub/* >/dev/null; test ! -e sub/bad.txt"


def _sh(script: str) -> str:
    return f'command:sh -c "{script}"'


def _task(name: str, agent: str = "", **more: Any) -> dict[str, Any]:
    return {"id": name, "text": f"Write {name}", "agent": agent or _sh(f"echo x > sub/{name}.txt"), **more}


# The second attempt removes the file that makes the first one red.
_MENDS = _sh("echo x > sub/mended.txt; if test -e sub/bad.txt; then rm sub/bad.txt; else echo x > sub/bad.txt; fi")
TEAM = [
    {"role": "reviewer", "agent": _sh("cp vote.json $CHARGEHAND_MESSAGE; cat sub/*")},
    {"role": "developer", "agent": _sh("echo x > sub/part.txt")},
]
# One task delegates a part for a developer, the other a part that no role can do.
HANDING_ON = [
    _task("a", _sh("echo x > sub/a.txt; cp hands-p.json $CHARGEHAND_MESSAGE")),
    _task("b", _sh("echo x > sub/b.txt; cp hands-q.json $CHARGEHAND_MESSAGE"), after=["a"]),
]
SMALL = [
    _task("a", reviewers=["reviewer"]),
    _task("b", _MENDS, attempts=2),
    _task("c", after=["a", "b"], done_when="test -e sub/c.txt"),
]
LARGE = [
    *SMALL,
    _task("same", _sh("echo x >> g.txt"), change=["g.txt"]),
    _task("other", _sh("echo y >> g.txt"), change=["g.txt"]),
    _task("repairs", _MENDS.replace("mended", "too"), attempts=2, after=["a"]),
    _task("three", candidates=3),
    _task("asks", _sh("test -e sub/never.txt"), after=["three"]),
    _task("left", when="test -e nowhere"),
    _task("twice", _sh("echo z >> sub/twice.txt"), loop={"most": 2}),
    _task("mends", _sh("echo m > sub/m.txt; test -e sub/m.txt"), after=["twice"]),
    _task("last", after=["asks", "left", "mends", "repairs", "same", "other", "c"]),
]


class PlanOutcome(Struct, frozen=True, kw_only=True):
    """A plan's outcome, which must be the same with and without kills."""

    status: MissionStatus
    tree: str
    outcomes: tuple[tuple[str, str], ...]
    commits: int


class PlanKit(CrashKit):
    """A state directory with one repository and one coordinator."""

    def __init__(self, place: Path, tasks: list[dict[str, Any]], *, like: CrashKit | None = None) -> None:
        super().__init__(place, like=like)
        self.repository = make_repository(place / "repo", FILES)
        self.before = repository_state(self.repository)
        plan = place / "plan.json"
        plan.write_text(json.dumps({"tasks": tasks, "team": TEAM}))
        asked = RunRequest(
            plan=str(plan), repo=self.repository, agent="command:true", only_checks=(CHECK,), yes=True
        )
        with self.app() as app:
            request, made = plan_request(app, asked)
            self.coordinator = record_mission(app, request, plan=made)

    def finish(self) -> PlanOutcome:
        """Run workers and answer questions until the plan ends; assert that it kept its promises."""
        for _ in range(12):
            assert self.worker().wait() == 0, self.output()
            with self.app() as app:
                state = app.mission_reader.state(self.coordinator)
                if state.status in ENDED:
                    break
                if state.open_question is not None:
                    answer_question(app, self.coordinator, "skip")
        else:
            raise AssertionError((state.status, state.reasons, self.output()))
        with self.app() as app:
            children = [row.id for row in app.store.log.children(self.coordinator)]
            for mission in (self.coordinator, *children):
                once_only(tuple(line for line in app.store.log.read(mission) if self._counts(mission, line.type)))
            payloads = [read_payload(line) for line in app.store.log.read(self.coordinator)]
        merged = [each.mission for each in payloads if isinstance(each, TaskMerged)]
        assert len(merged) == len(set(merged)), "a task was merged twice"
        signed = [each.commit for each in payloads if isinstance(each, HeadSigned)]
        assert len(signed) == len(set(signed)) == len(merged), "each merged commit is signed, and once"
        started = [each.mission for each in payloads if isinstance(each, TaskStarted | ReviewStarted)]
        assert sorted(started) == sorted(set(started)), "a task was begun twice"
        assert set(started) == set(children), "a mission of a task that the coordinator does not know"
        assert state.plan is not None
        ends = {name: known.end.outcome for name, known in state.plan.tasks.items() if known.end is not None}
        heads = git(self.repository, "for-each-ref", "--format=%(objectname)", "refs/heads/chargehand/").split()
        assert heads == ([state.commit] if state.commit else [])
        assert repository_state(self.repository) == self.before
        return PlanOutcome(
            status=state.status,
            tree=git(self.repository, "rev-parse", f"{state.commit}^{{tree}}"),
            outcomes=tuple(sorted(ends.items())),
            commits=len(git(self.repository, "log", "--format=%h", f"main..{state.commit}").splitlines()),
        )

    def _counts(self, mission: str, kind: str) -> bool:
        # A coordinator promotes and signs once for each task, and waits for people in between.
        return mission != self.coordinator or kind not in ("promotion.done", "head.signed", "mission.finished")


def _undisturbed(place: Path, tasks: list[dict[str, Any]]) -> tuple[PlanOutcome, list[str], PlanKit]:
    kit = PlanKit(place, tasks)
    kit.worker(plan=f"trace:{place / 'trace'}").wait()
    outcome = kit.finish()
    kit.at_rest()
    return outcome, (place / "trace").read_text().splitlines(), kit


@pytest.mark.parametrize(
    ("tasks", "count"),
    [(SMALL, 2), *(pytest.param(tasks, 10_000, marks=soak) for tasks in (SMALL, LARGE))],
)
def test_a_crash_at_any_point_does_not_change_the_outcome(
    tmp_path: Path, tasks: list[dict[str, Any]], count: int
) -> None:
    with nothing_survives():
        expected, passed, like = _undisturbed(tmp_path / "like", tasks)
        assert expected.status == "promoted"
        for number, point in enumerate(sample(passed, count)):
            kit = PlanKit(tmp_path / f"at-{number}", tasks, like=like)
            code = kit.worker(plan=point).wait()
            # Chance decides which of two concurrent missions passes a point first: not every run has it.
            assert code in (-signal.SIGKILL, 0), (point, code, kit.output())
            assert kit.finish() == expected, point
            kit.at_rest()


@pytest.mark.parametrize("points", [1, pytest.param(2, marks=soak)])
def test_a_crash_while_asleep_after_a_merge_does_not_change_the_outcome(tmp_path: Path, points: int) -> None:
    """The next process that opens the project recovers its promotions: a sleeping coordinator is woken anyway."""
    tasks = [_task("a"), _task("b", after=["a"])]
    with nothing_survives():
        expected, passed, like = _undisturbed(tmp_path / "like", tasks)
        asleep = [point for point in passed if point.startswith("after plan.slept")]
        assert len(asleep) == 2
        for number, point in enumerate(asleep[-points:]):
            kit = PlanKit(tmp_path / f"at-{number}", tasks, like=like)
            assert kit.worker(plan=point).wait() == -signal.SIGKILL, kit.output()
            assert kit.finish() == expected, point
            kit.at_rest()


@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=soak)])
def test_a_crash_between_merge_and_delegation_adds_the_parts_once(tmp_path: Path, everywhere: bool) -> None:
    with nothing_survives():
        expected, passed, like = _undisturbed(tmp_path / "like", HANDING_ON)
        assert expected.outcomes == (("a", "merged"), ("a.p", "merged"), ("b", "merged"))
        added = [point for point in passed if "task.delegated+plan.made" in point]
        # Before this point the change is already on the branch, but not yet in the log.
        assert [point.partition(" ")[0] for point in added] == ["before", "after"]
        for number, point in enumerate([added[0], *(passed if everywhere else ())]):
            kit = PlanKit(tmp_path / f"at-{number}", HANDING_ON, like=like)
            assert kit.worker(plan=point).wait() in (-signal.SIGKILL, 0), point
            assert kit.finish() == expected, point
            with kit.app() as app:
                payloads = [read_payload(line) for line in app.store.log.read(kit.coordinator)]
            told = [each for each in payloads if isinstance(each, TaskDelegated)]
            assert [(each.task, each.tasks, each.refused is None) for each in told] == [
                ("a", ("a.p",), True),
                ("b", (), False),
            ]
            kit.at_rest()


def test_crash_points_include_all_coordinator_events() -> None:
    """Crashes are tried only where an event is written: these include each kind of a coordinator's events."""
    assert {kind.type for kind in PLAN_EVENTS} >= {"task.started", "task.merged", "task.ended", "plan.slept"}


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_random_kills_with_two_workers_do_not_change_the_outcome(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("CHARGEHAND_SOAK_SEED", "20261125")))
    kills = int(os.environ.get("CHARGEHAND_SOAK_KILLS", "200"))
    done = rounds = 0
    with nothing_survives():
        expected, _, like = _undisturbed(tmp_path / "like", LARGE)
        while done < kills:
            rounds += 1
            kit = PlanKit(tmp_path / f"round-{rounds}", LARGE, like=like)
            for _ in range(chance.randint(2, 5)):
                workers = [kit.worker(), kit.worker()]
                time.sleep(chance.uniform(0.2, 4.0))
                for worker in workers:
                    kill_some(worker.pid, chance)
                    worker.kill()
                    worker.wait()
                    done += 1
            assert kit.finish() == expected, rounds
            kit.at_rest()
