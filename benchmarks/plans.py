"""The cost of coordinating tasks in a plan, against the same number of missions without a coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import count

from benchmarks.measure import Result, Side, Taken, compare, settle
from benchmarks.mission_kit import MissionKit
from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.plan_events import PlanMade, PlanProgress, TaskMerged, TaskStarted
from chargehand.core.plans import Plan, Task
from chargehand.missions.coordination.decisions import decide
from chargehand.missions.coordination.situation import ChildMission, Ladder, Situation

TASKS, LARGEST = 20, 500
TASK_AIM, DECISION_AIM = 0.5, 0.030
_numbers = count(1)
_Record = Callable[[App, int], object]


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Measure 20 tasks with different numbers at once, one task, and a decision over the largest plan."""
    results = []
    for at_once in (1, 5, 20):
        results += await _throughput(kit, at_once, rounds=rounds)
    results.append(await _queue(kit, rounds=rounds))
    return [*results, await _one(kit, rounds=rounds), await _decision(rounds=rounds)]


def _agent(name: str) -> str:
    return f'command:sh -c "echo made > made-{name}-{next(_numbers)}.txt"'


def _coordinated(app: App, tasks: int, *, check: str = "true", at_once: int = 0, **more: object) -> str:
    """Record one mission with a plan; return its id."""
    made = [{"id": f"t{each}", "text": "Make it", "agent": _agent(str(each)), **more} for each in range(tasks)]
    file = app.cwd.parent / "plan.json"
    file.write_text(json.dumps({"tasks": made, **({"at_once": at_once} if at_once else {})}))
    asked = RunRequest(plan=str(file), text="Make them", agent="command:true", only_checks=(check,), yes=True)
    request, plan = plan_request(app, asked)
    return record_mission(app, request, plan=plan)


def _alone(app: App, tasks: int) -> None:
    """Record that many missions."""
    for each in range(tasks):
        asked = RunRequest(text="Make it", agent=_agent(str(each)), only_checks=("true",), yes=True)
        record_mission(app, asked, plan=None)


_RECORDS: tuple[_Record, ...] = (_coordinated, _alone)


async def _work(kit: MissionKit, record: _Record, tasks: int, at_once: int) -> tuple[float, float]:
    """Record and work until everything is done; return wall and processor seconds for each task."""
    settle()
    # Processor time of agents and checks is counted once they are waited for.
    before, started = os.times(), time.perf_counter()
    with App.open(environ=kit.environ, cwd=kit.repository, role="worker") as app:
        await asyncio.to_thread(record, app, tasks)
        await Worker(app, slots=at_once).work(until_idle=True)
        left = [each for each in app.mission_reader.all() if each.status != "promoted"]
        assert not left, left[0].reasons
    took, after = time.perf_counter() - started, os.times()
    return took / tasks, sum(after[:4]) / tasks - sum(before[:4]) / tasks


async def _throughput(kit: MissionKit, at_once: int, *, rounds: int) -> list[Result]:
    case = f"{TASKS} tasks, {at_once} at once"
    names = ("a plan, for each task", "as many missions, for each")
    clock, processor = [tuple(Taken(name=name) for name in names) for _ in range(2)]
    for _ in range(rounds):
        for number, record in enumerate(_RECORDS):
            seconds, spent = await _work(kit, record, TASKS, at_once)
            clock[number].rounds.append([seconds])
            processor[number].rounds.append([spent])
    load = os.getloadavg()
    return [
        Result(benchmark="plans", case=case, sides=clock, aim=TASK_AIM, load=load),
        Result(benchmark="plans", case=f"{case}: processor time", sides=processor, load=load),
    ]


async def _queue(kit: MissionKit, *, rounds: int) -> Result:
    """Merge a queue of results one after the other, each judged by a check that takes a second."""

    sides = [
        Side(name="the next one's checks ahead", sample=partial(_merge_queue, kit, ahead="true")),
        Side(name="one after the other", sample=partial(_merge_queue, kit, ahead="false")),
    ]
    return await compare("plans", f"a queue of {TASKS} merges, checks of 1 s", sides, rounds=rounds)


async def _merge_queue(kit: MissionKit, *, ahead: str) -> float:
    """Return the seconds from the first merge to the last one."""
    # A check that sleeps needs no processor: several may run, whatever the machine has.
    more = {"CHARGEHAND_ENGINE_CHECKS_AHEAD": ahead, "CHARGEHAND_ENGINE_CHECKS_AT_ONCE": "8"}
    with App.open(environ={**kit.environ, **more}, cwd=kit.repository, role="worker") as app:
        record = partial(_coordinated, check="sleep 1", at_once=TASKS)
        mission = await asyncio.to_thread(record, app, TASKS)
        await Worker(app, slots=TASKS).work(until_idle=True)
        state = app.mission_reader.state(mission)
        assert state.status == "promoted", state.reasons
        merged = [line.time for line in app.store.log.read(mission, types=(TaskMerged.type,))]
    return (datetime.fromisoformat(merged[-1]) - datetime.fromisoformat(merged[0])).total_seconds()


async def _one(kit: MissionKit, *, rounds: int) -> Result:
    """One task through a coordinator; the product uses none for a task without conditions."""

    async def coordinated() -> float:
        return (await _work(kit, lambda app, tasks: _coordinated(app, tasks, when="true"), 1, 2))[0]

    async def alone() -> float:
        return (await _work(kit, _alone, 1, 2))[0]

    sides = [Side(name="a plan of one task with a condition", sample=coordinated)]
    sides.append(Side(name="the mission without a plan", sample=alone))
    return await compare("plans", "one task", sides, rounds=rounds)


async def _decision(*, rounds: int) -> Result:
    """Decide over the largest plan, half of it merged and the rest running."""
    plan = Plan(tasks=tuple(Task(id=f"t{each}", text="x", change=(f"f{each}",)) for each in range(LARGEST)))
    progress = PlanProgress().after(PlanMade(plan=plan, identity="ada"))
    children = {}
    for number, task in enumerate(plan.tasks):
        started = TaskStarted(task=task.id, mission=task.id, round=1, rung="first", base="0" * 40, why="")
        progress = progress.after(started)
        done = number < LARGEST // 2
        children[task.id] = ChildMission(id=task.id, status="promoted" if done else "running", changes=done)
        if done:
            progress = progress.after(TaskMerged(task=task.id, mission=task.id, commit="0" * 40, tree="0" * 40))
    situation = Situation(
        progress=progress,
        children=children,
        answers={},
        at_once=LARGEST,
        ladders=lambda task: Ladder(),
        collides=lambda task, other: None,
    )

    async def sample() -> float:
        started = time.perf_counter()
        decide(situation)
        return time.perf_counter() - started

    async def nothing() -> float:
        started = time.perf_counter()
        await asyncio.sleep(0)
        return time.perf_counter() - started

    sides = [
        Side(name="one decision", sample=sample, repeat=10),
        Side(name="a turn of the event loop", sample=nothing, repeat=10),
    ]
    return await compare("plans", f"{LARGEST} tasks, half of them open", sides, rounds=rounds, aim=DECISION_AIM)
