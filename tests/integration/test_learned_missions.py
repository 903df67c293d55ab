"""A thousand missions of agents with known rates, by the real scheduler: what it costs to learn the best one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import repository
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.requests import plan_request, record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.reports.choices import replay_choices
from chargehand.reports.reading import StateReader

pytestmark = pytest.mark.needs_bwrap

RATES = {"weak": 35, "middle": 60, "strong": 85}
FALLEN = 30


def script(name: str, rate: int, falls_at: int) -> str:
    """Return a program that does its task at a rate in percent, which for `strong` falls at a mission's number."""
    fall = f'[ "$2" -lt {falls_at} ] || rate={FALLEN};' if name == "strong" else ""
    number = f"$(printf %s \"{name} $2\" | md5sum | tr -dc 0-9 | cut -c1-9 | sed 's/^0*//')"
    does = f"rate={rate}; set -- $CHARGEHAND_REQUEST; {fall} n={number}"
    return f"{does}; if [ $((${{n:-0}} % 100)) -lt $rate ]; then echo $2 > sub/done; else rm -r sub; fi"


def simulate(place: Path, missions: int, *, falls_at: int) -> tuple[list[str], int]:
    """Return the agent chosen for each mission, and how many recorded choices give the same numbers again."""
    repo = repository(place / "repo")
    config = place / "config/chargehand/config.toml"
    config.parent.mkdir(parents=True)
    agents = {name: json.dumps(["sh", "-c", script(name, rate, falls_at)]) for name, rate in RATES.items()}
    config.write_text(
        "".join(f"[agents.{name}]\ncommand = {argv}\n" for name, argv in agents.items())
        + "[decisions]\nlearned = true\n"
    )
    environ = {
        "HOME": str(place),
        "PATH": os.environ["PATH"],
        "CHARGEHAND_HOME": str(used_state(place / "state")),
        "XDG_CONFIG_HOME": str(place / "config"),
    }
    chosen: list[str] = []
    app = App(environ=environ, cwd=repo, role="worker")
    try:
        for number in range(missions):
            asked = RunRequest(text=f"Task {number}", only_checks=("cat sub/*",), yes=True, attempts="1")
            request, plan = plan_request(app, asked)
            mission = record_mission(app, request, plan=plan)
            asyncio.run(Worker(app, slots=1).work(until_idle=True))
            known = app.mission_reader.state(mission).request
            assert known is not None
            chosen.append(known.agent)
    finally:
        app.close()
    with StateReader.open(environ=environ, cwd=repo) as reader:
        replayed = replay_choices(reader)
    assert (replayed.different, replayed.skipped) == ((), 0)
    return chosen, replayed.same


def regret(chosen: Sequence[str]) -> float:
    """Return how many tasks fewer are solved than by the best agent, in expectation."""
    return sum(max(RATES.values()) - RATES[each] for each in chosen) / 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_missions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen, replayed = simulate(tmp_path, 1_000, falls_at=500)
    assert replayed == 1_000
    before, after = chosen[:500], chosen[500:]
    with capsys.disabled():
        print(f"\nregret over 500 missions: {regret(before):.1f} tasks ({regret([*RATES] * 167):.1f} at random)")
        print(f"share of the fallen agent in missions 1 to 50 and 51 to 100 after: {share(after[:50])}, ", end="")
        print(share(after[50:100]))
    # Of 40 such histories in memory, half have less than 17, and 38 less than 35; at random it is 125.
    assert regret(before) < 35
    assert share(before[100:]) > 0.75
    assert share(after[50:100]) < 0.5


def share(chosen: Sequence[str]) -> float:
    return chosen.count("strong") / len(chosen)
