"""An attempt context with MCP servers: those of the SDK, and small programs that violate the protocol."""

from __future__ import annotations

from typing import Any

from chargehand.agents.contract import McpServer
from chargehand.agents.native.mcp.tools import McpTools
from chargehand.agents.toolbox import Toolbox, ToolResult
from chargehand.testing.agents.kit import MemoryAttemptContext
from chargehand.testing.sandbox.kit import OpenedSandbox


class Table:
    """An attempt context with servers."""

    def __init__(self, opened: OpenedSandbox, *servers: McpServer) -> None:
        self.context = MemoryAttemptContext(opened)
        self._servers = servers
        self._calls = 0
        self.sit()

    def sit(self) -> None:
        """Open the tools as a worker does."""
        box = Toolbox(self.context.sandbox, keep=self.context.keep)
        self.tools = McpTools(self._servers, self.context, shorten=box.shorten)

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.tools.specs]

    async def call(self, name: str, **arguments: Any) -> ToolResult:
        self._calls += 1
        return await self.tools.call(f"turn/{self._calls}/call/0", name, arguments)


def served(script: str, **keys: Any) -> McpServer:
    """Return a server that runs a small program; the program can use `heard` and `say`."""
    return McpServer(name="odd", command=("python3", "-I", "-c", _TALK + script), **{"environment": {}, **keys})


_TALK = """
import json, os, sys, time
def heard():
    line = sys.stdin.readline()
    if not line: sys.exit(0)
    return json.loads(line)
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def answer(message, **result):
    if "id" in message: say(id=message["id"], result=result)
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd"}}
def greet():
    answer(heard(), **HELLO); heard()
def tool(name="t", **more):
    return {"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}, **more}
def serve(work):
    greet()
    while True:
        message = heard()
        answer(message, tools=[tool()]) if message["method"] == "tools/list" else work(message)
"""
