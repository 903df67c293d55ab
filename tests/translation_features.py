"""The features of requests and replies, in the spelling of each dialect."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chargehand.models.contract import Dialect

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
PDF = "JVBERi0xLjQK"
SHAPE: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
# One model of each dialect; rows about another family name a model of that family.
MODELS: dict[Dialect, str] = {
    "openai": "gpt-5",
    "responses": "gpt-5",
    "anthropic": "claude-sonnet-4-6",
    "gemini": "gemini-2.5-flash",
}


def put(body: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy of a body with a value at a path; numbers are list indexes."""
    made: dict[str, Any] = copy.deepcopy(dict(body))
    where: Any = made
    *inner, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in inner:
        where = where[part] if isinstance(part, int) else where.setdefault(part, {})
    if isinstance(last, int) and last == len(where):
        where.append(value)
    else:
        where[last] = value
    return made


@dataclass(frozen=True)
class Spelling:
    """The place of a feature in one dialect; `before` is what the request contains with and without it."""

    path: str
    value: object
    before: tuple[tuple[str, object], ...] = ()

    @property
    def step(self) -> tuple[str, object]:
        return self.path, self.value


@dataclass(frozen=True)
class Feature:
    """A feature; `there` is its place at a provider if it differs from that of the provider's own clients."""

    name: str
    spelled: Mapping[Dialect, Spelling]
    there: Mapping[Dialect, str] = field(default_factory=dict)
    models: Mapping[Dialect, str] = field(default_factory=dict)


def _feature(
    name: str,
    *,
    there: Mapping[Dialect, str] | None = None,
    models: Mapping[Dialect, str] | None = None,
    **spelled: tuple[Any, ...],
) -> Feature:
    # To the type checker keyword names are any text; each of these is a dialect.
    return Feature(name, {d: Spelling(*s) for d, s in spelled.items()}, there or {}, models or {})  # type: ignore[misc]


_CHAT_USER = [
    {"type": "text", "text": "look"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}},
]
BASES: dict[Dialect, dict[str, Any]] = {
    "openai": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": _CHAT_USER},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": SHAPE}}],
        "tool_choice": "auto",
    },
    "responses": {
        "model": "m",
        "instructions": "be brief",
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
                    {"type": "input_file", "file_data": f"data:application/pdf;base64,{PDF}"},
                ],
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "name": "add", "description": "adds", "parameters": SHAPE}],
        "tool_choice": "auto",
    },
    "anthropic": {
        "model": "m",
        "max_tokens": 32_000,
        "system": "be brief",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
            {"role": "assistant", "content": "It is 2."},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"name": "add", "description": "adds", "input_schema": SHAPE}],
        "tool_choice": {"type": "auto"},
    },
    "gemini": {
        "model": "m",
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "look"},
                    {"inlineData": {"mimeType": "image/png", "data": PNG}},
                    {"inlineData": {"mimeType": "application/pdf", "data": PDF}},
                ],
            },
            {
                "role": "model",
                "parts": [{"text": "I look."}, {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"id": "c1", "name": "add", "response": {"output": "2"}}}],
            },
            {"role": "model", "parts": [{"text": "It is 2."}]},
            {"role": "user", "parts": [{"text": "go on"}]},
        ],
        "tools": [
            {"functionDeclarations": [{"name": "add", "description": "adds", "parametersJsonSchema": SHAPE}]}
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    },
}
_THINKING = "generationConfig.thinkingConfig"
_SCHEMA = {"type": "object", "properties": {"zq": {"type": "string"}}, "additionalProperties": False}
_EFFORT_THERE: Mapping[Dialect, str] = {
    "openai": "reasoning_effort",
    "responses": "reasoning.effort",
    "anthropic": "output_config.effort",
    "gemini": _THINKING,
}
_OLD_THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
_SEALED = {"type": "reasoning", "summary": [], "encrypted_content": "x"}
_CUSTOM = {"name": "patch", "description": "plain text"}
_THOUGHTS: dict[str, Any] = {
    "openai": ("messages.2.reasoning_content", "hm"),
    "responses": ("input.1", _OLD_THOUGHT),
    "gemini": ("contents.1.parts.0", {"text": "hm", "thought": True}),
    "there": {
        "openai": "messages.reasoning_content",
        "responses": "input.summary",
        "anthropic": "messages.content.thinking",
        "gemini": "contents.parts.thought",
    },
}
FEATURES: tuple[Feature, ...] = (
    _feature(
        "system's part",
        openai=("messages.0.content", "zq"),
        responses=("instructions", "zq"),
        anthropic=("system", "zq"),
        gemini=("systemInstruction.parts.0.text", "zq"),
        there={"openai": "messages.content"},
    ),
    _feature(
        "picture",
        openai=("messages.1.content.1.image_url.url", "data:image/png;base64,AAAA"),
        responses=("input.0.content.1.image_url", "data:image/png;base64,AAAA"),
        anthropic=("messages.0.content.1.source.data", "AAAA"),
        gemini=("contents.0.parts.1.inlineData.data", "AAAA"),
    ),
    _feature(
        "how closely to look at pictures",
        openai=("messages.1.content.1.image_url.detail", "low"),
        responses=("input.0.content.1.detail", "low"),
        gemini=("generationConfig.mediaResolution", "MEDIA_RESOLUTION_LOW"),
    ),
    _feature(
        "file name",
        openai=("messages.1.content.2.file.filename", "a.pdf"),
        responses=("input.0.content.2.filename", "a.pdf"),
        anthropic=("messages.0.content.2.title", "a.pdf"),
        gemini=("contents.0.parts.2.inlineData.displayName", "a.pdf"),
    ),
    _feature("what a document is (`context`)", anthropic=("messages.0.content.2.context", "zq context")),
    _feature("citations", anthropic=("messages.0.content.2.citations", {"enabled": True})),
    _feature("name of a speaker", openai=("messages.1.name", "ann")),
    _feature(
        "tool result that failed",
        anthropic=("messages.2.content.0.is_error", True),
        gemini=("contents.2.parts.0.functionResponse.response", {"error": "2"}),
    ),
    _feature(
        "reasoning of earlier replies",
        **_THOUGHTS,
        anthropic=("messages.1.content.0", {"type": "thinking", "thinking": "hm", "signature": "x"}),
    ),
    _feature(
        "the same, to `deepseek`, `kimi`, `glm`, `mimo`",
        **_THOUGHTS,
        anthropic=("messages.1.content.0", {"type": "thinking", "thinking": "hm", "signature": "x"}),
        models={"openai": "deepseek-reasoner"},
    ),
    _feature(
        "encrypted or signed reasoning",
        responses=("input.1", _SEALED),
        anthropic=("messages.1.content.0", {"type": "redacted_thinking", "data": "x"}),
        gemini=("contents.1.parts.1.thoughtSignature", "x"),
        there={"responses": "input.encrypted_content", "anthropic": "messages.content.data"},
    ),
    _feature(
        "tools held to their schema (`strict`)",
        openai=("tools.0.function.strict", True),
        responses=("tools.0.strict", True),
        anthropic=("tools.0.strict", True),
    ),
    _feature(
        "calls held to their schema (`VALIDATED`)", gemini=("toolConfig.functionCallingConfig.mode", "VALIDATED")
    ),
    _feature(
        "tool of plain text (`custom`)",
        openai=("tools.1", {"type": "custom", "custom": _CUSTOM}),
        responses=("tools.1", {"type": "custom", **_CUSTOM}),
        there={"anthropic": "tools.input_schema", "gemini": "tools.functionDeclarations"},
    ),
    _feature(
        "group of tools (`namespace`)",
        responses=(
            "tools.1",
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "b", "parameters": SHAPE}]},
        ),
    ),
    _feature(
        "a call is a must",
        openai=("tool_choice", "required"),
        responses=("tool_choice", "required"),
        anthropic=("tool_choice.type", "any"),
        gemini=("toolConfig.functionCallingConfig.mode", "ANY"),
    ),
    _feature(
        "one call at a time",
        openai=("parallel_tool_calls", False),
        responses=("parallel_tool_calls", False),
        anthropic=("tool_choice.disable_parallel_tool_use", True),
    ),
    _feature(
        "output limit",
        openai=("max_completion_tokens", 999),
        responses=("max_output_tokens", 999),
        anthropic=("max_tokens", 999),
        gemini=("generationConfig.maxOutputTokens", 999),
    ),
    _feature(
        "temperature",
        openai=("temperature", 0.5),
        responses=("temperature", 0.5),
        anthropic=("temperature", 0.5),
        gemini=("generationConfig.temperature", 0.5),
    ),
    _feature(
        "temperature above 1",
        openai=("temperature", 1.5),
        responses=("temperature", 1.5),
        gemini=("generationConfig.temperature", 1.5),
        there={"anthropic": "temperature"},
    ),
    _feature(
        "`top_p`",
        openai=("top_p", 0.5),
        responses=("top_p", 0.5),
        anthropic=("top_p", 0.5),
        gemini=("generationConfig.topP", 0.5),
    ),
    _feature(
        "`top_p` beside a temperature",
        openai=("top_p", 0.5, (("temperature", 0.5),)),
        responses=("top_p", 0.5, (("temperature", 0.5),)),
        gemini=("generationConfig.topP", 0.5, (("generationConfig.temperature", 0.5),)),
        there={"anthropic": "top_p"},
    ),
    _feature("`top_k`", openai=("top_k", 5), anthropic=("top_k", 5), gemini=("generationConfig.topK", 5)),
    _feature("seed", openai=("seed", 5), gemini=("generationConfig.seed", 5)),
    _feature(
        "penalties",
        openai=("presence_penalty", 0.5),
        gemini=("generationConfig.presencePenalty", 0.5),
    ),
    _feature("`logit_bias`", openai=("logit_bias", {"1": 2})),
    _feature(
        "stop words",
        openai=("stop", ["zq"]),
        anthropic=("stop_sequences", ["zq"]),
        gemini=("generationConfig.stopSequences", ["zq"]),
    ),
    _feature(
        "schema of the reply",
        openai=("response_format", {"type": "json_schema", "json_schema": {"name": "zq", "schema": _SCHEMA}}),
        responses=("text.format", {"type": "json_schema", "name": "zq", "schema": _SCHEMA}),
        anthropic=("output_config.format", {"type": "json_schema", "schema": _SCHEMA}),
        gemini=(
            "generationConfig.responseJsonSchema",
            _SCHEMA,
            (("generationConfig.responseMimeType", "application/json"),),
        ),
    ),
    _feature(
        "its description",
        openai=(
            "response_format.json_schema.description",
            "zq words",
            (("response_format", {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}),),
        ),
        responses=(
            "text.format.description",
            "zq words",
            (("text.format", {"type": "json_schema", "name": "n", "schema": _SCHEMA}),),
        ),
        there={
            "anthropic": "output_config.format.schema.description",
            "gemini": "generationConfig.responseJsonSchema.description",
        },
    ),
    _feature(
        "JSON without a schema",
        openai=("response_format", {"type": "json_object"}),
        responses=("text.format", {"type": "json_object"}),
        gemini=("generationConfig.responseMimeType", "application/json"),
    ),
    _feature(
        "effort of reasoning",
        openai=("reasoning_effort", "high"),
        responses=("reasoning.effort", "high"),
        anthropic=("output_config.effort", "high"),
        gemini=(f"{_THINKING}.thinkingLevel", "HIGH"),
        there=_EFFORT_THERE,
    ),
    _feature(
        "budget of reasoning",
        openai=("thinking", {"type": "enabled", "budget_tokens": 5_000}),
        anthropic=("thinking", {"type": "enabled", "budget_tokens": 5_000}),
        gemini=(f"{_THINKING}.thinkingBudget", 5_000),
        there=_EFFORT_THERE,
    ),
    _feature(
        "no reasoning",
        openai=("enable_thinking", False),
        responses=("reasoning.effort", "none"),
        anthropic=("thinking", {"type": "disabled"}),
        gemini=(f"{_THINKING}.thinkingBudget", 0),
        there={**_EFFORT_THERE, "anthropic": "thinking"},
    ),
    _feature(
        "reasoning shown",
        responses=("reasoning.summary", "auto", (("reasoning.effort", "high"),)),
        anthropic=(
            "thinking.display",
            "summarized",
            (("thinking", {"type": "adaptive"}), ("output_config.effort", "high")),
        ),
        gemini=(f"{_THINKING}.includeThoughts", True, ((f"{_THINKING}.thinkingBudget", 5_000),)),
    ),
    _feature(
        "cache marks",
        openai=("messages.1.content.0.prompt_cache_breakpoint", {"mode": "explicit"}),
        responses=("input.0.content.0.prompt_cache_breakpoint", {"mode": "explicit"}),
        anthropic=("messages.0.content.0.cache_control", {"type": "ephemeral"}),
    ),
    _feature("`prompt_cache_key`", openai=("prompt_cache_key", "k"), responses=("prompt_cache_key", "k")),
    _feature(
        "the same, to others than OpenAI's models",
        openai=("prompt_cache_key", "k"),
        responses=("prompt_cache_key", "k"),
        models={"openai": "qwen3"},
    ),
    _feature("user", openai=("user", "u"), responses=("user", "u"), anthropic=("metadata.user_id", "u")),
    _feature("`safety_identifier`", openai=("safety_identifier", "u"), responses=("safety_identifier", "u")),
    _feature("`verbosity`", openai=("verbosity", "low"), responses=("text.verbosity", "low")),
    _feature(
        "`metadata`, `labels`",
        openai=("metadata", {"a": "b"}),
        responses=("metadata", {"a": "b"}),
        gemini=("labels", {"a": "b"}),
        there={"openai": "zq", "responses": "zq", "gemini": "zq"},
    ),
    _feature("safety settings", gemini=("safetySettings", [{"category": "c", "threshold": "t"}])),
    _feature("`include`", responses=("include", ["reasoning.encrypted_content"])),
    _feature("that the provider keeps it (`store`)", responses=("store", True), openai=("store", True)),
    _feature(
        "dearer or faster (`service_tier`)",
        openai=("service_tier", "priority"),
        responses=("service_tier", "priority"),
        anthropic=("service_tier", "auto"),
        gemini=("serviceTier", "priority"),
    ),
    _feature(
        "a field that nobody knows",
        openai=("zq_field", 1),
        responses=("zq_field", 1),
        anthropic=("zq_field", 1),
        gemini=("zq_field", 1),
        there={"openai": "zq", "responses": "zq", "anthropic": "zq", "gemini": "zq"},
    ),
    _feature(
        "the same inside a part",
        openai=("messages.1.content.0.zq_field", 1),
        responses=("input.0.content.0.zq_field", 1),
        anthropic=("messages.0.content.0.zq_field", 1),
        gemini=("contents.0.parts.0.zqField", 1),
    ),
)


def _whole(document: object) -> list[bytes]:
    return [json.dumps(document).encode()]


def _events(*documents: Mapping[str, Any]) -> list[bytes]:
    return [f"event: {one.get('type', 'message')}\ndata: {json.dumps(one)}\n\n".encode() for one in documents]


_RESPONSE = {
    "id": "r",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi", "annotations": [{"type": "url_citation"}]}],
        }
    ],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
_CITED = {"type": "text", "text": "hi", "citations": [{"type": "char_location"}]}
_SIGNED = {"type": "thinking", "thinking": "hm", "signature": "sig"}
_GROUNDED = {
    "candidates": [
        {
            "content": {"role": "model", "parts": [{"text": "hi"}]},
            "finishReason": "STOP",
            "citationMetadata": {"a": 1},
        }
    ]
}
_MARKED = {
    "candidates": [
        {"content": {"role": "model", "parts": [{"text": "hi", "thoughtSignature": "x"}]}, "finishReason": "STOP"}
    ]
}


def _chat(choice: Mapping[str, Any], holder: str) -> dict[str, Any]:
    said = {"role": "assistant", "content": "hi", **choice.get("said", {})}
    more = {name: value for name, value in choice.items() if name != "said"}
    return {"choices": [{"index": 0, holder: said, "finish_reason": "stop", **more}]}


def _claude(block: Mapping[str, Any], *deltas: Mapping[str, Any]) -> dict[bool, list[bytes]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {"id": "m", "type": "message", "role": "assistant", "content": [block], "stop_reason": "end_turn"}
    start = {**block, "text": ""} if "text" in block else {**block, "thinking": "", "signature": ""}
    return {
        False: _whole({**whole, "usage": usage}),
        True: _events(
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None, "usage": usage}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {k: v for k, v in start.items() if k != "citations"},
            },
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
            {"type": "message_stop"},
        ),
    }


def _responses(item: Mapping[str, Any]) -> dict[bool, list[bytes]]:
    document = {**_RESPONSE, "output": [item]}
    return {False: _whole(document), True: _events({"type": "response.completed", "response": document})}


_LOGGED = {"logprobs": {"content": [{"token": "hi", "logprob": -1}]}}
_NOTED = {"said": {"annotations": [{"type": "url_citation"}]}}
# Replies, whole (`False`) and streamed (`True`), with parts that only their provider's dialect has.
REPLY_EXTRAS: Mapping[str, Mapping[Dialect, Mapping[bool, list[bytes]]]] = {
    "citations": {
        "openai": {False: _whole(_chat(_NOTED, "message")), True: _events(_chat(_NOTED, "delta"))},
        "responses": {
            False: _whole(_RESPONSE),
            True: _events({"type": "response.completed", "response": _RESPONSE}),
        },
        "anthropic": _claude(
            _CITED,
            {"type": "text_delta", "text": "hi"},
            {"type": "citations_delta", "citation": {"type": "char_location"}},
        ),
        "gemini": {False: _whole(_GROUNDED), True: _events(_GROUNDED)},
    },
    "signed or encrypted reasoning": {
        "responses": _responses({"type": "reasoning", "summary": [], "encrypted_content": "x"}),
        "anthropic": _claude(
            _SIGNED,
            {"type": "thinking_delta", "thinking": "hm"},
            {"type": "signature_delta", "signature": "sig"},
        ),
        "gemini": {False: _whole(_MARKED), True: _events(_MARKED)},
    },
    "log probabilities": {
        "openai": {False: _whole(_chat(_LOGGED, "message")), True: _events(_chat(_LOGGED, "delta"))},
    },
}
