"""Requests of the native agent to its models through the attempt's own gateway, with fallbacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from chargehand.agents.compaction import Compacted, compact
from chargehand.agents.contract import AttemptContext, Endpoint, EndpointModel
from chargehand.agents.conversation import ConversationEntry, to_messages
from chargehand.agents.model_messages import FinishReason, ModelMessage, ModelResponse, ReplyPart, ReplyTokens
from chargehand.agents.native.dialects.chat import ChatDialect
from chargehand.agents.native.dialects.messages import MessagesDialect
from chargehand.agents.recorded import dump_reply, require_recordable
from chargehand.agents.text_protocol import describe
from chargehand.agents.tool_specs import ToolSpec
from chargehand.core.errors import ExhaustedError, NotFoundError, UpstreamError
from chargehand.models.contract import GatewayFault
from chargehand.models.event_stream import EventSplitter, event_data
from chargehand.models.refusals import classify_refusal
from chargehand.models.registries import DIALECTS

if TYPE_CHECKING:
    import httpx

_BASE_URL = "http://gateway"
# The gateway's code for a model whose provider is out of quota for hours.
QUOTA = "quota_exhausted"
# The gateway's code if calls under way hold the rest of the budget.
_RESERVED = "budget_reserved"
# The gateway's code for a call that no model behind a name accepts, for example one with a picture.
_UNCARRIED = "uncarried"
_CONNECT_SECONDS = 30.0
# The gateway bounds each wait for the provider, and reports a timeout: the client must not give up first.
_SILENCE_SECONDS = 3600.0
_TRIES = 3
# On a retry the same model would refuse the same request.
_FINAL = frozenset(
    {"model_failed", QUOTA, _UNCARRIED, "key_refused", "model_unknown", "upstream_page", "upstream_untrusted"}
)
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError, RecursionError)
_LONGEST_FAULT = 500
_LOST_REASON = "the reply broke off"
# Tokens of one request; a higher count is a provider's mistake.
_MOST_TOKENS = 100_000_000
# Tokens assumed for a model whose context is unknown: nearly all current models have that.
_UNKNOWN_CONTEXT = 128_000
# A quarter of the context is left to the reply.
_REPLY_SHARE = 4


class NotKeptError(Exception):
    """The gateway has no kept reply to a request for which only a kept one was wanted."""


class ModelRequester:
    """Requests replies for one attempt; its state is derived from the recorded replies."""

    def __init__(self, context: AttemptContext, client: ModelClient, *, system: str) -> None:
        assert context.endpoint is not None
        self._context = context
        self._client = client
        self._system = system
        self.models = {model.name: model for model in context.endpoint.models}
        self._calibration: tuple[int, int] | None = None
        self._pictures: dict[str, bytes] = {}

    def other_than(self, model: EndpointModel) -> EndpointModel:
        """Return the model after this one in the chain, the first after the last."""
        names = list(self.models)
        return self.models[names[(names.index(model.name) + 1) % len(names)]]

    def calibrate(self, output: Any) -> None:
        """Learn from a recorded reply how many tokens its provider counted for a conversation of its size."""
        tokens = output["message"]["usage"].get("input_tokens") or 0
        if 0 < tokens <= _MOST_TOKENS and output.get("size"):
            self._calibration = (tokens, output["size"])

    async def request(
        self,
        model: EndpointModel,
        entries: Sequence[ConversationEntry],
        specs: Sequence[ToolSpec],
        *,
        kept: bool = False,
    ) -> dict[str, Any]:
        """Request a reply of a model, then of the others in turn; return it in recorded form.

        With `kept` only replies that were already paid for; raises `NotKeptError` if there is no such reply.
        Raises `UpstreamError` and `ExhaustedError` if no model replies.
        """
        chain = [model, *(other for other in self.models.values() if other.name != model.name)]
        first: UpstreamError | ExhaustedError | None = None
        for candidate in chain:
            try:
                return await self._request_fitting(candidate, entries, specs, kept=kept)
            except NotKeptError:
                continue
            except (UpstreamError, ExhaustedError) as error:
                if error.code == "budget":  # the budget is the attempt's: another model has no more
                    raise
                # A mission can wait for quota, so that error is more useful than the first one.
                first = error if first is None or error.code == QUOTA else first
        if kept:
            raise NotKeptError
        assert first is not None
        raise first

    async def _request_fitting(
        self, model: EndpointModel, entries: Sequence[ConversationEntry], specs: Sequence[ToolSpec], *, kept: bool
    ) -> dict[str, Any]:
        system = self._system if model.tools else f"{self._system}\n\n{describe(specs)}"
        limit = (model.context or _UNKNOWN_CONTEXT) * (_REPLY_SHARE - 1) // _REPLY_SHARE
        show = self._context.on_output

        def show_text(text: str) -> None:
            if show is not None:
                show("stdout", text.encode(errors="replace"))

        pictures = model.images and any(entry.image is not None for entry in entries)
        attempt = 1
        limits: tuple[int, ...] = (limit,)
        while True:
            picture = self._load_picture if pictures else None
            messages, pins = to_messages(system, entries, native=model.tools, picture=picture)
            fitting = self._compact(messages, limits, pins)
            try:
                response = await self._client.request(
                    model, fitting.messages, specs if model.tools else (), on_text=show_text, kept=kept
                )
            except UpstreamError as error:
                # The provider counts other tokens, or has a smaller context: shorten the request and send it once
                # more.
                if error.code == "context":
                    if len(limits) > 1:
                        raise ExhaustedError(error.message, code="context") from error
                    limits = (fitting.size // 2, fitting.size * 3 // 4, limit)
                    continue
                # It passes by itself, and the gateway has waited already: the attempt's time is the limit.
                if error.code == _RESERVED:
                    continue
                # A picture that a provider refuses must not end the work, since every later request contains it.
                refused = pictures and error.code in ("model_failed", _UNCARRIED)
                pictures = pictures and not refused
                if attempt == _TRIES or (error.code in _FINAL and not refused):
                    raise
                attempt += 1
            else:
                return {
                    "model": model.name,
                    "native": model.tools,
                    "message": dump_reply(response),
                    "size": fitting.size,
                }

    def _compact(
        self, messages: Sequence[ModelMessage], limits: Sequence[int], pins: Collection[int]
    ) -> Compacted:
        """Shorten the messages to the first limit that can be met."""
        for limit in limits[:-1]:
            with contextlib.suppress(ExhaustedError):
                # By our own count, as `Compacted.size` is: the provider's was wrong.
                return compact(messages, limit=limit, pins=pins)
        return compact(messages, limit=limits[-1], pins=pins, calibration=self._calibration)

    def _load_picture(self, artifact: str) -> bytes | None:
        """Return a picture that was read, or `None` if it is gone; cached, since every request sends it."""
        if artifact not in self._pictures:
            with contextlib.suppress(NotFoundError):
                self._pictures[artifact] = self._context.artifact(artifact)
        return self._pictures.get(artifact)


class _CallError(Exception):
    """The gateway refused a call, or its reply broke off; `body` is the decoded error document, or text."""

    def __init__(self, status: int, text: str, body: Any = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.body = body


class _ReplyReader(Protocol):
    """Reads one streamed reply of a dialect."""

    model: str
    finish_reason: FinishReason | None

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        ...

    def finish(self) -> list[ReplyPart]:
        """Return the parts of the reply."""
        ...


class ModelClient:
    """Sends conversations to the models of one endpoint; made by `open_client`."""

    def __init__(self, endpoint: Endpoint, http: httpx.AsyncClient) -> None:
        self._endpoint = endpoint
        self._http = http

    async def request(
        self,
        model: EndpointModel,
        messages: Sequence[ModelMessage],
        tools: Sequence[ToolSpec],
        *,
        on_text: Callable[[str], None],
        kept: bool = False,
    ) -> ModelResponse:
        """Return the model's streamed reply; `on_text` gets its text as it arrives.

        With `kept` no model is called: the result is an earlier reply of the attempt, otherwise this raises
        `NotKeptError`. Raises `ExhaustedError` (`budget`), and `UpstreamError` if no whole reply arrives for any
        reason.
        """
        kind = MessagesDialect if model.dialect == "anthropic" else ChatDialect
        dialect = kind(model.name)
        body = dialect.write(messages, tools, model.max_output)
        reader = dialect.reader(on_text)
        meter = DIALECTS["anthropic" if model.dialect == "anthropic" else "openai"].stream_meter({})
        begun = False
        try:
            async for event in self._stream(dialect.path, dialect.headers, body, kept=kept):
                reader.read(event)
                meter.take(event)
                begun = True
            if not begun:
                raise ValueError("the stream ended without an event")
            used = meter.metered.usage
            response = _make_response(reader, used.input, used.output, used.cached, used.cache_write)
            require_recordable(response)
            return response
        except _CallError as error:
            if kept:
                raise NotKeptError from error
            raise _translate_error(error, model.name, begun=begun) from error
        # Event and reply are read without checking every type first.
        except (GatewayFault, *_UNREADABLE) as error:
            if kept:
                raise NotKeptError from error
            message = f"model {model.name!r} gave no usable reply: {type(error).__name__}: {error}"
            raise UpstreamError(message[:_LONGEST_FAULT], code="upstream_malformed") from error

    async def _stream(
        self, path: str, headers: Mapping[str, str], body: Mapping[str, Any], *, kept: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the decoded events of a reply; raises `_CallError`."""
        import httpx

        sent = {**headers, "authorization": f"Bearer {self._endpoint.token}", "content-type": "application/json"}
        if kept:
            # The gateway's own header: it never calls a model for such a request.
            sent["x-chargehand-kept"] = "only"
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        try:
            async with self._http.stream("POST", path, headers=sent, content=content) as reply:
                if reply.status_code != httpx.codes.OK:
                    raise _read_refusal(reply.status_code, await reply.aread())
                split = EventSplitter()
                async for piece in reply.aiter_bytes():
                    for event in split.feed(piece):
                        if (read := _read_event(event)) is not None:
                            yield read
                if (read := _read_event(split.rest())) is not None:
                    yield read
        except httpx.HTTPError as error:
            raise _CallError(0, f"the connection failed: {type(error).__name__}: {error}") from error


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[ModelClient]:
    """Connect to an endpoint's socket for the block."""
    import httpx

    directory = os.open(endpoint.socket.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # The kernel accepts 107 bytes; a path by file descriptor is short for any state directory.
        # Only the gateway retries, since it knows what a call may have cost. A socket file has no TLS: with
        # `verify` httpx would load the machine's authorities for nothing, which takes 40 ms.
        transport = httpx.AsyncHTTPTransport(
            uds=f"/proc/self/fd/{directory}/{endpoint.socket.name}", retries=0, verify=False
        )
        timeout = httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        async with httpx.AsyncClient(transport=transport, timeout=timeout, base_url=_BASE_URL) as http:
            yield ModelClient(endpoint, http)
    finally:
        os.close(directory)


def _make_response(
    reader: _ReplyReader, read: int | None, written: int | None, cached: int | None, stored: int | None
) -> ModelResponse:
    return ModelResponse(
        parts=reader.finish(),
        usage=ReplyTokens(
            input_tokens=read or 0,
            output_tokens=written or 0,
            cache_read_tokens=cached or 0,
            cache_write_tokens=stored or 0,
        ),
        model_name=reader.model,
        finish_reason=reader.finish_reason,
    )


def _read_event(event: bytes) -> dict[str, Any] | None:
    """Return an event's document, `None` if it has none; raises `_CallError` for an error inside the stream."""
    data = event_data(event)
    if not data or data.startswith(b"[DONE]"):
        return None
    try:
        document = json.loads(data)
    except ValueError as error:
        raise _CallError(0, f"an event of the stream is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError("an event of the stream is not an object")
    if document.get("error"):
        raise _CallError(0, _LOST_REASON, document)
    return document


def _read_refusal(status: int, content: bytes) -> _CallError:
    text = content.decode(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return _CallError(status, f"HTTP {status}: {text[:_LONGEST_FAULT]}", body)


def _translate_error(error: _CallError, model: str, *, begun: bool) -> ExhaustedError | UpstreamError:
    """Return the error as one of ours; the gateway's codes decide, never its sentences."""
    body = error.body
    document = body.get("error", body) if isinstance(body, dict) else None
    code = None
    text = error.text
    if isinstance(document, dict):  # the gateway sends code and message in every dialect
        code = document.get("code")
        text = document["message"] if isinstance(document.get("message"), str) else text
    text = re.sub(r"\s+", " ", text)
    if code == "price_unknown":
        return ExhaustedError(text, code="price_unknown")
    if code == "budget_exhausted":
        return ExhaustedError(text, code="budget")
    if code == QUOTA:
        return UpstreamError(text, code="quota_exhausted")
    if code == _RESERVED:
        return UpstreamError(text, code="budget_reserved")
    if code in (_UNCARRIED, "upstream_page", "upstream_untrusted"):
        return UpstreamError(text, code=code)
    refusal = classify_refusal(
        error.status, f"{text} {body if isinstance(body, str) else json.dumps(body, default=str)}"
    )
    message = f"model {model!r} gave no reply: {text}"
    return UpstreamError(message, code="upstream_cut" if begun else refusal or "model_failed")
