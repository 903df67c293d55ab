"""Snippets at their limits: each ends with a typed error, and the next one is unaffected."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.isolate_kit import Place

from chargehand.core.errors import UsageError
from chargehand.sandbox.snippets import SnippetSpec

pytestmark = [
    pytest.mark.needs_bwrap,
    pytest.mark.skipif(shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"),
]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


FITS = {
    "python": ["len('x' * (14 << 20))", "len(bytes(14 << 20))", "len([0] * (14 << 17))"],
    "javascript": [
        "'x'.repeat(14 << 20).length",
        "new ArrayBuffer(14 << 20).byteLength",
        "new Float64Array(14 << 17).length",
    ],
}
TOO_LARGE = {
    "python": [
        "'x' * (17 << 20)",
        "bytes(17 << 20)",
        "bytearray(17 << 20)",
        "[0] * (17 << 17)",
        "x = []\nwhile True:\n    x.append(object())",
        "x = {}\nfor i in range(10**9): x[i] = str(i)",
        "import array\narray.array('d', bytes(17 << 20))",
        "import mmap\nmmap.mmap(-1, 17 << 20)",
        "x = 1 << (17 << 23)",
        "x = 'ab'\nwhile True: x += x",
        "import re\nre.compile('a' * (9 << 20))",
    ],
    "javascript": [
        "'x'.repeat(17 << 20)",
        "new ArrayBuffer(17 << 20)",
        "new SharedArrayBuffer(17 << 20)",
        "new Uint8Array(17 << 20)",
        "new Float64Array(17 << 17)",
        "new Array(17 << 17).fill(0).map(x => ({x}))",
        "const a = []; for (;;) a.push({})",
        "(() => { const a = []; for (;;) a.push('x' + a.length) })()",
        "const m = new Map(); for (let i = 0; ; i++) m.set(i, [i])",
        "const p = () => Promise.resolve().then(p); const a = []; for (;;) a.push(p())",
        "const b = []; for (;;) b.push(new ArrayBuffer(1 << 20))",
    ],
}


def each(cases: dict[str, list[str]]) -> Any:
    pairs = [(language, source) for language, sources in cases.items() for source in sources]
    return pytest.mark.parametrize(("language", "source"), pairs)


@each(FITS)
def test_a_snippet_within_16_mib_runs(place: Place, language: str, source: str) -> None:
    assert place.value(language, source) >= 14 << 17


@each(TOO_LARGE)
def test_17_mib_end_typed_as_memory(place: Place, language: str, source: str) -> None:
    result = place.run(language, source, seconds=20.0)
    assert result.error is not None
    assert result.error.kind == "memory"
    assert place.value(language, "1 + 1") == 2


@pytest.mark.parametrize("language", ["python", "javascript"])
def test_a_larger_limit_lets_more_in(place: Place, language: str) -> None:
    source = {"python": "len('x' * (40 << 20))", "javascript": "'x'.repeat(40 << 20).length"}[language]
    assert place.kind(language, source) == "memory"
    assert place.value(language, source, memory_mb=64) == 40 << 20


def test_peak_memory_reports_the_use_of_a_snippet(place: Place) -> None:
    small = place.run("python", "1").peak_memory
    large = place.run("python", "len(bytes(b'x' * (12 << 20)))").peak_memory
    assert small is not None
    assert large is not None
    assert small < 2 << 20 < 11 << 20 < large < 17 << 20


ENDLESS = {
    "python": [
        "while True: pass",
        "import re\nre.match('(a+)+$', 'a' * 50 + 'b')",
        "import time\ntime.sleep(60)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass",
        "9 ** 9 ** 9",
        "class A:\n    def __del__(self):\n        while True: pass\nA()",
    ],
    "javascript": [
        "for (;;);",
        "/(a+)+$/.test('a'.repeat(50) + 'b')",
        "const tick = async () => { for (;;) await null }; tick()",
        "for (;;) { try { for (;;); } catch {} }",
        "[3, 2, 1].sort(() => { for (;;); })",
        "({ get a() { for (;;); } })",
        "({ toJSON() { for (;;); } })",
    ],
}


@each(ENDLESS)
def test_an_endless_loop_ends_typed_as_time(place: Place, language: str, source: str) -> None:
    result = place.run(language, source, seconds=0.3, memory_mb=64)
    assert result.error is not None
    assert result.error.kind == "time"
    assert result.seconds >= 0.3
    assert place.value(language, "1 + 1") == 2


def test_the_limits_are_16_mib_and_5_seconds() -> None:
    spec = SnippetSpec(language="python", source="")
    assert (spec.memory_mb, spec.seconds) == (16, 5.0)


@each(
    {
        "python": ["def f(): return f()\nf()", "x = []\nfor _ in range(10**5): x = [x]\nrepr(x)"],
        "javascript": ["function f() { f() } f()", "const f = () => [f()].length; f()"],
    }
)
def test_endless_recursion_is_an_exception(place: Place, language: str, source: str) -> None:
    assert place.kind(language, source) == "exception"


@each(
    {
        "python": [
            "while True: print('x' * 1000)",
            "while True: print('', end='x' * 100)",
            "import sys\nwhile True: sys.stderr.write('x\\n')",
            "'x' * (2 << 20)",
            "list(range(200_000))",
        ],
        "javascript": [
            "for (;;) console.log('x'.repeat(1000))",
            "for (;;) console.error()",
            "'x'.repeat(2 << 20)",
            "Array.from({length: 400000}, (_, i) => i)",
        ],
    }
)
def test_a_flood_ends_typed_as_output(place: Place, language: str, source: str) -> None:
    result = place.run(language, source, seconds=30.0, memory_mb=64)
    assert result.error is not None
    assert result.error.kind == "output"
    assert sum(len(line.text) for line in result.console) <= 1_000_000


@each(
    {
        "python": ["for i in range(10_000): print(i)"],
        "javascript": ["for (let i = 0; i < 10000; i++) console.log(i)"],
    }
)
def test_ten_thousand_lines_come_in_order(place: Place, language: str, source: str) -> None:
    result = place.run(language, source, seconds=30.0)
    assert result.error is None
    assert [line.text for line in result.console] == [str(number) for number in range(10_000)]


@each(
    {
        "python": [
            "float('nan')",
            "[1, float('inf')]",
            "{float('nan'): 1}",
            "a = []\na.append(a)\na",
            "object()",
            "{1, 2}",
            "b'x'",
            "{(1, 2): 3}",
            "1j",
            "10 ** 5000",
            "'\\ud800'",
            "x = []\nfor _ in range(10**5): x = [x]\nx",
        ],
        "javascript": [
            "NaN",
            "[Infinity]",
            "({a: -Infinity})",
            "const a = {}; a.a = a; a",
            "() => 1",
            "Symbol('x')",
            "1n",
            "[undefined]",
            "new Map([[1, 2]])",
            "new Uint8Array(3)",
            "'\\ud800'",
            "let x = []; for (let i = 0; i < 1000; i++) x = [x]; ({x, y: x, z() {}})",
            "({ toJSON() { throw new Error('no') } })",
        ],
    }
)
def test_a_value_without_json_form_is_an_error(place: Place, language: str, source: str) -> None:
    assert place.kind(language, source) == "not_json"


@each({"python": ["x = 1", "None", "", "print()"], "javascript": ["undefined", "null", "", "let x"]})
def test_no_value_is_null(place: Place, language: str, source: str) -> None:
    assert place.value(language, source) is None


@pytest.mark.parametrize(
    "fault",
    [
        {"memory_mb": 0},
        {"memory_mb": 1 << 20},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"output_limit": -1},
        {"source": "\0"},
        {"source": "'\ud800'"},
        {"source": "x" * (2 << 20)},
        {"language": "ruby"},
    ],
)
def test_a_spec_that_cannot_be_run_is_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SnippetSpec(**{"language": "python", "source": "1", **fault})


@pytest.mark.parametrize("given", [float("nan"), object(), {"a": {1}}])
@pytest.mark.parametrize("language", ["python", "javascript"])
def test_an_input_that_is_not_json_is_refused(place: Place, language: str, given: object) -> None:
    with pytest.raises(UsageError):
        place.run(language, "1", input=given)
