"""The processor time, user and system, of read-only commands and of a start, as whole processes.

The bare interpreter and `git log` are measured too: a person compares a quick command with them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import Result, Sample, Side, compare, spend
from benchmarks.mission_kit import MissionKit
from chargehand.core.attempt_events import AttemptStarted, CommandFinished
from chargehand.core.records import Base, MissionRequest
from chargehand.missions.journal import MissionSubmission, create_mission
from chargehand.store.store import open_store

HELP_AIM, LIST_AIM, LONG_LIST_AIM = 0.2, 0.35, 0.5
MISSIONS, EVENTS = 1_000, 37
_PROGRAM = Path(sys.executable).with_name("chargehand")
_NOTE = "processor time, user and system, of the whole process"


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare with the bare interpreter."""
    interpreter = Side(name="python -c pass", sample=_cpu([sys.executable, "-c", "pass"], kit.environ))
    history = ["git", "-C", str(kit.repository), "log"]
    git_log = Side(name="git log", sample=_cpu(history, kit.environ))
    many = kit.environ | {"CHARGEHAND_HOME": str(kit.place / "many")}
    _fill(kit.place / "many")
    results = []
    for case, words, environ, aim in (
        ("help", ["--help"], kit.environ, HELP_AIM),
        ("mission list, none", ["mission", "list"], kit.environ, LIST_AIM),
        (f"mission list, {MISSIONS:,} of {EVENTS} events", ["mission", "list"], many, LONG_LIST_AIM),
        (f"stats, {MISSIONS:,} of {EVENTS} events", ["stats"], many, LONG_LIST_AIM),
    ):
        ours = Side(name=f"chargehand {' '.join(words)}", sample=_cpu([str(_PROGRAM), *words], environ))
        results.append(
            await compare("startup", case, [ours, interpreter, git_log], rounds=rounds, aim=aim, note=_NOTE)
        )
    return results


def _fill(home: Path) -> None:
    """Write a state directory with many missions whose logs are long."""
    base = Base(revision="HEAD", commit="0" * 40, tree="0" * 40)
    with open_store(home) as store:
        for number in range(MISSIONS):
            request = MissionRequest(text=f"task {number}", agent="a", command=(), slug=f"task-{number}")
            mission = create_mission(
                store, MissionSubmission(project="p", request=request, repository="/r", base=base, config={})
            )
            started = AttemptStarted(attempt="a-1", number=1, agent="a", workspace="w-1", tree=base.tree)
            command = CommandFinished(sandbox="s-1", argv=("true",), exit_code=0, seconds=0.1)
            store.log.append(mission, started, *[command] * (EVENTS - 3))  # after the two events of its creation


def _cpu(argv: list[str], environ: dict[str, str]) -> Sample:
    async def sample() -> float:
        return spend(argv, environment=environ).cpu

    return sample
