"""Carries out calls of the MCP server: rate-limited, validated, answered with a result or one of our errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from chargehand.core.errors import ChargehandError, ExhaustedError, InfrastructureError, UsageError, nearest
from chargehand.core.redaction import log_fields
from chargehand.core.text import printable
from chargehand.mcp._records import schema_of
from chargehand.mcp._tools import TOOLS, McpToolSpec, ToolContext
from chargehand.policy.rates import RateLimit

_Context = ServerRequestContext[Any, Any]
KeepTraceback = Callable[[Exception], str]
"""Writes a traceback to a file and returns its path, "" if that failed."""
_WAITING = 256


class ToolCalls:
    """Lists and carries out tools."""

    def __init__(self, context: ToolContext, *, keep_traceback: KeepTraceback) -> None:
        self._context = context
        self._tools = {tool.name: tool for tool in TOOLS}
        self._rate = RateLimit()
        self._keep_traceback = keep_traceback
        self._open = 0

    async def list_tools(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Answer `tools/list`."""
        tools = [
            types.Tool(
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
            for tool in self._tools.values()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, context: _Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answer `tools/call`; an error found by the tool is a result with the error."""
        tool = self._tools.get(params.name)
        if tool is None:
            name = printable(params.name[:100])
            # A protocol error: a missing tool cannot answer with a result.
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {name!r}; {nearest(name, self._tools)}")

        async def progress(done: float, total: float, message: str) -> None:
            await context.session.report_progress(done, total, message)

        self._open += 1
        try:
            self._rate.take()
            if self._open > _WAITING:
                raise ExhaustedError(
                    f"more than {_WAITING} calls are open", code="rate_limited", hint="wait for some of them"
                )
            with log_fields(request=str(context.request_id)), translate_errors(self._keep_traceback):
                record = await tool.call(self._context, _read_arguments(tool, params.arguments or {}), progress)
                document = msgspec.to_builtins(record)
                # The text repeats the document for clients that do not read structured results.
                text: list[types.ContentBlock] = [types.TextContent(text=msgspec.json.encode(document).decode())]
                return types.CallToolResult(content=text, structured_content=document)
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
    """Let only errors of our tree and of the protocol pass; the traceback of any other error is stored.

    Raises `InfrastructureError` (`internal`).
    """
    try:
        yield
    except (ChargehandError, MCPError):
        raise
    except Exception as error:  # the boundary: the client learns that an error occurred, never a traceback
        kept = keep_traceback(error)
        raise InfrastructureError(
            f"something in Chargehand itself went wrong: {type(error).__name__}",
            code="internal",
            hint=f"the traceback was saved to {kept}" if kept else "the traceback could not be saved",
        ) from error


def _read_arguments(tool: McpToolSpec, given: Mapping[str, Any]) -> Any:
    # The code that runs a mission expects texts that are valid on a command line.
    if any("\0" in text or any("\ud800" <= char <= "\udfff" for char in text) for text in _texts(given)):
        raise UsageError(
            f"{tool.name}: the arguments contain a zero byte or a character that is not valid Unicode",
            hint="give plain text",
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
