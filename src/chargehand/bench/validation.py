"""Validation of trees: by a problem's validator, which runs in another sandbox than the solution."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chargehand.app.composition import App
from chargehand.app.sandbox_commands import OutsideJudge, open_outside_judge
from chargehand.bench.forms.files import run_git
from chargehand.bench.records import BenchProblem, Judgement, ProblemCheck, Validation
from chargehand.configuration.locations import state_home
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.core.text import printable
from chargehand.missions.missions import OutsideTrial

_T = TypeVar("_T")
_MACHINE = "machine"
_SHOWN_BYTES = 4_000
_GOLD_SECONDS = 600.0
# Fixed, so that the base of a problem is one commit in every run.
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "bench"), ("EMAIL", "bench@localhost"), ("DATE", "2000-01-01T00:00:00Z"))
}


def make_repository(problem: BenchProblem, place: Path) -> Path:
    """Make the git repository of a problem in `place`, with one commit and no other history.

    It is complete or absent after a crash, and reused if present. Raises `UsageError` (`suite_invalid`).
    """
    repository, partial = place / "repo", place / "repo.partial"
    if repository.exists():
        return repository
    partial.mkdir(parents=True, exist_ok=True)
    run_git(partial, "init", "-q", "-b", "main")
    if problem.repository:
        upload = "git -c uploadpack.allowAnySHA1InWant=true -c safe.directory=* upload-pack"
        source = f"file://{problem.repository}"
        run_git(
            partial, "fetch", "-q", "--no-tags", "--depth", "1", "--upload-pack", upload, source, problem.commit
        )
        run_git(partial, "read-tree", problem.commit)
    else:
        for path, file in problem.files.items():
            assert file is not None
            target = partial / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file[0])
            target.chmod(0o755 if file[1] else 0o644)
        run_git(partial, "-c", "core.autocrlf=false", "add", "-A", "-f")
    # A commit without parents: the history of the source may contain the solution.
    tree = run_git(partial, "write-tree").decode().strip()
    commit = run_git(partial, "commit-tree", "-m", problem.id, tree, environment=_AUTHOR).decode().strip()
    (partial / ".git/shallow").unlink(missing_ok=True)
    run_git(partial, "reset", "-q", "--hard", commit)
    os.replace(partial, repository)
    return repository


@contextlib.contextmanager
def open_scratch(home: Path, repository: Path, environ: Mapping[str, str]) -> Iterator[App]:
    """Open a scratch state directory, with the machine's abilities as the last one found them.

    The user's configuration and keys apply. The product probes again if a stored result does not fit the machine.
    Raises `UsageError` (`bench_shared`) if the engine is shared between machines.
    """
    own = state_home(environ)
    known = own / "bench" / _MACHINE
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for source in (own, known):
        _copy_results(source, home)
    app = App(environ={**environ, "CHARGEHAND_HOME": str(home)}, cwd=repository, starts_workers=False)
    try:
        if app.engine.url is not None:
            hint = "run it with a configuration without `engine.url`"
            raise UsageError(
                "benchmarks run on one machine, and engine.url is set", code="bench_shared", hint=hint
            )
        yield app
    finally:
        app.close()
        known.mkdir(parents=True, exist_ok=True, mode=0o700)
        _copy_results(home, known)


def _copy_results(source: Path, target: Path) -> None:
    for path in (*source.glob("probe*.json"), *source.glob("toolchain*.json")):
        place = target / path.name
        with contextlib.suppress(OSError):  # found again, then
            content = path.read_bytes()
            if not place.exists() or place.read_bytes() != content:
                partial = place.with_name(f".{path.name}.{secrets.token_hex(4)}")
                partial.write_bytes(content)
                partial.replace(place)


async def validate(judge: OutsideJudge, problem: BenchProblem, tree: str) -> Validation:
    """Judge a tree by the problem's validator; raise as `Missions.judge_outside` does."""
    validator = problem.validator
    if validator is None:
        return Validation(judgement="none")
    trial = OutsideTrial(
        command=validator.command, seconds=validator.seconds, files=validator.files, over=validator.over
    )
    done = await judge.judge(trial, tree)
    judgement: Judgement = "passed" if done.passed else "failed"
    limit = done.limit or done.ended.limit
    if done.ended.timed_out:
        judgement, limit = "timed_out", None
    elif limit is not None:
        judgement = "limit"
    said = (done.ended.stdout + done.ended.stderr)[-_SHOWN_BYTES:]
    return Validation(
        judgement=judgement,
        exit_code=done.ended.exit_code,
        limit=limit,
        seconds=round(done.ended.seconds, 3),
        output=printable(said.decode("utf-8", "replace")),
    )


class Works:
    """Runs coroutines in several threads until they are all cancelled."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[asyncio.Task[object], asyncio.AbstractEventLoop] = {}
        self._cancelled = False

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine as `asyncio.run` does. Raises `CancelledError` once all are cancelled."""

        async def watched() -> _T:
            task = asyncio.current_task()
            assert task is not None
            with self._guard:
                if self._cancelled:
                    task.cancel()
                self._running[task] = asyncio.get_running_loop()
            try:
                return await work
            finally:
                with self._guard:
                    del self._running[task]

        return asyncio.run(watched())

    def cancel(self) -> None:
        """Cancel all that run, and all that begin later."""
        with self._guard:
            self._cancelled = True
            for task, loop in self._running.items():
                loop.call_soon_threadsafe(task.cancel)


def check_problem(app: App, problem: BenchProblem, place: Path, works: Works) -> ProblemCheck:
    """Check that a problem's validator rejects the unchanged files and accepts the known solution, if any.

    `place` is for its repository. Raises the errors of the sandbox; those of the problem make it invalid.
    """
    if problem.unsupported:
        return ProblemCheck(id=problem.id, status="unsupported", reason=problem.unsupported)
    if problem.validator is None:
        return ProblemCheck(id=problem.id, status="unvalidated", reason="it has no validator")
    try:
        return works.run(_check(app, problem, place))
    except ChargehandError as error:
        if is_own_fault(error):
            raise
        return ProblemCheck(id=problem.id, status="invalid", reason=error.message)


async def _check(app: App, problem: BenchProblem, place: Path) -> ProblemCheck:
    repository = await asyncio.to_thread(make_repository, problem, place)
    async with open_outside_judge(app, repository=repository) as judge:
        null = await validate(judge, problem, judge.base_tree)
        gold = None
        if problem.gold is not None and null.judgement != "passed":
            tree = await judge.make_tree(problem.gold, script=problem.gold_script, seconds=_GOLD_SECONDS)
            gold = await validate(judge, problem, tree)
    reason = ""
    if null.judgement == "passed":
        reason = "its validator accepts the unchanged files"
    elif gold is not None and gold.judgement != "passed":
        said = gold.output.strip().splitlines()[-1:] or [""]
        reason = f"its validator does not accept the known solution ({gold.judgement}): {said[0][:200]}"
    return ProblemCheck(
        id=problem.id,
        status="invalid" if reason else "valid",
        null=null.judgement,
        gold=gold.judgement if gold else None,
        reason=reason,
    )


def is_own_fault(error: ChargehandError) -> bool:
    """Return whether an error is the machine's or the provider's, so that it says nothing about a solution."""
    return error.exit_code == 6
