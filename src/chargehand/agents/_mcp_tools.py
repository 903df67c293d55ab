"""The tools of MCP servers as a native agent's own: listed, offered, judged, called, and answered in text."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import msgspec

from chargehand.agents._contract import AttemptContext, McpServer
from chargehand.agents._judged import refusal
from chargehand.agents._look import inner, text_at
from chargehand.agents._mcp_content import read_content
from chargehand.agents._mcp_schema import faults, plain_schema
from chargehand.agents._mcp_wire import McpError, Server
from chargehand.agents._recorded import whole
from chargehand.agents._tools_model import Mistake, ToolResult, ToolSpec
from chargehand.core.codec import convert_to
from chargehand.core.errors import nearest
from chargehand.core.text import printable
from chargehand.policy.actions import McpCall, Run
from chargehand.sandbox._contract import Converses

PREFIX = "mcp_"
_LONGEST_NAME = 64
"""Characters of a tool's name that every provider takes."""
_LONGEST_DESCRIPTION = 1_000
_MOST_TOOLS = 64
"""Tools of all servers of an attempt: more would take the context from the work."""
_LONGEST_ARGUMENTS = 200_000

Bounded = Callable[[str], Awaitable[tuple[str, str | None]]]
"""Makes a text short enough for a model; returns it with the artifact of the whole one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """One tool as it is recorded: under which name the model calls it, and what it is to its server.

    `reads` says that its server calls it read-only; that is the server's word.
    """

    name: str
    server: str
    tool: str
    description: str
    parameters: dict[str, Any]
    reads: bool

    def spec(self) -> ToolSpec:
        """Return it as a model is told of it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The tools of all servers at one time, and which servers had none to give, with why."""

    tools: tuple[McpTool, ...] = ()
    problems: tuple[str, ...] = ()


def listing_step(turn: int) -> str:
    """Return the name of the step in which the tools before a turn's reply were listed."""
    return f"mcp/{turn}"


class McpTools:
    """The servers of one attempt and the tools of theirs that the model is offered now.

    The list is recorded: a worker that goes on offers what was offered; a server starts anew once it is called.
    """

    def __init__(self, servers: Sequence[McpServer], context: AttemptContext, *, bounded: Bounded) -> None:
        self._configured = servers
        self._context = context
        self._servers = {each.name: Server(each, context) for each in servers}
        self._bounded = bounded
        self._tools: dict[str, McpTool] = {}
        self._admitted: set[str] = set()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as a model is told of them."""
        return tuple(tool.spec() for tool in self._tools.values())

    async def refresh(self, turn: int) -> tuple[str, ...]:
        """List the tools before a turn's reply, where that is due; return what is wrong with which servers."""
        name = listing_step(turn)
        due = turn == 1 or any(server.changed for server in self._servers.values())
        if not self._configured or not (due or self._context.is_recorded(name)):
            return ()
        output = await self._context.step(name, [each.name for each in self._configured], self._listed)
        listing = convert_to(output, Listing, from_attributes=True)
        self._tools = {tool.name: tool for tool in listing.tools}
        return listing.problems

    async def _listed(self) -> object:
        tools: dict[str, McpTool] = {}
        problems: list[str] = []
        for server in self._configured:
            try:
                await self._require_start(server)
                offered = await self._servers[server.name].tools()
            except McpError as error:
                problems.append(f"The tools of the MCP server {server.name!r} are missing: {error.message}")
                continue
            for tool in _tools_of(server, offered):
                if len(tools) < _MOST_TOOLS:
                    named = _own_name(tool, tools)
                    tools[named.name] = named
        return Listing(tools=tuple(tools.values()), problems=tuple(problems))

    async def _require_start(self, server: McpServer) -> None:
        """Have the start of a server judged, as every agent's program is; raises `McpError` where it is denied."""
        if not isinstance(self._context.sandbox, Converses):
            tier = self._context.sandbox.tier
            raise McpError(f"sandboxes of tier {tier!r} cannot talk with a running program")
        if server.name in self._admitted:
            return
        action = Run(kind="launch", run=server.command, trusted=True)
        judgement = await self._context.judge(f"mcp/launch/{server.name}", action)
        if judgement.effect != "allow":
            raise McpError(refusal(judgement))
        self._admitted.add(server.name)

    def knows(self, name: str) -> bool:
        """Tell whether a call is meant for a server, known or not."""
        return bool(self._configured) and name.startswith(PREFIX)

    def mutates(self, name: str) -> bool:
        """Tell whether a call may change files: every one that its server does not call read-only."""
        return name in self._tools and not self._tools[name].reads

    async def call(self, step: str, name: str, arguments: object) -> ToolResult:
        """Carry out one call that the rules allow; whatever is wrong with it or its server is a failed result.

        `step` is the call's own. Raises `SandboxDiedError`, and `WaitingError` where a person is asked.
        """
        server = name
        try:
            tool, checked = self._checked(name, arguments)
            server = tool.server
            judgement = await self._context.judge(step, _action(tool, checked))
            if judgement.effect != "allow":
                return ToolResult(text=refusal(judgement), failed=True)
            result = await self._servers[tool.server].call(tool.tool, checked)
        except Mistake as mistake:
            return ToolResult(text=str(mistake), failed=True)
        except McpError as error:
            return ToolResult(text=f"the MCP server {server!r} did not do it: {error.message}", failed=True)
        text, artifact = await self._bounded(read_content(result, keep=self._context.keep))
        return ToolResult(text=text, failed=result.get("isError") is True, artifact=artifact)

    def _checked(self, name: str, arguments: object) -> tuple[McpTool, dict[str, Any]]:
        tool = self._tools.get(name)
        if tool is None:
            raise Mistake(f"there is no tool {name[:80]!r}: {nearest(name[:80], self._tools)}")
        if not isinstance(arguments, dict):
            raise Mistake(f"the arguments of {name} must be a JSON object, not {str(arguments)[:60]!r}")
        arguments = _without_nulls(tool, arguments)
        if len(msgspec.json.encode(arguments)) > _LONGEST_ARGUMENTS:
            raise Mistake(f"the arguments of {name} are longer than {_LONGEST_ARGUMENTS} bytes")
        if wrong := faults(tool.parameters, arguments):
            raise Mistake(f"wrong arguments for {name}: {'; '.join(wrong)}")
        return tool, arguments


def _without_nulls(tool: McpTool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is null and may be left out, unless null is a value there: so several models leave it out."""
    properties, required = tool.parameters["properties"], tool.parameters["required"]
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or name in required or name not in properties or not faults(properties[name], None)
    }


def _action(tool: McpTool, arguments: Mapping[str, Any]) -> McpCall:
    told = msgspec.json.encode(arguments, order="sorted").decode()
    return McpCall(server=tool.server, tool=tool.tool, arguments=told, reads=tool.reads)


def _tools_of(server: McpServer, offered: Sequence[Mapping[str, Any]]) -> list[McpTool]:
    """Return the tools of a server that are allowed; what has no usable name is as if it were not there."""
    found = []
    for each in offered:
        tool = text_at(each, "name")
        allowed = not server.tools or tool in server.tools
        if allowed and 0 < len(tool) <= 128 and tool.isprintable() and printable(tool) == tool:
            said = printable(text_at(each, "description") or text_at(inner(each, "annotations"), "title"))
            words = " ".join(said.split())[:_LONGEST_DESCRIPTION]
            found.append(
                McpTool(
                    name=_NO_WORD.sub("_", f"{PREFIX}{server.name}_{tool}"),
                    server=server.name,
                    tool=tool,
                    description=f"[Of the MCP server {server.name}, in its own words:] {words}",
                    parameters=whole(plain_schema(each.get("inputSchema"))),
                    reads=inner(each, "annotations").get("readOnlyHint") is True,
                )
            )
    return found


_NO_WORD = re.compile(r"[^A-Za-z0-9_]")


def _own_name(tool: McpTool, taken: Mapping[str, McpTool]) -> McpTool:
    """Return the tool under a name that no other has and every provider takes."""
    if len(tool.name) <= _LONGEST_NAME and tool.name not in taken:
        return tool
    mark = sha256(f"{tool.server}\0{tool.tool}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return replace(tool, name=f"{tool.name[: _LONGEST_NAME - 9]}_{mark}")
