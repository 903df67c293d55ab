"""The `snippet` tool: a short program that computes a value, away from the workspace."""

from __future__ import annotations

import json
from typing import Any, Protocol, cast

import msgspec

from chargehand.agents._tools_model import Mistake, ToolResult
from chargehand.core.errors import InfrastructureError, TierUnavailableError, UsageError
from chargehand.sandbox.snippets import SnippetResult, SnippetSpec

_OUTPUT = 8_000
"""Bytes of console lines and value together, so that no answer has to be cut."""


class Snippets(Protocol):
    """Runs snippets in the tier `isolate`; a `SnippetPool` is one."""

    async def run(self, spec: SnippetSpec, /) -> SnippetResult:
        """Run one snippet to its end; raises what `SnippetPool.run` raises."""
        ...


async def snippet(snippets: Snippets | None, language: str, code: str, input: str | None = None) -> ToolResult:
    """Run a snippet; its result is JSON with the limits that it ran under. Raises `Mistake`."""
    if snippets is None:
        raise Mistake("snippets cannot be run on this machine: use bash")
    try:
        spec = SnippetSpec(language=cast("Any", language), source=code, input=_given(input), output_limit=_OUTPUT)
        result = await snippets.run(spec)
    except (UsageError, TierUnavailableError) as error:
        raise Mistake(f"{error.message}; {error.hint}") from error
    except InfrastructureError as error:  # the pool's own, not the attempt's sandbox
        return ToolResult(text=f"the snippet could not be run: {error.message}. Use bash.", failed=True)
    return ToolResult(text=_shown(spec, result), failed=result.error is not None)


def _given(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"`input` is not JSON ({error}): a text, too, stands in double quotes") from error


def _shown(spec: SnippetSpec, result: SnippetResult) -> str:
    document = {
        "value": result.value,
        "console": [{"level": line.level, "text": line.text} for line in result.console],
        "error": result.error,
        "seconds": round(result.seconds, 3),
        "peak_memory": result.peak_memory,
        "limits": {"memory_mb": spec.memory_mb, "seconds": spec.seconds, "output_bytes": spec.output_limit},
    }
    return json.dumps(msgspec.to_builtins(document), ensure_ascii=False)
