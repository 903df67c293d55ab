"""OpenAI chat completions: https://platform.openai.com/docs/api-reference/chat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from chargehand.models._json import as_mapping, as_mappings, as_tokens
from chargehand.models.contract import Operation, ReplyUsage, Usage
from chargehand.models.conversation import FilePart, NeutralRequest
from chargehand.models.dialects.base import (
    UNKNOWN_USAGE,
    StreamMeter,
    WireRequest,
    file_at,
    offered_tools,
    read_cost,
    read_range,
    require_client_tools,
    screen_fields,
)
from chargehand.models.dialects.openai import OpenAIDialect
from chargehand.models.dialects.openai_chat_messages import (
    OpenAIChatReader,
    OpenAIChatWriter,
    read_chat_request,
    write_chat_request,
)
from chargehand.models.dialects.shapes import CHAT

_LIMITS = ("max_completion_tokens", "max_tokens")
# Models that accept only `max_completion_tokens`; other providers often know only `max_tokens`.
_NEW_LIMIT = re.compile(r"(^|/)(o\d|gpt-[5-9]|gpt-\d\d|codex)")
_OUTPUT = ("content", "tool_calls", "reasoning_content", "reasoning", "refusal", "function_call", "audio")
_MOST_CHOICES = 128
# Allowed fields: known to be free of extra charges and to reach no other system. All others are dropped, since a
# list of forbidden fields would always be outdated (decision 0010).
_FIELDS = frozenset(
    {"messages", "model", "stream", "temperature", "top_p", "top_k", "stop", "metadata", "max_tokens"}
    | {"tools", "tool_choice", "thinking", "reasoning", "function_call", "functions", "parallel_tool_calls"}
    | {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "logprobs", "top_logprobs"}
    | {"response_format", "max_completion_tokens", "n", "min_p", "seed", "user", "verbosity", "stream_options"}
    | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"}
    | {"reasoning_effort", "reasoning_format", "include_reasoning", "enable_thinking", "chat_template_kwargs"}
)


class OpenAIChatDialect(OpenAIDialect):
    """Chat completions, as OpenAI and most other providers implement them."""

    name = "openai"
    shape = CHAT
    required = ("choices",)
    endpoints: ClassVar[Mapping[str, Operation]] = {"/chat/completions": "reply", "/embeddings": "embed"}
    reply_path = "/v1/chat/completions"
    feature_headers = ("openai-",)
    mixes_calls = True
    usage_on_request = True
    spelling: ClassVar[Mapping[str, str]] = {
        "effort": "reasoning_effort",
        "budget": "thinking.budget_tokens",
        "thoughts": "messages.reasoning_content",
        "cached": "messages.content.prompt_cache_breakpoint",
        "detail": "messages.content.image_url.detail",
        "file_name": "messages.content.file.filename",
        "strict": "tools.function.strict",
        "parallel": "parallel_tool_calls",
        "choice": "tool_choice",
    }
    reset_windows = (
        ("x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
        ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    )

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return the smaller of `max_completion_tokens` and `max_tokens`."""
        given = [limit for name in _LIMITS if (limit := as_tokens(body.get(name))) is not None]
        return min(given, default=None)

    def count_choices(self, body: Mapping[str, Any]) -> int:
        """Return `n`; raises `GatewayFault` if out of range."""
        return read_range(body.get("n"), "n", _MOST_CHOICES)

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with one field for the limit; streams must report usage."""
        ready = {**body, "model": model}
        if limit is not None:
            for name in _LIMITS:
                ready.pop(name, None)
            # Not in the client's own field: a provider that does not know it would write without limit.
            ready[_LIMITS[0] if _NEW_LIMIT.search(model) else _LIMITS[1]] = limit
        if body.get("stream") is True:
            # A stream reports usage only on request.
            ready["stream_options"] = {**as_mapping(body.get("stream_options")), "include_usage": True}
        return ready

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usage`, as OpenAI, OpenRouter (`cost`), DeepSeek and xAI report it."""
        usage = as_mapping(document.get("usage"))
        if not usage:
            return UNKNOWN_USAGE
        details = as_mapping(usage.get("prompt_tokens_details"))
        cached = as_tokens(details.get("cached_tokens"))
        output = as_tokens(usage.get("completion_tokens"))
        given = as_tokens(usage.get("prompt_tokens"))
        total = as_tokens(usage.get("total_tokens"))
        if output is not None and total is not None and given is not None:
            # Some providers leave reasoning out of `completion_tokens`, but charge for it.
            output = max(output, total - given)
        return ReplyUsage(
            usage=Usage(
                input=given,
                output=output,
                cached=cached if cached is not None else as_tokens(usage.get("prompt_cache_hit_tokens")),
                cache_write=as_tokens(details.get("cache_write_tokens")),
                # If the user has their own key at the router's provider, `cost` is only the router's fee.
                cost_usd=None if usage.get("is_byok") else read_cost(usage),
            )
        )

    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return a meter that hides the usage chunk from a client that did not ask for it."""
        asked = as_mapping(body.get("stream_options")).get("include_usage") is True
        return _ChatStreamMeter(self, asked=asked, choices=self.count_choices(body))

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields; tools are functions or take plain text."""
        screened = screen_fields(body, _FIELDS)
        require_client_tools(offered_tools(screened.body), ("function", "custom"))
        return screened

    def read_part(self, part: Mapping[str, Any]) -> FilePart | None:
        """Return the content of an `image_url` or a `file`."""
        match part.get("type"):
            case "image_url":
                return file_at(as_mapping(part.get("image_url")).get("url"), "image")
            case "file":
                file = as_mapping(part.get("file"))
                return file_at(file.get("file_data"), "file", file.get("filename"))
        return None

    def read_request(self, body: Mapping[str, Any]) -> NeutralRequest:
        """Read `messages`, `tools` and the settings of the reply."""
        return read_chat_request(body, self.output_limit(body))

    def write_request(self, request: NeutralRequest, model: str) -> WireRequest:
        """Write a request; pictures of tool results follow in a message of the user."""
        written = write_chat_request(request, model)
        return written._replace(body=self.prepare(written.body, model, request.limit))

    def reply_reader(self, seed: str) -> OpenAIChatReader:
        """Return the reader of one reply; calls without an id get one with `seed` in it."""
        return OpenAIChatReader(self, seed)

    def reply_writer(self, model: str, id: str) -> OpenAIChatWriter:
        """Return the writer of one reply."""
        return OpenAIChatWriter(self, model, id)


class _ChatStreamMeter(StreamMeter):
    """Meters chunks; `asked`: the client wants the chunk that holds only usage."""

    shape = CHAT
    ends_with_done = True

    def __init__(self, dialect: OpenAIChatDialect, *, asked: bool, choices: int) -> None:
        super().__init__()
        self._dialect = dialect
        self._asked = asked
        self._choices = choices
        self._done: set[object] = set()

    def take(self, content: Mapping[str, Any]) -> bool:
        """Take in one chunk."""
        if content.get("error"):
            self.failed = str(as_mapping(content["error"]).get("message") or content["error"])
        choices = as_mappings(content.get("choices"))
        for choice in choices:
            delta = as_mapping(choice.get("delta"))
            self.deltas += any(delta.get(name) for name in _OUTPUT)
            if choice.get("finish_reason"):
                self._done.add(str(choice.get("index")))
        self.finished = len(self._done) >= self._choices
        if not as_mapping(content.get("usage")):
            return True
        self.metered = self._dialect.read_usage(content)
        return self._asked or bool(choices)
