"""The first program in a container: adds our system call filter to the engine's, then runs the exec server.

Standard library only; sent as text to the interpreter inside, which may come from an image.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import signal

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_INSTRUCTION_BYTES = 8


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(bpf: bytes) -> None:
    """Filter every later system call by an array of `struct sock_filter`; see seccomp(2).

    Raises `OSError` if the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(bpf, len(bpf))
    program = _Program(len(bpf) // _INSTRUCTION_BYTES, ctypes.addressof(code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"the filter of system calls was refused: {os.strerror(number)}")


def run(bpf: bytes, server: bytes) -> None:
    """Become the exec server below the filter; `server` is marshalled code, or text."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Python handles SIGINT, and so any child could end process 1
    install(bpf)
    exec(marshal.loads(server), {"__name__": "__main__"})  # noqa: S102 -- the host sends it
