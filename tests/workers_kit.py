"""Many workers on one state directory, killed, stopped and started while missions run.

A `WorkersKit` is a `CrashKit` whose workers record their writes (see tests/workers_side.py). `examine_all` checks
the promises: every mission reaches its right end once, and every write was made under the last claim.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shlex
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chargehand.app.composition import App
from chargehand.core.events import decode
from chargehand.core.records import MissionRequest, MissionStatus
from chargehand.core.state import SETTLED, MissionState
from chargehand.missions.journal import MissionSubmission, create_mission
from tests.conftest import git, repository_state
from tests.crash_kit import CHECK, SECOND_TRY, CrashKit, Scene, Site, descendants, once_only, wait_until
from tests.forked import ForkedProcess

REPOSITORY = Scene(name="shared")
IN_PEACE = frozenset({0, -signal.SIGKILL})
NOT_BEGUN = frozenset({6, 130})
"""Exit codes of a worker that was started without a database, or told to end before it had begun."""
GATE = "gate"
"""A gated agent has begun if this directory exists, and ends when there is a file in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A mission's script, and how the mission must end however often its workers died."""

    script: str
    ends: MissionStatus = "promoted"
    attempts: int = 1


_MEND = "sed -i s/a/b/ f.txt"
_WAIT = f'rm -rf {GATE}; mkdir {GATE}; until test "$(ls {GATE})"; do sleep 0.05; done; rm -r {GATE}'
JOBS = {
    "mend": Job(script=_MEND),
    "slow": Job(script=f"sleep 1.5; {_MEND}"),
    "second try": Job(script=SECOND_TRY, attempts=2),
    "refused": Job(script="echo x >> f.txt", ends="refused"),
    "held": Job(script=f"{_WAIT}; {_MEND}"),
}


class WorkersKit(CrashKit):
    """One state directory, one repository, and any number of workers."""

    def __init__(
        self, place: Path, *, like: WorkersKit | None = None, url: str | None = None, lease: float = 2.0
    ) -> None:
        super().__init__(place, like=like)
        if url is not None:
            self.environ |= {"CHARGEHAND_ENGINE_URL": url, "CHARGEHAND_ENGINE_LEASE": f"{lease}s"}
        self.shared: Site = self.site(REPOSITORY)
        self.jobs: dict[str, Job] = {}
        self.workers: list[ForkedProcess] = []
        self._trace = place / "trace"

    def order(self, *names: str) -> list[str]:
        """Record missions, as `run --detach` does; return their ids."""
        with self.app() as app:
            found = app.preparation.find(self.shared.repository)
            return [self._order(app, found, JOBS[name]) for name in names]

    def _order(self, app: App, found: Any, job: Job) -> str:
        request = MissionRequest(
            text="mend it",
            agent=f"command:sh -c {shlex.quote(job.script)}",
            command=(),
            slug=f"job-{len(self.jobs) + 1}",
            only_checks=(CHECK,),
            attempts=job.attempts,
            seconds=300.0,
        )
        mission = create_mission(
            app.store,
            MissionSubmission(
                project=found.project.id,
                request=request,
                repository=str(self.shared.repository),
                base=found.base,
                config={},
            ),
        )
        self.jobs[mission] = job
        return mission

    def join(self, *words: str) -> ForkedProcess:
        """Start another worker, which works until it is told to end."""
        with (self.place / "said").open("ab") as said:
            worker = ForkedProcess(
                (str(self._trace), "worker", *words),
                cwd=self.place,
                environ=self.environ,
                stdout=said,
                stderr=said,
                module="tests.workers_side",
                session=True,
            )
        self.workers.append(worker)
        return worker

    @contextlib.contextmanager
    def working(self, *, ends: frozenset[int] = IN_PEACE) -> Iterator[None]:
        """Let workers work during the block, then stop the living ones; all exit codes must be in `ends`."""
        try:
            yield
            for worker in self.workers:
                if worker.returncode is None:
                    worker.send_signal(signal.SIGTERM)
            codes = [worker.wait(60) for worker in self.workers]
            assert set(codes) <= ends, (codes, self.output())
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()

    def states(self) -> dict[str, MissionState]:
        """Return the states of the missions."""
        with self.app() as app:
            return {mission: app.mission_reader.state(mission) for mission in self.jobs}

    def holder(self, mission: str) -> ForkedProcess | None:
        """Return our living worker that holds a mission."""
        with self.app() as app:
            owner = app.store.log.get(mission).owner
            pids = {member.id: member.pid for member in app.workers.members()}
        return next((each for each in self.workers if each.pid == pids.get(owner or "")), None)

    def living(self) -> list[ForkedProcess]:
        """Return the workers that have not ended."""
        return [worker for worker in self.workers if worker.poll() is None]

    def busy(self) -> list[ForkedProcess]:
        """Return the living workers that hold a mission."""
        found = [self.holder(mission) for mission, state in self.states().items() if state.status == "running"]
        return [worker for worker in found if worker is not None]

    def at_work(self, mission: str) -> bool:
        """Return whether the agent of a mission waits behind its gate."""
        return bool(self._gates(mission))

    def began_after(self, mission: str, wall: float) -> bool:
        """Return whether an agent of the mission reached its gate after that time."""
        with contextlib.suppress(FileNotFoundError):
            return any(gate.stat().st_mtime > wall for gate in self._gates(mission))
        return False

    def open_gate(self, mission: str) -> None:
        """Let the agents of a mission end, however many workers believe that they run it."""
        for gate in self._gates(mission):
            with contextlib.suppress(FileNotFoundError):  # it has passed already
                (gate / "go").touch()

    def _gates(self, mission: str) -> list[Path]:
        name = f"projects/*/workspaces/w-{mission.removeprefix('m-')}-*/generations/*/upper/{GATE}"
        # Not `Path.glob`, which fails if a directory disappears while it reads.
        return [Path(found) for found in glob.glob(str(self.home / name))]

    def is_writable(self) -> bool:
        """Return whether the store's write lock is free within the time that a write takes."""
        connection = sqlite3.connect(self.home / "store.db", timeout=1.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def settled(self) -> bool:
        """Return whether all missions have ended."""
        with self.app() as app:
            if app.store.log.takeable():
                return False
            return all(app.mission_reader.at_rest(mission).status in SETTLED for mission in self.jobs)

    def wait(self, *, seconds: float = 120.0) -> None:
        """Open all gates and wait until all missions have ended."""
        limit = time.monotonic() + seconds
        while not self.settled():
            assert time.monotonic() < limit, (self._unsettled(), self.output())
            for mission in self.jobs:
                self.open_gate(mission)
            time.sleep(0.1)

    def _unsettled(self) -> list[str]:
        return [
            f"{mission} {state.status}"
            for mission, state in self.states().items()
            if state.status != self.jobs[mission].ends
        ]

    def examine_all(self) -> None:
        """Check all missions, the repository and the log against the promises."""
        for mission, state in self.states().items():
            self._examine(mission, state)
        assert repository_state(self.shared.repository) == self.shared.before
        self.writers_follow_claims()
        for trash in self.home.glob("projects/*/workspaces/.trash-*"):
            shutil.rmtree(trash)  # a worker died while it removed this: the rest is left to `gc`
        self.at_rest()

    def _examine(self, mission: str, state: MissionState) -> None:
        job, repository = self.jobs[mission], self.shared.repository
        assert (state.status, len(state.attempts)) == (job.ends, job.attempts), (state, self.output())
        with self.app() as app:
            lines = app.store.log.read(mission)
            depot = app.projects.depot(app.projects.find(repository)).path
        once_only(lines)
        promoted = [line for line in lines if line.type == "promotion.done"]
        assert len(promoted) == (job.ends == "promoted")
        branch = git(repository, "for-each-ref", "--format=%(objectname)", f"refs/heads/chargehand/{_slug(state)}")
        assert branch == (state.commit or "")
        if state.commit is not None:
            assert git(repository, "rev-parse", f"{branch}^{{tree}}") == state.tree
            assert git(repository, "show", f"{branch}:f.txt").startswith("b")
        for point in state.checkpoints:
            assert git(depot, "rev-parse", f"{point.commit}^{{tree}}") == point.tree

    def trace(self) -> list[dict[str, Any]]:
        """Return the workers' records, in the order in which they wrote them."""
        return [json.loads(line) for line in self._trace.read_text().splitlines()]

    def writers_follow_claims(self) -> None:
        """Assert that every line was written under the last claim before it in the log."""
        writers: dict[tuple[str, int], int] = {}
        for told in self.trace():
            if told["did"] == "append":
                writers |= {
                    (told["mission"], seq): told["epoch"] for seq in range(told["first"], told["last"] + 1)
                }
        claims: Counter[int | None] = Counter()
        with self.app() as app:
            for mission in self.jobs:
                epoch = 0
                for line in app.store.log.read(mission):
                    if line.type == "mission.claimed" and line.payload is not None:
                        claimed: Any = decode(line.type, line.payload)
                        assert claimed.epoch > epoch
                        epoch = claimed.epoch
                    written = writers.get((mission, line.seq), epoch if line.seq > 2 else None)
                    assert written == (epoch if line.seq > 2 else None), (mission, line)
                    claims[epoch] += 1
        assert claims[1] > 0

    def most_at_once(self, worker: ForkedProcess) -> int:
        """Return how many missions a worker held at once."""
        held: set[str] = set()
        most = 0
        ends = {
            (mission, line.seq)
            for mission in self.jobs
            for line in self._lines(mission)
            if line.type == "mission.finished"
        }
        for told in (told for told in self.trace() if told["pid"] == worker.pid):
            if told["did"] == "claim":
                held.add(told["mission"])
            elif any((told["mission"], seq) in ends for seq in range(told["first"], told["last"] + 1)):
                held.discard(told["mission"])
            most = max(most, len(held))
        return most

    def _lines(self, mission: str) -> tuple[Any, ...]:
        with self.app() as app:
            return app.store.log.read(mission)


@contextlib.contextmanager
def standing_still(worker: ForkedProcess, kit: WorkersKit) -> Iterator[None]:
    """Stop a worker for the block, like a machine that sleeps; its child processes keep running.

    Never in the middle of a write: a worker stopped there would keep all others from writing.
    """
    while True:
        os.kill(worker.pid, signal.SIGSTOP)
        if kit.is_writable():
            break
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.01)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


def sandboxes(worker: ForkedProcess) -> list[int]:
    """Return the processes below a worker that are sandboxes or run in one."""
    return [pid for pid in descendants(worker.pid) if _is_bwrap(pid)]


def _is_bwrap(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "bwrap"
    except OSError:
        return False


def _slug(state: MissionState) -> str:
    assert state.request is not None
    return state.request.slug


def until(holds: Callable[[], object], kit: WorkersKit) -> None:
    """Wait until a condition holds; a failure shows the workers' output."""
    try:
        wait_until(holds, seconds=60.0)
    except AssertionError:
        raise AssertionError(kit.output()) from None
