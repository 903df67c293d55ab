"""Hostile snippets: nothing gets through, and the next snippet finds no trace of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from tests.isolate_kit import Place

pytestmark = [
    pytest.mark.needs_bwrap,
    pytest.mark.skipif(shutil.which("bwrap") is None and not os.environ.get("CI"), reason="needs bubblewrap"),
]

TRIED = """
import errno
def tried(what, *arguments):
    try:
        return 'done: ' + repr(what(*arguments))
    except BaseException as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


WRITES = [
    "open, '/tmp/x', 'w'",
    "open, '/workspace/x', 'w'",
    "open, '/home/agent/x', 'a'",
    "open, '/dev/shm/x', 'x'",
    "open, '/dev/null', 'w'",
    "os.open, '/tmp', os.O_TMPFILE | os.O_RDWR",
    "os.mkdir, '/tmp/x'",
    "os.mkfifo, '/tmp/x'",
    "os.symlink, 'a', '/tmp/x'",
    "os.link, '/etc/passwd', '/tmp/x'",
    "os.rename, '/tmp', '/tmp2'",
    "os.chmod, '/tmp', 0",
    "os.utime, '/tmp'",
    "os.setxattr, '/tmp', 'user.x', b'1'",
    "os.memfd_create, 'x'",
    "os.truncate, '/etc/passwd', 0",
    "os.chdir, '/tmp'",
]
PROCESSES = [
    "os.fork,",
    "os.execv, '/bin/true', ['true']",
    "os.posix_spawn, '/bin/true', ['true'], {}",
    "__import__('subprocess').run, ['true']",
    "__import__('threading').Thread(target=print).start,",
    "os.kill, 1, 9",
    "os.kill, -1, 9",
    "os.setsid,",
    "os.setuid, 0",
    "os.nice, 1",
]
NETWORK = [
    "__import__('socket').socket,",
    "__import__('socket').create_connection, ('127.0.0.1', 80)",
    "__import__('socket').getaddrinfo, 'example.org', 80",
    "__import__('urllib.request').request.urlopen, 'http://127.0.0.1'",
]
READS = [
    "open, '/proc/1/environ'",
    "open, '/proc/1/mem', 'rb'",
    "os.readlink, '/proc/1/root'",
    "os.listdir, '/proc/1/fd'",
    "open, '/proc/self/mem', 'r+b'",
    "open, '/etc/shadow'",
    "os.listdir, '/root'",
    "os.stat, '/run/chargehand/gateway.sock'",
    "__import__, 'pygit2'",
    "__import__, 'chargehand'",
]


@pytest.mark.parametrize(
    "calls", [WRITES, PROCESSES, NETWORK, READS], ids=["writes", "processes", "network", "reads"]
)
def test_python_snippets_have_no_access_to_the_host(place: Place, calls: list[str]) -> None:
    lines = [f"{call!r}: tried({call})," for call in calls]
    seen = place.value("python", TRIED + "import os\n{" + "\n".join(lines) + "}", seconds=30.0, memory_mb=64)
    allowed = [
        "PermissionError",
        "OSError",
        "RuntimeError",
        "gaierror",
        "URLError",
        "FileNotFoundError",
        "BlockingIOError",
        "ModuleNotFoundError",
        "AttributeError",
        "TypeError",
    ]
    assert {call: end for call, end in seen.items() if end not in allowed} == {}


def test_the_attempts_would_work_without_the_filter(place: Place) -> None:
    seen = place.value("python", TRIED + "import os\n[tried(os.getpid), tried(open, '/etc/passwd')]")
    assert all(end.startswith("done: ") for end in seen)


def test_the_workspace_home_and_environment_are_empty(place: Place) -> None:
    found = "import os\n[sorted(os.environ), [os.listdir(p) for p in ('/workspace', '/home/agent', '/tmp')]]"
    names, listings = place.value("python", found)
    assert listings == [[], [], []]
    assert set(names) <= {
        *("HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONDONTWRITEBYTECODE"),
        *("PYTHONHASHSEED", "TMPDIR", "USER", "CARGO_HOME", "GOPATH", "GOTOOLCHAIN"),
    }


def test_a_limit_cannot_be_taken_back(place: Place) -> None:
    source = (
        TRIED
        + """
import resource
ends = [tried(resource.setrlimit, getattr(resource, f'RLIMIT_{name}'), (1 << 40, 1 << 40))
        for name in ('AS', 'NPROC', 'FSIZE', 'NOFILE')]
ends, len(bytes(15 << 20)) if False else None
"""
    )
    ends, _ = place.value("python", source)
    assert all(not end.startswith("done") for end in ends)


def test_raw_system_calls_meet_the_filter(place: Place) -> None:
    source = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
[libc.fork(), libc.socket(1, 1, 0), libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600),
 libc.mkdir(b'/tmp/x', 511),
 libc.prctl(22, 2, 0, 0, 0), libc.ptrace(0, 0, 0, 0), libc.kill(1, 9), libc.mq_open(b'/x', 0o102, 0o600, 0)]
"""
    assert place.value("python", source, memory_mb=64) == [-1] * 9


def test_an_interpreter_crash_ends_only_its_snippet(place: Place) -> None:
    result = place.run("python", "import ctypes\nprint('before')\nctypes.string_at(0)")
    assert result.error is not None
    assert (result.error.kind, result.console[0].text) == ("ended", "before")
    assert "signal 11" in result.error.message
    assert place.kind("python", "import os\nos._exit(0)") == "ended"
    assert place.value("python", "1 + 1") == 2


FORGED = [
    b"R\n",
    b"R\nR\nV1\nV2\n",
    b"V[1,\n",
    b"V" + b"[" * 100_000 + b"\n",
    b"VNaN\n",
    b"V" + b"9" * 10_000 + b"\n",
    b"L\n",
    b'Llog 1\nLroot "x"\nLlog "\xff"\nLlog "\\ud800"\n',
    b"F[]\n",
    b'F["time","x","y",1]\n',
    b'F["exception",1,2,3]\n',
    b'F["exception","a","b",null]\n',
    b"P-1\nP99999999999999999999\nPx\n",
    b"\xff\x00\n\n\n",
    b"X" * 10_000,
]


@pytest.mark.parametrize("lines", FORGED, ids=range(len(FORGED)))
def test_a_forged_report_affects_only_its_snippet(place: Place, lines: bytes) -> None:
    source = (
        f"import os\nfor fd in range(3, 9):\n  try: os.write(fd, {lines!r})\n  except OSError: pass\nos._exit(0)"
    )
    result = place.run("python", source)
    assert result.error is None or result.error.kind in ("ended", "not_json", "exception")
    assert place.value("javascript", "1 + 1") == 2


def test_javascript_has_no_host_interfaces(place: Place) -> None:
    names = (
        "process require module std os bjson scriptArgs print finish given fetch Deno Bun load WebAssembly Worker"
    )
    found = place.value("javascript", f"'{names}'.split(' ').filter(n => typeof globalThis[n] !== 'undefined')")
    assert found == []
    for source in ("import('os')", "import('/etc/passwd')", "process.binding('fs')", "await import('std')"):
        assert place.kind("javascript", source) == "exception"
    reached = (
        "(function () {}).constructor('return Object.getOwnPropertyNames(this)')().filter(n => /^[a-z]/.test(n))"
    )
    assert "print" not in place.value("javascript", reached)


def test_javascript_with_modified_builtins_ends_with_a_typed_error(place: Place) -> None:
    for source in (
        "JSON.stringify = () => 'x'; ({a: 1})",
        "Object.prototype.toJSON = () => 7; ({a: 1})",
        "Array.isArray = () => { throw 1 }; [1]",
        "Promise.prototype.then = () => {}; await 1; return 2",
        "String.prototype.toWellFormed = () => 1; console.log('x'); throw new Error('y')",
        "globalThis.console = null; 1",
        "throw { get message() { throw 1 } }",
        "throw new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 } })",
        "const e = new Error('x'); Object.defineProperty(e, 'stack', { get() { throw 1 } }); throw e",
    ):
        kind = place.kind("javascript", source)
        assert kind in (None, "exception", "not_json"), source


def test_a_snippet_finds_no_trace_of_another(place: Place) -> None:
    for language, leave, look in (
        ("python", "import sys, builtins\nsys.secret = builtins.secret = 1", "import sys\nhasattr(sys, 'secret')"),
        ("javascript", "globalThis.secret = Array.prototype.secret = 1", "typeof secret !== 'undefined'"),
    ):
        assert place.kind(language, leave) is None
        assert [place.value(language, look) for _ in range(3)] == [False] * 3
    pids = "import os\n[p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))]"
    assert place.value("python", pids) == []
