"""One open tier to attack, the same for every escape test, and the list of tiers to test."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from chargehand.core.ports import MountPlan, sandbox_ids
from chargehand.sandbox.container_tier import ContainerTier
from chargehand.sandbox.contract import ExecResult, Sandbox, SandboxLimits, SandboxSpec
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain
from chargehand.sandbox.vm_tier import VmTier
from tests import container_kit, vm_kit
from tests.toolchain_kit import host_toolchain

TIERS = (
    pytest.param("process", marks=pytest.mark.needs_bwrap),
    pytest.param("container", marks=pytest.mark.needs_container),
    pytest.param("vm", marks=[pytest.mark.needs_vm, pytest.mark.soak]),
)
"""Every tier that is attacked and compared: an entry added here goes through all of these tests."""

PRELUDE = """
import ctypes, errno, json, os, socket, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return "done" if result >= 0 else errno.errorcode[ctypes.get_errno()]
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def write(path, text="1"):
    with open(path, "w") as file:
        file.write(text)
def tell(value):
    print(json.dumps(value))
"""


def tier_of(kind: str, toolchain: Toolchain, **options: Any) -> Any:
    """Return a tier by its name, not yet entered; `options` are those of its class."""
    if kind == "process":
        return ProcessTier(toolchain, **options)
    if kind == "vm":
        return VmTier(toolchain, vm_kit.machine(), **options)
    engine = container_kit.engine("podman")
    return ContainerTier(toolchain, engine=engine, environ=container_kit.environment(), **options)


class Jail:
    """One tier, with sandboxes over a small base; every test blocks on its answers."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root = root
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.base = root / "base"
        (self.base / "kept").mkdir(parents=True)
        (self.base / "kept/file").write_text("from base\n")
        (self.base / "top").write_text("top of base\n")
        for path in (root, self.base, *self.base.rglob("*")):
            os.chown(path, *sandbox_ids())
        self.toolchain = host_toolchain()
        self.tier = tier_of(kind, self.toolchain)
        self.loop.run_until_complete(self.tier.__aenter__())
        self.sandbox = self.open("shared", memory_mb=512)

    def open(self, name: str, **limits: int) -> Sandbox:
        """Open a sandbox on the upper of that name."""
        for part in ("upper", "work"):
            (self.root / name / part).mkdir(parents=True, exist_ok=True)
            os.chown(self.root / name / part, *sandbox_ids())
        plan = MountPlan(
            target="/workspace",
            lowers=(self.base,),
            upper=self.root / name / "upper",
            work=self.root / name / "work",
        )
        spec = SandboxSpec(mounts=plan, limits=SandboxLimits(**{"tmp_mb": 4, **limits}))
        return self.wait(self.tier.open(spec))

    def wait(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(what)

    def python(self, program: str, sandbox: Sandbox | None = None, **options: Any) -> ExecResult:
        argv = ["python3", "-I", "-c", PRELUDE + program]
        result: ExecResult = self.wait((sandbox or self.sandbox).exec(argv, **options))
        return result

    def asks(self, program: str, sandbox: Sandbox | None = None) -> Any:
        """Run a program that prints one value as JSON; it has to succeed."""
        result = self.python(program, sandbox)
        assert result.exit_code == 0, result
        return json.loads(result.stdout)

    def close(self) -> None:
        self.wait(self.sandbox.close())
        self.wait(self.tier.close())
        self.loop.close()
        for locked in self.root.glob("*/work/work"):
            locked.chmod(0o700)


@contextmanager
def leaky() -> Iterator[None]:
    """Act as a careless parent: inheritable descriptors, and a secret in the environment."""
    with ExitStack() as stack:
        file = stack.enter_context(Path("/etc/passwd").open())
        pair = socket.socketpair()
        for sock in pair:
            stack.enter_context(sock)
        for fd in (file.fileno(), *(sock.fileno() for sock in pair)):
            os.set_inheritable(fd, True)
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("ESCAPE_SECRET", "of-the-host")
        yield


@contextmanager
def jailed(root: Path, kind: str) -> Iterator[Jail]:
    """Open a tier in a careless parent process."""
    with leaky():
        jail = Jail(root, kind)
        try:
            yield jail
        finally:
            jail.close()


def refused(seen: dict[str, str], *codes: str) -> None:
    """Assert that every attempt was refused with one of these errors."""
    assert seen
    assert {what: how for what, how in seen.items() if how not in codes} == {}
