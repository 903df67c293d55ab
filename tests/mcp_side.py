"""An MCP server built with the SDK, for tests: it runs inside a sandbox, with the project's environment."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

server = MCPServer("kitchen")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def look(path: str) -> str:
    """Return a file of the workspace."""
    return Path(path).read_text()


@server.tool()
def write(path: str, text: str) -> str:
    """Write a file of the workspace."""
    Path(path).write_text(text)
    return f"wrote {path}"


@server.tool(annotations=READS)
def measure(
    unit: Literal["cup", "spoon"], amount: Annotated[int, Field(ge=1, le=9)], notes: list[str] | None = None
) -> str:
    """Measure."""
    return f"{amount} {unit} {notes or ''}".strip()


@server.tool(annotations=READS)
def who() -> str:
    """Return the process and a variable."""
    return f"{os.getpid()} {os.environ.get('KITCHEN', '')} {os.getcwd()}"


@server.tool(annotations=READS)
def picture() -> Image:
    """Return a picture."""
    return Image(data=b"\x89PNG....", format="png")


@server.tool(annotations=READS)
def long(lines: int) -> str:
    """Return many lines."""
    return "\n".join(f"line {number}" for number in range(lines))


@server.tool(annotations=READS)
def fail() -> str:
    """Fail."""
    raise ToolError("the oven is cold")


@server.tool(annotations=READS)
def hang() -> str:
    """Never answer."""
    time.sleep(600)
    return ""


@server.tool(annotations=READS)
def die() -> str:
    """End the server in the middle of a call."""
    sys.stderr.write("the kitchen burns\n")
    sys.stderr.flush()
    os._exit(3)


@server.tool()
async def more(ctx: Context) -> str:
    """Offer another tool from now on."""

    def extra() -> str:
        """Be there since just now."""
        return "extra"

    server.add_tool(extra)
    await ctx.session.send_tool_list_changed()
    return "there is more"


if __name__ == "__main__":
    server.run()
