"""Runs the trials of a run: several at once, each at most once, and the rest of a killed process's run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from chargehand import __version__
from chargehand.bench.records import Arm, BenchProblem, BenchResult, BenchSuite, ProblemCheck, RunHeader
from chargehand.bench.results import RunDirectory, create_run, remove_scratch
from chargehand.bench.suites import digest_problems
from chargehand.bench.trials import Trial, TrialRun
from chargehand.bench.validation import Works, check_problem, open_scratch
from chargehand.configuration.locations import state_home
from chargehand.core.codec import decode_as
from chargehand.core.errors import ExhaustedError, RefusedError, UsageError

OnResult = Callable[[BenchResult], None]
OnCheck = Callable[[ProblemCheck], None]
_VALID = ".valid"


def bench_root(environ: Mapping[str, str]) -> Path:
    """Return the directory of all runs, in the state directory, which is created if missing."""
    home = state_home(environ)
    # As the store creates it: it refuses a directory with files that others may read.
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    return home / "bench"


def check_suite(
    suite: BenchSuite,
    environ: Mapping[str, str],
    *,
    jobs: int = 1,
    on_check: OnCheck | None = None,
    reuse: bool = False,
) -> tuple[ProblemCheck, ...]:
    """Check every problem of a suite; return the checks in its order. Raises `TierUnavailableError`.

    With `reuse`, a problem that this version of the program found valid is not checked again.
    """
    works = Works()

    def check(problem: BenchProblem) -> ProblemCheck:
        known = bench_root(environ) / _VALID / f"{digest_problems((problem,))}-{__version__}"
        with contextlib.suppress(OSError, ValueError):
            if reuse:
                return decode_as(known.read_bytes(), ProblemCheck)
        with _scratch_place(environ) as place, open_scratch(place / "home", place, environ) as app:
            done = check_problem(app, problem, place, works)
        if done.status == "valid":
            known.parent.mkdir(exist_ok=True, mode=0o700)
            known.write_bytes(msgspec.json.encode(done))
        if on_check is not None:
            on_check(done)
        return done

    with ThreadPoolExecutor(jobs, thread_name_prefix="bench") as pool:
        begun = [pool.submit(check, problem) for problem in suite.problems]
        try:
            return tuple(each.result() for each in begun)
        except BaseException:  # Ctrl-C too: a validator may take an hour
            works.cancel()
            for each in begun:
                each.cancel()
            raise


def new_run(
    suite: BenchSuite,
    path: Path,
    environ: Mapping[str, str],
    *,
    arm: Arm,
    samples: int,
    seed: int,
    checks: Sequence[ProblemCheck],
    id: str | None = None,
    label: str = "",
    clones: Path | None = None,
) -> RunDirectory:
    """Record a run of the valid problems of a suite.

    Raises `RefusedError` (`bench_invalid`) without any, and the errors of `prepare_run` if the arm cannot be run.
    """
    bad = {each.id: each for each in checks if each.status in ("invalid", "unsupported")}
    names = tuple(each.id for each in suite.problems if each.id not in bad)
    if not names:
        hint = "chargehand bench check SUITE names the reasons"
        raise RefusedError(f"no problem of {suite.name!r} can be run", code="bench_invalid", hint=hint)
    require_arm(next(each for each in suite.problems if each.id == names[0]), arm, environ)
    now = datetime.now(UTC)
    made = f"{now:%Y%m%d-%H%M%S}-{hashlib.sha256(os.urandom(8)).hexdigest()[:4]}"
    header = RunHeader(
        id=id or made,
        created=now.isoformat(timespec="milliseconds"),
        suite=str(path.resolve()),
        name=suite.name,
        form=suite.form,
        digest=suite.digest,
        arm=arm,
        samples=samples,
        seed=seed,
        problems=names,
        invalid=tuple(bad.values()),
        version=__version__,
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        clones=str(clones.resolve()) if clones else "",
        label=label,
        reported=sum(
            each.validator is not None and each.validator.reports for each in suite.problems if each.id in names
        ),
    )
    return create_run(bench_root(environ), header)


def require_arm(problem: BenchProblem, arm: Arm, environ: Mapping[str, str]) -> None:
    """Prepare a mission of an arm, and start nothing. Raises the errors of `prepare_run`."""
    with _scratch_place(environ) as place:
        trial = Trial(problem=problem, sample=0, seed=0, arm=arm, place=place, environ=environ)
        TrialRun(trial).prepare()


@contextlib.contextmanager
def _scratch_place(environ: Mapping[str, str]) -> Iterator[Path]:
    """Make a directory for the block; those of processes that were killed are removed."""
    scratch = bench_root(environ) / ".checks"
    scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in scratch.iterdir():
        if not Path("/proc", path.name.partition("-")[0]).exists():
            remove_scratch(path)
    place = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=scratch))
    try:
        yield place
    finally:
        remove_scratch(place)


class BenchRunner:
    """Runs the remaining trials of one run with `jobs` at once.

    No trial starts once the known costs have reached `max_usd`. Raises `UsageError` (`bench_changed`) for another
    suite than the run's.
    """

    def __init__(
        self,
        run: RunDirectory,
        suite: BenchSuite,
        environ: Mapping[str, str],
        *,
        jobs: int = 1,
        max_usd: float | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        header = run.header
        if suite.digest != header.digest:
            raise UsageError(
                f"the suite {header.suite!r} has changed since the run {header.id!r} began",
                code="bench_changed",
                hint="start a new run",
            )
        self._run, self._header, self._environ = run, header, environ
        self._problems = {each.id: each for each in suite.problems}
        self._jobs, self._max_usd, self._on_result = jobs, max_usd, on_result
        self._active: set[TrialRun] = set()
        self._spent = 0.0
        self.stopped = False
        self.short_of_money = False

    def stop(self) -> bool:
        """Release all running missions and start no further trial; return whether anything was running."""
        self.stopped = True
        for trial in tuple(self._active):
            trial.interrupt()
        return bool(self._active)

    async def work(self) -> tuple[BenchResult, ...]:
        """Run all trials that have no result; return the results of the whole run.

        Raises the errors of `prepare_run` if the arm cannot be run, and of `RunDirectory.writing`.
        """
        with self._run.writing():
            done = {each.key: each for each in self._run.results()}
            self._spent = sum(each.cost_usd or 0.0 for each in done.values())
            wanted = (key for key in self._keys() if key not in done or done[key].outcome == "error")
            await self._run_all(wanted)
            results = self._run.results()
            if len(results) == len(self._header.problems) * self._header.samples:
                remove_scratch(self._run.path / "t")
        if self.short_of_money and not self.stopped:
            raise ExhaustedError(
                f"the run {self._header.id!r} has spent {self._spent:.2f} USD of {self._max_usd:.2f}",
                code="bench_budget",
                hint=f"chargehand bench resume {self._header.id} --max-cost USD",
            )
        return results

    def _keys(self) -> Iterator[tuple[str, int]]:
        # All problems once before any is repeated: an interrupted run still covers the suite.
        for sample in range(self._header.samples):
            for problem in self._header.problems:
                yield problem, sample

    async def _run_all(self, keys: Iterator[tuple[str, int]]) -> None:
        loop = asyncio.get_running_loop()
        # Threads that live as long as the run: sandboxes end with the thread that started them.
        with ThreadPoolExecutor(self._jobs, thread_name_prefix="bench") as pool:

            async def work_through() -> None:
                for key in keys:  # shared by all: each trial is taken once
                    if self.stopped or self._is_spent():
                        return
                    trial = self._trial(*key)
                    self._active.add(trial)
                    try:
                        result = await loop.run_in_executor(pool, self._run_one, trial, key)
                    except BaseException:
                        self.stop()
                        raise
                    finally:
                        self._active.discard(trial)
                    if result is not None:
                        self._spent += result.cost_usd or 0.0
                        if self._on_result is not None:
                            self._on_result(result)

            done = await asyncio.gather(*(work_through() for _ in range(self._jobs)), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    def _is_spent(self) -> bool:
        self.short_of_money = self._max_usd is not None and self._spent >= self._max_usd
        return self.short_of_money

    def _run_one(self, trial: TrialRun, key: tuple[str, int]) -> BenchResult | None:
        """Run one trial and record its result; its scratch state is removed only after that."""
        result = trial.run()
        if result is not None:
            self._run.append(result)
            remove_scratch(self._run.scratch(*key))
        return result

    def _trial(self, problem: str, sample: int) -> TrialRun:
        return TrialRun(
            Trial(
                problem=self._problems[problem],
                sample=sample,
                seed=trial_seed(self._header.seed, problem, sample),
                arm=self._header.arm,
                place=self._run.scratch(problem, sample),
                environ=self._environ,
            )
        )


def trial_seed(seed: int, problem: str, sample: int) -> int:
    """Return the seed of one trial, which does not depend on the other trials."""
    return random.Random(f"{seed}/{problem}/{sample}").getrandbits(32)


def outcome_digest(results: Sequence[BenchResult]) -> str:
    """Return a hex SHA-256 of a run's findings, without times, costs and texts."""
    found = [(each.problem, each.sample, each.outcome, each.status, each.tree, each.passed) for each in results]
    return hashlib.sha256(msgspec.json.encode(found)).hexdigest()
