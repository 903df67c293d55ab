"""Requests of the native agent to its models: pydantic-ai over the attempt's own gateway, with fallbacks."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from chargehand.agents.compaction import Compacted, compact
from chargehand.agents.contract import AttemptContext, Endpoint, EndpointModel
from chargehand.agents.conversation import ConversationEntry, to_messages
from chargehand.agents.recorded import dump_reply, require_recordable
from chargehand.agents.text_protocol import describe
from chargehand.agents.tool_specs import ToolSpec
from chargehand.core.errors import ExhaustedError, NotFoundError, UpstreamError
from chargehand.models.contract import Dialect
from chargehand.models.refusals import classify_refusal

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

_LOADING = threading.Lock()
_MODULES: Mapping[Dialect, tuple[str, ...]] = {
    "openai": ("pydantic_ai.models.openai", "pydantic_ai.providers.openai_compatible"),
    "anthropic": ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
}
_USUAL_DIALECTS: tuple[Dialect, ...] = ("openai",)
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
# Anthropic's messages need an output limit; the gateway lowers it to an affordable one.
_ANTHROPIC_OUTPUT = 16_000
_TRIES = 3
# On a retry the same model would refuse the same request.
_FINAL = frozenset(
    {"model_failed", QUOTA, _UNCARRIED, "key_refused", "model_unknown", "upstream_page", "upstream_untrusted"}
)
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, AssertionError, RecursionError)
_LONGEST_FAULT = 500
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


class ModelClient:
    """Sends conversations to the models of one endpoint; made by `open_client`."""

    def __init__(self, endpoint: Endpoint, http: Any) -> None:
        self._endpoint = endpoint
        self._http = http
        self._models: dict[str, Model[Any]] = {}

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
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior
        from pydantic_ai.models import ModelRequestParameters
        from pydantic_ai.tools import ToolDefinition

        if model.name not in self._models:
            self._models[model.name] = _connect(model, self._endpoint.token, self._http)
        begun = False
        try:
            async with model_request_stream(
                self._models[model.name],
                list(messages),
                model_settings=_request_settings(model, kept=kept),
                model_request_parameters=ModelRequestParameters(
                    function_tools=[
                        ToolDefinition(
                            name=tool.name,
                            description=tool.description,
                            parameters_json_schema=dict(tool.parameters),
                            strict=False,
                        )
                        for tool in tools
                    ]
                ),
                # Prompts must not leak into tracing.
                instrument=False,
            ) as stream:
                begun = True
                async for event in stream:
                    # Text comes with the start of a part and with its deltas; calls are shown when they run.
                    if event.event_kind == "part_start" and event.part.part_kind == "text":
                        on_text(event.part.content)
                    elif event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
                        on_text(event.delta.content_delta)
                response = stream.get()
                require_recordable(response)
                return response
        except ModelAPIError as error:
            if kept:
                raise NotKeptError from error
            raise _translate_error(error, model.name, begun=begun) from error
        # The libraries rely on the types of a provider's reply, and fail unpredictably on other types.
        except (UnexpectedModelBehavior, *_UNREADABLE) as error:
            if kept:
                raise NotKeptError from error
            message = f"model {model.name!r} gave no usable reply: {type(error).__name__}: {error}"
            raise UpstreamError(message[:_LONGEST_FAULT], code="upstream_malformed") from error


def load_client(dialects: Iterable[Dialect] = _USUAL_DIALECTS) -> None:
    """Import the clients of these dialects, once per process: that takes seconds."""
    modules = ["pydantic_ai.direct", *(module for dialect in dialects for module in _MODULES[dialect])]
    with _LOADING:  # two concurrent imports would meet half-loaded modules
        for module in modules:
            importlib.import_module(module)


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[ModelClient]:
    """Connect to an endpoint's socket for the block."""
    # In a thread: a pause or a cancellation must not wait for it.
    await asyncio.to_thread(load_client, {model.dialect for model in endpoint.models})
    import httpx2

    directory = os.open(endpoint.socket.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # The kernel accepts 107 bytes; a path by file descriptor is short for any state directory.
        transport = httpx2.AsyncHTTPTransport(uds=f"/proc/self/fd/{directory}/{endpoint.socket.name}")
        timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        async with httpx2.AsyncClient(transport=transport, timeout=timeout) as http:
            yield ModelClient(endpoint, http)
    finally:
        os.close(directory)


def _connect(model: EndpointModel, token: str, http: Any) -> Model[Any]:
    # Only the gateway retries, since it knows what a call may have cost: the clients do not.
    if model.dialect == "anthropic":
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        anthropic = AsyncAnthropic(base_url=_BASE_URL, api_key=token, http_client=http, max_retries=0)
        return AnthropicModel(model.name, provider=AnthropicProvider(anthropic_client=anthropic))
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    openai = AsyncOpenAI(base_url=f"{_BASE_URL}/v1", api_key=token, http_client=http, max_retries=0)
    return OpenAIChatModel(model.name, provider=OpenAICompatibleProvider("gateway", openai_client=openai))


def _request_settings(model: EndpointModel, *, kept: bool) -> ModelSettings:
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(timeout=_SILENCE_SECONDS)
    if kept:
        # The gateway's own header: it never calls a model for such a request.
        settings["extra_headers"] = {"x-chargehand-kept": "only"}
    if model.dialect == "anthropic":
        # Without a mark Anthropic caches nothing, and a conversation is paid in full each turn.
        settings["cache"] = True
        settings["max_tokens"] = model.max_output or _ANTHROPIC_OUTPUT
    elif model.max_output is not None:
        settings["max_tokens"] = model.max_output
    return settings


def _translate_error(error: ModelAPIError, model: str, *, begun: bool) -> ExhaustedError | UpstreamError:
    """Return the error as one of ours; the gateway's codes decide, never its sentences."""
    body: Any = error.body
    document = body.get("error", body) if isinstance(body, dict) else None
    code = error.provider_error_code
    text = error.message
    status = getattr(error, "status_code", 0)
    if isinstance(document, dict):  # the gateway sends code and message in every dialect
        code = code or document.get("code")
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
        status, f"{text} {body if isinstance(body, str) else json.dumps(body, default=str)}"
    )
    message = f"model {model!r} gave no reply: {text}"
    return UpstreamError(message, code="upstream_cut" if begun else refusal or "model_failed")
