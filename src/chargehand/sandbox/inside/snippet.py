"""The process of one snippet, inside the sandbox: restricts itself, runs the snippet, reports on stdout.

The host sends this module compiled, followed by a marshalled request, over stdin to `BOOTSTRAP`: so nothing has to
be mounted or compiled, and only C modules are imported. The host enforces limits of time and output. A hostile
snippet may take this process over and then lie about itself, but about nothing else: the host treats every report
as text of an untrusted author.

Reports are lines: R (ready), L (a console line: level, a space, JSON string), V (the value, JSON), F (its failure:
a JSON list of kind, name, message, line), P (peak memory in bytes).
"""

from __future__ import annotations

import _ctypes
import _json
import builtins
import marshal
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BOOTSTRAP = "import marshal,sys;i=sys.stdin.buffer;exec(marshal.loads(i.read(int(sys.argv[1]))))"
ENGINES = "/run/chargehand/engines"
SNIPPET = "<snippet>"
READY, LINE, VALUE, FAILED, PEAK = b"R", b"L", b"V", b"F", b"P"
_LONGEST = 65536
_MESSAGE = 4000
_RESERVE = 512 << 10
_OPEN_FILES = 24
_ENOMEM = 12
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
# Memory for JavaScript's process in addition to the engine's limit, for copies of lines and of the value.
_ENGINE_ROOM = 32 << 20
_encode = _json.encode_basestring_ascii


class NotJson(Exception):
    """The snippet's value cannot be encoded as JSON."""


class ReportWriter:
    """Writes report lines to the original stdout; the snippet's descriptors 1 and 2 go to /dev/null."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._rest = 0

    def send(self, kind: bytes, body: str = "") -> None:
        """Write one complete line."""
        left = memoryview(kind + body.encode() + b"\n")
        while left:
            left = left[os.write(self._fd, left) :]

    def line(self, level: str, text: str) -> None:
        """Report one console line."""
        self.send(LINE, f"{level} {_encode(text)}")

    def fail(self, kind: str, name: str, message: str, line: int | None) -> None:
        """Report the snippet's failure."""
        words = ",".join(map(_encode, (kind, name[:200], message[:_MESSAGE])))
        self.send(FAILED, f"[{words},{'null' if line is None else line}]")

    def ready(self) -> None:
        """Report that the snippet begins, and record the engine's memory at that point."""
        for fd in (1, 2):
            os.dup2(self._nowhere, fd)
        self._rest = self._memory(b"VmRSS:")
        self.send(READY)

    def peak(self) -> None:
        """Report the peak memory since then."""
        self.send(PEAK, str(max(0, self._memory(b"VmHWM:") - self._rest)))

    def size(self) -> int:
        """Return the size of the address space in bytes."""
        return self._memory(b"VmSize:")

    def over(self, limit: int) -> bool:
        """Return whether most of `limit` bytes was in use at once."""
        return self._memory(b"VmHWM:") - self._rest > limit * 3 // 4

    def _memory(self, field: bytes) -> int:
        status = os.pread(self._status, 4096, 0)
        return int(status[status.index(field) + len(field) :].split(None, 1)[0]) * 1024


class ConsoleStream:
    """Stands in for `sys.stdout` or `sys.stderr` in a snippet: sends every line when it ends."""

    encoding = "utf-8"
    errors = "replace"
    closed = False
    newlines = None
    line_buffering = True

    def __init__(self, report: ReportWriter, level: str) -> None:
        self._report = report
        self._level = level
        self._kept = ""

    def write(self, text: str) -> int:
        """Accept text; lines longer than 65,536 characters are sent in pieces."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        *lines, rest = (self._kept + text).split("\n")
        self._kept = rest
        for line in lines:
            self._out(line)
        if len(rest) > _LONGEST:
            self._kept = ""
            self._out(rest)
        return len(text)

    def _out(self, line: str) -> None:
        for start in range(0, len(line) or 1, _LONGEST):
            self._report.line(self._level, line[start : start + _LONGEST])

    def writelines(self, lines: list[str]) -> None:
        """Accept several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: a line is sent when it ends."""

    def finish(self) -> None:
        """Report a last line without an end of line."""
        if self._kept:
            self._out(self._kept)
            self._kept = ""

    def isatty(self) -> bool:
        """Return that this is not a terminal."""
        return False

    def writable(self) -> bool:
        """Return that this can be written to."""
        return True


def shut_in(program: bytes, memory: int, *, files: bool) -> None:
    """Remove all that no snippet needs, for good: memory over `memory`, writing, forking, sockets."""
    header = struct.pack("<H6xQ", len(program) // 8, _address(program))  # struct sock_fprog
    # Found before the limits, which leave no room for it; without the module ctypes, which costs 10 ms.
    itself: Any = None  # the program, and so the C library under it
    prctl = _Function(_ctypes.dlsym(_ctypes.dlopen(itself, 0), "prctl"))
    words = [_Int(_PR_SET_SECCOMP), *(_Word(value) for value in (_MODE_FILTER, _address(header), 0, 0))]
    # Address space, which bounds memory before it is touched: no control group is made for each snippet.
    limits = {"AS": memory, "NPROC": 0, "FSIZE": 0, "CORE": 0, "NOFILE": _OPEN_FILES if files else 3}
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    if prctl(*words) != 0:
        raise OSError("the kernel takes no filter")


# Generic only for a type checker: it cannot be subscripted at run time.
class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no type at run time takes one
    _type_ = "i"


class _Word(_ctypes._SimpleCData):  # type: ignore[type-arg]  # no type at run time takes one
    _type_ = "L"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


def _address(data: bytes) -> int:
    """Return the address of an object's bytes; the caller keeps the object alive."""
    return id(data) + bytes.__basicsize__ - 1


def to_json(value: object) -> str:
    """Return a Python value as JSON; raises `NotJson` for other values, including NaN and cycles."""

    def refuse(thing: object) -> None:
        raise NotJson(f"a value of type {type(thing).__name__} is not JSON")

    encoder = _json.make_encoder({}, refuse, _encode, None, ":", ",", False, False, False)
    try:
        return "".join(encoder(value, 0))
    except (ValueError, TypeError, RecursionError) as error:
        raise NotJson(str(error)) from None


class Python:
    """Runs a snippet of Python in this very interpreter."""

    def __init__(self, report: ReportWriter, request: dict[str, Any]) -> None:
        self._report = report
        self._source = request["source"]
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "input": request["input"]}
        self._streams = ConsoleStream(report, "log"), ConsoleStream(report, "error")
        self._reserve = [bytearray(_RESERVE)]
        self.memory = report.size() + request["memory"]
        self.files = True

    def run(self) -> None:
        """Run it and report its result."""
        sys.stdout, sys.stderr = self._streams
        sys.argv = [SNIPPET]
        try:
            text = to_json(self._value())
        except BaseException as error:  # whatever a snippet raises is its result
            self._reserve.clear()
            outcome: tuple[str, str, str, int | None] | None = self._judge(error)
            self._names.clear()
        else:
            outcome = None
        for stream in self._streams:
            stream.finish()
        self._report.peak()
        if outcome is None:
            self._report.send(VALUE, text)
        else:
            self._report.fail(*outcome)

    def _value(self) -> object:
        """Run the statements; return the last one's value if it is an expression, else that of `result`."""
        tree: Any = compile(self._source, SNIPPET, "exec", 0x400)  # ast.PyCF_ONLY_AST, without importing ast
        last = tree.body.pop() if tree.body and type(tree.body[-1]).__name__ == "Expr" else None
        exec(compile(tree, SNIPPET, "exec", dont_inherit=True), self._names)  # noqa: S102  what a snippet is for
        if last is None:
            return self._names.get("result")
        import _ast

        return eval(compile(_ast.Expression(last.value), SNIPPET, "eval", dont_inherit=True), self._names)

    def _judge(self, error: BaseException) -> tuple[str, str, str, int | None]:
        """Return kind, name, message and line of an exception raised by a snippet."""
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == _ENOMEM):
            return "memory", "MemoryError", "it exceeded its memory limit", self._line(error)
        if isinstance(error, NotJson):
            return "not_json", "TypeError", error.args[0], None
        try:
            message = str(error)
        except BaseException:  # the snippet wrote this method too
            message = "the exception cannot be shown"
        if isinstance(error, SyntaxError) and error.filename == SNIPPET:
            return "exception", type(error).__name__, str(error.msg), error.lineno
        return "exception", type(error).__name__, message, self._line(error)

    def _line(self, error: BaseException) -> int | None:
        step = error.__traceback__
        line = None
        while step is not None:
            if step.tb_frame.f_code.co_filename == SNIPPET:
                line = step.tb_lineno
            step = step.tb_next
        return line


class JavaScript:
    """Runs a snippet of JavaScript in QuickJS, in a context with only the language and a console."""

    def __init__(self, report: ReportWriter, request: dict[str, Any]) -> None:
        sys.path.insert(0, ENGINES)
        import _quickjs

        self._report = report
        self._limit = request["memory"]
        self._failure: type[Exception] = _quickjs.JSException
        self._end: tuple[str, str, str, str] | None = None
        self._source = request["source"]
        if "await" in self._source or "return" in self._source:
            try:
                # The whole source is parsed before anything runs, and nothing runs after the `throw`: no limit
                # applies here yet.
                _quickjs.Context().eval(f"throw null;\n{self._source}")
            except _quickjs.JSException as error:
                # One of the two is outside a function.
                if str(error).startswith("SyntaxError"):
                    self._source = f"(async () => {{{self._source}\n}})()"
        self._context = _quickjs.Context()
        self._context.set_memory_limit(self._limit)
        self._context.set_max_stack_size(256 << 10)
        self._context.add_callable("print", self._line)
        self._context.add_callable("finish", self._finish)
        prelude = request["prelude"].strip()
        names = "(print, finish, JSON.parse(given))"
        self._context.set("given", request["input"])
        self._run = self._context.eval(prelude.replace("\n", " ") + names)
        self._context.eval("delete globalThis.print; delete globalThis.finish; delete globalThis.given")
        self.memory = report.size() + self._limit * 2 + _ENGINE_ROOM
        self.files = False

    def _line(self, level: str, text: str) -> None:
        for line in text.split("\n"):
            for start in range(0, len(line) or 1, _LONGEST):
                self._report.line(level, line[start : start + _LONGEST])

    def _finish(self, kind: str, first: str, second: str, third: str) -> None:
        if self._end is None:
            self._end = kind, first, second, third

    def run(self) -> None:
        """Run it with the jobs that it leaves, and report its result."""
        try:
            self._run(self._source)
            while self._end is None and self._context.execute_pending_job():
                pass
        except MemoryError:
            self._end = "exception", "InternalError", "out of memory", ""
        except self._failure as error:
            self._finish("exception", "InternalError", str(error).partition("\n")[0], "")
        self._report.peak()
        kind, first, second, third = self._end or _NEVER
        if kind == "value":
            self._report.send(VALUE, first)
        # Out of memory even for the error, the engine throws null.
        elif (first, second) == ("InternalError", "out of memory") or (
            second in ("null", "out of memory") and self._report.over(self._limit)
        ):
            self._report.fail("memory", first, "it exceeded its memory limit", _line_in(third))
        else:
            self._report.fail(kind, first, second, _line_in(third))


_NEVER = "exception", "PromiseNeverSettled", "nothing is left to run and its promise is not settled", ""


def _line_in(stack: str) -> int | None:
    """Return the line of the snippet that a stack names first."""
    rest = stack.partition("<input>:")[2]
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if digits else None


def main() -> None:
    """Read the request, restrict itself, run, and end without running any exit code that the snippet left."""
    request = marshal.loads(sys.stdin.buffer.read())
    report = ReportWriter()
    engine = (Python if request["language"] == "python" else JavaScript)(report, request)
    shut_in(request["filter"], engine.memory, files=engine.files)
    report.ready()
    engine.run()
    os._exit(0)


if __name__ == "__main__":
    main()
