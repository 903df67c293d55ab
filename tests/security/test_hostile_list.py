"""The hostile list, tried for real in every tier; first outside a tier, where the same programs succeed.

Listeners are on this machine's loopback; nothing else is ever contacted.
"""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_list import ATTEMPTS, TREES, Attempt, Planted, table
from tests.jail_kit import PRELUDE, TIERS, Jail, jailed, leaky, refused

from chargehand.core.errors import SandboxDiedError
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.testing.workspace.harness import DriverHarness
from chargehand.workspace.scan import WorkspaceLimits
from chargehand.workspace.workspace import Workspace

ROOT = Path(__file__).parents[2]
TRIED = [attempt for attempt in ATTEMPTS if attempt.program]
OUTSIDE = [attempt for attempt in TRIED if attempt.outside]
LIMITS = WorkspaceLimits(files=100, file_bytes=1 << 20)
NAMESPACES = ("unshare", "-Urmpinu", "--fork", "--mount-proc")
_VICTIM = """
import ctypes, sys
libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(b"original")
libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # whoever likes may trace it, where Yama would say no
print(ctypes.addressof(buffer), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The targets: names for the programs, some of which differ between inside and outside."""

    names: dict[str, Any]
    victim: int

    def outside(self, place: Path) -> str:
        scratch = [place / name for name in ("one", "two")]
        for path in scratch:
            path.mkdir()
        more = {"VICTIM": self.victim, "COVERS": ["/proc"], "SCRATCH": [str(path) for path in scratch]}
        return _assigned(self.names | more | {"LINKED": [self.names["SECRET"]]})

    def inside(self) -> str:
        covers = ["/proc/keys", "/proc/interrupts", "/workspace", "/usr", "/proc"]
        linked = [self.names["SECRET"], "/etc/passwd", "/usr/bin/env"]
        scratch = ["/tmp", "/dev/shm", "/home/agent"]
        return _assigned(self.names | {"VICTIM": 1, "COVERS": covers, "LINKED": linked, "SCRATCH": scratch})


def _assigned(names: dict[str, Any]) -> str:
    return "".join(f"{name} = {value!r}\n" for name, value in names.items())


@contextmanager
def _answering(sock: socket.socket) -> Iterator[None]:
    """Answer datagrams until the socket is closed by a last one."""

    def serve() -> None:
        while (said := sock.recvfrom(100))[0] != b"end":
            sock.sendto(b"answer", said[1])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        with socket.socket(type=socket.SOCK_DGRAM) as line:
            line.sendto(b"end", sock.getsockname())
        thread.join()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    place = tmp_path_factory.mktemp("ground")
    mark = f"hostile-{os.getpid()}"
    (place / "secret").write_text("secret")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home(), prefix=".hostile-")))
        (home / "secret").write_text("secret")
        path = str(home / "s")  # a socket's path has a limit
        sockets = {"TCP": ("127.0.0.1", 0), "ABSTRACT": f"\0{mark}", "PATH": path}
        names: dict[str, Any] = {
            "MARK": mark,
            "SECRET": str(place / "secret"),
            "HOME_SECRET": str(home / "secret"),
        }
        for name, address in sockets.items():
            kind = socket.AF_INET if name == "TCP" else socket.AF_UNIX
            listener = stack.enter_context(socket.socket(kind))
            listener.bind(address)
            listener.listen(64)
            names[name] = listener.getsockname()[1] if name == "TCP" else address
        asked = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        asked.bind(("127.0.0.1", 0))
        names["UDP"] = asked.getsockname()[1]
        stack.enter_context(_answering(asked))
        stack.enter_context(leaky())
        argv = [sys.executable, "-I", "-c", _VICTIM, mark]
        victim = stack.enter_context(
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert victim.stdout is not None
        names["ADDRESS"] = int(victim.stdout.readline())
        yield Ground(names=names, victim=victim.pid)
        victim.communicate()


@pytest.fixture(scope="module", params=TIERS)
def jail(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jailed(tmp_path_factory.mktemp("jail"), request.param) as jail:
        yield jail


@pytest.mark.parametrize("attempt", OUTSIDE, ids=lambda attempt: attempt.name)
def test_each_attempt_succeeds_outside_a_sandbox(attempt: Attempt, ground: Ground, tmp_path: Path) -> None:
    """The control for the refusals inside; runs as this user, in new namespaces, or as root."""
    if attempt.outside == "root" and os.geteuid() != 0:
        pytest.skip("outside only root can do it")
    before = list(NAMESPACES) if attempt.outside == "namespaces" else []
    program = PRELUDE + ground.outside(tmp_path) + attempt.program
    argv = [*before, sys.executable, "-I", "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, close_fds=False)
    if before and "unshare" in done.stderr and not os.environ.get("CI"):
        pytest.skip(f"no namespaces for this user: {done.stderr}")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    lacking = {what: how for what, how in seen.items() if how in attempt.lacking}
    refused({what: how for what, how in seen.items() if what not in lacking} or {"": "done"}, "done")
    if lacking:
        pytest.skip(f"this machine refuses it to everybody: {lacking}")


@pytest.mark.parametrize("attempt", TRIED, ids=lambda attempt: attempt.name)
def test_each_attempt_is_refused_inside_a_sandbox(attempt: Attempt, ground: Ground, jail: Jail) -> None:
    program = ground.inside() + attempt.program
    if not attempt.limits:
        refused(jail.asks(program), *attempt.refusals)
        return
    sandbox = jail.open(f"limited-{TRIED.index(attempt)}", **dict(attempt.limits))
    try:
        seen = jail.asks(program, sandbox)
    except SandboxDiedError:
        seen = {"sandbox": "ended"}  # a typed error, and the host is unharmed
    finally:
        jail.wait(sandbox.close())
    refused(seen, *attempt.refusals)


@pytest.fixture(scope="module")
def harness(jail: Jail, tmp_path_factory: pytest.TempPathFactory) -> DriverHarness:
    place = tmp_path_factory.mktemp("harness")
    return DriverHarness(place, driver="overlay", run=lambda workspace, script: run(jail, workspace, script))


class ScriptFailedError(Exception):
    """The error output of a script that failed."""


def run(jail: Jail, workspace: Workspace, script: str) -> str:
    """Run a script over a workspace in a fresh sandbox."""
    limits = SandboxLimits(memory_mb=512, tmp_mb=16)
    sandbox = jail.wait(jail.tier.open(SandboxSpec(mounts=workspace.mount_plan(), limits=limits)))
    try:
        done = jail.wait(sandbox.exec(["sh", "-ec", script]))
    finally:
        jail.wait(sandbox.close())
    if done.exit_code != 0:
        raise ScriptFailedError(done.stderr.decode(errors="surrogateescape"))
    return str(done.stdout.decode(errors="surrogateescape"))


@pytest.mark.parametrize("planted", TREES, ids=lambda planted: planted.name)
def test_planted_tree_entries_are_found(planted: Planted, harness: DriverHarness, jail: Jail) -> None:
    workspace = harness.workspace(limits=LIMITS)
    if jail.kind in planted.impossible:
        with pytest.raises(ScriptFailedError, match=planted.impossible[jail.kind]):
            harness.run(workspace, planted.script)
        assert workspace.scan().changes == ()
        workspace.discard()
        return
    harness.run(workspace, planted.script)
    scan = workspace.scan()
    found = {finding.path: finding for finding in scan.findings}
    changed = {change.path for change in scan.changes}
    for path, rule in planted.found:
        if rule is None:
            assert path not in found
            assert path not in changed
        else:
            assert (found[path].rule, found[path].severity) == (rule, "critical")
    workspace.discard()


def test_a_harmless_tree_has_no_critical_findings(harness: DriverHarness) -> None:
    workspace = harness.workspace(limits=LIMITS)
    harness.run(workspace, "echo more >> README.md; mkdir new; ln -s ../README.md new/link; echo x > new/'ü b'")
    assert [finding for finding in workspace.scan().findings if finding.severity == "critical"] == []
    workspace.discard()


def test_the_threat_model_lists_each_attempt() -> None:
    """`python -m tests.hostile_list` makes the table."""
    assert table() in (ROOT / "docs/threat-model.md").read_text()


def test_every_line_is_tried_by_a_test_that_exists() -> None:
    names = [one.name for one in (*ATTEMPTS, *TREES)]
    assert len(set(names)) == len(names)
    for attempt in ATTEMPTS:
        assert attempt.program or attempt.closer, attempt.name
        file, _, test = attempt.closer.partition("::")
        if file:
            tree = ast.walk(ast.parse((ROOT / file).read_text()))
            functions = {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in functions if test else [name for name in functions if name.startswith("test_")]
