"""One command of a process sandbox as its host side sees it: what is asked, and what has come back."""

from __future__ import annotations

import asyncio
import marshal
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from chargehand.core.errors import UsageError
from chargehand.sandbox import _server
from chargehand.sandbox._contract import ExecResult, LimitName, OnOutput


def encode_request(
    nonce: bytes,
    argv: Sequence[str],
    *,
    cwd: str,
    environment: Mapping[str, str],
    timeout: float,
    output_limit: int,
    output_most: int,
    stdin: int,
) -> bytes:
    """Return the body of an EXEC frame; raises `UsageError` (`command_invalid`) for what no kernel would take."""
    if not argv:
        raise UsageError("a command needs at least a program", code="command_invalid")
    if math.isnan(timeout) or output_limit < 0:
        raise UsageError(f"wrong limits: timeout {timeout!r}, output {output_limit!r}", code="command_invalid")
    request: dict[str, Any] = {
        "nonce": nonce,
        "argv": [_encoded(word) for word in argv],
        "cwd": _encoded(cwd),
        "environment": {_name(name): _encoded(value) for name, value in environment.items()},
        "timeout": float(timeout),
        "output_limit": output_limit,
        "output_most": output_most,
        "stdin": stdin,
    }
    return marshal.dumps(request)


def _encoded(word: str) -> bytes:
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise UsageError(
            f"{word!r} cannot be handed to a program",
            code="command_invalid",
            hint="leave out NUL characters and lone surrogates",
        )
    return data


def _name(name: str) -> bytes:
    if not name or "=" in name:
        raise UsageError(f"{name!r} is no name for an environment variable", code="command_invalid")
    return _encoded(name)


class Reply:
    """What has come back of the command that runs."""

    def __init__(self, nonce: bytes, on_output: OnOutput | None) -> None:
        self.nonce = nonce
        self.done: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self.ended = False
        self.stopped: LimitName | None = None
        """The limit at which we have everything killed, once there is one."""
        self._on_output = on_output
        self._kept: dict[bytes, list[bytes]] = {_server.OUT: [], _server.ERR: []}

    def take(self, kind: bytes, body: bytes) -> None:
        """Add one frame that carries our nonce."""
        if kind == _server.DONE:
            self.ended = True
            if not self.done.done():
                self.done.set_result(self._result(body))
            return
        self._kept[kind].append(body)
        if self._on_output and not self.done.done():
            try:
                self._on_output("stdout" if kind == _server.OUT else "stderr", body)
            except Exception as error:  # the listener's fault: it goes to who gave it to us
                self.done.set_exception(error)

    def abandon(self) -> None:
        """Take what still comes, for nobody: a listener that fails once more must not end the wait for the end."""
        self._on_output = None
        self.done = asyncio.get_running_loop().create_future()

    def _result(self, body: bytes) -> ExecResult:
        code, seconds, truncated, timed_out, flooded, _, written = _server.OUTCOME.unpack(body)
        return ExecResult(
            exit_code=code,
            stdout=b"".join(self._kept[_server.OUT]),
            stderr=b"".join(self._kept[_server.ERR]),
            seconds=seconds,
            truncated=truncated,
            timed_out=timed_out,
            limit="wall_time" if timed_out else "output" if flooded else None,
            written=written,
        )
