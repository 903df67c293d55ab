"""The exec server: the first process inside a sandbox, run by the host's isolated interpreter.

It is process 1 of its namespace, so nothing inside can kill it and `kill(-1)` reaches exactly the untrusted
processes; it is non-dumpable before it starts anything, so no child can take its socket or write its memory. It
communicates over one inherited socket in frames (kind, length, body). Every reply carries the nonce of its
request, which children never see.

Start-up time counts, so only C modules are imported (`signal`, `socket`, `json` and `ctypes` would double it), and
the host sends this module compiled, over that socket, to a bootstrap. Requests are `marshal`led: they come from
the host, which runs the same interpreter. Replies are plain structs, since the host must never decode data that a
sandbox could have written.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any

    Thread = tuple[int, int, str, int, int]
    Order = Callable[..., None]  # a method of `ExecServer` that takes the body of a frame
else:
    import _signal as signal

FRAME = struct.Struct(">cI")
# Kinds of frames: the host's orders, and this server's answers.
EXEC, STDIN, KILL, FREEZE, THAW, SKIP, OBSERVE, TELL = b"X", b"I", b"K", b"F", b"T", b"S", b"W", b"Q"
HELLO, OUT, ERR, DONE, FROZEN, THAWED, OPENED, TOLD = b"H", b"O", b"E", b"D", b"f", b"t", b"w", b"q"
NONCE_BYTES = 16
# Exit code, seconds, truncated, timed out, too much output, started, bytes written to both streams.
OUTCOME = struct.Struct(">id????Q")
# Body of SKIP: how long the whole sandbox was frozen from outside, which no time limit counts.
SECONDS = struct.Struct(">d")
# One file that was opened: the index of its directory in the host's list, then the length of its name.
OPENED_FILE = struct.Struct(">IH")
_PIECE = 65536  # bytes of one read
# /proc/sys/fs/pipe-max-size unless root raised it: the pipe of an ended command cannot hold more.
_LARGEST_PIPE = 1 << 20
_TAIL = 16384  # bytes; at most this much of the end of a truncated output is kept
# poll() takes milliseconds as a C int, and a time limit may be any number of seconds.
_LONGEST_SLEEP_SECONDS = 3600.0
_PR_SET_DUMPABLE = 4
# See inotify(7): watch descriptor, mask, cookie, length of the name that follows.
_INOTIFY_EVENT = struct.Struct("iIII")
_IN_OPEN, _IN_Q_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x20, 0x4000, 0x8000, 0x40000000
_WATCHED = _IN_OPEN | 0x01000000 | 0x02000000  # with IN_ONLYDIR, IN_DONT_FOLLOW
# The kernel queues 16,384 events by default: read this often, a busy check does not fill it. Not at each event,
# which would take the processor from the check each time it opens a file.
_INOTIFY_READ_SECONDS = 0.05


class OutputStream:
    """One stream of a command: sends its head at once, and of the rest the tail at the end."""

    def __init__(self, kind: bytes, limit: int) -> None:
        self.kind = kind
        self.keep = min(_TAIL, limit // 4)
        self.left = limit - self.keep
        self.dropped = 0
        self._tail = bytearray()

    def take(self, data: bytes) -> bytes:
        """Return the part of `data` to send now; keep the rest as tail."""
        head = data[: self.left]
        self.left -= len(head)
        if rest := data[len(head) :]:
            self._tail += rest
            if len(self._tail) > self.keep + _PIECE:
                self._cut()
        return head

    def _cut(self) -> None:
        gone = max(0, len(self._tail) - self.keep)
        del self._tail[:gone]
        self.dropped += gone

    def finish(self) -> bytes:
        """Return the kept tail, preceded by a line with the number of missing bytes if any."""
        self._cut()
        if self.dropped:
            return b"\n[... %d bytes left out ...]\n" % self.dropped + self._tail
        return bytes(self._tail)


class RunningCommand:
    """One running program and its three pipes."""

    def __init__(self, request: dict[str, Any], pid: int, pipes: tuple[int, int, int], started: float) -> None:
        self.nonce = request["nonce"]
        self.pid = pid
        self.started = started
        self.deadline = started + request["timeout"]
        self.stdin, stdout, stderr = pipes
        limit = request["output_limit"]
        self.outputs = {stdout: OutputStream(OUT, limit), stderr: OutputStream(ERR, limit)}
        self.pending = memoryview(b"")
        # Whether more standard input comes: its end is then an empty frame.
        self.more = request["stdin"] < 0
        self.status = 0
        self.ended: float | None = None
        self.killed = False
        self.timed_out = False
        self.dropped = False
        self.most = request["output_most"]
        self.written = 0
        self.flooded = False

    def pack_outcome(self, ended: float) -> bytes:
        """Return the body of the last frame, after the nonce: the program's outcome and end time."""
        status = os.waitstatus_to_exitcode(self.status)
        code = 128 - status if status < 0 else status
        seconds = ended - self.started
        return OUTCOME.pack(code, seconds, self.dropped, self.timed_out, self.flooded, True, self.written)

    def skip(self, seconds: float) -> None:
        """Do not count `seconds` that just passed, as far as the command existed by then."""
        seconds = min(seconds, time.monotonic() - self.started)
        self.started += seconds
        self.deadline += seconds


class InotifyWatch:
    """Sees by inotify(7) which files of some directories any program opens.

    `complete` turns false if a directory cannot be watched or vanishes, or if the kernel's queue overflows.
    """

    def __init__(self, directories: list[bytes]) -> None:
        init = _c_function("inotify_init1")
        self._add = _c_function("inotify_add_watch")
        self.fd = init(os.O_NONBLOCK | os.O_CLOEXEC)
        self.complete = self.fd >= 0
        self._names: dict[int, set[bytes]] = {}
        self._indices: dict[int, int] = {}
        for index, directory in enumerate(directories):
            watch = self._add(self.fd, directory, _WATCHED) if self.complete else -1
            self.complete = self.complete and watch >= 0
            self._indices[watch] = index
            self._names[watch] = set()

    def read(self) -> None:
        """Read the kernel's events since the last time."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, _PIECE)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                watch, mask, _, length = _INOTIFY_EVENT.unpack_from(data, at)
                at += _INOTIFY_EVENT.size + length
                if mask & (_IN_Q_OVERFLOW | _IN_IGNORED):  # lost events, or a directory that is gone
                    self.complete = False
                elif mask & _IN_OPEN and not mask & _IN_ISDIR and watch in self._names:
                    self._names[watch].add(data[at - length : at].rstrip(b"\0"))

    def close(self) -> None:
        """Stop watching."""
        if self.fd >= 0:
            os.close(self.fd)

    def take(self) -> list[bytes]:
        """Return files opened since the last time, in bodies of OPENED frames, and forget them."""
        self.read()
        bodies = []
        body = bytearray()
        for watch, names in self._names.items():
            for name in names:
                body += OPENED_FILE.pack(self._indices[watch], len(name)) + name
                if len(body) > _PIECE:
                    bodies.append(bytes(body))
                    body.clear()
            names.clear()
        return [*bodies, bytes(body)]


_ORDERS: dict[bytes, Order] = {}


def _carries_out(kind: bytes) -> Callable[[Order], Order]:
    """Register the method that handles the host's frames of this kind, given a frame's body."""
    return lambda order: _ORDERS.setdefault(kind, order)


class ExecServer:
    """The loop: one command at a time, frames in and out."""

    def __init__(self, sock: int) -> None:
        self.sock = sock
        # Where replies go: standard output if orders come by standard input, else the same socket.
        self.out = 1 if sock == 0 else sock
        self.inbox = bytearray()
        self.command: RunningCommand | None = None
        self.childless = True
        self.frozen: tuple[float, set[int]] | None = None
        self.watch: InotifyWatch | None = None
        # A separate poll for the host's orders: the server reads it before it enforces a time limit.
        self.orders = select.poll()
        self.orders.register(sock, select.POLLIN)
        self.poll = select.poll()
        self.poll.register(sock, select.POLLIN)
        # Otherwise a child that ends between waitpid() and poll() would be noticed only at the next event.
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.poll.register(self.wake_read, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def send(self, kind: bytes, body: bytes) -> None:
        """Send one frame; a host that reads slowly slows the command, instead of filling memory here."""
        frame = memoryview(FRAME.pack(kind, len(body)) + body)
        while frame:
            frame = frame[os.write(self.out, frame) :]

    def run(self) -> None:
        """Serve until the host closes the socket."""
        self.send(HELLO, b"")
        while True:
            command = self.command
            wait = None
            if command is not None and not command.killed and self.frozen is None:
                longest = _LONGEST_SLEEP_SECONDS if self.watch is None else _INOTIFY_READ_SECONDS
                left = min(max(0.0, command.deadline - time.monotonic()), longest)
                # Rounded up: a wait that ends early would only begin again.
                wait = int(left * 1000) + 1
            # If a freeze outlasted the wait, a signal makes poll() report nothing although orders are waiting.
            for fd, _ in self.poll.poll(wait) or self.poll.poll(0):
                if fd == self.sock:
                    if not (data := os.read(self.sock, _PIECE)):
                        return
                    self._receive(data)
                elif fd == self.wake_read:
                    os.read(self.wake_read, _PIECE)
                elif self.command is not None:
                    self._serve_pipe(self.command, fd)
            self._reap()
            if self.watch is not None:
                self.watch.read()
            if self.command is not None:
                self._advance(self.command)

    def _receive(self, data: bytes) -> None:
        self.inbox += data
        while len(self.inbox) >= FRAME.size:
            kind, size = FRAME.unpack_from(self.inbox)
            if len(self.inbox) < FRAME.size + size:
                break
            body = bytes(self.inbox[FRAME.size : FRAME.size + size])
            del self.inbox[: FRAME.size + size]
            if order := _ORDERS.get(kind):
                order(self, body)

    @_carries_out(EXEC)
    def _start(self, body: bytes) -> None:
        request = marshal.loads(body)
        nonce = request["nonce"]
        began = time.monotonic()
        (stdin, ours_in), (ours_out, stdout), (ours_err, stderr) = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
        try:
            pid = _spawn(request, (stdin, stdout, stderr))
            self.childless = False
        except OSError as error:
            for fd in (ours_in, ours_out, ours_err):
                os.close(fd)
            # As in a shell: 127 for a missing program, 126 for one that cannot run.
            missing = isinstance(error, FileNotFoundError) and not isinstance(error, _DirectoryError)
            subject = request["cwd"] if isinstance(error, _DirectoryError) else request["argv"][0]
            self.send(ERR, nonce + subject[:_TAIL] + f": {error.strerror}\n".encode())
            self.send(DONE, nonce + OUTCOME.pack(127 if missing else 126, 0.0, False, False, False, False, 0))
            return
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        self.command = RunningCommand(request, pid, (ours_in, ours_out, ours_err), began)
        self.poll.register(ours_out, select.POLLIN)
        self.poll.register(ours_err, select.POLLIN)
        # At once, so that a program which reads to the end does not wait.
        if not request["stdin"]:
            self._close_stdin(self.command)

    @_carries_out(STDIN)
    def _queue_input(self, body: bytes) -> None:
        if (command := self.command) is None:
            return
        command.more = command.more and bool(body)
        if command.stdin >= 0:
            command.pending = memoryview(bytes(command.pending) + body)
            os.set_blocking(command.stdin, False)
            self.poll.register(command.stdin, select.POLLOUT)

    @_carries_out(KILL)
    def _kill(self, _: bytes = b"") -> None:
        """Kill everything; the host learns the command's outcome when no process is alive any more."""
        if self.command is not None:
            self.command.killed = True
        send_signal(-1, signal.SIGKILL)

    @_carries_out(SKIP)
    def _skip(self, body: bytes) -> None:
        if self.command is not None:
            self.command.skip(SECONDS.unpack(body)[0])

    @_carries_out(FREEZE)
    def _freeze(self, _: bytes) -> None:
        self.frozen = self.frozen or (time.monotonic(), freeze_all())
        self.send(FROZEN, b"")

    @_carries_out(THAW)
    def _thaw(self, _: bytes) -> None:
        if self.frozen is not None:
            since, resting = self.frozen
            self.frozen = None
            if self.command is not None:
                self.command.skip(time.monotonic() - since)
            for pid in {thread[0] for thread in _list_threads()} - resting:
                send_signal(pid, signal.SIGCONT)
        self.send(THAWED, b"")

    @_carries_out(OBSERVE)
    def _observe(self, body: bytes) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = InotifyWatch(marshal.loads(body))

    @_carries_out(TELL)
    def _tell_opened(self, _: bytes) -> None:
        for files in self.watch.take() if self.watch is not None else ():
            self.send(OPENED, files)
        self.send(TOLD, b"\1" if self.watch is not None and self.watch.complete else b"\0")

    def _close_stdin(self, command: RunningCommand) -> None:
        if command.stdin >= 0:
            os.close(command.stdin)
            command.stdin = -1

    def _serve_pipe(self, command: RunningCommand, fd: int) -> None:
        if fd in command.outputs:
            if data := os.read(fd, _PIECE):
                self._forward(command, command.outputs[fd], data)
            else:
                self._finish_stream(command, fd)
            return
        if fd != command.stdin:
            return
        try:
            sent = os.write(fd, command.pending[:_PIECE])
            command.pending = command.pending[sent:]
        except BlockingIOError:
            return
        except OSError:  # the program closed its end and will not read the rest
            command.pending = memoryview(b"")
        if not command.pending:
            self.poll.unregister(fd)
            if not command.more:
                self._close_stdin(command)

    def _forward(self, command: RunningCommand, output: OutputStream, data: bytes) -> None:
        command.written += len(data)
        if head := output.take(data):
            self.send(output.kind, command.nonce + head)
        # Dropped bytes count too: otherwise a command with truncated output could write without end.
        if command.written > command.most and not command.killed and command.ended is None:
            command.flooded = True
            self._kill()

    def _finish_stream(self, command: RunningCommand, fd: int) -> None:
        output = command.outputs.pop(fd)
        self.poll.unregister(fd)
        os.close(fd)
        if tail := output.finish():
            self.send(output.kind, command.nonce + tail)
        command.dropped = command.dropped or output.dropped > 0

    def _reap(self) -> None:
        # Reap all ended processes, and not only the command: as process 1 this inherits every orphan.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if self.command is not None and pid == self.command.pid:
                self.command.status = status
                self.command.ended = time.monotonic()

    def _advance(self, command: RunningCommand) -> None:
        """Enforce the time limit, and answer when the program has ended."""
        overdue = not command.killed and self.frozen is None and time.monotonic() >= command.deadline
        # A freeze from outside stops this process too: read the host's orders about it before deciding.
        if command.ended is None and overdue and not self.orders.poll(0):
            command.timed_out = True
            self._kill()
        if command.ended is None or (command.killed and not self.childless):
            return
        # Read first what is left in the pipes, and no more: a daemon may hold them open, or write for ever.
        for fd in list(command.outputs):
            os.set_blocking(fd, False)
            for _ in range(_LARGEST_PIPE // _PIECE):
                try:
                    data = os.read(fd, _PIECE)
                except BlockingIOError:
                    break
                if not data:
                    break
                self._forward(command, command.outputs[fd], data)
            self._finish_stream(command, fd)
        if command.stdin >= 0:
            self.poll.register(command.stdin, 0)  # it may be registered or not, and must be to be unregistered
            self.poll.unregister(command.stdin)
        self._close_stdin(command)
        self.command = None
        self.send(DONE, command.nonce + command.pack_outcome(command.ended))


class _DirectoryError(FileNotFoundError):
    """The working directory cannot be entered."""


# All of them: the program that started Chargehand may ignore some, and children would inherit that.
_RESET_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


def _spawn(request: dict[str, Any], fds: tuple[int, int, int]) -> int:
    program = request["argv"][0]
    environment = request["environment"]
    # posix_spawn() cannot change the directory: this process does, just while the child is made.
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        raise _DirectoryError(error.errno, error.strerror) from None
    try:
        if b"/" not in program:
            places = (directory + b"/" + program for directory in environment.get(b"PATH", b"").split(b":"))
            found = (place for place in places if os.access(place, os.X_OK) and not os.path.isdir(place))
            program = next(found, None)
            if program is None:
                raise FileNotFoundError(2, "command not found")
        return os.posix_spawn(
            program,
            request["argv"],
            environment,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET_SIGNALS,
        )
    finally:
        os.chdir("/")


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process, or with pid -1 to all others of the namespace; ignore a missing process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def freeze_all() -> set[int]:
    """Stop every process; return when no thread runs, with the processes that were stopped before.

    Two successive readings of /proc must find the same threads, all stopped, with no thread having run in between:
    then there was a moment at which all were stopped, and no thread was left to wake another.
    """
    resting = {pid for pid, _, state, *_ in _list_threads() if state == "T"}
    before: set[tuple[int, int, int]] = set()
    while True:
        send_signal(-1, signal.SIGSTOP)
        threads = _list_threads()
        now = {(pid, task, switches) for pid, task, _, _, switches in threads}
        stopped_by = {parent for _, _, state, parent, _ in threads if state == "T"}
        # A parent in vfork() waits in state D for its stopped child, and cannot continue before the child does.
        settled = all(s in "TtZX" or (s == "D" and pid in stopped_by) for pid, _, s, _, _ in threads)
        if now == before and settled:
            return resting
        before = now
        time.sleep(0.0005)


def _list_threads() -> list[Thread]:
    """Return pid, thread id, state, parent and number of context switches of every thread but ours."""
    found: list[Thread] = []
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid == "1":
            continue
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:  # it ended meanwhile, as may each of its threads
            continue
        for task in tasks:
            try:
                with open(f"/proc/{pid}/task/{task}/status", "rb", 0) as file:
                    lines = file.read(_PIECE).split(b"\n")
            except OSError:
                continue
            facts = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
            switches = int(facts[b"voluntary_ctxt_switches"]) + int(facts[b"nonvoluntary_ctxt_switches"])
            found.append((int(pid), int(task), chr(facts[b"State"][0]), int(facts[b"PPid"]), switches))
    return found


def _c_function(name: str) -> Callable[..., int]:
    """Return a function of the C library; `ctypes` itself would double the time of a start."""
    import _ctypes

    address = _ctypes.dlsym(_ctypes.dlopen("", 0), name)
    return lambda *arguments: _ctypes.call_function(address, arguments)


def main() -> None:
    """Serve on the descriptor given as first argument, under the limits given as NAME=NUMBER after the second."""
    sock = int(sys.argv[1])
    os.set_inheritable(sock, False)
    os.set_inheritable(1 if sock == 0 else sock, False)
    # Before anything is started: no other process may attach to this one, read its memory or take its socket.
    if _c_function("prctl")(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) was refused")
    for name, _, value in (word.partition("=") for word in sys.argv[3:]):
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        wanted = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(number, (wanted, wanted))
    # The caller of Chargehand may have another umask: files must not depend on it.
    os.umask(0o022)
    try:
        ExecServer(sock).run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        send_signal(-1, signal.SIGKILL)


if __name__ == "__main__":
    main()
