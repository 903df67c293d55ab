"""Runs inside the sandbox with an ACP agent: its three streams, and files and terminals that it asks us for.

The host sends this file to `python3 -I -c`, so it imports only the standard library. Standard input and output
carry lines: `A` begins a line to or from the agent, `O` an order of the host, `R` the answer to an order. The
relay runs in the agent's environment with the agent's rights: its output is no more trustworthy than the agent's.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

_LARGEST = 8 << 20
_LIMIT = 1 << 20
# Answers come from several threads, and a line must not be cut by another.
_lock = threading.Lock()


def say(kind: bytes, line: bytes) -> None:
    """Write one line for the host."""
    with _lock:
        sys.stdout.buffer.write(kind + line + b"\n")
        sys.stdout.buffer.flush()


def read_file(order: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a file."""
    with open(order["path"], "rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise OSError(f"larger than {_LARGEST} bytes")
    return {"text": content.decode(errors="replace")}


def peek_file(order: dict[str, Any]) -> dict[str, Any]:
    """Return the first bytes of a plain file, as base64; empty if the file does not exist."""
    if not os.path.lexists(order["path"]):
        return {}
    if os.path.islink(order["path"]) or not os.path.isfile(order["path"]):
        raise OSError("no plain file")
    with open(order["path"], "rb") as file:
        return {"content": base64.b64encode(file.read(order["limit"])).decode()}


def write_file(order: dict[str, Any]) -> dict[str, Any]:
    """Write a file, with the directories above it."""
    os.makedirs(os.path.dirname(order["path"]), exist_ok=True)
    with open(order["path"], "wb") as file:
        file.write(order["text"].encode(errors="surrogatepass"))
    return {}


class Terminal:
    """One command of the agent that runs here, and the last bytes of its output."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._limit = min(order.get("limit") or _LIMIT, _LIMIT)
        self._kept = b""
        self._cut = False
        self._process = subprocess.Popen(
            order["argv"],
            cwd=order.get("cwd") or None,
            env={**os.environ, **order.get("environment", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # So that a kill reaches everything that the command started.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while piece := os.read(self._process.stdout.fileno(), 65536):
            kept = self._kept + piece
            self._cut = self._cut or len(kept) > self._limit
            self._kept = kept[-self._limit :]

    def output(self) -> dict[str, Any]:
        """Return the command's output, and its exit status if it has ended."""
        ended = self._process.poll()
        return {
            "output": self._kept.decode(errors="replace"),
            "truncated": self._cut,
            "exitStatus": None if ended is None else status(ended),
        }

    def wait(self) -> dict[str, Any]:
        """Wait for the command to end and return its exit status."""
        code = self._process.wait()
        self._reader.join(1.0)
        return status(code)

    def kill(self) -> dict[str, Any]:
        """Kill the command with everything that it started in its session."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return {}


def status(code: int) -> dict[str, Any]:
    """Return an exit status in the protocol's form."""
    if code >= 0:
        return {"exitCode": code, "signal": None}
    return {"exitCode": None, "signal": signal.Signals(-code).name}


class Terminals:
    """The open terminals, by the name that the host gave them."""

    def __init__(self) -> None:
        self._open: dict[str, Terminal] = {}

    def create(self, order: dict[str, Any]) -> dict[str, Any]:
        """Start a command."""
        self._open[order["terminal"]] = Terminal(order)
        return {}

    def output(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return a terminal's output."""
        return self._open[order["terminal"]].output()

    def wait(self, order: dict[str, Any]) -> dict[str, Any]:
        """Wait for a terminal's command."""
        return self._open[order["terminal"]].wait()

    def kill(self, order: dict[str, Any]) -> dict[str, Any]:
        """Kill a terminal's command."""
        return self._open[order["terminal"]].kill()

    def release(self, order: dict[str, Any]) -> dict[str, Any]:
        """Kill a terminal's command and forget it."""
        terminal = self._open.pop(order["terminal"], None)
        return terminal.kill() if terminal is not None else {}


def carry_out(orders: dict[str, Any], line: bytes) -> None:
    """Carry out one order and answer it."""
    order = json.loads(line)
    try:
        answer = {"id": order["id"], "result": orders[order["do"]](order)}
    except (OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
        answer = {"id": order["id"], "error": f"{type(error).__name__}: {error}"}
    say(b"R", json.dumps(answer).encode())


def hand_on(agent: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    """Pass the agent its lines, in a thread: an agent that reads nothing must not block orders."""
    assert agent.stdin is not None
    while (line := lines.get()) is not None:
        try:
            agent.stdin.write(line + b"\n")
            agent.stdin.flush()
        except OSError:
            return
    try:
        agent.stdin.close()
    except OSError:
        return


def listen(agent: subprocess.Popen[bytes]) -> None:
    """Take the host's lines until the end of input, and then close the agent's input."""
    terminals = Terminals()
    orders = {
        "read": read_file,
        "peek": peek_file,
        "write": write_file,
        **{
            f"terminal_{name}": getattr(terminals, name)
            for name in ("create", "output", "wait", "kill", "release")
        },
    }
    # The agent gets its lines from a thread: its pipe may be full while an order waits.
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=hand_on, args=(agent, lines), daemon=True).start()
    for line in sys.stdin.buffer:
        kind, rest = line[:1], line[1:].rstrip(b"\n")
        if kind == b"A":
            lines.put(rest)
        elif kind == b"O":
            # A thread for each: `terminal_wait` blocks until its command ends.
            threading.Thread(target=carry_out, args=(orders, rest), daemon=True).start()
    lines.put(None)


def main(argv: list[str]) -> int:
    """Run the agent and relay between it and the host until it ends; return its exit code."""
    try:
        agent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        say(b"N", b"")  # a running agent may end with the same codes
        return 127 if isinstance(error, FileNotFoundError) else 126
    threading.Thread(target=listen, args=(agent,), daemon=True).start()
    assert agent.stdout is not None
    with os.fdopen(os.dup(agent.stdout.fileno()), "rb") as stream:
        for line in stream:
            say(b"A", line.rstrip(b"\n"))
    code = agent.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    ended = main(sys.argv[1:])
    sys.stdout.buffer.flush()
    os._exit(ended)  # threads still wait for lines that are no longer needed
