"""Small real calls that find out whether a model answers, calls tools, streams and accepts images."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.app.providers.served import (
    ProbeReports,
    address_of,
    dialect_of,
    require_key,
    served_model,
)
from chargehand.core.config import LimitsConfig, ModelConfig
from chargehand.core.errors import ChargehandError, UpstreamError, nearest
from chargehand.core.ports import KeySource
from chargehand.core.text import printable
from chargehand.models.contract import Dialect, ModelCall, ServedModel, UpstreamReply

if TYPE_CHECKING:
    from chargehand.models.catalogue import Reported

_TOKEN_LIMIT = 64
_LARGEST_REPLY_BYTES = 1 << 20
_SHOWN_CHARACTERS = 200
# A version in an address, as `HttpUpstream` detects it.
_VERSION = re.compile(r"[^/]/v\d\w*(/|$)")


class ModelProbe(Struct, frozen=True, kw_only=True):
    """The result of one call to a model.

    `tools` is `None` if it could not be determined (no answer, cut by the limit, or tools disabled), `listed` if
    the provider has no list of models. `error` is empty on success; it never contains a key.
    """

    name: str
    reachable: bool = False
    answered: bool = False
    tools: bool | None = None
    listed: bool | None = None
    seconds: float = 0.0
    error: str = ""
    price_source: str | None = None

    @property
    def fine(self) -> bool:
        """Whether an agent can work with it."""
        return self.answered and self.tools is not False


async def probe_model(
    name: str,
    config: ModelConfig,
    *,
    keys: KeySource,
    limits: LimitsConfig,
    environ: Mapping[str, str] | None = None,
    seconds: float = 30.0,
) -> ModelProbe:
    """Call the model once, with at most 64 tokens, and fetch the provider's list; `error` describes a failure."""
    try:
        served = served_model(name, config, keys=keys, limits=limits, environ=environ)
    except ChargehandError as wrong:
        return ModelProbe(name=name, error=": ".join(filter(None, (wrong.message, wrong.hint))))
    if config.provider == "script":  # its replies are for missions, so it is not called
        source = served.price.source if served.price is not None else None
        return ModelProbe(name=name, reachable=True, answered=True, price_source=source)
    key = require_key(name, config, keys)
    address = address_of(name, config, environ=environ)
    start = time.monotonic()
    call = ModelCall(
        id="probe",
        dialect=served.dialect,
        body=_small_body(served, config),
        attempt="probe",
        turn=1,
        seconds=seconds,
    )
    try:
        reply = await served.upstream.send(call)
        said = await _read_document(reply)
    except UpstreamError as silent:
        return ModelProbe(name=name, seconds=time.monotonic() - start, error=redact_reply(silent.message, key))
    finally:
        await served.upstream.close()
    took = time.monotonic() - start
    rows = await fetch_model_rows(address, served.dialect, key, seconds)
    names = None if rows is None else list(rows)
    is_message, called, ended = _read_message(said, served.dialect)
    # A reply that was cut short before any call proves nothing: reasoning may use up the limit.
    tools = True if called else None if ended in {"length", "max_tokens"} else False
    if reply.status != 200:
        error = _describe_refusal(reply.status, said, served, names)
    else:
        error = "" if is_message else f"its answer is not a valid {served.dialect} message"
    return ModelProbe(
        name=name,
        reachable=True,
        answered=not error,
        tools=None if error or config.tools is False else tools,
        listed=None if names is None else served.model in names,
        seconds=took,
        error=redact_reply(error, key),
        price_source=served.price.source if served.price is not None else None,
    )


async def _read_document(reply: UpstreamReply) -> dict[str, Any]:
    content = b""
    async for chunk in reply.chunks:
        content += chunk
        # Not `read_all`, which refuses a long reply: a person is shown its beginning.
        if len(content) > _LARGEST_REPLY_BYTES:
            break
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        return {"error": content[:_SHOWN_CHARACTERS].decode(errors="replace")}
    return said if isinstance(said, dict) else {"error": "the reply is not a JSON object"}


def _small_body(served: ServedModel, config: ModelConfig) -> dict[str, Any]:
    from chargehand.models.probes import small_request

    if config.tools is False:
        words, tool = "Answer with the word ready.", None
    else:
        words, tool = "Call the tool `ready` once. Say nothing else.", "ready"
    body = small_request(served.dialect, served.model, words=words, tool=tool, limit=_TOKEN_LIMIT)
    if "messages" in body:
        # A plain string is the oldest form of a message's text, and the form that every compatible server accepts.
        body["messages"] = [{"role": "user", "content": words}]
    if config.provider == "openai":
        # OpenAI's newer models accept only the newer name of the limit, compatible servers often only the older.
        body["max_completion_tokens"] = body.pop("max_tokens")
    return body


def _read_message(said: Mapping[str, Any], dialect: Dialect) -> tuple[bool, bool, str]:
    """Return whether the reply contains a message, whether it calls a tool, and why it ended."""
    if dialect in ("responses", "gemini"):
        from chargehand.models.probes import small_answer

        answer = small_answer(dialect, said)
        return answer.message, answer.called, "length" if answer.cut else ""
    if dialect == "anthropic":
        blocks = said.get("content")
        found = [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
        called = any(block.get("type") == "tool_use" for block in found)
        return isinstance(blocks, list), called, str(said.get("stop_reason"))
    choices = said.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = first.get("message")
    called = isinstance(message, dict) and bool(message.get("tool_calls"))
    return isinstance(message, dict), called, str(first.get("finish_reason"))


def _describe_refusal(status: int, said: Mapping[str, Any], served: ServedModel, names: list[str] | None) -> str:
    error = said.get("error", said.get("message", ""))
    inner = error.get("message", "") if isinstance(error, dict) else error
    reason = str(inner).strip() or "no reason given"
    if status in {401, 403}:
        return f"the key is not accepted (status {status}): {reason}"
    if names is not None and served.model not in names:
        # Some providers list thousands of models, and difflib compares with each.
        return f"status {status}: {reason}; it has no model {served.model!r}: {nearest(served.model, names[:200])}"
    return f"status {status}: {reason}"


def redact_reply(text: str, key: str | None) -> str:
    """Return a provider's text, shortened and without the key: some providers repeat the request."""
    from chargehand.core.redaction import Redactor

    text = Redactor({"key": key} if key else {}).text(text)
    shown = " ".join(printable(text).split())
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"


async def fetch_model_rows(
    address: str, dialect: Dialect, key: str | None, seconds: float
) -> dict[str, Mapping[str, Any]] | None:
    """Return the rows of a provider's list by model name, `None` if it has no list."""
    from chargehand.models.probes import list_request

    path, headers, field = list_request(dialect, key)
    base = address.rstrip("/")
    url = f"{base}/models" if _VERSION.search(base) else f"{base}{path}"
    listed = await asyncio.to_thread(_fetch_document, "GET", url, seconds, headers=headers)
    rows = listed.get("data", listed.get("models")) if isinstance(listed, dict) else None
    if not isinstance(rows, list):
        return None
    found = {row.get(field): row for row in rows if isinstance(row, dict)}
    # Gemini puts `models/` before each name.
    return {name.removeprefix("models/"): row for name, row in found.items() if isinstance(name, str)}


def _fetch_document(
    method: str,
    url: str,
    seconds: float,
    *,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> object:
    """Return the JSON document at an address, `None` if there is none."""
    from chargehand.network.http_client import WebClient, WebError

    sent = dict(headers or {}) | ({} if content is None else {"Content-Type": "application/json"})
    try:
        with WebClient(seconds=seconds, connect_seconds=seconds) as client:
            reply = client.send(method, url, content=content, headers=sent)
            return reply.document() if reply.status == 200 else None
    except (WebError, ValueError):
        return None


_CONTEXT_FIELDS = ("context_length", "max_model_len", "inputTokenLimit", "context_window", "max_input_tokens")
_OUTPUT_FIELDS = ("max_output_tokens", "outputTokenLimit", "max_completion_tokens")


async def try_model(
    probe: ModelProbe,
    config: ModelConfig,
    *,
    keys: KeySource,
    limits: LimitsConfig,
    day: date,
    environ: Mapping[str, str] | None = None,
    seconds: float = 30.0,
    reports: ProbeReports | None = None,
) -> Reported | None:
    """Try the abilities of a model that answered its `probe`, by a call for each, and store the results.

    Returns `None` for a model that did not answer, and for scripts. An ability is `None` if a wrong key, a quota
    or a fault prevented a result. Raises `OSError` if the results cannot be stored.
    """
    if not probe.answered or config.provider == "script":
        return None
    from chargehand.models.catalogue import Reported
    from chargehand.models.probes import TRIALS, try_out

    name = probe.name
    key = require_key(name, config, keys)
    address = address_of(name, config, environ=environ)
    served = served_model(name, config, keys=keys, limits=limits, environ=environ)
    found: dict[str, bool | None] = {}
    why: dict[str, str] = {}
    try:
        for trial in TRIALS:
            try:
                tried = await try_out(served, trial, seconds=seconds)
            except UpstreamError as error:
                why[trial] = redact_reply(error.message, key)
            else:
                found[trial] = tried.able
                if tried.why:
                    why[trial] = redact_reply(tried.why, key)
    finally:
        await served.upstream.close()
    if config.provider == "ollama":
        # Ollama's list has only the names of models; another call describes one.
        said = await _fetch_ollama_facts(address, served.model, seconds)
    else:
        rows = await fetch_model_rows(address, dialect_of(config), key, seconds)
        said = _read_row((rows or {}).get(served.model, {}))
    reported = Reported(day=day.isoformat(), tools=probe.tools, tried=why, **found)
    # A trial's result takes precedence over the provider's description of its model.
    reported = replace(
        reported, **{field: value for field, value in said.items() if getattr(reported, field) is None}
    )
    if reports is not None:
        reports.keep(address, served.model, reported)
    return reported


def _read_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts in a row of a provider's list, in the formats of OpenRouter, Gemini, vLLM and others."""
    # OpenRouter has the output limit one level below.
    top = row.get("top_provider")
    row = {**(top if isinstance(top, dict) else {}), **row}
    taken = row.get("architecture")
    kinds = taken.get("input_modalities") if isinstance(taken, dict) else None
    found = {
        "context": _first_count(row, _CONTEXT_FIELDS),
        "max_output": _first_count(row, _OUTPUT_FIELDS),
        "images": "image" in kinds if isinstance(kinds, list) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _first_count(row: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    counts = (row.get(name) for name in names)
    return next((one for one in counts if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)


async def _fetch_ollama_facts(address: str, model: str, seconds: float) -> dict[str, Any]:
    """Return the facts in Ollama's description of a model; nothing if Ollama does not answer."""
    # Ollama's own interface is next to the compatible one, not below it.
    url = f"{address.rstrip('/').removesuffix('/v1')}/api/show"
    asked = json.dumps({"model": model}).encode()
    shown = await asyncio.to_thread(_fetch_document, "POST", url, seconds, content=asked)
    if not isinstance(shown, dict):
        return {}
    found: dict[str, Any] = {}
    about = shown.get("model_info")
    able = shown.get("capabilities")
    if isinstance(about, dict):
        # The key begins with the architecture, such as `llama.context_length`.
        sizes = [value for name, value in about.items() if name.endswith(".context_length")]
        if sizes and isinstance(sizes[0], int):
            found["context"] = sizes[0]
    if isinstance(able, list):
        names = {"tools": "tools", "images": "vision", "reasoning": "thinking", "embeddings": "embedding"}
        found |= {field: word in able for field, word in names.items()}
    return found
