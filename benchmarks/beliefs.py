"""Belief networks: loading and exact posteriors of a network of the size of ALARM (37 nodes)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Result, Taken
from benchmarks.mission_kit import MissionKit
from benchmarks.throwaway import environment_with

NODES, OBSERVED, AIM = 37, 6, 0.02
_SIDE = Path(__file__).with_name("beliefs_side.py")
_REPEAT = 20
_PEER = "pyagrum"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Engine:
    """An engine, and the interpreter that runs it."""

    kind: str
    python: Path


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Load one random network and ask for its posteriors, in a new process of each engine in turn.

    Raises `RuntimeError` if two engines disagree by more than 1e-6.
    """
    place = kit.place / "network.bif"
    given = _write_network(place)
    engines = [_Engine(kind="chargehand", python=Path(sys.executable)), *_peers(kit)]
    taken: dict[str, list[Taken]] = {}
    for _ in range(rounds):
        answers = [_ask(engine, place, given, once=rounds == 1) for engine in engines]
        for engine, answer in zip(engines, answers, strict=True):
            worst = max(
                abs(own - other)
                for name, values in answers[0]["posteriors"].items()
                for own, other in zip(values, answer["posteriors"][name], strict=True)
            )
            if worst > 1e-6:
                raise RuntimeError(f"{engine.kind} differs from chargehand by {worst}")
            for case, samples in answer["times"].items():
                sides = taken.setdefault(case, [Taken(name=each.kind) for each in engines])
                sides[engines.index(engine)].rounds.append(samples)
    note = f"{NODES} nodes, {OBSERVED} observed; the posteriors of all engines agree to 1e-6"
    return [
        Result(
            benchmark="beliefs",
            case={"load": "load a .bif file", "one": "one posterior"}.get(case, f"{case} posteriors"),
            sides=tuple(sides),
            aim=AIM if case == "all" else None,
            load=os.getloadavg(),
            note=note,
        )
        for case, sides in taken.items()
    ]


def _ask(engine: _Engine, place: Path, given: dict[str, str], *, once: bool) -> dict[str, Any]:
    repeat = 1 if once else _REPEAT
    argv = [str(engine.python), str(_SIDE), engine.kind, str(place), json.dumps(given), str(repeat)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=600)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _peers(kit: MissionKit) -> list[_Engine]:
    programs = environment_with(_PEER, kit.place / "environment") if kit.peers else None
    if programs is None:
        print(f"beliefs: {_PEER} cannot be installed here and is left out", file=sys.stderr)
        return []
    return [_Engine(kind=_PEER, python=programs / "python")]


def _write_network(place: Path) -> dict[str, str]:
    """Write a random network, each time the same, and return the observed states."""
    drawn = random.Random(37)
    names = [f"n{number}" for number in range(NODES)]
    states = {name: [f"s{number}" for number in range(drawn.randint(2, 4))] for name in names}
    lines = ["network random {", "}"]
    for name in names:
        listed = ", ".join(states[name])
        lines += [f"variable {name} {{", f"  type discrete [ {len(states[name])} ] {{ {listed} }};", "}"]
    for number, name in enumerate(names):
        # Parents are near, as in networks that people draw; a mean of 1.2 as in ALARM.
        near = names[max(0, number - 6) : number]
        parents = drawn.sample(near, min(len(near), drawn.choice((0, 1, 1, 1, 1, 2, 2, 3))))
        listed = f"| {', '.join(parents)} " if parents else ""
        lines.append(f"probability ( {name} {listed}) {{")
        rows: list[tuple[str, ...]] = [()]
        for parent in parents:
            rows = [(*row, state) for row in rows for state in states[parent]]
        for row in rows:
            weights = [drawn.uniform(0.05, 1) for _ in states[name]]
            values = ", ".join(f"{weight / sum(weights):.12f}" for weight in weights)
            listed = f"({', '.join(row)})" if row else "table"
            lines.append(f"  {listed} {values};")
        lines.append("}")
    place.write_text("\n".join(lines) + "\n")
    return {name: drawn.choice(states[name]) for name in drawn.sample(names, OBSERVED)}
