"""The parser process: a child with limits that parses files, so that a crash or a hang costs one file.

Requests come on stdin and replies go to stdout, each a length of four bytes and a message in MessagePack. The
process gets content only, has no environment, and can open, start and connect to nothing once it parses.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import site
import struct
import subprocess
import sys
from typing import BinaryIO

import msgspec
from msgspec import Struct

from chargehand.core.codec import unpack_as
from chargehand.core.errors import TierUnavailableError
from chargehand.knowledge.records import MapError, ParsedFile

_MEMORY_BYTES = 1 << 30
_LENGTH = struct.Struct(">I")
_NICE = 10
_START_SECONDS = 60.0
_BUSY_SHARE = 0.9  # of the time limit: a process that got less of the processor was not slow by itself
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2  # prctl(2)


# An isolated interpreter has no packages of `pip install --user`: it gets their directory if this one has it.
_PROGRAM = (
    *("-I", "-c", f"import site, sys; [*map(site.addsitedir, sys.argv[1:])]; from {__name__} import main; main()"),
    *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
)


class ParseOrder(Struct, frozen=True, kw_only=True):
    """The content of one file, in UTF-8, and its language."""

    language: str
    source: bytes


class ParserProcess:
    """A child process that parses one file after the other, started at the first one; not for several threads."""

    def __init__(self, *, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the running child."""
        assert self._child is not None
        return self._child.pid

    def parse(self, language: str, source: bytes) -> ParsedFile:
        """Parse a file; it is returned as skipped if it ends the process or takes longer than `seconds`.

        That is transient if the process got too little of the processor, or was killed from outside.
        Raises `MapError` if no process can be started.
        """
        order = msgspec.msgpack.encode(ParseOrder(language=language, source=source))
        for last in (False, True):
            child = self._child or self._start()
            used = _processor_seconds(child)
            try:
                reply = _exchange(child, order, self._seconds)
                return unpack_as(reply, ParsedFile)
            except TimeoutError:
                busy = _processor_seconds(child) - used
                self.close()
                reason = f"parsing took longer than {self._seconds:g} s"
                return ParsedFile(skipped=reason, transient=busy < _BUSY_SHARE * self._seconds)
            except (OSError, EOFError, msgspec.MsgspecError):
                end = self.close()
                # An earlier file may have damaged the process: this one is tried again in a new one.
                if last and end in _KILLED:
                    return ParsedFile(
                        skipped="the parser was killed at it, as if memory was short", transient=True
                    )
                if last:
                    return ParsedFile(skipped="the parser ended at it: out of memory, or a fault in the grammar")
        raise AssertionError

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._child = subprocess.Popen(
                [sys.executable, *_PROGRAM],
                env={},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as problem:
            raise MapError(f"the parser process cannot be started: {problem}") from problem
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        try:
            # Its start is no file's fault, and does not count as a file's time.
            _exchange(self._child, b"", _START_SECONDS)
        except (OSError, EOFError) as problem:
            self.close()
            hint = f"install the optional part again; to see why: {shlex.join([sys.executable, *_PROGRAM])}"
            raise MapError("the parser process does not start", hint=hint) from problem
        return self._child

    def close(self) -> int | None:
        """End the process and return its exit status, `None` if there was none; -SIGKILL if it was running."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            return child.wait()
        return None


def _processor_seconds(child: subprocess.Popen[bytes]) -> float:
    """Return the processor time that a running child has used; 0 if the system does not say."""
    import time

    try:
        return time.clock_gettime(~child.pid << 3 | 2)  # the clock of clock_getcpuclockid(3)
    except OSError:
        return 0.0


def _exchange(child: subprocess.Popen[bytes], order: bytes, seconds: float) -> bytes:
    """Send a request, if it is not empty, and return the next reply.

    Raises `TimeoutError`, `EOFError` if the child ended, `OSError`.
    """
    import select
    import time

    assert child.stdin is not None
    assert child.stdout is not None
    source, target = child.stdin.fileno(), child.stdout.fileno()
    unsent = memoryview(_LENGTH.pack(len(order)) + order if order else b"")
    poll = select.poll()
    if unsent:
        poll.register(source, select.POLLOUT)
    poll.register(target, select.POLLIN)
    got = bytearray()
    deadline = time.monotonic() + seconds
    while len(got) < 4 or len(got) < 4 + _LENGTH.unpack_from(got)[0]:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        for fd, _ in poll.poll(left * 1000):
            if fd == target:
                part = os.read(target, 1 << 20)
                if not part:
                    raise EOFError
                got += part
            elif unsent:
                unsent = unsent[os.write(source, unsent) :]
                if not unsent:
                    poll.unregister(source)
    return bytes(got[4:])


def main() -> None:
    """Read requests from stdin until it ends, and write the replies to stdout."""
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    # Small arenas: the allocator of C reserves more addresses than it uses, and the limit is one of addresses.
    for name, value in {"AS": _MEMORY_BYTES, "CORE": 0, "FSIZE": 0, "NOFILE": 64}.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    from chargehand.knowledge._extraction import parse_source
    from chargehand.knowledge._languages import languages, query_text

    for name in languages():
        query_text(name)  # read now: no file can be opened any more afterwards
    _restrict_calls()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(_LENGTH.pack(0))  # ready
    replies.flush()
    while (message := _read_message(requests)) is not None:
        order = unpack_as(message, ParseOrder)
        try:
            parsed = parse_source(order.language, order.source)
        except (RecursionError, ValueError) as problem:  # a fault of ours about this file only
            parsed = ParsedFile(skipped=f"it cannot be parsed: {problem}"[:200])
        reply = msgspec.msgpack.encode(parsed)
        replies.write(_LENGTH.pack(len(reply)) + reply)
        replies.flush()


def _restrict_calls() -> None:
    """Refuse this process all system calls but those for memory and its open pipes, if the system can."""
    import ctypes

    from chargehand.sandbox.seccomp import compile_parser_filter, host_architecture

    if sys.platform != "linux":
        return
    try:
        program = compile_parser_filter(host_architecture())
    except TierUnavailableError:  # no table of calls for this processor
        return
    words = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(words))  # struct sock_fprog
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    arguments = [(_NO_NEW_PRIVILEGES, 1, 0), (_SET_SECCOMP, _FILTER, described)]
    for option, value, last in arguments:
        if prctl(option, ctypes.c_ulong(value), last, ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), "the parser's system calls cannot be restricted")


def _read_message(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None
