"""Learned choices of agent and model with little and much history, and a server's answers during a simulation."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
from msgspec.structs import replace

from benchmarks.forecast import plan_of
from benchmarks.measure import Result, Side, Taken, compare, percentile_95
from benchmarks.mission_kit import MissionKit
from benchmarks.server import environment, fill, up
from chargehand.app.wiring.simulation import SimulationOrder
from chargehand.core.attempt_events import AttemptStarted
from chargehand.core.choices import (
    AgentFacts,
    Candidate,
    ChoiceContext,
    ChoiceHistory,
    ChoiceOutcome,
    KnownModel,
    PossibleCandidate,
)
from chargehand.core.mission_events import AttemptFinished, MissionCreated
from chargehand.core.records import MissionRequest
from chargehand.identity.accounts import owner
from chargehand.identity.tokens import create_token
from chargehand.reports.reading import StateReader
from chargehand.store.store import open_store

ARMS, FEW, MANY, AIM = 100, 1_000, 100_000, 0.2
_SMOKE = (100, 1_000)
_PROJECTS, _PER_MISSION = 10, 4
# Requests in turn with and without the simulation, so that a drifting machine affects both alike.
_SAMPLES, _BLOCK, _BLOCKS = 10_000_000, 8, 40
_TASKS, _PLACES, _SECONDS = 30, 4, 600.0
# The server accepts a hundred requests a second from one caller.
_PAUSE = 0.011
_ROUTES = ("/missions", "/missions?q=mend%20it%207", "/missions/m-00500", "/choices", "/stats")
_START = "import sys; from benchmarks.decisions import time_start; print(time_start(sys.argv[1]))"


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Measure choices in memory, and the first choice of new processes with and without the derived files."""
    few, many = (FEW, MANY) if rounds > 1 else _SMOKE
    found = [*await _choices(few, many, rounds=rounds), _starts(kit.place / "learned", many, rounds=rounds)]
    return [*found, *await _answers(kit, rounds=rounds)]


async def _choices(few: int, many: int, *, rounds: int) -> list[Result]:
    """Measure a choice by a known history, and the choice after each further outcome."""
    from chargehand.decisions.learned import LearnedRules

    rules, context = LearnedRules(), _context(ARMS)
    histories = {size: _outcomes(size) for size in (few, many)}

    def side(size: int, *, grows: bool) -> Side:
        async def sample() -> float:
            if grows:
                newest = replace(histories[size].outcomes[-1], work=f"more-{len(histories[size].outcomes)}")
                histories[size] = histories[size].after(newest)
            started = time.process_time()
            rules.choose(context, histories[size])
            return time.process_time() - started

        return Side(name=f"{size:,} outcomes", sample=sample, repeat=20)

    for history in histories.values():
        rules.choose(context, history)
    results = []
    for case, grows in ((f"a choice of {ARMS} arms", False), ("an outcome and a choice", True)):
        sides = [side(size, grows=grows) for size in (few, many)]
        results.append(await compare("decisions", case, sides, rounds=rounds))
    return results


def _starts(home: Path, outcomes: int, *, rounds: int) -> Result:
    _fill(home, outcomes)
    derived, sides = home / "derived", (Taken(name="with the files"), Taken(name="without"))
    for number in range(rounds):
        if number < 3:
            shutil.rmtree(derived, ignore_errors=True)
            sides[1].rounds.append([_start(home)])
        sides[0].rounds.append([_start(home)])
    megabytes = sum(each.stat().st_size for each in derived.iterdir()) / 1e6
    return Result(
        benchmark="decisions",
        case=f"first choice, {outcomes:,} outcomes",
        sides=sides,
        aim=AIM,
        load=os.getloadavg(),
        note=f"processor time in a new process without its imports; the files have {megabytes:.1f} MB",
    )


def _start(home: Path) -> float:
    done = subprocess.run([sys.executable, "-c", _START, str(home)], check=True, capture_output=True, text=True)
    return float(done.stdout)


def time_start(home: str) -> float:
    """Return the seconds of processor time from an open store to the first choice, without imports."""
    import gc
    import importlib

    from chargehand.__main__ import _NEW_OBJECTS
    from chargehand.app.selection.deciders import make_decider
    from chargehand.core.config import Config, DecisionsConfig

    importlib.import_module("chargehand.decisions.folds")  # with numpy, before the time is taken
    gc.set_threshold(_NEW_OBJECTS, 10, 10)  # as a command has
    with open_store(Path(home)) as store:
        decider = make_decider(Config(decisions=DecisionsConfig(learned=True)), lambda: store)
        context = _context(_PROJECTS)
        started = time.process_time()
        decider.choose(context)
        return time.process_time() - started


async def _answers(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Measure requests to a server while a simulation of ten million samples runs, and while it is stopped."""
    place, count, blocks = kit.place / "simulated", 1000 if rounds > 1 else 20, _BLOCKS if rounds > 1 else 1
    place.mkdir()
    environ = {**kit.environ, **environment(place)}
    with StateReader.open(environ=environ, cwd=place) as reader:
        fill(reader, missions=count, events=10)
        token = create_token(reader, "benchmark", scopes=("read",), days=1, by=owner(reader)).secret
    routes = [each.replace("m-00500", f"m-{count // 2:05}") for each in _ROUTES]
    sides = {route: (Taken(name="with a simulation"), Taken(name="without")) for route in routes}
    with up(environ, place) as url:
        async with httpx.AsyncClient(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60
        ) as client:
            for route in routes:
                await _request(client, route)  # the first one loads modules
            simulation = _simulate()
            try:
                for _ in range(blocks):
                    if simulation.poll() is not None:
                        simulation = _simulate()
                    for number, sign in enumerate((signal.SIGCONT, signal.SIGSTOP)):
                        simulation.send_signal(sign)
                        for route in routes:
                            taken = [await _request(client, route) for _ in range(_BLOCK)]
                            sides[route][number].rounds.append(taken)
            finally:
                simulation.kill()
                simulation.wait()
    return [_compare_answers(route, *pair) for route, pair in sides.items()]


def _simulate() -> subprocess.Popen[bytes]:
    """Start the process of a simulation, as a forecast does, and wait until it has read its plan."""
    plan = plan_of(_TASKS, _PLACES)
    order = msgspec.json.encode(SimulationOrder(prospect=plan, seed=1, samples=_SAMPLES, seconds=_SECONDS))
    command = [sys.executable, "-I", "-m", "chargehand.app.wiring.simulation"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert process.stdin is not None
    process.stdin.write(order)
    process.stdin.close()
    return process


async def _request(client: httpx.AsyncClient, route: str) -> float:
    await asyncio.sleep(_PAUSE)
    began = time.perf_counter()
    answer = await client.get(route)
    took = time.perf_counter() - began
    answer.raise_for_status()
    return took


def _compare_answers(route: str, during: Taken, idle: Taken) -> Result:
    late, usual = percentile_95(during.samples), percentile_95(idle.samples)
    return Result(
        benchmark="decisions",
        case=f"GET {route}",
        sides=(during, idle),
        load=os.getloadavg(),
        note=f"{route}: 95th percentile {1000 * late:.1f} ms, {late / usual:.2f} times the usual one",
    )


def _context(models: int) -> ChoiceContext:
    known = [KnownModel(name=f"model-{each}", known="configured", has_key=True) for each in range(models)]
    pairs = [PossibleCandidate(agent=AgentFacts(name="native"), model=each) for each in known]
    return ChoiceContext(moment="request", kind="p-0", candidates=tuple(pairs))


def _outcomes(count: int) -> ChoiceHistory:
    drawn = random.Random(count)
    return ChoiceHistory(
        outcomes=tuple(
            ChoiceOutcome(
                candidate=Candidate(agent="native", model=f"model-{drawn.randrange(ARMS)}"),
                is_good=drawn.random() < 0.6,
                cost_usd=drawn.uniform(0.01, 2),
                kind="p-0",
                work=f"m-{number}",
            )
            for number in range(count)
        )
    )


def _fill(home: Path, outcomes: int) -> None:
    """Record missions of four attempts each, in ten projects with ten models."""
    drawn = random.Random(outcomes)
    with open_store(home) as store:
        for number in range(outcomes // _PER_MISSION):
            mission, model = f"m-{number:06d}", f"model-{drawn.randrange(_PROJECTS)}"
            asked = MissionRequest(text="t", agent="native", command=(), slug="t", model=model)
            lines: list[AttemptStarted | AttemptFinished] = []
            for each in range(1, _PER_MISSION + 1):
                name = f"{mission}-a-{each}"
                lines += [
                    AttemptStarted(attempt=name, number=each, agent="native", workspace="w", tree="t"),
                    AttemptFinished(
                        attempt=name,
                        status="succeeded",
                        seconds=drawn.uniform(1, 600),
                        cost_usd=drawn.uniform(0.01, 2),
                        cost_known=True,
                    ),
                ]
            project = f"p-{number % _PROJECTS}"
            store.log.append(mission, MissionCreated(project=project, repository="/r", request=asked), *lines)
