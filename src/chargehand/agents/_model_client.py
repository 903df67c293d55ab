"""The native agent's side of the gateway: pydantic-ai's models over the attempt's own socket."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from chargehand.agents._contract import Endpoint, EndpointModel
from chargehand.agents._tools import ToolSpec
from chargehand.core.errors import ExhaustedError, UpstreamError
from chargehand.models.contract import Dialect

if TYPE_CHECKING:
    from pydantic_ai.exceptions import ModelAPIError
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

_LOADING = threading.Lock()
_MODULES: Mapping[Dialect, tuple[str, ...]] = {
    "openai": ("pydantic_ai.models.openai", "pydantic_ai.providers.openai_compatible"),
    "anthropic": ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
}
_MOST: tuple[Dialect, ...] = ("openai",)
_BASE_URL = "http://gateway"
QUOTA = "quota_exhausted"
"""The gateway's code for a model whose provider lets it rest for hours."""
UNCARRIED = "uncarried"
"""The gateway's code for a call that no model behind a name takes, such as one with a picture."""
_CONNECT_SECONDS = 30.0
_SILENCE_SECONDS = 3600.0
"""The gateway bounds each wait for the provider, and says so: the client must not be the first to give up."""
_ANTHROPIC_OUTPUT = 16_000
"""Anthropic's messages need an output limit; the gateway lowers it to what the budget can pay."""


class NotKeptError(Exception):
    """No reply to a request is kept, and only for such a one was asked."""


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
        on_text: Callable[[str], None] | None = None,
        kept: bool = False,
    ) -> ModelResponse:
        """Return the model's reply, streamed on the way; `on_text` gets its text as it comes.

        With `kept` no model is asked: it is a reply that the attempt had before, else this raises `NotKeptError`.
        Raises `ExhaustedError` (`budget`), `UpstreamError` for whatever kept a whole reply from coming.
        """
        from pydantic_ai.direct import model_request_stream
        from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior

        begun = False
        try:
            async with model_request_stream(
                self._model(model),
                list(messages),
                model_settings=_settings(model, kept=kept),
                model_request_parameters=_parameters(tools),
                instrument=False,
            ) as stream:
                begun = True
                async for event in stream:
                    _tell(event, on_text)
                return stream.get()
        except ModelAPIError as error:
            if kept:
                raise NotKeptError from error
            raise _typed(error, model.name, begun=begun) from error
        except UnexpectedModelBehavior as error:
            raise UpstreamError(
                f"model {model.name!r} gave no usable reply: {error}", code="upstream_malformed"
            ) from error

    def _model(self, model: EndpointModel) -> Model[Any]:
        if model.name not in self._models:
            make = _anthropic if model.dialect == "anthropic" else _openai
            self._models[model.name] = make(model.name, self._endpoint.token, self._http)
        return self._models[model.name]


def load_client(dialects: Iterable[Dialect] = _MOST) -> None:
    """Import what clients of these dialects need, once per process: that takes seconds.

    Two threads at it at once would trip over each other.
    """
    modules = ["pydantic_ai.direct", *(module for dialect in dialects for module in _MODULES[dialect])]
    with _LOADING:
        for module in modules:
            importlib.import_module(module)


@asynccontextmanager
async def open_client(endpoint: Endpoint) -> AsyncIterator[ModelClient]:
    """Connect to an endpoint's socket for the block."""
    # In a thread: whoever wants to pause or to cancel must not wait for it.
    await asyncio.to_thread(load_client, {model.dialect for model in endpoint.models})
    import httpx2

    directory = os.open(endpoint.socket.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        # The kernel takes 107 bytes; a path by descriptor is short wherever the state directory lies.
        transport = httpx2.AsyncHTTPTransport(uds=f"/proc/self/fd/{directory}/{endpoint.socket.name}")
        timeout = httpx2.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        async with httpx2.AsyncClient(transport=transport, timeout=timeout) as http:
            yield ModelClient(endpoint, http)
    finally:
        os.close(directory)


def _openai(name: str, token: str, http: Any) -> Model[Any]:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = AsyncOpenAI(base_url=f"{_BASE_URL}/v1", api_key=token, http_client=http, max_retries=0)
    return OpenAIChatModel(name, provider=OpenAICompatibleProvider("gateway", openai_client=client))


def _anthropic(name: str, token: str, http: Any) -> Model[Any]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=_BASE_URL, api_key=token, http_client=http, max_retries=0)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def _settings(model: EndpointModel, *, kept: bool) -> ModelSettings:
    from pydantic_ai.settings import ModelSettings

    settings = ModelSettings(timeout=_SILENCE_SECONDS)
    if kept:
        settings["extra_headers"] = {"x-chargehand-kept": "only"}
    if model.dialect == "anthropic":
        settings["cache"] = True
        settings["max_tokens"] = model.max_output or _ANTHROPIC_OUTPUT
    elif model.max_output is not None:
        settings["max_tokens"] = model.max_output
    return settings


def _parameters(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
                strict=False,
            )
            for tool in tools
        ]
    )


def _tell(event: Any, on_text: Callable[[str], None] | None) -> None:
    if on_text is None:
        return
    part = getattr(event, "part", None)
    delta = getattr(event, "delta", None)
    if event.event_kind == "part_start" and part is not None and part.part_kind == "text" and part.content:
        on_text(part.content)
    elif event.event_kind == "part_delta" and delta is not None and delta.part_delta_kind == "text":
        on_text(delta.content_delta)


def _typed(error: ModelAPIError, model: str, *, begun: bool) -> ExhaustedError | UpstreamError:
    """Return the error in our own words; the gateway's codes decide, never its sentences."""
    said = _said(error)
    code = error.provider_error_code or _code(error.body)
    if code == "price_unknown":
        return ExhaustedError(said, code="price_unknown")
    if code == "budget_exhausted":
        return ExhaustedError(said, code="budget")
    if code == QUOTA:
        return UpstreamError(said, code="quota_exhausted")
    if code == UNCARRIED:
        return UpstreamError(said, code="uncarried")
    return UpstreamError(
        f"model {model!r} gave no reply: {said}", code="upstream_cut" if begun else "model_failed"
    )


def _code(body: Any) -> str | None:
    """Return the code of an error document; the gateway gives one in both dialects."""
    inner = body.get("error", body) if isinstance(body, dict) else None
    return inner.get("code") if isinstance(inner, dict) else None


def _said(error: ModelAPIError) -> str:
    """Return what the error document says, else all we know, on one line."""
    body: Any = error.body
    if isinstance(body, dict):
        body = body.get("error", body)
        if isinstance(body, dict) and isinstance(body.get("message"), str):
            return re.sub(r"\s+", " ", body["message"])
    return re.sub(r"\s+", " ", error.message)
