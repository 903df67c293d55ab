"""The pool of snippets: values, lines, line numbers; many at once, cancelled, killed; and no leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.contract._places import descendants, our_cgroups, our_mounts

from chargehand.core.errors import InfrastructureError, TierUnavailableError
from chargehand.sandbox.inside import snippet as _isolate_child
from chargehand.sandbox.snippet_pool import SnippetPool, probe_snippets, run_snippet
from chargehand.sandbox.snippets import ConsoleLine, SnippetEngineError, SnippetSpec, language_of
from chargehand.testing.sandbox.kit import until

pytestmark = [
    pytest.mark.needs_bwrap,
    pytest.mark.skipif(shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"),
]
ADD: dict[Any, str] = {"python": "input['a'] + input['b']", "javascript": "input.a + input.b"}


def spec(language: Any, source: str, **more: Any) -> SnippetSpec:
    return SnippetSpec(language=language, source=source, **more)


def kill(pids: Iterable[int]) -> None:
    """Kill processes; one of them may end together with another."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_snippet_gets_its_input_and_returns_a_value(language: str) -> None:
    result = await run_snippet(spec(language, ADD[language], input={"a": [1], "b": [2.5, None, "é\u2028"]}))
    assert result.error is None
    expected = {"python": [1, 2.5, None, "é\u2028"], "javascript": "12.5,,é\u2028"}
    assert result.value == expected[language]


async def test_values_lines_and_line_numbers() -> None:
    async with SnippetPool(size=1) as pool:
        said = await pool.run(
            spec(
                "python", "import sys\nprint('a', 1)\nprint('b\\nc', file=sys.stderr, end='')\nprint('d', end='')"
            )
        )
        assert [(line.level, line.text) for line in said.console] == [
            ("log", "a 1"),
            ("error", "b"),
            ("log", "d"),
            ("error", "c"),
        ]
        said = await pool.run(
            spec("javascript", "console.info('a', {b: [1n]}); console.warn(null, new Error('x'))")
        )
        assert said.console[0] == ConsoleLine(level="info", text='a {"b":["1n"]}')
        assert said.console[1].level == "warn"
        for language, source, name, line in (
            ("python", "def f():\n    1 / 0\n\nf()", "ZeroDivisionError", 2),
            ("python", "x = 1\nx ===", "SyntaxError", 2),
            ("python", "import json\njson.loads('{')", "JSONDecodeError", 2),
            ("python", "raise SystemExit(3)", "SystemExit", 1),
            ("javascript", "\n\nnull.x", "TypeError", 3),
            ("javascript", "let x = 1\nx ===", "SyntaxError", 2),
            ("javascript", "\nawait 1\nnope", "ReferenceError", 3),
            ("javascript", "\nasync function f() { await 1; throw new RangeError('r') }\nf()", "RangeError", 2),
            ("javascript", "new Promise(() => {})", "PromiseNeverSettled", None),
        ):
            error = (await pool.run(spec(language, source))).error
            assert error is not None
            assert (error.kind, error.name, error.line) == ("exception", name, line), source


@pytest.mark.parametrize(
    ("language", "source", "value"),
    [
        ("python", "class A:\n    @property\n    def b(self): return 7\nclass C(A): pass\nC().b", 7),
        ("python", "def g():\n    yield 1\nresult = list(g())", [1]),
        (
            "python",
            "import json, math, re, datetime, collections, statistics, decimal, hashlib\nmath.floor(2.5)",
            2,
        ),
        (
            "python",
            "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nasyncio.run(f())",
            3,
        ),
        ("python", "result = 1\n2", 2),
        ("python", "__name__", "__main__"),
        ("javascript", "class A { #x = 1; get x() { return this.#x } } new A().x", 1),
        ("javascript", "return await (async () => 5)()", 5),
        ("javascript", "const f = () => { return 4 }; f()", 4),
        ("javascript", "Object.groupBy([1, 2, 3], x => x % 2 ? 'odd' : 'even')", {"odd": [1, 3], "even": [2]}),
        ("javascript", "new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("javascript", "({a: undefined, b: 1})", {"b": 1}),
    ],
)
async def test_real_snippets_run(language: str, source: str, value: object) -> None:
    result = await run_snippet(spec(language, source))
    assert (result.value, result.error) == (value, None)


async def test_no_part_of_a_snippet_runs_before_its_limits_hold() -> None:
    result = await run_snippet(spec("javascript", '} for (;;); if (false) { "await"', seconds=5))
    assert result.error is not None
    assert (result.error.kind, result.error.name) == ("exception", "SyntaxError")


async def test_concurrent_snippets_get_their_respective_results() -> None:
    async with SnippetPool(size=3) as pool:
        wanted = [("python" if number % 2 else "javascript", number) for number in range(24)]
        results = await asyncio.gather(*(pool.run(spec(name, "input * 2", input=each)) for name, each in wanted))
    assert [result.value for result in results] == [each * 2 for _, each in wanted]


async def test_cancelling_kills_the_snippet_and_leaves_the_pool_fit() -> None:
    async with SnippetPool(size=1) as pool:
        await pool.run(spec("python", "1"))
        before = set(descendants(os.getpid()))
        task = asyncio.create_task(pool.run(spec("python", "while True: pass", seconds=60.0)))
        waiting = asyncio.create_task(pool.run(spec("python", "2")))
        while not set(descendants(os.getpid())) - before:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await waiting).value == 2
        await until(lambda: set(descendants(os.getpid())) <= before)


async def test_a_snippet_is_retried_if_its_sandbox_dies() -> None:
    async with SnippetPool(size=1) as pool:
        await pool.run(spec("python", "1"))
        sandboxes = {pid for pid, command in descendants(os.getpid()).items() if "bwrap" in command}
        assert sandboxes
        task = asyncio.create_task(pool.run(spec("python", "import time\ntime.sleep(0.5)\n7", seconds=20.0)))
        await asyncio.sleep(0.2)
        kill(sandboxes)
        assert (await task).value == 7


async def test_a_killed_launcher_is_replaced() -> None:
    async with SnippetPool(size=2) as pool:
        await asyncio.gather(*(pool.run(spec("javascript", "1")) for _ in range(2)))
        launchers = [pid for pid, command in descendants(os.getpid()).items() if "_launcher.py" in command]
        kill(launchers)
        results = await asyncio.gather(*(pool.run(spec("python", "1 + 1")) for _ in range(3)))
        assert [result.value for result in results] == [2, 2, 2]


async def test_sandboxes_that_die_again_and_again_are_no_end_of_the_snippet() -> None:
    async with SnippetPool(size=1) as pool:
        task = asyncio.create_task(pool.run(spec("python", "import time\ntime.sleep(30)", seconds=40.0)))
        while not task.done():
            bwrap, inner = shutil.which("bwrap") or "bwrap", _isolate_child.BOOTSTRAP[:20]
            ours = descendants(os.getpid())
            kill(pid for pid, command in ours.items() if inner in command and "bwrap" in command)
            kill(pid for pid, command in descendants(os.getpid()).items() if command.startswith(bwrap))
            await asyncio.sleep(0.05)
        with pytest.raises((InfrastructureError, TierUnavailableError)):
            await task


async def test_an_engine_that_does_not_start_is_no_end_of_the_snippet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "_quickjs.abi3.so"
    broken.write_bytes(b"no library")
    broken.chmod(0o644)
    monkeypatch.syspath_prepend(tmp_path)
    async with SnippetPool(size=1) as pool:
        with pytest.raises(SnippetEngineError, match="did not start") as caught:
            await pool.run(spec("javascript", "1"))
        assert caught.value.code == "snippet_engine"
        assert (await pool.run(spec("python", "1"))).value == 1


async def test_a_missing_engine_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_quickjs", None)  # as if it were not installed
    python, javascript = await probe_snippets()
    assert (python.ok, javascript.ok) == (True, False)
    assert "quickjs-ng" in javascript.mend


async def test_the_engine_is_never_loaded_here() -> None:
    import sys

    assert (await run_snippet(spec("javascript", "1"))).value == 1
    assert not [name for name in sys.modules if "quickjs" in name]


async def test_a_closed_pool_says_so() -> None:
    pool = SnippetPool(size=1)
    async with pool:
        await pool.run(spec("python", "1"))
    await pool.close()
    with pytest.raises(InfrastructureError, match="closed"):
        await pool.run(spec("python", "1"))


async def test_closing_a_pool_while_a_sandbox_opens_raises() -> None:
    async with SnippetPool(size=1) as pool:
        running = asyncio.create_task(pool.run(spec("python", "1")))
        await asyncio.sleep(0)  # it has started
        await pool.close()
        with pytest.raises(InfrastructureError, match="closed"):
            await running


async def test_an_open_pool_has_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with SnippetPool(size=1) as pool:
        assert (await pool.run(spec("python", "1"))).value == 1
        assert list(tmp_path.iterdir()) == []
        assert (await pool.run(spec("python", "2"))).value == 2


async def run_flat(count: int, temporary: Path) -> None:
    """Run snippets with every kind of end; compare memory, processes, mounts, groups and files."""
    ends = [
        spec("python", "sum(range(1000))"),
        spec("javascript", "[1, 2].map(x => x + 1)"),
        spec("python", "1 / 0"),
        spec("javascript", "new ArrayBuffer(17 << 20)"),
        spec("python", "'x' * (17 << 20)"),
        spec("javascript", "for (;;);", seconds=0.02),
        spec("python", "import os\nos._exit(1)"),
        spec("javascript", "for (let i = 0; i < 100; i++) console.log(i)"),
    ]
    mounts, others = our_mounts(), set(descendants(os.getpid()))
    open_before = len(os.listdir("/proc/self/fd"))
    async with SnippetPool(size=2) as pool:
        for wanted in ends * 2:
            await pool.run(wanted)
        running = set(descendants(os.getpid())) - others
        held = {pid: resident(pid) for pid in (os.getpid(), *running)}
        started = time.monotonic()
        for number in range(count):
            await pool.run(ends[number % len(ends)])
        print(f"{count} snippets in {time.monotonic() - started:.1f} s")
        await until(lambda: set(descendants(os.getpid())) - others == running)
        for pid, size in held.items():
            print(pid, size >> 10, resident(pid) >> 10)
            assert resident(pid) - size < 2 << 20
    await until(lambda: not set(descendants(os.getpid())) & running)
    await until(lambda: our_mounts() == mounts)
    assert not [group for group in our_cgroups() if group.name.startswith(f"chargehand-{os.getpid()}-")]
    assert list(temporary.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1


async def test_100_snippets_leak_neither_files_nor_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await run_flat(100, tmp_path)


@pytest.mark.soak
async def test_1000_snippets_leak_neither_files_nor_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await run_flat(1000, tmp_path)


def test_the_suffix_decides_the_language() -> None:
    assert [language_of(name) for name in ("a.py", "/b/c.js", "d.mjs")] == ["python", "javascript", "javascript"]
    with pytest.raises(ValueError, match="does not show"):
        language_of("-")


async def test_directories_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {"old": dead.pid, "young": dead.pid, "alive": os.getpid()}
    left = {which: tmp_path / f"chargehand-snippets-{pid}-{which}" for which, pid in names.items()}
    for which, place in left.items():
        place.mkdir(mode=0o555)
        if which != "young":
            os.utime(place, (1, 1))
    async with SnippetPool(size=1) as pool:
        assert (await pool.probe("python")).ok
    assert sorted(tmp_path.iterdir()) == sorted([left["young"], left["alive"]])
