"""Missions as resources of the MCP server: `mission://ID`, its diff and its log, and subscriptions to changes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated
from mcp.shared.exceptions import MCPError

from chargehand.core.errors import ChargehandError, NotFoundError
from chargehand.core.text import printable
from chargehand.mcp import _missions
from chargehand.mcp._calls import KeepTraceback, translate_errors
from chargehand.mcp._records import ListMissions, OneMission, ShowDiff, ShowLog
from chargehand.mcp._tools import ToolContext

_Context = ServerRequestContext[Any, Any]
_URI = re.compile(r"mission://([a-z0-9-]{1,64})(?:/(diff|log))?")
_PARTS = {"": "application/json", "diff": "text/x-diff", "log": "application/json"}
_PAGE_MISSIONS = 50
_LARGEST_DIFF_CHARACTERS = 200_000
# Subscriptions per client, and clients: each followed mission costs a query four times a second.
_MOST_SUBSCRIPTIONS = 100
_MOST_CLIENTS = 64


class Resources:
    """Lists and reads missions, and notifies subscribers of new lines in a mission's log."""

    def __init__(self, tools: ToolContext, *, keep_traceback: KeepTraceback) -> None:
        self._tools = tools
        self._keep_traceback = keep_traceback
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=_MOST_SUBSCRIPTIONS)
        self._subscribers: dict[str, dict[str, ServerSession]] = {}
        tools.watcher.told = self._announce_change

    async def list_resources(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Answer `resources/list`: the newest missions, page by page."""
        call = ListMissions(limit=_PAGE_MISSIONS, cursor=params.cursor if params else None)
        with _protocol_errors(self._keep_traceback):
            page = await self._tools.do(_missions.list_missions, call)
        resources = [
            types.Resource(
                uri=f"mission://{line.mission}",
                name=line.mission,
                title=f"{line.status}: {line.request[:60]}",
                mime_type=_PARTS[""],
            )
            for line in page.missions
        ]
        return types.ListResourcesResult(resources=resources, next_cursor=page.next_cursor)

    async def list_templates(
        self, context: _Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Answer `resources/templates/list`."""
        about = {"": "A mission's status.", "diff": "Its changes, as a patch.", "log": "Its newest events."}
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(
                    uri_template=f"mission://{{mission}}{'/' if part else ''}{part}",
                    name=f"mission {part}".strip(),
                    description=about[part],
                    mime_type=mime,
                )
                for part, mime in _PARTS.items()
            ]
        )

    async def read(self, context: _Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        """Answer `resources/read`."""
        with _protocol_errors(self._keep_traceback):
            mission, part = _parse_uri(params.uri)
            if part == "diff":
                diff = await self._tools.do(
                    _missions.show_diff, ShowDiff(mission=mission, limit=_LARGEST_DIFF_CHARACTERS)
                )
                rest = "" if diff.next_offset is None else "\n[cut here: the tool show_diff shows the rest]\n"
                text = diff.patch + rest
            elif part == "log":
                last = (await self._tools.status(mission)).last_seq
                log = await self._tools.do(_missions.show_log, ShowLog(mission=mission, after=max(0, last - 100)))
                text = msgspec.json.encode(log).decode()
            else:
                view = await self._tools.do(_missions.mission_status, OneMission(mission=mission))
                text = msgspec.json.encode(view).decode()
        content = types.TextResourceContents(uri=params.uri, mime_type=_PARTS[part], text=text)
        return types.ReadResourceResult(contents=[content])

    async def subscribe(self, context: _Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        """Answer `resources/subscribe`, of protocols before 2026-07-28."""
        with _protocol_errors(self._keep_traceback):
            mission, _ = _parse_uri(params.uri)
            # Raises `NotFoundError` for an unknown mission, which would be followed in vain.
            await self._tools.status(mission)
        client = _client(context)
        while client not in self._subscribers and len(self._subscribers) >= _MOST_CLIENTS:
            oldest = next(iter(self._subscribers))  # an HTTP client that left did not unsubscribe
            self._drop(oldest, *list(self._subscribers[oldest]))
        mine = self._subscribers.setdefault(client, {})
        if params.uri not in mine:
            if len(mine) >= _MOST_SUBSCRIPTIONS:
                raise MCPError(types.INVALID_REQUEST, f"more than {_MOST_SUBSCRIPTIONS} subscriptions")
            self._tools.watcher.follow(mission)
        mine[params.uri] = context.session
        return types.EmptyResult()

    async def unsubscribe(self, context: _Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        """Answer `resources/unsubscribe`."""
        self._drop(_client(context), params.uri)
        return types.EmptyResult()

    async def listen(
        self, context: _Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Answer `subscriptions/listen`, the way to subscribe from 2026-07-28 on."""
        wanted = params.notifications.resource_subscriptions or []
        if len(wanted) > _MOST_SUBSCRIPTIONS:
            raise MCPError(types.INVALID_REQUEST, f"more than {_MOST_SUBSCRIPTIONS} subscriptions")
        with contextlib.ExitStack() as stack:
            with _protocol_errors(self._keep_traceback):
                missions = [_parse_uri(str(uri))[0] for uri in wanted]
            for mission in missions:
                stack.enter_context(self._tools.watcher.following(mission))
            return await self._listen(context, params)

    def close(self) -> None:
        """End all streams of subscriptions."""
        self._listen.close()

    async def _announce_change(self, mission: str) -> None:
        for part in _PARTS:
            uri = f"mission://{mission}" + (f"/{part}" if part else "")
            await self._bus.publish(ResourceUpdated(uri))
            # Over a copy: `_drop` removes clients that are gone while the others are notified.
            for client, theirs in list(self._subscribers.items()):
                session = theirs.get(uri)
                if session is None:
                    continue
                try:
                    await session.send_resource_updated(uri)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError, MCPError):
                    self._drop(client, *theirs)

    def _drop(self, client: str, *uris: str) -> None:
        mine = self._subscribers.get(client, {})
        for uri in uris:
            if mine.pop(uri, None) is not None:
                self._tools.watcher.leave(_parse_uri(uri)[0])
        if not mine:
            self._subscribers.pop(client, None)


def _client(context: _Context) -> str:
    """Return a key that identifies a client: its HTTP session; on stdio there is only one client."""
    return context.request.headers.get("mcp-session-id", "") if context.request is not None else ""


def _parse_uri(uri: str) -> tuple[str, str]:
    found = _URI.fullmatch(uri)
    if found is None:
        raise NotFoundError(f"there is no resource {uri[:100]!r}", hint="mission://ID, mission://ID/diff or /log")
    return found[1], found[2] or ""


@contextlib.contextmanager
def _protocol_errors(keep_traceback: KeepTraceback) -> Iterator[None]:
    """Turn our errors into errors of the protocol, with code, message and hint as data."""
    try:
        with translate_errors(keep_traceback):
            yield
    except ChargehandError as error:
        number = types.INVALID_PARAMS if error.exit_code == 2 else types.INTERNAL_ERROR
        message = printable(error.message)
        document = {"code": error.code, "message": message, "hint": printable(error.hint)}
        raise MCPError(number, message, document) from error
