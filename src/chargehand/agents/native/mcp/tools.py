"""The tools of MCP servers as a native agent's own: listed, offered, judged, called, and answered in text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from chargehand.agents._json_rpc import object_at, objects_at, text_at
from chargehand.agents.contract import AttemptContext, McpServer
from chargehand.agents.messages import denial_text
from chargehand.agents.native.mcp.schema import faults, plain_schema
from chargehand.agents.native.mcp.server import McpError, McpServerProcess
from chargehand.agents.recorded import without_lone_surrogates
from chargehand.agents.tool_specs import Mistake, ToolResult, ToolSpec
from chargehand.core.codec import convert_to
from chargehand.core.errors import nearest
from chargehand.core.text import printable
from chargehand.policy.actions import McpCall, Run
from chargehand.sandbox.contract import Converses

PREFIX = "mcp_"
_NO_WORD = re.compile(r"[^A-Za-z0-9_]")
# Characters of a tool's name that every provider accepts.
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1_000
# Tools of all servers of an attempt: more would take the context from the work.
_MOST_TOOLS = 64
_LONGEST_ARGUMENTS = 200_000
_MOST_PARTS = 200

# Shortens a text for a model; returns it with the artifact of the whole text.
Shorten = Callable[[str], Awaitable[tuple[str, str | None]]]


class McpTool(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded MCP tool: the name offered to the model and the server's own name for it.

    `reads` says that its server claims it is read-only.
    """

    name: str
    server: str
    tool: str
    description: str
    parameters: dict[str, Any]
    reads: bool

    def spec(self) -> ToolSpec:
        """Return the tool as described to a model."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)


class McpListing(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of all servers at one time, and the reasons why servers had no tools."""

    tools: tuple[McpTool, ...] = ()
    problems: tuple[str, ...] = ()


def listing_step(turn: int) -> str:
    """Return the name of the step that listed the tools before a turn's reply."""
    return f"mcp/{turn}"


class McpTools:
    """The servers of one attempt and their tools that are offered to the model now.

    The list is recorded: a worker that takes over offers the same tools; a server is restarted when it is called.
    """

    def __init__(self, servers: Sequence[McpServer], context: AttemptContext, *, shorten: Shorten) -> None:
        self._configured = servers
        self._context = context
        self._servers = {each.name: McpServerProcess(each, context) for each in servers}
        self._shorten = shorten
        self._tools: dict[str, McpTool] = {}
        self._admitted: set[str] = set()

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as described to a model."""
        return tuple(tool.spec() for tool in self._tools.values())

    async def refresh(self, turn: int) -> tuple[str, ...]:
        """List the tools before a turn's reply if that is due; return the problems of servers."""
        name = listing_step(turn)
        due = turn == 1 or any(server.changed.is_set() for server in self._servers.values())
        if not self._configured or not (due or self._context.is_recorded(name)):
            return ()
        # Recorded: a worker that takes over must know which calls were acts.
        output = await self._context.step(name, [each.name for each in self._configured], self._list_tools)
        listing = convert_to(output, McpListing, from_attributes=True)
        self._tools = {tool.name: tool for tool in listing.tools}
        return listing.problems

    async def _list_tools(self) -> object:
        tools: dict[str, McpTool] = {}
        problems: list[str] = []
        for server in self._configured:
            try:
                if not isinstance(self._context.sandbox, Converses):
                    tier = self._context.sandbox.tier
                    raise McpError(f"sandboxes of tier {tier!r} cannot talk with a running program")
                # Its start is judged, like that of every agent's program.
                if server.name not in self._admitted:
                    action = Run(kind="launch", run=server.command, trusted=True)
                    judgement = await self._context.judge(f"mcp/launch/{server.name}", action)
                    if judgement.effect != "allow":
                        raise McpError(denial_text(judgement))
                    self._admitted.add(server.name)
                offered = await self._servers[server.name].tools()
            except McpError as error:
                problems.append(f"The tools of the MCP server {server.name!r} are missing: {error.message}")
                continue
            for tool in _allowed_tools(server, offered):
                if len(tools) < _MOST_TOOLS:
                    name = tool.name
                    if len(name) > _LONGEST_NAME or name in tools:
                        identity = f"{tool.server}\0{tool.tool}".encode("utf-8", "surrogatepass")
                        name = f"{name[: _LONGEST_NAME - 9]}_{sha256(identity).hexdigest()[:8]}"
                    tools[name] = replace(tool, name=name)
        return McpListing(tools=tuple(tools.values()), problems=tuple(problems))

    def knows(self, name: str) -> bool:
        """Return whether a call is meant for a server, known or not."""
        return bool(self._configured) and name.startswith(PREFIX)

    def mutates(self, name: str) -> bool:
        """Return whether a call may change files: every one that its server does not claim to be read-only."""
        return name in self._tools and not self._tools[name].reads

    async def call(self, step: str, name: str, arguments: object) -> ToolResult:
        """Carry out one call if the rules allow it; any problem with it or its server is a failed result.

        `step` is the call's own. Raises `SandboxDiedError`, and `WaitingError` while a person is asked.
        """
        server = name
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise Mistake(f"there is no tool {name[:80]!r}: {nearest(name[:80], self._tools)}")
            server = tool.server
            if not isinstance(arguments, dict):
                raise Mistake(f"the arguments of {tool.name} must be a JSON object, not {str(arguments)[:60]!r}")
            properties, required = tool.parameters["properties"], tool.parameters["required"]
            # Several models write null for arguments that they omit; it stays if the schema allows null.
            checked = {
                key: value
                for key, value in arguments.items()
                if value is not None
                or key in required
                or key not in properties
                or not faults(properties[key], None)
            }
            if len(msgspec.json.encode(checked)) > _LONGEST_ARGUMENTS:
                raise Mistake(f"the arguments of {tool.name} are longer than {_LONGEST_ARGUMENTS} bytes")
            if wrong := faults(tool.parameters, checked):
                raise Mistake(f"wrong arguments for {tool.name}: {'; '.join(wrong)}")
            document = msgspec.json.encode(checked, order="sorted").decode()
            action = McpCall(server=server, tool=tool.tool, arguments=document, reads=tool.reads)
            # A separate kind of action, with typed facts, so that rules can name a server's tool.
            judgement = await self._context.judge(step, action)
            if judgement.effect != "allow":
                return ToolResult(text=denial_text(judgement), failed=True)
            result = await self._servers[server].call(tool.tool, checked)
        except Mistake as mistake:
            return ToolResult(text=str(mistake), failed=True)
        except McpError as error:
            return ToolResult(text=f"the MCP server {server!r} failed: {error.message}", failed=True)
        text, artifact = await self._shorten(read_content(result, keep=self._context.keep))
        return ToolResult(text=text, failed=result.get("isError") is True, artifact=artifact)


def _allowed_tools(server: McpServer, offered: Sequence[Mapping[str, Any]]) -> list[McpTool]:
    """Return the allowed tools of a server; tools without a usable name are ignored."""
    found = []
    for each in offered:
        tool = text_at(each, "name")
        allowed = not server.tools or tool in server.tools
        if allowed and 0 < len(tool) <= 128 and tool.isprintable() and printable(tool) == tool:
            said = printable(text_at(each, "description") or text_at(object_at(each, "annotations"), "title"))
            words = " ".join(said.split())[:_LONGEST_DESCRIPTION]
            found.append(
                McpTool(
                    name=_NO_WORD.sub("_", f"{PREFIX}{server.name}_{tool}"),
                    server=server.name,
                    tool=tool,
                    description=f"[Of the MCP server {server.name}, in its own words:] {words}",
                    parameters=without_lone_surrogates(plain_schema(each.get("inputSchema"))),
                    reads=object_at(each, "annotations").get("readOnlyHint") is True,
                )
            )
    return found


def read_content(result: Mapping[str, Any], *, keep: Callable[[bytes], str]) -> str:
    """Return the whole content of a `tools/call` result as text; `keep` stores bytes and returns their id.

    Structured content is shown if there is no other.
    """
    parts: list[str] = []
    for part in list(objects_at(result, "content"))[:_MOST_PARTS]:
        match part.get("type"):
            case "text":
                parts.append(text_at(part, "text"))
            case "image" | "audio" as kind:
                parts.append(_keep_data(str(kind), part, text_at(part, "data"), keep))
            case "resource":
                resource = object_at(part, "resource")
                where = f"resource {_one_line(text_at(resource, 'uri'))}"
                if isinstance(resource.get("text"), str):
                    parts.append(f"[{where}]\n{resource['text']}")
                else:
                    parts.append(_keep_data(where, resource, text_at(resource, "blob"), keep))
            case "resource_link":
                title = _one_line(text_at(part, "name", "title"))
                parts.append(f"[link to resource {_one_line(text_at(part, 'uri'))}: {title}]")
            case other:
                parts.append(f"[content of the unknown type {_one_line(str(other))}]")
    if not parts and result.get("structuredContent") is not None:
        parts = [msgspec.json.encode(result["structuredContent"]).decode()]
    return printable("\n".join(parts)) or "(the server sent an empty result)"


def _keep_data(what: str, part: Mapping[str, Any], data: str, keep: Callable[[bytes], str]) -> str:
    # Kept and named, not shown: conversations are recorded and shortened as text.
    kind = _one_line(text_at(part, "mimeType")) or "of unknown type"
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{what} ({kind}) that is not base64]"
    return f"[{what} ({kind}), {len(content)} bytes, not shown; kept as artifact {keep(content)}]"


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())[:200]
