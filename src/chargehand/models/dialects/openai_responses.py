"""OpenAI responses: https://platform.openai.com/docs/api-reference/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from chargehand.models._json import as_mapping, as_mappings, as_tokens, dump_json
from chargehand.models.contract import GatewayFault, Operation, ReplyUsage, Usage
from chargehand.models.conversation import FilePart, NeutralRequest
from chargehand.models.dialects.base import (
    StreamMeter,
    WireRequest,
    error_message,
    file_at,
    offered_tools,
    read_cost,
    require_client_tools,
    screen_fields,
)
from chargehand.models.dialects.openai import OpenAIDialect
from chargehand.models.dialects.openai_responses_messages import (
    TOOL_GROUP,
    ResponsesReader,
    ResponsesWriter,
    read_responses_request,
    write_responses_request,
)
from chargehand.models.dialects.shapes import RESPONSES

# Allowed fields: known to be free of extra charges and to reach no other system. All others are dropped, since a
# list of forbidden fields would always be outdated (decision 0010).
_FIELDS = frozenset(
    {"model", "stream", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text"}
    | {"max_output_tokens", "temperature", "top_p", "reasoning", "store", "include", "prompt_cache_key", "user"}
    | {"prompt_cache_retention", "truncation", "metadata", "safety_identifier", "top_logprobs", "stream_options"}
    | {"client_metadata"}
)
# Fields that refer to state kept by the provider: this gateway sends only whole conversations.
_KEPT_THERE = ("previous_response_id", "conversation", "prompt", "background")
# Tools that clients of responses offer without being asked; they work well without them.
_DROPPED_TOOLS = ("web_search", "image_generation")
_INCLUDED = ("reasoning.encrypted_content", "message.output_text.logprobs")


class ResponsesDialect(OpenAIDialect):
    """Responses; errors, keys and embeddings are as in chat completions."""

    name = "responses"
    shape = RESPONSES
    required = ("output",)
    endpoints: ClassVar[Mapping[str, Operation]] = {"/responses": "reply"}
    reply_path = "/v1/responses"
    mixes_calls = True
    spelling: ClassVar[Mapping[str, str]] = {
        "effort": "reasoning.effort",
        "summary": "reasoning.summary",
        "thoughts": "reasoning",
        "verbosity": "text.verbosity",
        "cached": "input.content.prompt_cache_breakpoint",
        "detail": "input.content.detail",
        "file_detail": "input.content.detail",
        "file_name": "input.content.filename",
        "strict": "tools.strict",
        "parallel": "parallel_tool_calls",
        "choice": "tool_choice",
    }

    def write_error_event(self, status: int, code: str, message: str) -> bytes:
        """Return an `error` event."""
        error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 0}
        return b"event: error\ndata: " + dump_json(error) + b"\n\n"

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """Return `max_output_tokens`."""
        return as_tokens(body.get("max_output_tokens"))

    def prepare(self, body: Mapping[str, Any], model: str, limit: int | None) -> dict[str, Any]:
        """Return the body with model and limit replaced; the provider must not store it."""
        capped = {} if limit is None else {"max_output_tokens": limit}
        # Data stored by the provider is out of reach of our own redaction and deletion.
        return {**body, "model": model, "store": False, **capped}

    def read_usage(self, document: Mapping[str, Any]) -> ReplyUsage:
        """Return `usage`."""
        usage = as_mapping(document.get("usage"))
        return ReplyUsage(
            usage=Usage(
                input=as_tokens(usage.get("input_tokens")),
                output=as_tokens(usage.get("output_tokens")),
                cached=as_tokens(as_mapping(usage.get("input_tokens_details")).get("cached_tokens")),
                cost_usd=read_cost(usage),
            )
        )

    def stream_meter(self, body: Mapping[str, Any]) -> StreamMeter:
        """Return the meter of one stream."""
        return _ResponsesStreamMeter(self)

    def screen(self, body: Mapping[str, Any]) -> WireRequest:
        """Return the known fields; raises `GatewayFault` for fields that need state kept by the provider."""
        kept_there = next((name for name in _KEPT_THERE if body.get(name)), None)
        if kept_there is not None:
            message = f"`{kept_there}` is not served: no conversation is kept here, send all of it as `input`"
            raise GatewayFault("bad_request", message)
        kept, unknown = screen_fields(body, _FIELDS)
        left = [*unknown, *(["store"] if kept.get("store") is True else [])]
        if "tools" in kept:
            tools = as_mappings(kept["tools"])
            kept["tools"] = [tool for tool in tools if not str(tool.get("type")).startswith(_DROPPED_TOOLS)]
            gone = (str(tool.get("type")) for tool in tools if tool not in kept["tools"])
            left += [f"tools.{kind}" for kind in gone] if len(kept["tools"]) < len(tools) else []
        included = kept.get("include")
        if isinstance(included, list):
            kept["include"] = [one for one in included if one in _INCLUDED]
            left += [f"include.{one}" for one in included if one not in _INCLUDED]
        for tool in offered_tools(kept):
            # A group is not a tool: the same rule applies to each of its tools.
            group = as_mappings(tool.get("tools")) if tool.get("type") == TOOL_GROUP else []
            require_client_tools(group or [tool], ("function", "custom"))
        return WireRequest(kept, tuple(left))

    def read_part(self, part: Mapping[str, Any]) -> FilePart | None:
        """Return the content of an `input_image`, a screenshot or an `input_file`."""
        match part.get("type"):
            case "input_image" | "computer_screenshot":
                return file_at(part.get("image_url"), "image")
            case "input_file":
                return file_at(part.get("file_data"), "file", part.get("filename"))
        return None

    def text_part(self, text: str) -> Mapping[str, Any]:
        """Return a part of type `input_text`."""
        return {"type": "input_text", "text": text}

    def read_request(self, body: Mapping[str, Any]) -> NeutralRequest:
        """Read `input`, `tools` and the settings of the reply."""
        return read_responses_request(body)

    def write_request(self, request: NeutralRequest, model: str) -> WireRequest:
        """Write a request that is not stored; raises `UntranslatableError` for stop words."""
        return write_responses_request(request, model)

    def reply_reader(self, seed: str) -> ResponsesReader:
        """Return the reader of one reply."""
        return ResponsesReader(self)

    def reply_writer(self, model: str, id: str) -> ResponsesWriter:
        """Return the writer of one reply."""
        return ResponsesWriter(self, model, id)


class _ResponsesStreamMeter(StreamMeter):
    """Meters named events; the last one holds the usage."""

    shape = RESPONSES

    def __init__(self, dialect: ResponsesDialect) -> None:
        super().__init__()
        self._dialect = dialect

    def take(self, content: Mapping[str, Any]) -> bool:
        """Take in one event; all of them are sent to the client."""
        kind = str(content.get("type", ""))
        self.deltas += kind.endswith(".delta")
        response = as_mapping(content.get("response"))
        match kind:
            case "error":
                self.failed = str(content.get("message") or error_message(content, "error"))
            case "response.completed" | "response.incomplete":
                self.metered = self._dialect.read_usage(response)
                self.ended = True
                self.finished = True
            case "response.failed":
                self.metered = self._dialect.read_usage(response)
                self.ended = True
                self.finished = False
                self.failed = error_message(response, "the response failed")
        return True
