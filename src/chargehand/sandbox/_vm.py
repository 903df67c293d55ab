"""The `vm` tier: one virtual machine of QEMU for each sandbox, in bubblewrap, our exec server inside."""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import signal
import socket
from pathlib import Path

from chargehand.core.errors import InfrastructureError, TierUnavailableError
from chargehand.sandbox import _server, _vm_inside, _vm_relay
from chargehand.sandbox._cgroups import Cgroup
from chargehand.sandbox._contract import SandboxLimits, SandboxSpec
from chargehand.sandbox._layout import HIDDEN, INSIDE_ID, base_environment, forwarded
from chargehand.sandbox._process import LaunchedTier, each_process
from chargehand.sandbox._session import ServedSandbox
from chargehand.sandbox._toolchain import Toolchain
from chargehand.sandbox._vm_layout import KERNEL_MB, Machine, machine_limits, plan_machine
from chargehand.sandbox._vm_outlet import Outlet

BOOT_SECONDS = 180.0
"""How long a machine may take to answer: without KVM, on a busy computer, it takes a minute."""
_STOP_ROUNDS = 5000


class VmSandbox(ServedSandbox):
    """A sandbox of the `vm` tier; made by `VmTier.open`, keeps the promises of `Sandbox`.

    A freeze stops every process inside and has the machine write back what it holds; then QEMU itself is stopped
    from outside, so that not even a machine whose kernel was taken over writes on.
    """

    tier = "vm"
    start_seconds = BOOT_SECONDS
    grace_seconds = 60.0
    _outlet: Outlet | None = None

    async def join(self, outlet: Outlet) -> None:
        """Serve the machine's connections to the host's sockets until the end."""
        self._outlet = outlet
        await outlet.start()

    async def _release(self) -> None:
        await super()._release()
        if self._outlet is not None:
            await self._outlet.close()

    async def _order_freeze(self) -> None:
        self._send(_server.FREEZE)
        await self._wait(self._signals.get(), seconds=self.grace_seconds)
        if self._cgroup is not None and self._cgroup.freezer is not None:
            await asyncio.to_thread(self._cgroup.freeze, True)
        else:
            await asyncio.to_thread(_stop, self._first())

    async def _order_thaw(self) -> None:
        if self._cgroup is not None and self._cgroup.freezer is not None:
            await asyncio.to_thread(self._cgroup.freeze, False)
        else:
            _signal(self._first(), signal.SIGCONT)
        self._send(_server.THAW)
        await self._wait(self._signals.get(), seconds=self.grace_seconds)


def _signal(qemu: int | None, number: int) -> None:
    if qemu is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(qemu, number)


def _stop(qemu: int | None) -> None:
    """Stop QEMU and wait until none of its threads runs; one that is gone stands still too.

    Raises `InfrastructureError` (`freeze_timeout`).
    """
    if qemu is None:
        return
    _signal(qemu, signal.SIGSTOP)
    for _ in range(_STOP_ROUNDS):
        if all(state in "TtZX" for state in _states(qemu)):
            return
        signal.sigtimedwait((), 0.001)
    raise InfrastructureError("QEMU was not stopped in time", code="freeze_timeout")


def _states(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0])
    return found


class VmTier(LaunchedTier):
    """Opens sandboxes of the `vm` tier; close it to end every machine.

    One instance per Chargehand process, an asynchronous context manager. `machine` says how machines are run, see
    `find_machine`; `alive` is that of `LaunchedTier`.
    """

    def __init__(self, toolchain: Toolchain, machine: Machine, *, alive: int | None = None) -> None:
        super().__init__(toolchain, alive=alive)
        self._machine = machine

    async def open(self, spec: SandboxSpec) -> VmSandbox:
        """Open one sandbox; raises `TierUnavailableError` with what QEMU said where it does not start."""
        return await self._opened(spec, self._boot, _did_not_start)

    async def _boot(self, name: str, spec: SandboxSpec, errors: int) -> VmSandbox:
        limits = machine_limits(spec.limits)
        cgroup = self._cgroups.create(name, limits) if self._groups else None
        sockets = {port: path for _, port, path in forwarded(spec)}
        code = _code(self._filter, self._server, tuple(sockets))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ended = self._ended[name] = asyncio.get_running_loop().create_future()
        try:
            layout = plan_machine(
                spec,
                self._machine,
                bwrap=self._bwrap,
                code_size=len(code),
                cgroups=cgroup.directories if cgroup else (),
                links=self._toolchain.links,
            )
            sock = await self._request(name, layout, errors, [theirs.fileno()])
        except BaseException:
            ours.close()
            del self._ended[name]
            if cgroup is not None:
                cgroup.remove()
            raise
        finally:
            theirs.close()
        sandbox = VmSandbox(
            name,
            sock,
            ended,
            kill=lambda: self._kill(name),
            first=lambda: self._first(name),
            cgroup=cgroup,
            limits=limits,
            environment=base_environment(spec, path=self._toolchain.path, tools=self._toolchain.environment),
            limits_in_force=_limits_in_force(spec.limits, cgroup),
        )
        try:
            await sandbox.join(Outlet(ours, sockets))
            await sandbox.start(code)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox


def _did_not_start(said: str) -> TierUnavailableError:
    return TierUnavailableError(
        f"the virtual machine did not start: {said or 'no reason given'}",
        hint="see what `chargehand doctor` says of the vm tier, or use --sandbox process",
    )


def _code(bpf: bytes, server: bytes, ports: tuple[int, ...]) -> bytes:
    """Return what the interpreter inside is sent."""
    inside = Path(_vm_inside.__file__).read_text()
    relay = marshal.dumps(compile(Path(_vm_relay.__file__).read_text(), "relay", "exec")) if ports else b""
    words = f"uid={INSIDE_ID}, hidden={HIDDEN!r}, relay={relay!r}, ports={ports!r}"
    call = f"run({bpf!r}, {server!r}, {words})"
    return marshal.dumps(compile(f"{inside}\n{call}\n", "vm", "exec"))


def _limits_in_force(limits: SandboxLimits, cgroup: Cgroup | None) -> dict[str, str]:
    counted = ", counted by a cgroup" if cgroup and "memory" in cgroup.limits_in_force else ""
    stopped = "cgroup" if cgroup and cgroup.freezer else "a signal to QEMU"
    in_force = {
        **each_process(limits),
        "memory": f"{limits.memory_mb} MiB and {KERNEL_MB} MiB for its kernel (memory of the machine{counted})",
        "processes": f"{limits.processes} for the sandbox (rlimit in the machine)",
        "tmp": f"{limits.tmp_mb} MiB (sized tmpfs)",
        "freeze": f"signals to all processes inside, then {stopped}",
    }
    if limits.cpu_percent is not None:
        shared = (cgroup.limits_in_force if cgroup else {}).get("cpu_share")
        in_force["cpu_share"] = shared or "not limited: no control group for processors can be had here"
    return in_force
