"""The talk with an MCP server inside an attempt's sandbox: JSON-RPC by lines, one exchange after another.

The sandbox runs one command at a time, so the server lives behind a relay (`_mcp_relay`) and is talked with while
something is wanted of it. Whatever it sends is bounded, counted and passed over where it is no message.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from chargehand.agents import _mcp_relay
from chargehand.agents._contract import AttemptContext, McpServer
from chargehand.agents._lines import JsonLines
from chargehand.agents._look import inner, objects_at, text_at
from chargehand.core.text import printable
from chargehand.sandbox.contract import Converses, ExecResult, Stream

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of the protocol that begin with `initialize`, the one that is offered first."""
METHOD_NOT_FOUND = -32601
LONGEST_LINE = 8 << 20
_MOST_PAGES = 20
_MOST_TOOLS = 200
_OUTPUT = 32 << 20
_LEAVE_SECONDS = 2.0
_GRACE_SECONDS = 60.0
_LONGEST_ERROR = 500
_MOST_ANSWERED, _LONGEST_ID = 100, 200
_Made = TypeVar("_Made")


class McpError(Exception):
    """What a server did not do, in words for the model. `broken`: it has to be started anew."""

    def __init__(self, message: str, *, broken: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


class Server:
    """One server in the sandbox of one attempt; started by what is first wanted of it, and again once it is gone.

    `changed` says that it announced other tools since they were listed last.
    """

    def __init__(self, server: McpServer, context: AttemptContext) -> None:
        self.changed = False
        self._server = server
        self._context = context
        self._ready = False
        self._ids = itertools.count(1)
        told = "\0".join((context.sandbox.id, server.name, *server.command))
        place = sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._directory = f"/tmp/.chargehand-mcp-{place}"  # short: a socket's path has 107 bytes

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools that it offers, as it describes them; raises `McpError`."""
        self.changed = False

        async def listed(talk: _Talk) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            cursor = ""
            for _ in range(_MOST_PAGES):
                page = await talk.request("tools/list", {"cursor": cursor} if cursor else {})
                found += objects_at(page, "tools")
                cursor = text_at(page, "nextCursor")
                if not cursor or len(found) >= _MOST_TOOLS:
                    break
            return found[:_MOST_TOOLS]

        return await self._exchange(listed)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a call as the server gives it; raises `McpError`."""

        async def called(talk: _Talk) -> dict[str, Any]:
            return await talk.request("tools/call", {"name": tool, "arguments": dict(arguments)})

        return await self._exchange(called)

    async def _exchange(self, work: Callable[[_Talk], Awaitable[_Made]]) -> _Made:
        seconds = self._server.seconds
        try:
            async with self._talk() as talk:
                try:
                    async with self._context.limited(seconds):
                        await self._begin(talk)
                        return await work(talk)
                except TimeoutError:
                    talk.cancel(f"no answer within {seconds:g} s")
                    raise McpError(
                        f"it gave no answer within {seconds:g} s{talk.oddities()}", broken=True
                    ) from None
        except McpError as error:
            if error.broken:
                await self._kill()
            raise

    async def _begin(self, talk: _Talk) -> None:
        """Shake hands with a server that was started now."""
        fresh = await talk.started()
        if not fresh and self._ready:
            return
        self._ready = False
        hello = await talk.request(
            "initialize",
            {
                "protocolVersion": VERSIONS[0],
                "capabilities": {},
                "clientInfo": {"name": "chargehand", "version": "1"},
            },
        )
        if hello.get("protocolVersion") not in VERSIONS:
            version = printable(str(hello.get("protocolVersion")))[:40]
            raise McpError(f"it speaks version {version!r} of the protocol, not {VERSIONS[0]}", broken=True)
        talk.notify("notifications/initialized", {})
        self._ready = True

    @asynccontextmanager
    async def _talk(self) -> AsyncIterator[_Talk]:
        """Run the relay for the block."""
        sandbox = self._context.sandbox
        assert isinstance(sandbox, Converses)
        talk = _Talk(self._ids, self._tools_changed)
        running = asyncio.ensure_future(
            sandbox.converse(
                (*_RELAY, "talk", self._directory, *self._server.command),
                talk.outgoing(),
                timeout=self._server.seconds + _GRACE_SECONDS,
                environment=self._server.environment,
                output_limit=_OUTPUT,
                on_output=talk.take,
            )
        )
        running.add_done_callback(talk.ended)
        try:
            yield talk
        finally:
            talk.close()
            try:
                await asyncio.wait([running], timeout=_LEAVE_SECONDS)
            finally:
                if not running.done():  # the last resort: it ends everything in the sandbox
                    running.cancel()
                    await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()

    def _tools_changed(self) -> None:
        self.changed = True

    async def _kill(self) -> None:
        self._ready = False
        await self._context.sandbox.exec((*_RELAY, "kill", self._directory), cwd="/")


_RELAY = ("python3", "-I", "-S", "-c", inspect.getsource(_mcp_relay))


class _Talk:
    """What is said in one run of the relay; `changed` is called when the server announces other tools."""

    def __init__(self, ids: itertools.count[int], changed: Callable[[], None]) -> None:
        self._ids = ids
        self._changed = changed
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._lines = JsonLines(longest=LONGEST_LINE)
        self._stderr = b""
        self._begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._problem: BaseException | None = None
        self._answered = 0

    async def outgoing(self) -> AsyncIterator[bytes]:
        """Yield what goes to the server, until `close`."""
        while (line := await self._out.get()) is not None:
            yield line

    def close(self) -> None:
        """End the talk; the server stays."""
        self._out.put_nowait(None)

    async def started(self) -> bool:
        """Return whether the server was started by this talk, once there is one; raises `McpError`."""
        return await self._begun

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request; raises `McpError`."""
        if self._problem is not None:
            raise self._problem
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send({"id": number, "method": method, "params": params})
        return await self._waiting[number]

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Tell the server something."""
        self._send({"method": method, "params": params})

    def cancel(self, reason: str) -> None:
        """Tell the server that what was asked is not wanted any more."""
        for number in self._waiting:
            self.notify("notifications/cancelled", {"requestId": number, "reason": reason})

    def oddities(self) -> str:
        """Return what else it said that was no message, "" where nothing was."""
        if not self._lines.malformed:
            return ""
        return f"; {self._lines.malformed} lines were no message, the last: {printable(self._lines.odd)!r}"

    def take(self, stream: Stream, piece: bytes) -> None:
        """Take what the relay says: the server's words, or its own."""
        if stream == "stdout":
            for message in self._lines.take(piece):
                self._message(message)
            return
        *whole, self._stderr = (self._stderr + piece)[-(64 << 10) :].split(b"\n")
        for line in whole:
            self._told(*line.decode(errors="replace").partition(" ")[::2])

    def ended(self, running: asyncio.Future[ExecResult]) -> None:
        """Fail what still waits once the relay has ended; a sandbox that died is told as such."""
        error = None if running.cancelled() else running.exception()
        self._fail(error or McpError(f"the connection to it was lost{self.oddities()}", broken=True))

    def _told(self, word: str, rest: str) -> None:
        match word:
            case "new" | "old" if not self._begun.done():
                self._begun.set_result(word == "new")
            case "absent":
                self._fail(McpError(f"it could not be started: {_short(rest)}"))
            case "flood":
                self._fail(McpError(f"it said more than {_mcp_relay.MOST >> 20} MiB", broken=True))
            case "ended":
                self._fail(McpError(_how_it_ended(rest) + self.oddities(), broken=True))

    def _fail(self, error: BaseException) -> None:
        self._problem = self._problem or error
        waiting: list[asyncio.Future[Any]] = [self._begun, *self._waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self._problem)
                future.exception()  # it may be that nobody waits

    def _message(self, message: Mapping[str, Any]) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self._settle(message)
        elif "id" in message:
            self._answer(message["id"], method)
        elif method == "notifications/tools/list_changed":
            self._changed()

    def _answer(self, number: Any, method: str) -> None:
        """Answer a request of the server: it may see that we live, and gets nothing else of us."""
        self._answered += 1
        if self._answered > _MOST_ANSWERED or not isinstance(number, int | str) or len(str(number)) > _LONGEST_ID:
            return
        unknown = {"error": {"code": METHOD_NOT_FOUND, "message": "not offered by this client"}}
        self._send({"id": number, **({"result": {}} if method == "ping" else unknown)})

    def _send(self, message: Mapping[str, Any]) -> None:
        self._out.put_nowait(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    def _settle(self, answer: Mapping[str, Any]) -> None:
        number = answer.get("id")
        future = self._waiting.pop(number, None) if type(number) is int else None
        if future is None or future.done():
            return
        if answer.get("error") is None:
            future.set_result(inner(answer, "result"))
            return
        detail = inner(answer, "error")
        said = text_at(detail, "message") or "an error without a message"
        future.set_exception(McpError(f"it answered with an error: {_short(said)}"))


def _how_it_ended(told: str) -> str:
    try:
        ended = msgspec.json.decode(told)
    except (msgspec.DecodeError, RecursionError):
        ended = {}
    ended = ended if isinstance(ended, dict) else {}
    last = _short(text_at(ended, "stderr")[-_LONGEST_ERROR:])
    return f"it ended with exit code {ended.get('code')!s:.10}" + (f": {last}" if last else "")


def _short(text: str) -> str:
    return " ".join(printable(text).split())[:_LONGEST_ERROR]
