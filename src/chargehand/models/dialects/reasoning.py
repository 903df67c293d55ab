"""How to ask each family of models to reason: by named efforts or by budgets in tokens.

Sources of the fields: https://platform.openai.com/docs/guides/reasoning,
https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking (and `adaptive-thinking`),
https://ai.google.dev/gemini-api/docs/thinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chargehand.core.text import late_pattern
from chargehand.models._json import as_limit
from chargehand.models.conversation import DYNAMIC_BUDGET, EFFORT_BUDGETS, ReasoningRequest

# The names of efforts at Anthropic and Gemini 3; without such a name, reasoning cannot be requested there.
ANTHROPIC_EFFORTS: Mapping[str, str] = {"minimal": "low"} | {
    word: word for word in ("low", "medium", "high", "xhigh", "max")
}
GEMINI_LEVELS: Mapping[str, str] = {
    "minimal": "MINIMAL",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
LEAST_ANTHROPIC_BUDGET = EFFORT_BUDGETS["minimal"]
# Claude before 4.6 takes only budgets, later versions an effort; versions before 3.7 do not reason.
_BUDGET_CLAUDE = late_pattern(r"claude-(3[.-]7|(opus|sonnet|haiku)-4([.-][0-5](?!\d)|-\d{8}|@|-latest|$))")
_PLAIN_CLAUDE = late_pattern(r"claude-(2|instant|3[.-](?!7))")
# Models that OpenAI makes: it refuses fields that others take, and others refuse some of its fields.
_OPENAI = late_pattern(r"(^|/)(o\d|gpt-(?!oss)|chatgpt-|codex)")
_LEVEL_GEMINI = late_pattern(r"gemini-([3-9]|\d\d)")
_PLAIN_OPENAI = late_pattern(r"(^|/)(gpt-(3|4)|chatgpt-4)")


def takes_effort(model: str) -> bool:
    """Return whether an OpenAI model accepts an effort; models of others are tried."""
    return _PLAIN_OPENAI.search(model) is None


def write_effort(asked: ReasoningRequest, model: str, left: set[str]) -> str | None:
    """Return the effort for a dialect of OpenAI's; a request without matching effort is added to `left`."""
    effort = asked.word if takes_effort(model) else None
    # A model that cannot reason satisfies the effort `none` anyway.
    if asked.amount and effort is None and asked.word != "none":
        left.add(asked.amount)
    return effort


def is_openai(model: str) -> bool:
    """Return whether OpenAI makes a model."""
    return _OPENAI.search(model) is not None


def read_thinking(thinking: Mapping[str, Any]) -> int | None:
    """Return the budget of a `thinking` field as in Anthropic's API, which others adopted, or `None`."""
    match thinking.get("type"):
        case "disabled":
            return 0
        case "enabled" | "adaptive":
            tokens = as_limit(thinking.get("budget_tokens"))
            return DYNAMIC_BUDGET if tokens is None else tokens
    return None


def takes_thinking(model: str) -> bool:
    """Return whether an Anthropic model accepts a request to reason; models of others are tried."""
    return _PLAIN_CLAUDE.search(model) is None


def takes_budget(model: str) -> bool:
    """Return whether a model that speaks messages takes a budget instead of an effort."""
    return "claude" not in model or _BUDGET_CLAUDE.search(model) is not None


def takes_level(model: str) -> bool:
    """Return whether a Gemini model takes a level, as those from 3 on do; earlier ones take a budget."""
    return _LEVEL_GEMINI.search(model) is not None


def gemini_budget(model: str, tokens: int) -> int:
    """Return the nearest budget that a Gemini model accepts; 2.5 Pro cannot turn reasoning off."""
    if tokens == DYNAMIC_BUDGET:
        return tokens
    least, most = (128, 32_768) if "pro" in model else (0, 24_576)
    return max(least, min(tokens, most))
