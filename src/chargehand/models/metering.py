"""Bounds the cost of a call before it is sent and computes it afterwards; also an in-memory ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import ExhaustedError
from chargehand.core.ports import Spent
from chargehand.models._json import as_mapping, as_mappings
from chargehand.models.contract import Price, PriceTier, ReplyUsage

# Reserved, and sent if a dialect requires a limit, when neither the client nor the model names one.
DEFAULT_OUTPUT = 32_000
# A shorter output is not a useful reply, so the call is refused.
LEAST_OUTPUT = 16
_MILLION = 1_000_000
# Anthropic's price of caching for an hour, as a multiple of the plain input price; used if no price is known.
_HOUR_FACTOR = 2.0
_ADDED_TOKENS = 256
# Tokens that a provider adds to the client's text: chat markers, and the prompt that explains tools.
_ADDED_WITH_TOOLS = 2_048
_IMAGE_TOKENS = 40_000
# Bounds for content that a request only links to, and for pages, pixels and sound with more tokens than bytes.
_FILE_TOKENS = 1_000_000
_TEXT_PARTS = frozenset(
    {"text", "tool_use", "tool_result", "thinking", "redacted_thinking", "refusal", "message", "function_call"}
    | {"function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning", "input_text"}
    | {"output_text", "summary_text", "reasoning_text"}
)
_IMAGE_PARTS = frozenset({"image", "image_url", "input_image"})
# Parts inside parts, such as pictures in a document in a tool's result.
_DEEPEST = 4
_ALERT = 0.8
# USD, since sums of floats are not exact.
_TOLERANCE = 1e-9


class CallBound(Struct, frozen=True, kw_only=True):
    """The most that a call can use: input tokens, and output tokens of each of its `choices`.

    `output` is what the client or the model's own limit allows; `asked` says that the client named a limit or the
    model has one, so that it is sent even without a limit on money. `on_counted` receives the number of input
    tokens that the provider counted.
    """

    input: int
    output: int
    asked: bool
    choices: int = 1
    hour_cache: bool = False
    on_counted: Callable[[int], None] | None = None


def bound_input(raw: bytes, body: Mapping[str, Any]) -> int:
    """Return an upper bound of the input tokens: a token has at least one byte, except in pictures and files."""
    # By bytes: most tokenisers are not available, and an estimate that is too low would exceed the limit.
    added = _ADDED_WITH_TOOLS if body.get("tools") or body.get("functions") else _ADDED_TOKENS
    # One scan for all dialects: the bound must also hold for a part in a place where its dialect has no parts.
    holders = [*as_mappings(body.get("messages")), *as_mappings(body.get("contents"))]
    parts = [part for one in holders for name in ("content", "parts") for part in as_mappings(one.get(name))]
    parts += as_mappings(body.get("input"))
    return len(raw) + added + sum(_bound_part(inner) for part in parts for inner in _walk(part, _DEEPEST))


def _walk(part: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    yield part
    if depth:
        inside = (part.get("content"), as_mapping(part.get("source")).get("content"), part.get("output"))
        answered = as_mapping(part.get("functionResponse")).get("parts")
        for inner in (one for held in (*inside, answered) for one in as_mappings(held)):
            yield from _walk(inner, depth - 1)


def _bound_part(part: Mapping[str, Any]) -> int:
    """Return a part's tokens in addition to its bytes; a part of an unknown type counts as a file."""
    kind = str(part.get("type", "text"))
    given = as_mapping(part.get("inlineData") or part.get("fileData"))
    if given:
        return _IMAGE_TOKENS if str(given.get("mimeType")).startswith("image/") else _FILE_TOKENS
    if kind in _TEXT_PARTS:
        return 0
    if kind in _IMAGE_PARTS:
        return _IMAGE_TOKENS
    source = as_mapping(part.get("source"))
    return 0 if kind == "document" and source.get("type") in ("text", "content") else _FILE_TOKENS


def input_usd(price: Price, bound: CallBound) -> float:
    """Return the most that the input can cost in USD."""
    # The share of cache reads and writes is known only afterwards.
    return (
        bound.input
        * max(
            max(
                tier.input,
                tier.cached or 0.0,
                _write_rate(tier, hour=False),
                bound.hour_cache * _write_rate(tier, hour=True),
            )
            for tier in _tiers_within(price, bound.input)
        )
        / _MILLION
    )


def output_usd(price: Price, bound: CallBound, limit: int) -> float:
    """Return the most that `limit` output tokens of each choice can cost in USD."""
    rate = max(tier.output for tier in _tiers_within(price, bound.input))
    return limit * bound.choices * rate / _MILLION


def _tiers_within(price: Price, tokens: int) -> Sequence[Price | PriceTier]:
    """Return the prices of inputs of up to that many tokens, with the one for all of them last."""
    return [tier for tier in price.tiers if tier.start == 0 or tier.start < tokens] or [price]


def _write_rate(price: Price | PriceTier, *, hour: bool) -> float:
    write = price.input if price.cache_write is None else price.cache_write
    if not hour:
        return write
    return max(write, _HOUR_FACTOR * price.input) if price.hour_write is None else price.hour_write


def affordable_output(price: Price, bound: CallBound, usd: float) -> int:
    """Return how many output tokens of each choice `usd` pays for after the input; at most `bound.output`."""
    rate = output_usd(price, bound, 1)
    rest = usd - input_usd(price, bound)
    if rest < 0:
        return 0
    limit = bound.output if rate == 0 else min(bound.output, int(rest / rate))
    # Division rounds: the cost of the limit itself must be covered.
    while limit > 0 and input_usd(price, bound) + output_usd(price, bound, limit) > usd:
        limit -= 1
    return limit


def drop_empty_counts(metered: ReplyUsage, *, wrote: bool) -> ReplyUsage:
    """Return usage without counts of 0 that cannot be true.

    An input count of 0 is never true, nor is an output count of 0 if the model `wrote` something. Servers that do
    not count report 0, which is not a count.
    """
    usage = metered.usage
    if usage.input != 0 and not (wrote and usage.output == 0):
        return metered
    output = (usage.output or None) if wrote else usage.output
    known = replace(usage, input=usage.input or None, output=output, cost_usd=usage.cost_usd or None)
    return replace(metered, usage=known)


def computed_usd(price: Price | None, metered: ReplyUsage, *, hour_cache: bool = False) -> float | None:
    """Return the cost of a call's tokens by our price, regardless of its provider's; `None` if unknown.

    `hour_cache`: the call asked for caching for an hour, which counts if the provider does not report it.
    """
    usage = metered.usage
    if price is None:
        return None
    if price.input == 0 and price.output == 0 and not price.cache_write:
        return 0.0
    if usage.input is None or usage.output is None:
        return None
    cached = usage.cached or 0
    written = usage.cache_write or 0
    plain = max(0, usage.input - cached - written)
    hours = written * hour_cache if metered.hour_writes is None else metered.hour_writes
    rates = _tiers_within(price, usage.input)[-1]
    return (
        plain * rates.input
        + cached * (rates.input if rates.cached is None else rates.cached)
        + (written - hours) * _write_rate(rates, hour=False)
        + hours * _write_rate(rates, hour=True)
        + usage.output * rates.output
    ) / _MILLION


def bounded_usd(
    price: Price | None, metered: ReplyUsage, output: int, *, hour_cache: bool = False
) -> float | None:
    """Return the highest cost of a call with the usage in `metered` that may write `output` tokens.

    `None` if the price or the input is unknown.
    """
    known = drop_empty_counts(metered, wrote=False)
    whole = replace(known, usage=replace(known.usage, output=output))
    return computed_usd(price, whole, hour_cache=hour_cache)


class MemoryLedger:
    """A `Ledger` for a gateway that belongs to no mission, and for tests; thread-safe.

    It has one limit in USD over all calls; `None` means no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._booked: dict[str, float] = {}
        self._open: set[str] = set()
        self._alerted = False

    @property
    def booked(self) -> float:
        """The amount that counts as spent, in USD: costs, and reserves that are not settled."""
        with self._lock:
            return sum(self._booked.values())

    def left(self, *, settled: bool = False) -> float | None:
        """Return what may still be reserved, in USD; with `settled`, as if calls under way cost nothing."""
        if self._limit is None:
            return None
        with self._lock:
            booked = sum(usd for call, usd in self._booked.items() if not (settled and call in self._open))
        return max(0.0, self._limit - booked)

    def reserve(self, call: str, usd: float) -> tuple[Spent, ...]:
        """Reserve for a call; raises `ExhaustedError` (`budget`, `budget_reserved`) if that exceeds the rest."""
        with self._lock:
            spent = sum(self._booked.values())
            if self._limit is not None and spent + usd > self._limit + _TOLERANCE:
                opened = sum(self._booked[one] for one in self._open)
                raise ExhaustedError(
                    f"the attempt's limit of {self._limit:g} USD does not cover this call: {spent:.6f} USD are "
                    f"spent or reserved, and it could cost {usd:.6f} USD",
                    code="budget_reserved" if spent - opened + usd <= self._limit + _TOLERANCE else "budget",
                    hint="raise the limit, or send less",
                )
            self._booked[call] = usd
            self._open.add(call)
            if self._limit is None or self._alerted or spent + usd < _ALERT * self._limit:
                return ()
            self._alerted = True
            return (Spent(limit="attempt", limit_usd=self._limit, spent_usd=spent + usd),)

    def secure(self) -> None:
        """Do nothing: a ledger in memory has no disk to wait for."""

    def settle(self, call: str, usd: float | None, *, most: float | None = None) -> None:
        """Book the cost of a call; `None` keeps its reserve booked, or `most` if that is less."""
        with self._lock:
            self._open.discard(call)
            if usd is not None:
                self._booked[call] = usd
            elif most is not None:
                self._booked[call] = min(most, self._booked[call])
