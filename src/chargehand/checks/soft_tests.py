"""Tests that went soft, measured: faults that the base's version of changed tests notices and the tree's does not.

Rules that read a test see what it says. Whether it still means it shows only when the code is wrong: small faults
are put into the code, one at a time, and both versions of the tests are run on each.
"""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from chargehand.checks.execution import CheckOutput, CheckPlan, run_checks
from chargehand.checks.failures import failed_without_a_test, select_tests
from chargehand.checks.paths import holds_tests, is_source, is_test_path, language_of
from chargehand.checks.ran_tests import TestMoves
from chargehand.checks.reads import ReadObserver
from chargehand.checks.suites.additions import leaves_tests_alone, outlasts_its_tests
from chargehand.checks.suites.equivalence import align_evenly, equivalent_forms
from chargehand.checks.suites.examples import changed_examples
from chargehand.checks.suites.faults import Mutant, choose_faults, does_something, find_faults, subjects_of
from chargehand.checks.suites.inner import InnerTests
from chargehand.checks.suites.inner import support_in as support_in  # a part of this face
from chargehand.checks.suites.own_tests import find_own_tests as find_own_tests  # a part of this face
from chargehand.checks.suites.rust_modules import find_test_modules, lay_tests_over, read_test_modules
from chargehand.checks.suites.support import find_support
from chargehand.checks.suites.weakening import Pair, count_added, find_renamed, find_rewritten, suites_of
from chargehand.checks.trees import TreeReader, new_text, old_text, text_of
from chargehand.core.records import Change, CheckResult, Finding
from chargehand.core.text import printable, shown_path
from chargehand.sandbox.contract import WORKSPACE, Sandbox

_MOST_FAULTS = 20
_SPARE_FAULTS = 20  # more of them, for those with which the code cannot be built: they say nothing of the tests
_FAULTS_FOR_ADDITIONS = 8  # faults to try where tests were only added: nearly all of them are honest
_FAULTS_UNREAD = 2
_ENOUGH_FAULTS = 5  # faults that have to be tried before their being noticed says anything
_OFF = 1.0  # a limit of so many seconds turns the measurement off
_MOST_PATIENCE = 3.0  # how much longer than its limit a measurement may take on a busy machine
_LINES_AROUND = 6  # lines before and behind one that a test lost, in which it names what it is about
_SHOWN = 3
_EXECUTABLE = 0o100755
_MOST_FILES = 60
_BRIEF_SECONDS = 20.0
_SHORTEST_SECONDS = 5.0  # seconds that a check may take on a fault at least, however quick it is without one
_WRITE_FILE = 'cat > "$1" && touch -d "@$2" "$1"'
# They are run by tools, not by tests.
_NOT_TESTED = frozenset({"setup.py", "noxfile.py", "conftest.py", "build.rs"})


def changed_tests(changes: Iterable[Change], inner: Collection[str], reader: TreeReader) -> tuple[Change, ...]:
    """Return the changes of tests by which other tests may notice less.

    An added source file counts: it runs in the process of the old tests, and may change what they use in ways that
    no rule lists. Files that tests read belong to them; `inner` are code with tests of its own that changed
    (`inner_tests`).
    """
    return tuple(
        change
        for change in changes
        if (is_test_path(change.path) or change.path in inner)
        and (
            is_source(change.path)
            if change.old_id is None
            else (change.new_mode, change.new_id) != (change.old_mode, change.old_id)
        )
    )


def _reaches_others(change: Change, reader: TreeReader) -> bool:
    text = new_text(reader, change)
    return text is not None and outlasts_its_tests(change.path, text)


def leave_out_unread(tests: Sequence[Change], observer: ReadObserver) -> tuple[Change, ...]:
    """Return the changed tests without data that no check opened, which nothing can have become softer by."""
    data = [test.path for test in tests if test.new_id is not None and not is_source(test.path)]
    unread = set(data).difference(observer.read_of(data))
    return tuple(test for test in tests if test.path not in unread)


def inner_tests(changes: Sequence[Change], reader: TreeReader, base_tree: str) -> InnerTests:
    """Return the base's text, by path, of changed files that are tests although their paths do not say so.

    These are code whose own tests inside it changed, and goldens and helpers that only tests use (`support_in`).
    """
    support = find_support(changes, reader, base_tree)
    found = {change.path: old_text(reader, change) or "" for change in changes if change.path in support}
    for change in changes:
        if language_of(change.path) != "rust" or is_test_path(change.path) or change.path in support:
            continue
        old, new = old_text(reader, change), new_text(reader, change)
        if old is not None and new is not None and lay_tests_over(old, new) != new:
            found[change.path] = old
    return InnerTests(found, support)


def find_moves(
    changes: Iterable[Change], reader: TreeReader, checks: Iterable[str], observer: ReadObserver
) -> TestMoves:
    """Return the tests that changes left as they were but for the name, those of which no text is left, new ones.

    New are only those that `checks` opened; the `observer` saw what each of them read, in this order.
    """
    known = tuple(changes)
    pairs = [Pair(change, *suites_of(change, reader)) for change in known if holds_tests(change.path)]
    # Runners that are told their files (mocha) collect tests from files of any name in a directory of tests.
    others = [
        Pair(change, *suites_of(change, reader, any_name=True))
        for change in known
        if is_test_path(change.path) and is_source(change.path) and not holds_tests(change.path)
    ]
    opened = zip(checks, observer.opened, strict=False) if observer.complete else ()
    return TestMoves(
        renamed={old: new for (_, old), (_, new) in find_renamed([*pairs, *others]).items()},
        rewritten=frozenset(name for _, name in find_rewritten(pairs)),
        added={check: count_added([pair for pair in pairs if pair.path in paths]) for check, paths in opened},
    )


def restore_inner_tests(inner: Mapping[str, str], reader: TreeReader, tree: str) -> dict[str, bytes]:
    """Return the files of a tree that are in `inner` with the base's tests inside, by path."""
    entries = {path: reader.lookup(tree, path) for path in inner}
    texts = {path: text_of(reader, *entry) for path, entry in entries.items() if entry}
    return {path: lay_tests_over(inner[path], text).encode() for path, text in texts.items() if text is not None}


def may_say_less(changes: Iterable[Change], inner: Collection[str], reader: TreeReader) -> bool:
    """Return whether existing tests may notice less than before, as far as their text tells.

    They may where lines that did something are gone, or where others came that end a test early, skip it or give
    another meaning to what it uses. Further tests, data and assertions take nothing away. Python is also compared
    without differences of form (`equivalent_forms`), and Go, Rust and Java without alignment.
    """
    known = tuple(changes)
    return all(_may_say_less(known, inner, reader, simplified=simplified) for simplified in (False, True))


def _may_say_less(
    changes: Sequence[Change], inner: Collection[str], reader: TreeReader, *, simplified: bool
) -> bool:
    support = support_in(inner)
    lines = Counter[tuple[str, str]]()
    grown = list[tuple[str, str, str]]()
    for change in changes:
        if not is_test_path(change.path) and change.path not in inner:
            continue
        old, new = (text(reader, change) for text in (old_text, new_text))
        old, new = (
            (old or "", new or "")
            if change.path in support
            else (_text_of_tests(change.path, old), _text_of_tests(change.path, new))
        )
        if simplified and language_of(change.path) == "python":
            old, new = equivalent_forms(old, new)
        elif simplified:
            old, new = (align_evenly(language_of(change.path), text) for text in (old, new))
        # Within what a test may move: where it is collected is known by its name for some languages alone.
        suffix = posixpath.splitext(change.path)[1]
        named = language_of(change.path) is not None
        place = suffix if named else f"{posixpath.dirname(change.path)}/{suffix}"
        lines.update((place, line.strip()) for line in old.splitlines())
        lines.subtract((place, line.strip()) for line in new.splitlines())
        if change.old_id is not None and change.new_id is not None:
            grown.append((change.path, old, new))
            # A script that may not be executed any more is left out by what starts tests.
            if change.old_mode != change.new_mode and change.new_mode != _EXECUTABLE:
                return True
        if change.old_id is None and _reaches_others(change, reader):
            return True
    if any(count > 0 and does_something(line) for (_, line), count in lines.items()):
        return True
    return not all(leaves_tests_alone(path, old, new) for path, old, new in grown)


def code_under_test(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the source files among paths that tests can be about."""
    return tuple(
        path
        for path in paths
        if is_source(path) and not is_test_path(path) and posixpath.basename(path) not in _NOT_TESTED
    )


def pick_faults(
    reader: TreeReader,
    tree: str,
    tests: Sequence[Change],
    read: Collection[str],
    subject: Collection[str],
    changed: Collection[str],
) -> list[Mutant]:
    """Return the faults to try in the code of a tree, those first that the `tests` are closest to.

    Of the `subject`, the code that tests can be about, the checks `read` a part. If tests were added, two faults
    go into the rest: a new test may load something else in place of code that the old tests are about. `changed`
    is code that the tree changes; it comes before code that tests do not name.
    """
    limit = most_faults(tests) + _SPARE_FAULTS
    known = set(read)
    rest = [path for path in subject if path not in known] if any(test.old_id is None for test in tests) else []
    hidden = _pick_faults(reader, tree, tests, rest, changed, limit)
    return [
        *hidden[: _FAULTS_UNREAD if known else limit],
        *_pick_faults(reader, tree, tests, read, changed, limit),
    ]


def _pick_faults(
    reader: TreeReader,
    tree: str,
    tests: Sequence[Change],
    code: Collection[str],
    changed: Collection[str],
    limit: int,
) -> list[Mutant]:
    if not code:
        return []
    old, new = (
        [_text_of_tests(test.path, text := read(reader, test)) or text or "" for test in tests]
        for read in (old_text, new_text)
    )
    words = subjects_of("\n".join((*old, *new)))
    kept = {line.strip() for text in new for line in text.splitlines()}
    near, around = (
        subjects_of("\n".join(line for text in old for line in _lines_around_lost(text.splitlines(), kept, lines)))
        for lines in (0, _LINES_AROUND)
    )

    def distance(path: str) -> tuple[bool, bool, str]:
        stem = posixpath.splitext(posixpath.basename(path))[0]
        return (path not in changed, stem not in words, path)

    faults: list[Mutant] = []
    for path in sorted(code, key=distance)[:_MOST_FILES]:
        found = reader.lookup(tree, path)
        text = None if found is None else text_of(reader, *found)
        if text is None:
            continue
        inside = find_test_modules(text) if language_of(path) == "rust" else []
        lines = [range(text.count("\n", 0, each.start), text.count("\n", 0, each.end) + 1) for each in inside]
        faults += [fault for fault in find_faults(path, text) if not any(fault.line - 1 in each for each in lines)]
    return choose_faults(faults, words=words, near=near, around=around, limit=limit)


def most_faults(tests: Iterable[Change]) -> int:
    """Return how many faults are tried on changed tests."""
    return _FAULTS_FOR_ADDITIONS if all(test.old_id is None for test in tests) else _MOST_FAULTS


def _lines_around_lost(lines: Sequence[str], kept: Collection[str], reach: int) -> Iterable[str]:
    """Return the lines that are gone, with some around them: a test names what it is about before it asserts."""
    lost = [number for number, line in enumerate(lines) if line.strip() not in kept]
    around = {number for each in lost for number in range(each - reach, each + reach + 1)}
    return (lines[number] for number in sorted(around) if 0 <= number < len(lines))


def _text_of_tests(path: str, text: str | None) -> str:
    inside = text is not None and language_of(path) == "rust" and not is_test_path(path)
    return read_test_modules(text) if text and inside else text or ""


async def measure_tests(
    plan: CheckPlan,
    checks: Sequence[CheckResult],
    faults: Sequence[Mutant],
    *,
    tree: Sandbox,
    base: Callable[[], Awaitable[Sandbox]],
    inner: Mapping[str, str],
    seconds: float,
    must_measure: bool,
    most: int = _MOST_FAULTS,
    own: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Finding, ...]:
    """Return what the tests of a tree no longer notice, within `seconds`; also where that could not be measured.

    With `must_measure` a person decides then.

    `checks` are the results on the tree as it is. The sandbox `tree` shows it; `base` opens one with the base's
    tests over it, once there is something to ask of them; `inner` has the base's text of code with such tests.
    `own` names by check the changed tests: a fault that these notice alone needs no run of all tests.
    """
    counted = [check for check in checks if check.tests] or list(checks)
    measured = _Measurement(plan, counted, tree, base, inner, seconds=seconds, own=own or {})
    await measured.begin()
    weakened: list[Mutant] = []
    tried = unbuilt = untold = 0
    for fault in faults:
        if not measured.has_time or len(weakened) == _SHOWN or tried == most:
            break
        answer = await measured.try_one(fault)
        weakened += [fault] if answer == "weaker" else []
        unbuilt += answer == "unbuilt"
        untold += answer == "untold"
        tried += answer in ("weaker", "same")
    if weakened:
        return tuple(_describe_weakening(fault) for fault in weakened)
    if tried >= min(_ENOUGH_FAULTS, len(faults)) and not untold:
        return ()
    message = (
        f"{tried} of {len(faults)} faults could be tried in {seconds:.0f} s"
        f"{' (limits.fault_time)' if must_measure else ''}, as a run takes {measured.usual:.0f} s"
    )
    if unbuilt:
        message = (
            f"with {unbuilt} of {tried + unbuilt} faults that were tried the code could not be built or loaded"
        )
    # A time of a second is how a person says that nothing is to be measured.
    return (_describe_unmeasured(message, asks=must_measure and seconds > _OFF),)


class _Measurement:
    """Tries one fault after the other on two versions of the tests, over one tree, until the time is over."""

    def __init__(
        self,
        plan: CheckPlan,
        counted: Sequence[CheckResult],
        tree: Sandbox,
        base: Callable[[], Awaitable[Sandbox]],
        inner: Mapping[str, str],
        *,
        seconds: float,
        own: Mapping[str, Sequence[str]],
    ) -> None:
        self.usual = sum(check.seconds for check in counted)
        self._ends = time.monotonic() + seconds
        plan = replace(
            plan,
            commands=tuple(check.name for check in counted),
            seconds_each=min(plan.seconds_each, max(_SHORTEST_SECONDS, 4 * self.usual)),
        )
        commands = (select_tests(check.name, own.get(check.name, ())) for check in counted)
        self._own = replace(plan, commands=tuple(command for command in commands if command is not None))
        self._tree = _FaultyTree(plan, self._own, tree, counted)
        self._guard: _FaultyTree | None = None
        self._open_base = base
        self._make_guard = partial(_FaultyTree, plan, self._own, usual=counted, inner=inner)
        self._others_notice = False

    async def begin(self) -> None:
        """Run the changed tests alone without a fault, to see whether they can be."""
        if self._own.commands and self.usual > _SHORTEST_SECONDS:
            await self._tree.try_own()

    @property
    def _seconds_left(self) -> float:
        return self._ends - time.monotonic()

    @property
    def has_time(self) -> bool:
        """Whether another fault can be tried."""
        return self._seconds_left > (0 if self._tree.runs_own else self._seconds_needed)

    @property
    def _seconds_needed(self) -> float:
        # Both versions run on a fault, the base's twice: with less time than that nothing is proved.
        return 3 * self.usual

    async def try_one(self, fault: Mutant) -> str:
        """Run both versions with a fault; return how they differ.

        `weaker` if only the base's notices it, `same` if not, `unbuilt` if no test could be run. Without time for
        a proof it is `skipped` if the changed tests are known to make no difference, else `untold`.
        """
        if await self._tree.own_fail(fault):
            return "same"
        if self._seconds_left < self._seconds_needed:
            return await self._compare_own(fault)
        status = await self._tree.status(fault)
        if status == "passed":
            guard = await self._open_guard()
            # Twice: a test that fails now and then would accuse the wrong one.
            return "weaker" if await guard.fails(fault) and await guard.fails(fault) else "same"
        self._others_notice = self._others_notice or (status == "failed" and self._tree.runs_own)
        return "unbuilt" if status == "unbuilt" else "same"

    async def _compare_own(self, fault: Mutant) -> str:
        """Return what a fault shows that the tree's changed tests do not notice, if the time is short.

        If the base's version of these tests does not notice it either, only the other tests may. That these still
        notice faults at all is shown once, since a changed test can disarm others.
        """
        guard = await self._open_guard()
        if not guard.runs_own or await guard.own_fail(fault):
            return "untold"
        if self._others_notice:
            return "skipped"
        if self._seconds_left >= self.usual and await self._tree.status(fault) == "failed":
            self._others_notice = True
            return "same"
        return "untold"

    async def _open_guard(self) -> _FaultyTree:
        if self._guard is None:
            self._guard = self._make_guard(sandbox=await self._open_base())
            if self._tree.runs_own:
                await self._guard.try_own()
        return self._guard


def fault_seconds(limit: float, *, must_measure: bool, load: float = 1.0) -> float:
    """Return how long faults may be tried: briefly where tests were only added to, as far as their text tells.

    `load` is the number of programs that want to run, per processor. On a busy machine each run takes longer, and
    so may the measurement: without it a person has to decide.
    """
    if not must_measure:
        return min(limit, _BRIEF_SECONDS)
    return limit * min(max(load, 1.0), _MOST_PATIENCE) if limit > _OFF else limit


def describe_no_faults(
    why: str = "the checks opened no code that faults can be put into", *, must_measure: bool
) -> tuple[Finding, ...]:
    """Return that changed tests could not be measured, and why; nothing if they need not be."""
    return (_describe_unmeasured(why, asks=True),) if must_measure else ()


def find_changed_examples(
    changes: Iterable[Change], reader: TreeReader, base_tree: str, commands: Sequence[str], ran: Iterable[str]
) -> tuple[Finding, ...]:
    """Return that examples in documentation which the checks run as tests are not what they were.

    `ran` are the names of tests that ran on the base.
    """
    paths = changed_examples(changes, reader, base_tree, commands, ran)
    if not paths:
        return ()
    names = ", ".join(map(shown_path, paths[:_SHOWN])) + (" …" if len(paths) > _SHOWN else "")
    return (_describe_unmeasured(f"examples in documentation that the checks run, in {names}", asks=True),)


def _describe_unmeasured(why: str, *, asks: bool) -> Finding:
    return Finding(
        rule="tests_unmeasured",
        severity="warning" if asks else "info",
        path=".",
        message=f"whether changed tests still notice faults was not measured: {why}",
        needs_person=asks,
    )


class _FaultyTree:
    """A sandbox in which one fault at a time is put into the code; the plan `own` runs changed tests alone."""

    def __init__(
        self,
        plan: CheckPlan,
        own: CheckPlan,
        sandbox: Sandbox,
        usual: Sequence[CheckResult],
        inner: Mapping[str, str] | None = None,
    ) -> None:
        self._plan = plan
        self._own = own
        self.runs_own = False
        self._sandbox = sandbox
        self._counted = {check.name for check in usual if check.tests}
        self._inner = inner or {}
        self._written = int(time.time())

    async def status(self, fault: Mutant) -> str:
        """Return how the checks end with this fault.

        `passed`, `failed`, `unbuilt` where no test failed as none could be run, or `unclear` (such as a timeout).
        """
        results = await self._run(fault)
        statuses = {result.status for result in results} - {"passed"}
        if statuses != {"failed"}:
            return "unclear" if statuses else "passed"
        unbuilt = all(
            result.name in self._counted and (result.reason == "collection_error" or not result.tests)
            for result in results
            if result.status != "passed"
        )
        return "unbuilt" if unbuilt else "failed"

    async def fails(self, fault: Mutant) -> bool:
        """Tell whether checks fail with this fault, in whatever way."""
        return {result.status for result in await self._run(fault)} - {"passed"} == {"failed"}

    async def try_own(self) -> None:
        """Use the changed tests alone if they pass alone without a fault."""
        results = await run_checks(self._own, self._sandbox, keep=_Nowhere(), mission=None)
        self.runs_own = all(result.status == "passed" and result.tests for result in results)

    async def own_fail(self, fault: Mutant) -> bool:
        """Return whether a changed test, run without the others, fails with this fault."""
        return self.runs_own and any(
            result.status == "failed" and result.tests and result.reason != "collection_error"
            for result in await self._run(fault, self._own)
        )

    async def _run(self, fault: Mutant, plan: CheckPlan | None = None) -> tuple[CheckResult, ...]:
        outputs = dict[str, CheckOutput]()
        await self._write(fault.path, fault.content)
        results = await run_checks(
            plan or self._plan,
            self._sandbox,
            keep=_Nowhere(),
            mission=None,
            on_result=lambda result, output: outputs.update({result.name: output}),
        )
        await self._write(fault.path, fault.original)
        # A gate over all tests, such as one of coverage, notices no fault: over new code the base's tests fail it.
        return tuple(
            replace(result, status="passed")
            if (failures := outputs[result.name].failures) is not None and failed_without_a_test(result, failures)
            else result
            for result in results
        )

    async def _write(self, path: str, content: str) -> None:
        if path in self._inner:  # whose tests would go with the code
            content = lay_tests_over(self._inner[path], content)
        # Two seconds later each time: Python's cache knows a file by size and second, make builds what is newer.
        self._written += 2
        await self._sandbox.exec(
            ["sh", "-c", _WRITE_FILE, "sh", path, str(self._written)],
            cwd=WORKSPACE,
            stdin=content.encode("utf-8", "surrogateescape"),
        )


class _Nowhere:
    """Keeps no output: nobody needs what is printed on a fault."""

    def put(self, content: bytes, *, kind: str, mission: str | None = None) -> str:
        """Return no id."""
        return ""


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
