"""How the MCP server carries out a call: bounded, checked, and answered by a result or by one of our errors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from chargehand.core.errors import ChargehandError, ExhaustedError, InfrastructureError, UsageError, nearest
from chargehand.core.text import printable
from chargehand.mcp._records import schema_of
from chargehand.mcp._tools import McpToolSpec

_Context = ServerRequestContext[Any, Any]
KeepTraceback = Callable[[Exception], str]
"""Writes a traceback to a file and returns its path, "" where it could not."""
_BURST = 200.0
_PER_SECOND = 50.0
_WAITING = 256


class RateLimit:
    """A token bucket: so many calls at once, so many a second from then on."""

    def __init__(
        self,
        *,
        burst: float = _BURST,
        per_second: float = _PER_SECOND,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._burst, self._per_second, self._now = burst, per_second, now
        self._left, self._at = burst, now()

    def take(self) -> None:
        """Take one call from the bucket. Raises `ExhaustedError` (`rate_limited`) where it is empty."""
        at = self._now()
        self._left = min(self._burst, self._left + (at - self._at) * self._per_second)
        self._at = at
        if self._left < 1:
            raise ExhaustedError(
                f"more than {self._per_second:.0f} calls a second",
                code="rate_limited",
                hint="call again in a second; wait_mission waits without asking again and again",
            )
        self._left -= 1


class ToolCalls:
    """Lists and carries out tools."""

    def __init__(
        self, tools: Iterable[McpToolSpec], *, keep_traceback: KeepTraceback, rate: RateLimit | None = None
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._rate = rate or RateLimit()
        self._keep_traceback = keep_traceback
        self._open = 0

    async def list_tools(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Answer `tools/list`."""
        return types.ListToolsResult(tools=[_described(tool) for tool in self._tools.values()])

    async def call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answer `tools/call`; what the tool itself finds wrong is a result that says so."""
        tool = self._tools.get(params.name)
        if tool is None:
            name = printable(params.name[:100])
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {name!r}; {nearest(name, self._tools)}")

        async def progress(done: float, total: float, message: str) -> None:
            await context.session.report_progress(done, total, message)

        async def answer() -> types.CallToolResult:
            return _result(await tool.call(_arguments(tool, params.arguments or {}), progress))

        return await self._bounded(answer)

    async def _bounded(self, answer: Callable[[], Awaitable[types.CallToolResult]]) -> types.CallToolResult:
        self._open += 1
        try:
            self._rate.take()
            if self._open > _WAITING:
                raise ExhaustedError(
                    f"more than {_WAITING} calls are open", code="rate_limited", hint="wait for some of them"
                )
            with translate_errors(self._keep_traceback):
                return await answer()
        except ChargehandError as error:
            return error_result(error)
        finally:
            self._open -= 1


def error_result(error: ChargehandError) -> types.CallToolResult:
    """Return an error as the result of a tool: code, message and hint."""
    document = {"code": error.code, "message": printable(error.message), "hint": printable(error.hint)}
    text = f"{document['code']}: {document['message']}" + (f"\nhint: {document['hint']}" if error.hint else "")
    content: list[types.ContentBlock] = [types.TextContent(text=text)]
    return types.CallToolResult(content=content, structured_content={"error": document}, is_error=True)


@contextlib.contextmanager
def translate_errors(keep_traceback: KeepTraceback) -> Iterator[None]:
    """Let only errors of our tree and of the protocol out; the traceback of any other is kept.

    Raises `InfrastructureError` (`internal`).
    """
    try:
        yield
    except (ChargehandError, MCPError):
        raise
    except Exception as error:  # the boundary: a client is told that something went wrong, never a traceback
        kept = keep_traceback(error)
        raise InfrastructureError(
            f"something in Chargehand itself went wrong: {type(error).__name__}",
            code="internal",
            hint=f"the traceback is in {kept}" if kept else "the traceback could not be kept",
        ) from error


def _arguments(tool: McpToolSpec, given: Mapping[str, Any]) -> Any:
    if not all(map(_is_text, _texts(given))):
        raise UsageError(
            f"{tool.name}: a zero byte, or what is no text, is in the arguments", hint="give plain text"
        )
    try:
        return tool.arguments(given)
    except msgspec.ValidationError as error:
        raise UsageError(f"{tool.name}: {error}", hint="tools/list has the schema of its arguments") from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, *_texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _is_text(text: str) -> bool:
    """Tell whether a text could stand on a command line, as all that runs a mission expects."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _result(record: msgspec.Struct) -> types.CallToolResult:
    document = msgspec.to_builtins(record)
    content: list[types.ContentBlock] = [types.TextContent(text=msgspec.json.encode(document).decode())]
    return types.CallToolResult(content=content, structured_content=document)


def _described(tool: McpToolSpec) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.takes),
        output_schema=schema_of(tool.gives),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.read_only,
            destructive_hint=tool.destructive,
            idempotent_hint=tool.idempotent or tool.read_only,
            open_world_hint=tool.open_world,
        ),
    )
