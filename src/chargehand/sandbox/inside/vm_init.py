"""The first program on a virtual machine, as its root: prepares the machine for the exec server.

Sent as text over the exec server's port. The exec server becomes process 1 of a new namespace, so that it sees and
signals only the untrusted processes, and not the kernel's threads. Standard library only.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import signal
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 8, 32, 4096
_LOCKED = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 1, 24, 22, 38, 2
_RESTART = 0x01234567
_INSTRUCTION_BYTES = 8
_NOTHING = "/dev/.nothing"
_RELAY_FD = 4

_libc = ctypes.CDLL(None, use_errno=True)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), b"")
    _check(_libc.mount(*arguments), target)


def _serve(uid: int, bpf: bytes, server: bytes, hidden: tuple[str, ...]) -> None:
    """Be process 1 of the untrusted processes; return when the host has closed its end."""
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for path in hidden:  # hide details of the machine that the kernel shows to every user
        if os.path.isdir(path):
            _mount("nothing", path, "tmpfs", _LOCKED)
        elif os.path.exists(path):
            _mount(_NOTHING, path, "", _MS_BIND)
            _mount("none", path, "", _MS_BIND | _MS_REMOUNT | _LOCKED)
    _mount("none", "/dev", "", _MS_BIND | _MS_REMOUNT | _LOCKED)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Python handles SIGINT, and so any child could end process 1
    # From here on a user without capabilities and without a way back, below a system call filter; see seccomp(2).
    # Also drop the capabilities that a set-uid program could otherwise regain.
    for capability in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the kernel has no more of them
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    code = ctypes.create_string_buffer(bpf, len(bpf))
    program = _FilterProgram(len(bpf) // _INSTRUCTION_BYTES, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0), "filter")
    names: dict[str, Any] = {"__name__": "server"}
    exec(marshal.loads(server), names)  # noqa: S102 -- the host sends it
    freeze_all = names["freeze_all"]

    def freeze_and_write_back() -> set[int]:
        resting: set[int] = freeze_all()
        os.sync()  # writes to mapped files are on the host before the freeze is reported
        return resting

    names["freeze_all"] = freeze_and_write_back
    names["main"]()


def run(
    bpf: bytes,
    server: bytes,
    *,
    uid: int,
    hidden: tuple[str, ...],
    relay: bytes,
    ports: tuple[int, ...],
    host_name: str,
) -> None:
    """Start the exec server, relay `ports` to the host, and end the machine with the exec server."""
    try:
        os.close(os.open(_NOTHING, os.O_CREAT | os.O_WRONLY, 0))
        serving: Any = None
        if ports:
            names: dict[str, Any] = {"__name__": "relay"}
            exec(marshal.loads(relay), names)  # noqa: S102 -- the host sends it
            serving = names["prepare"](_RELAY_FD, ports)
        _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID), "unshare")
        _check(_libc.sethostname(host_name.encode(), len(host_name)), "sethostname")
        child = os.fork()
        if child == 0:
            if serving is not None:
                serving.close()
            _serve(uid, bpf, server, hidden)
            os._exit(0)
        if serving is not None:
            signal.signal(signal.SIGCHLD, lambda *_: _libc.reboot(ctypes.c_int(_RESTART)))
            serving.run()
        os.waitpid(child, 0)
    finally:
        _libc.reboot(ctypes.c_int(_RESTART))
