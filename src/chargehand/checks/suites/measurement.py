"""Mutation testing of changed tests: run the tree's and the base's version of them on one fault after the other.

The changed tests run alone first, as that is quick. If their change cannot affect other tests by its text
(`literals.stays_inside`), all tests run only for a fault that the base's version notices and the tree's does not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.execution import CheckOutput, CheckPlan, run_checks
from chargehand.checks.failures import failed_without_a_test, select_tests
from chargehand.checks.runners.base import COVERAGE_GATE
from chargehand.checks.suites.faults import Mutant
from chargehand.checks.suites.own_tests import find_neighbours
from chargehand.checks.suites.rust_modules import lay_tests_over
from chargehand.core.records import CheckResult, Finding
from chargehand.core.text import printable, shown_path
from chargehand.sandbox.contract import WORKSPACE, Sandbox

MOST_FAULTS = 20
FAULTS_FOR_ADDITIONS = 8  # faults to try where tests were only added: nearly all of them are honest
_FAULTS_FOR_ISOLATED = 10
_ENOUGH_FAULTS = 5  # faults to try before the result counts
_ENOUGH_NOTICED = 2  # faults that other tests notice before these count as working
_LANES = 2  # sandboxes of the tree in which faults are tried at the same time
OFF = 1.0  # a limit of so many seconds turns the measurement off
_MOST_PATIENCE = 3.0  # how much longer than its limit a measurement may take on a busy machine
_SHOWN = 3
_BRIEF_SECONDS = 20.0
_SHORTEST_SECONDS = 5.0  # least time limit of a check on a fault, however quick it is without one
_QUICK_SECONDS = 1.0  # up to this time all tests run as quickly as a few of them
_WRITE_FILE = 'cat > "$1" && touch -d "@$2" "$1"'

Ending = Literal["passed", "failed", "unbuilt", "unclear"]
"""The end of a run on a fault: `unbuilt` if no test could run, `unclear` for another reason such as a time-out."""
Answer = Literal["weaker", "same", "unbuilt", "untold", "skipped"]


class ChangedTests(Struct, frozen=True, kw_only=True):
    """The changed tests of a tree.

    `own` names them by check, `ran` all tests of the tree. `inner` has the base's text of code with such tests
    inside. They are `isolated` if by its text their change cannot affect other tests.
    """

    own: Mapping[str, Sequence[str]] = {}
    ran: Mapping[str, Sequence[str]] = {}
    inner: Mapping[str, str] = {}
    isolated: bool = False


def fault_seconds(limit: float, *, must_measure: bool, load: float = 1.0) -> float:
    """Return how long faults may be tried: only briefly if, judged by their text, tests cannot notice less.

    `load` is the number of programs that want to run, per processor. On a busy machine each run takes longer, and
    so may the measurement: without a result a person has to decide.
    """
    if not must_measure:
        return min(limit, _BRIEF_SECONDS)
    return limit * min(max(load, 1.0), _MOST_PATIENCE) if limit > OFF else limit


async def measure_tests(
    plan: CheckPlan,
    checks: Sequence[CheckResult],
    faults: Sequence[Mutant],
    tests: ChangedTests,
    *,
    tree: Callable[[], Awaitable[Sandbox]],
    base: Callable[[], Awaitable[Sandbox]],
    seconds: float,
    must_measure: bool,
    most: int = MOST_FAULTS,
) -> tuple[Finding, ...]:
    """Return the faults that the tests of a tree no longer notice, or a finding that `seconds` were too few.

    With `must_measure` a person decides in the second case. `checks` are the results on the tree as it is. `tree`
    opens a sandbox of the tree, up to two of them; `base` opens one with the base's tests over it.
    """
    counted = [check for check in checks if check.tests] or list(checks)
    measured = _Measurement(plan, counted, tests, tree, base, seconds=seconds)
    await measured.begin()
    if measured.is_isolated:
        most = min(most, _FAULTS_FOR_ISOLATED if must_measure else FAULTS_FOR_ADDITIONS)
    tally = _Tally(most)
    await measured.try_all(_spread(faults) if measured.is_isolated else faults, tally)
    if tally.weakened:
        return tuple(map(_describe_weakening, tally.weakened))
    if tally.tried >= min(_ENOUGH_FAULTS, len(faults)) and not tally.untold:
        return ()
    message = (
        f"{tally.tried} of {len(faults)} faults could be tried in {seconds:.0f} s"
        f"{' (limits.fault_time)' if must_measure else ''}, as a run takes {measured.usual:.0f} s"
    )
    if tally.unbuilt:
        message = (
            f"with {tally.unbuilt} of {tally.tried + tally.unbuilt} faults that were tried the code could not be "
            "built or loaded"
        )
    # A person turns the measurement off with a limit of one second.
    return (describe_unmeasured(message, asks=must_measure and seconds > OFF),)


def _spread(faults: Sequence[Mutant]) -> list[Mutant]:
    """Return faults in code that changed tests name, and after a few of them some in other files."""
    named = [fault for fault in faults if fault.is_named]
    far = {fault.path: fault for fault in reversed(faults) if not fault.is_named}
    others = sorted(far.values(), key=faults.index)[:_ENOUGH_NOTICED]
    rest = [fault for fault in faults if not fault.is_named and fault not in others]
    return [*named[:_ENOUGH_FAULTS], *others, *named[_ENOUGH_FAULTS:], *rest]


class _Tally:
    """Counts the answers to faults, up to `most` conclusive ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.weakened: list[Mutant] = []
        self.tried = self.unbuilt = self.untold = 0

    @property
    def is_complete(self) -> bool:
        """Whether no further fault has to be tried."""
        return len(self.weakened) >= _SHOWN or self.tried >= self._most

    def add(self, fault: Mutant, answer: Answer) -> None:
        """Count the answer to one fault."""
        self.weakened += [fault] if answer == "weaker" else []
        self.unbuilt += answer == "unbuilt"
        self.untold += answer == "untold"
        self.tried += answer in ("weaker", "same")


class _Measurement:
    """Tries faults on two versions of the tests until the time is over."""

    def __init__(
        self,
        plan: CheckPlan,
        counted: Sequence[CheckResult],
        tests: ChangedTests,
        tree: Callable[[], Awaitable[Sandbox]],
        base: Callable[[], Awaitable[Sandbox]],
        *,
        seconds: float,
    ) -> None:
        self.usual = sum(check.seconds for check in counted)
        self._ends = time.monotonic() + seconds
        plan = replace(
            plan,
            commands=tuple(check.name for check in counted),
            seconds_each=min(plan.seconds_each, max(_SHORTEST_SECONDS, 4 * self.usual)),
        )
        self._tests = tests
        commands = self._select(tests.own) if self.usual > _QUICK_SECONDS else ()
        self._own = replace(plan, commands=commands)
        self._make_tree = partial(_FaultyTree, plan, usual=counted)
        self._open_tree, self._open_base = tree, base
        self._guard: _FaultyTree | None = None
        self._opening = asyncio.Lock()
        self._runs_own = self._guard_runs_own = False
        self._noticed_by_others = 0
        self._unnoticed: list[Mutant] = []

    def _select(self, tests: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
        selected = (select_tests(check, names) for check, names in tests.items())
        return tuple(command for command in selected if command is not None)

    async def begin(self) -> None:
        """Open the tree, and run the changed tests alone without a fault to see whether that works."""
        self._first = self._make_tree(self._own, await self._open_tree())
        if self._own.commands:
            started = time.monotonic()
            self._runs_own = await self._first.passes_own()
            took = time.monotonic() - started
            self._own = replace(
                self._own, seconds_each=min(self._own.seconds_each, max(_SHORTEST_SECONDS, 4 * took))
            )
            self._first.own = self._own

    @property
    def is_isolated(self) -> bool:
        """Whether the changed tests run alone and cannot affect others."""
        return self._runs_own and self._tests.isolated

    @property
    def has_time(self) -> bool:
        """Whether another fault can be tried."""
        return self._seconds_left > (0 if self._runs_own else self._seconds_needed)

    @property
    def _seconds_left(self) -> float:
        return self._ends - time.monotonic()

    @property
    def _seconds_needed(self) -> float:
        # Both versions run on a fault, the base's twice: with less time than that nothing is proved.
        return 3 * self.usual

    async def try_all(self, faults: Sequence[Mutant], tally: _Tally) -> None:
        """Try faults until enough of them are counted, or the time is over."""
        pending = iter(faults)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._try_pending(self._first, pending, tally))
                for _ in range(1, _LANES if self.is_isolated else 1):
                    group.create_task(self._try_in_new_lane(pending, tally))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        if not tally.weakened and self._unnoticed and not self._noticed_by_others:
            # One is enough: the change cannot affect other tests by its text.
            fault = self._unnoticed[0]
            has_time = self._seconds_left >= self.usual
            tally.add(fault, await self._compare_all(self._first, fault) if has_time else "untold")

    async def _try_in_new_lane(self, pending: Iterator[Mutant], tally: _Tally) -> None:
        await self._try_pending(self._make_tree(self._own, await self._open_tree()), pending, tally)

    async def _try_pending(self, lane: _FaultyTree, pending: Iterator[Mutant], tally: _Tally) -> None:
        for fault in pending:
            if not self.has_time or tally.is_complete:
                return
            tally.add(fault, await self._try_one(lane, fault))

    async def _try_one(self, lane: _FaultyTree, fault: Mutant) -> Answer:
        """Run both versions of the tests with a fault, and return how they differ.

        `weaker` if only the base's notices it, `same` if not, `unbuilt` if no test could run. Without time for
        a proof it is `skipped` if the changed tests are known to make no difference, else `untold`.
        """
        # The neighbours of a fault in other code are likelier to notice it than the changed tests.
        is_for_others = self.is_isolated and not fault.is_named and self._must_show_others
        if is_for_others and await self._others_notice(lane, fault):
            return "same"
        own = await lane.run_own(fault) if self._runs_own else "passed"
        if own == "failed":
            return "same"
        if self.is_isolated:
            return await self._compare_isolated(lane, fault) if own == "passed" else _answer_alike(own)
        if self._seconds_left < self._seconds_needed:
            return await self._compare_own(lane, fault)
        return await self._compare_all(lane, fault)

    async def _compare_all(self, lane: _FaultyTree, fault: Mutant) -> Answer:
        status = await lane.run_all(fault)
        if status == "passed":
            guard = await self._open_guard()
            # Twice: a test that fails now and then would accuse the wrong one.
            return "weaker" if await guard.fails(fault) and await guard.fails(fault) else "same"
        self._noticed_by_others += status == "failed" and self._runs_own
        return _answer_alike(status)

    async def _compare_isolated(self, lane: _FaultyTree, fault: Mutant) -> Answer:
        """Compare the changed tests alone; for some faults, run neighbours to show that other tests still work."""
        guard = await self._open_guard()
        if not self._guard_runs_own:
            has_time = self._seconds_left >= self._seconds_needed
            return await self._compare_all(lane, fault) if has_time else "untold"
        if await guard.run_own(fault) == "failed":
            if self._seconds_left < self.usual:
                return "untold"
            # Another test may notice it now.
            if (status := await lane.run_all(fault)) != "passed":
                return _answer_alike(status)
            return "weaker" if await guard.run_own(fault) == "failed" else "same"
        if self._must_show_others and not (fault.is_named and await self._others_notice(lane, fault)):
            self._unnoticed.append(fault)
        return "same"

    @property
    def _must_show_others(self) -> bool:
        return self._noticed_by_others < _ENOUGH_NOTICED

    async def _others_notice(self, lane: _FaultyTree, fault: Mutant) -> bool:
        """Return whether tests named after the fault's file notice it in a run behind the changed tests."""
        commands = self._select(find_neighbours(fault.path, self._tests.own, self._tests.ran))
        own = {name for names in self._tests.own.values() for name in names}
        noticed = bool(commands) and await lane.run_beyond(fault, commands, own)
        self._noticed_by_others += noticed
        return noticed

    async def _compare_own(self, lane: _FaultyTree, fault: Mutant) -> Answer:
        """Compare the changed tests alone, as time is short, on a fault that the tree's version does not notice.

        If the base's version does not notice it either, only the other tests may. One fault has to show that these
        still notice faults at all, since a changed test can disarm others.
        """
        guard = await self._open_guard()
        if not self._guard_runs_own or await guard.run_own(fault) == "failed":
            return "untold"
        if self._noticed_by_others:
            return "skipped"
        if self._seconds_left >= self.usual and await lane.run_all(fault) == "failed":
            self._noticed_by_others += 1
            return "same"
        return "untold"

    async def _open_guard(self) -> _FaultyTree:
        async with self._opening:
            if self._guard is None:
                self._guard = self._make_tree(self._own, await self._open_base(), inner=self._tests.inner)
                self._guard_runs_own = self._runs_own and await self._guard.passes_own()
            return self._guard


def _answer_alike(ending: Ending) -> Answer:
    """Return the answer of a run that cannot show a difference."""
    return "unbuilt" if ending == "unbuilt" else "same"


class _FaultyTree:
    """A sandbox in which one fault at a time is put into the code; the plan `own` runs changed tests alone."""

    def __init__(
        self,
        plan: CheckPlan,
        own: CheckPlan,
        sandbox: Sandbox,
        *,
        usual: Sequence[CheckResult],
        inner: Mapping[str, str] | None = None,
    ) -> None:
        self._plan = plan
        self.own = own
        self._sandbox = sandbox
        self._counted = {check.name for check in usual if check.tests}
        self._inner = inner or {}
        self._written = int(time.time())
        self._turn = asyncio.Lock()

    async def run_all(self, fault: Mutant) -> Ending:
        """Run all tests with a fault."""
        return _ending(await self._run(fault, self._plan), self._counted)

    async def run_own(self, fault: Mutant) -> Ending:
        """Run the changed tests alone with a fault."""
        results = await self._run(fault, self.own)
        if any(each.status == "failed" and each.tests and each.reason != "collection_error" for each in results):
            return "failed"
        return _ending(results, set(self.own.commands))

    async def run_beyond(self, fault: Mutant, commands: Sequence[str], own: Collection[str]) -> bool:
        """Run commands for some tests with a fault; return whether one fails that is not in `own`."""
        outputs = dict[str, CheckOutput]()
        await self._run(fault, replace(self.own, commands=tuple(commands)), outputs)
        failures = (each.failures.tests or () for each in outputs.values() if each.failures is not None)
        return any(name not in own and name != COVERAGE_GATE for names in failures for name in names)

    async def fails(self, fault: Mutant) -> bool:
        """Return whether checks fail with this fault, for any reason."""
        return {result.status for result in await self._run(fault, self._plan)} - {"passed"} == {"failed"}

    async def passes_own(self) -> bool:
        """Return whether the changed tests pass alone without a fault."""
        results = await run_checks(self.own, self._sandbox, keep=_Nowhere(), mission=None)
        return all(result.status == "passed" and result.tests for result in results)

    async def _run(
        self, fault: Mutant, plan: CheckPlan, outputs: dict[str, CheckOutput] | None = None
    ) -> tuple[CheckResult, ...]:
        outputs = {} if outputs is None else outputs
        async with self._turn:
            await self._write(fault.path, fault.content)
            results = await run_checks(
                plan,
                self._sandbox,
                keep=_Nowhere(),
                mission=None,
                on_result=lambda result, output: outputs.update({result.name: output}),
            )
            await self._write(fault.path, fault.original)
        # A gate over all tests, such as coverage, does not notice faults: with new code the base's tests fail it.
        return tuple(
            replace(result, status="passed")
            if (failures := outputs[result.name].failures) is not None and failed_without_a_test(result, failures)
            else result
            for result in results
        )

    async def _write(self, path: str, content: str) -> None:
        if path in self._inner:  # keep the base's tests inside the code
            content = lay_tests_over(self._inner[path], content)
        # Two seconds later each time: Python's cache compares size and seconds, make compares times.
        self._written += 2
        await self._sandbox.exec(
            ["sh", "-c", _WRITE_FILE, "sh", path, str(self._written)],
            cwd=WORKSPACE,
            stdin=content.encode("utf-8", "surrogateescape"),
        )


def _ending(results: Sequence[CheckResult], counted: Collection[str]) -> Ending:
    statuses = {result.status for result in results} - {"passed"}
    if statuses != {"failed"}:
        return "unclear" if statuses else "passed"
    unbuilt = all(
        result.name in counted and (result.reason == "collection_error" or not result.tests)
        for result in results
        if result.status != "passed"
    )
    return "unbuilt" if unbuilt else "failed"


class _Nowhere:
    """Keeps no output: the output of a run on a fault is not shown."""

    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        """Return no id."""
        return ""


def describe_unmeasured(why: str, *, asks: bool) -> Finding:
    """Return a finding that changed tests were not measured; with `asks` a person decides."""
    return Finding(
        rule="tests_unmeasured",
        severity="warning" if asks else "info",
        path=".",
        message=f"whether changed tests still notice faults was not measured: {why}",
        needs_person=asks,
    )


def _describe_weakening(fault: Mutant) -> Finding:
    return Finding(
        rule="tests_weakened",
        severity="warning",
        path=fault.path,
        line=fault.line,
        message=(
            f"the changed tests miss a fault that the base's notice, {shown_path(fault.path)}:{fault.line}: "
            f"{printable(fault.after)!r} in place of {printable(fault.before)!r}"
        ),
        needs_person=True,
    )
