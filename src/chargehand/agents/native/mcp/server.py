"""An MCP server inside an attempt's sandbox, reached by JSON-RPC lines, one exchange after another.

The sandbox runs one command at a time, so the server lives behind a relay (`relay.py`) and each exchange is one
run of it. All output of the server is bounded; lines that are not messages are counted and ignored.
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

from chargehand.agents._json_rpc import (
    LONGEST_ERROR,
    METHOD_NOT_FOUND,
    JsonLines,
    RpcChannel,
    RpcError,
    objects_at,
    text_at,
)
from chargehand.agents.contract import AttemptContext, McpServer
from chargehand.agents.native.mcp import relay
from chargehand.core.text import printable
from chargehand.sandbox.contract import Converses, ExecResult, Stream

# The client is our own: the SDK takes seconds to import, and five methods are needed (decision 0028). Revisions of
# the protocol that begin with `initialize`; the first one is offered.
VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
LONGEST_LINE = 8 << 20
_RELAY = ("python3", "-I", "-S", "-c", inspect.getsource(relay))
_MOST_PAGES = 20
_MOST_TOOLS = 200
_MOST_OUTPUT_BYTES = 32 << 20
_LEAVE_SECONDS = 2.0
# The relay's time beyond a call's own: its sandbox limit must never be the first to end a call.
_GRACE_SECONDS = 60.0
_MOST_ANSWERED, _LONGEST_ID = 100, 200
_Result = TypeVar("_Result")


class McpError(Exception):
    """A server's failure, in words for the model. `broken`: the server must be restarted."""

    def __init__(self, message: str, *, broken: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


class McpServerProcess:
    """One server in the sandbox of one attempt; started by the first exchange, and again once it is gone.

    `changed` is set when it announces a change of its tools since the last listing.
    """

    def __init__(self, server: McpServer, context: AttemptContext) -> None:
        self.changed = asyncio.Event()
        self._server = server
        self._context = context
        self._initialised = False
        self._ids = itertools.count(1)  # over all exchanges: a late answer must not fit a newer request
        # The same name in every exchange, so that each finds the server that an earlier one started.
        identity = "\0".join((context.sandbox.id, server.name, *server.command))
        digest = sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._directory = f"/tmp/.chargehand-mcp-{digest}"  # short: a socket's path has 107 bytes

    async def tools(self) -> list[dict[str, Any]]:
        """Return the server's tools as it describes them; raises `McpError`."""
        self.changed.clear()

        async def list_tools(exchange: McpExchange) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            cursor = ""
            for _ in range(_MOST_PAGES):
                page = await exchange.request("tools/list", {"cursor": cursor} if cursor else {})
                found += objects_at(page, "tools")
                cursor = text_at(page, "nextCursor")
                if not cursor or len(found) >= _MOST_TOOLS:
                    break
            return found[:_MOST_TOOLS]

        return await self._run_exchange(list_tools)

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's result of a call; raises `McpError`."""

        async def call_tool(exchange: McpExchange) -> dict[str, Any]:
            return await exchange.request("tools/call", {"name": tool, "arguments": dict(arguments)})

        return await self._run_exchange(call_tool)

    async def _run_exchange(self, work: Callable[[McpExchange], Awaitable[_Result]]) -> _Result:
        seconds = self._server.seconds
        try:
            async with self._open_exchange() as exchange:
                try:
                    # The host's limit, as it knows of pauses; the sandbox's would kill the agent's programs too.
                    async with self._context.limited(seconds):
                        await self._initialise(exchange)
                        return await work(exchange)
                except TimeoutError:
                    exchange.cancel(f"no answer within {seconds:g} s")
                    raise McpError(
                        f"it gave no answer within {seconds:g} s{exchange.oddities()}", broken=True
                    ) from None
        except McpError as error:
            if error.broken:
                self._initialised = False
                # Only its session: killing everything in the sandbox would take the agent's programs too.
                await self._context.sandbox.exec((*_RELAY, "kill", self._directory), cwd="/")
            raise

    async def _initialise(self, exchange: McpExchange) -> None:
        """Do the protocol's handshake with a server that was just started."""
        is_new = await exchange.started
        if not is_new and self._initialised:
            return
        self._initialised = False
        hello = await exchange.request(
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
        exchange.channel.notify("notifications/initialized", {})
        self._initialised = True

    @asynccontextmanager
    async def _open_exchange(self) -> AsyncIterator[McpExchange]:
        """Run the relay for the block."""
        sandbox = self._context.sandbox
        assert isinstance(sandbox, Converses)
        exchange = McpExchange(self._ids, self.changed)
        running = asyncio.ensure_future(
            sandbox.converse(
                (*_RELAY, "talk", self._directory, *self._server.command),
                exchange.channel.outgoing(),
                timeout=self._server.seconds + _GRACE_SECONDS,
                environment=self._server.environment,
                output_limit=_MOST_OUTPUT_BYTES,
                on_output=exchange.take,
            )
        )
        running.add_done_callback(exchange.relay_ended)
        try:
            yield exchange
        finally:
            exchange.channel.close()
            try:
                await asyncio.wait([running], timeout=_LEAVE_SECONDS)
            finally:
                if not running.done():  # the last resort: it ends everything in the sandbox
                    running.cancel()
                    await asyncio.wait([running])
                if not running.cancelled():
                    running.exception()


class McpExchange:
    """The messages of one run of the relay; `changed` is set when the server announces other tools.

    `started` says, once the server runs, whether this run started it; it raises `McpError`.
    """

    def __init__(self, ids: itertools.count[int], changed: asyncio.Event) -> None:
        self.channel = RpcChannel(ids)
        self.started: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._changed = changed
        self._lines = JsonLines(longest=LONGEST_LINE)
        self._stderr = b""
        self._problem: BaseException | None = None
        self._answered = 0

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request; raises `McpError`."""
        if self._problem is not None:
            raise self._problem
        try:
            return await self.channel.request(method, params)
        except RpcError as error:
            raise McpError(f"it answered with an error: {_one_line(error.message)}") from None

    def cancel(self, reason: str) -> None:
        """Notify the server that the open requests are cancelled."""
        for _, number in self.channel.waiting:
            self.channel.notify("notifications/cancelled", {"requestId": number, "reason": reason})

    def oddities(self) -> str:
        """Return a clause about malformed lines, or "" without any."""
        if not self._lines.malformed:
            return ""
        return f"; {self._lines.malformed} lines were not messages, the last: {printable(self._lines.odd)!r}"

    def take(self, stream: Stream, piece: bytes) -> None:
        """Take output of the relay: on stdout the server's messages, on stderr the relay's own words."""
        if stream == "stdout":
            for message in self._lines.take(piece):
                self._take_message(message)
            return
        # The relay's own words come on stderr, so that no framing is needed and no server can forge them.
        *complete, self._stderr = (self._stderr + piece)[-(64 << 10) :].split(b"\n")
        for line in complete:
            word, _, rest = line.decode(errors="replace").partition(" ")
            match word:
                case "new" | "old" if not self.started.done():
                    self.started.set_result(word == "new")
                case "absent":
                    self._fail(McpError(f"it could not be started: {_one_line(rest)}"))
                case "flood":
                    self._fail(McpError(f"it sent more than {relay.MOST >> 20} MiB", broken=True))
                case "ended":
                    try:
                        report = msgspec.json.decode(rest)
                    except (msgspec.DecodeError, RecursionError):  # the server may have forged it
                        report = None
                    ended = report if isinstance(report, dict) else {}
                    last = _one_line(text_at(ended, "stderr")[-LONGEST_ERROR:])
                    how = f"it ended with exit code {ended.get('code')!s:.10}" + (f": {last}" if last else "")
                    self._fail(McpError(f"{how}{self.oddities()}", broken=True))

    def relay_ended(self, running: asyncio.Future[ExecResult]) -> None:
        """Fail the pending requests once the relay has ended; the error of a dead sandbox is kept."""
        error = None if running.cancelled() else running.exception()
        self._fail(error or McpError(f"the connection to it was lost{self.oddities()}", broken=True))

    def _fail(self, error: BaseException) -> None:
        self._problem = self._problem or error
        waiting: list[asyncio.Future[Any]] = [self.started, *self.channel.waiting.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(self._problem)
                future.exception()  # a future may have no waiter

    def _take_message(self, message: Mapping[str, Any]) -> None:
        method, number = message.get("method"), message.get("id")
        if not isinstance(method, str):
            self.channel.settle(message)
        elif "id" not in message:
            if method == "notifications/tools/list_changed":
                self._changed.set()
        # A request of the server: it may see that we are alive, and gets nothing else from us.
        elif self._answered < _MOST_ANSWERED and isinstance(number, int | str) and len(str(number)) <= _LONGEST_ID:
            self._answered += 1
            refusal = RpcError("not offered by this client", number=METHOD_NOT_FOUND)
            self.channel.answer(number, {} if method == "ping" else refusal)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())[:LONGEST_ERROR]
