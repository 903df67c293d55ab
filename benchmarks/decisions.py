"""Learned choices of agent and model: with little and much history, an update, and the first one of a command."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from benchmarks.measure import Result, Side, Taken, compare
from benchmarks.mission_kit import MissionKit
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
from chargehand.store.store import open_store

ARMS, FEW, MANY, AIM = 100, 1_000, 100_000, 0.2
_SMOKE = (100, 1_000)
_PROJECTS, _PER_MISSION = 10, 4
_START = "import sys; from benchmarks.decisions import time_start; print(time_start(sys.argv[1]))"


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Measure choices in memory, and the first choice of new processes with and without the derived files."""
    few, many = (FEW, MANY) if rounds > 1 else _SMOKE
    return [*await _choices(few, many, rounds=rounds), _starts(kit.place / "learned", many, rounds=rounds)]


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
