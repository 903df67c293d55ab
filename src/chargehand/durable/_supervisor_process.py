"""Runs one program of the host and outlives it: all its descendants end with it, however they hide.

Started as `python -I -S FILE -- PROGRAM ARG…` with a pipe as stdin, so it imports only the standard library. It
ends every process below it when the program ends, on SIGTERM, or when the pipe closes, and so also when the
process at its other end is killed. Orphans become children of this process (PR_SET_CHILD_SUBREAPER), so neither a
new session nor a second fork escapes. Exits as the program did.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOUND, _NOT_RUN = 127, 126
# Between SIGTERM, on which git removes its lock files, and SIGKILL.
_GRACE_SECONDS = 1.0
_POLL_SECONDS = 0.02


def main(command: list[str]) -> int:
    """Run the program; return its exit code, 128 plus its signal, or 127 or 126 if it could not be started."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        return _NOT_RUN
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    # A signal between two checks for ended processes would be lost; the byte in this pipe stays until it is read.
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the wake-up pipe has the signal
    try:
        quiet = os.open(os.devnull, os.O_RDONLY)
        child = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, quiet, 0), (os.POSIX_SPAWN_CLOSE, quiet)],
            setsigdef={signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE},
        )
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: not found\n")
        return _NOT_FOUND
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_RUN
    status = _until_end(child, wake)
    return _end_all(child, status)


def _until_end(child: int, wake: int) -> int | None:
    """Wait until the program ended, and return its status; `None` if it must be ended."""
    watched = select.poll()
    watched.register(0, select.POLLIN)
    watched.register(wake, select.POLLIN)
    while True:
        ready = {fd for fd, _ in watched.poll()}
        if 0 in ready:
            return None
        signals = os.read(wake, 64)
        status = _reap(child)
        if status is not None:
            return status
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            return None


def _reap(child: int) -> int | None:
    """Reap dead processes; return the status of the program itself if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = status
    return found


def _end_all(child: int, status: int | None) -> int:
    """End every process below, politely at first; return the exit code."""
    asked = time.monotonic()
    _send(signal.SIGTERM)
    while True:
        now_dead = _reap(child)
        status = now_dead if status is None else status
        if not _below():
            break
        if time.monotonic() - asked >= _GRACE_SECONDS:
            _send(signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    if status is None:
        return _NOT_RUN
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _send(number: int) -> None:
    for pid in _below():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)  # a stopped one does not receive SIGTERM


def _below() -> list[int]:
    """Return all descendants, except dead ones that are not reaped yet."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    # After the last bracket: a program's name may contain brackets and spaces itself.
                    state, parent_id = file.read().rpartition(")")[2].split()[:2]
                parent = int(parent_id)
                if state != "Z" or parent != os.getpid():
                    children.setdefault(parent, []).append(int(name))
    found = []
    pending = [os.getpid()]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
