"""What a model can do, found out by trying and by what its provider says of it; kept for the catalogue."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

from chargehand.app._model_probe import ModelProbe, listed_rows, safe_words
from chargehand.app._model_reports import Reports
from chargehand.app._models import address_of, dialect_of, is_loopback, require_key, served_model
from chargehand.core.config import LimitsConfig, ModelConfig
from chargehand.core.errors import UpstreamError
from chargehand.core.ports import KeySource

if TYPE_CHECKING:
    from chargehand.models.catalogue import Reported

_PLACES = ("context_length", "max_model_len", "inputTokenLimit", "context_window", "max_input_tokens")
_OUTPUTS = ("max_output_tokens", "outputTokenLimit", "max_completion_tokens")


async def try_model(
    probe: ModelProbe,
    config: ModelConfig,
    *,
    keys: KeySource,
    limits: LimitsConfig,
    day: date,
    environ: Mapping[str, str] | None = None,
    seconds: float = 30.0,
    reports: Reports | None = None,
) -> Reported | None:
    """Try a model that answered its `probe` out, one small call for each ability, and keep what came of it.

    `None` for one that did not answer, and for scripts. What is not found out is `None`: keys, quotas and faults
    say nothing of an ability. Raises `OSError` where it cannot be kept.
    """
    if not probe.answered or config.provider == "script":
        return None
    from chargehand.models.catalogue import Reported
    from chargehand.models.probes import TRIALS, try_out

    name, key = probe.name, require_key(probe.name, config, keys)
    address = address_of(name, config, environ=environ)
    served = served_model(name, config, keys=keys, limits=limits, environ=environ)
    found: dict[str, bool | None] = {}
    why: dict[str, str] = {}
    try:
        for trial in TRIALS:
            try:
                tried = await try_out(served, trial, seconds=seconds)
            except UpstreamError as error:
                why[trial] = safe_words(error.message, key)
            else:
                found[trial] = tried.able
                if tried.why:
                    why[trial] = safe_words(tried.why, key)
    finally:
        await served.upstream.close()
    said = await _said(address, served.model, config, key, seconds)
    reported = Reported(day=day.isoformat(), tools=probe.tools, tried=why, **found)
    reported = replace(
        reported, **{field: value for field, value in said.items() if getattr(reported, field) is None}
    )
    if reports is not None:
        reports.keep(address, served.model, reported)
    return reported


async def _said(address: str, model: str, config: ModelConfig, key: str | None, seconds: float) -> dict[str, Any]:
    """Return what the provider's list, or Ollama's own description, says of a model."""
    if config.provider == "ollama":
        return _of_ollama(await _shown(address, model, seconds))
    rows = await listed_rows(address, dialect_of(config), key, seconds)
    return _of_row((rows or {}).get(model, {}))


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row of a list says: OpenRouter's, Gemini's, vLLM's and others' words for the same."""
    top = row.get("top_provider")
    row = {**(top if isinstance(top, dict) else {}), **row}
    taken = row.get("architecture")
    kinds = taken.get("input_modalities") if isinstance(taken, dict) else None
    found = {
        "context": _first_count(row, _PLACES),
        "max_output": _first_count(row, _OUTPUTS),
        "images": "image" in kinds if isinstance(kinds, list) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _first_count(row: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    counts = (row.get(name) for name in names)
    return next((one for one in counts if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)


def _of_ollama(shown: Mapping[str, Any]) -> dict[str, Any]:
    about, able = shown.get("model_info"), shown.get("capabilities")
    sizes = (
        [value for name, value in about.items() if name.endswith(".context_length")]
        if isinstance(about, dict)
        else []
    )
    found: dict[str, Any] = {"context": sizes[0]} if sizes and isinstance(sizes[0], int) else {}
    if not isinstance(able, list):
        return found
    names = {"tools": "tools", "images": "vision", "reasoning": "thinking", "embeddings": "embedding"}
    return found | {field: word in able for field, word in names.items()}


async def _shown(address: str, model: str, seconds: float) -> Mapping[str, Any]:
    import httpx

    url = f"{address.rstrip('/').removesuffix('/v1')}/api/show"
    with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError):
        async with httpx.AsyncClient(timeout=seconds, trust_env=not is_loopback(address)) as client:
            reply = await client.post(url, json={"model": model})
        shown = reply.json() if reply.status_code == 200 else {}
        return shown if isinstance(shown, dict) else {}
    return {}
