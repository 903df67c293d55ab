"""Makes a conversation fit into a model's context: the least needed parts go first, pinned messages never.

Everything is a function of the given messages: the same conversation is always shortened in the same way. Every
tool call keeps its result, since providers refuse one without the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents._transcript import (
    SUMMARY_LEVELS,
    AnsweredCall,
    answered_calls,
    content_bytes,
    holds_picture,
    is_reply,
    result_text,
    shorten_middle,
    summary,
    with_text,
)
from chargehand.agents.model_messages import ModelMessage
from chargehand.core.errors import ExhaustedError

Messages: TypeAlias = Sequence[ModelMessage]

Tier = Literal["none", "duplicates", "results", "summary", "last_turn"]

# Turns at the end that keep their results, and turns that a summary leaves alone, tried in order.
RESULT_TURNS, SUMMARY_TURNS = 8, (4, 2)
_READERS = frozenset({"read", "search"})
# Characters of each result of the last turn, tried in order.
_CUTS = (8_000, 2_000, 500, 120)
# A text of at most this many characters, including cleared results, is not worth clearing.
_LEAST_CLEARED = 200
# Bounds for the correction of an estimate by a provider's count: one odd count must not empty the conversation.
_LEAST_SCALE, _MOST_SCALE = 0.5, 4.0
_REPLACED = "[cleared: the same call was made again later, see its newer result]"


class Compacted(Struct, frozen=True, kw_only=True):
    """A conversation that fits, the indexes of its pinned messages, and the reduction applied (`tier`).

    `size` is in estimated tokens, before calibration.
    """

    messages: list[ModelMessage]
    pins: frozenset[int]
    tier: Tier
    size: int


def estimate(message: ModelMessage) -> int:
    """Estimate the tokens of a message: a third of its bytes, rounded up, which is rather too many."""
    return math.ceil((8 + sum(8 + content_bytes(part) for part in message.parts)) / 3)


def compact(
    messages: Messages,
    *,
    limit: int,
    pins: Collection[int],
    calibration: tuple[int, int] | None = None,
) -> Compacted:
    """Shorten the messages to fit into `limit` tokens; the pinned ones (by index) stay unchanged.

    Older duplicates of reads go first, then old results; then a summary replaces all but the last turns; finally
    everything but the last turn goes, and its results are cut. `calibration` is the provider's count of an earlier
    conversation (input tokens), and its `size` here. A system prompt is always pinned. Raises `ExhaustedError`
    (`context`) if even that is too long.
    """
    scale = 1.0
    if calibration is not None and min(calibration) > 0:
        scale = min(max(calibration[0] / calibration[1], _LEAST_SCALE), _MOST_SCALE)
    conversation = _Conversation(messages, limit=limit, pins=pins, scale=scale)
    for tier, candidate in conversation.candidates():
        made = conversation.measure(tier, candidate)
        if made is not None:
            return made
    raise ExhaustedError(
        f"the messages that must be kept exceed the {limit} tokens that the model takes",
        code="context",
        hint="use a model with a larger context, or say the request in fewer words",
    )


class _KeptMessage(Struct, frozen=True):
    """A message of a candidate with its pin: pins move when earlier messages are removed."""

    message: ModelMessage
    pinned: bool

    def shortened(self, length: int) -> _KeptMessage:
        """Return the message with its results cut to a length; unchanged if it is pinned or a reply."""
        message: Any = self.message
        if self.pinned or is_reply(message):
            return self
        parts = [
            part
            if (text := result_text(part)) is None or (len(text) <= length and not holds_picture(part))
            else with_text(part, shorten_middle(text, length))
            for part in message.parts
        ]
        return _KeptMessage(replace(message, parts=parts), False)


class _Conversation:
    """The conversation to shorten, with a check whether a candidate is short enough."""

    def __init__(self, messages: Messages, *, limit: int, pins: Collection[int], scale: float) -> None:
        self.messages = list(messages)
        self.pins = {
            index
            for index, message in enumerate(messages)
            if index in pins or any(part.part_kind == "system-prompt" for part in message.parts)
        }
        self._limit = limit
        self._scale = scale

    def measure(self, tier: Tier, candidate: Sequence[_KeptMessage]) -> Compacted | None:
        """Return the candidate as the result if it fits."""
        total = sum(estimate(kept.message) for kept in candidate)
        if math.ceil(total * self._scale) > self._limit:
            return None
        return Compacted(
            messages=[kept.message for kept in candidate],
            pins=frozenset(index for index, kept in enumerate(candidate) if kept.pinned),
            tier=tier,
            size=total,
        )

    def all(self) -> list[_KeptMessage]:
        """Return every message in its current form."""
        return [_KeptMessage(message, index in self.pins) for index, message in enumerate(self.messages)]

    def start_of_last(self, turns: int) -> int:
        """Return the index where the last turns begin: at a reply, or after all messages if there is no reply."""
        replies = [index for index, message in enumerate(self.messages) if is_reply(message)]
        return replies[-turns:][0] if replies else len(self.messages)

    def kept_indexes(self, turns: int) -> set[int]:
        """Return the indexes of pins and last turns, and of the calls and results that belong to them."""
        keep = self.pins | set(range(self.start_of_last(turns), len(self.messages)))
        links = self._links()
        # A summary must not separate a call from its result: providers refuse one without the other.
        while more := {index for link in links if keep & set(link) for index in link} - keep:
            keep |= more
        return keep

    def outside_pairs(self, place: int) -> int:
        """Return the first index from `place` on that is not between a call and its result."""
        for call_at, result_at in sorted(self._links()):
            if call_at < place <= result_at:
                place = result_at + 1
        return place

    def _links(self) -> set[tuple[int, int]]:
        return {(pair.call_at, pair.result_at) for pair in answered_calls(self.messages)}

    def candidates(self) -> Iterator[tuple[Tier, list[_KeptMessage]]]:
        """Yield shorter and shorter conversations, each with the tier of the reduction.

        Each tier starts from the result of the previous one, so that the least needed parts go first.
        """
        original = list(self.messages)
        yield "none", self.all()
        twins: dict[tuple[str, str], list[AnsweredCall]] = defaultdict(list)
        for pair in answered_calls(self.messages):
            if pair.name in _READERS:
                twins[pair.name, pair.arguments].append(pair)
        for same in twins.values():
            # A failed read is not a newer state of the file, so the last good one stays.
            newest = max((number for number, pair in enumerate(same) if not pair.failed), default=0)
            for pair in same[:newest]:
                self._replace_result(pair.result_at, pair.part_at, _REPLACED)
        yield "duplicates", self.all()
        self._clear_results()
        yield "results", self.all()
        for turns in SUMMARY_TURNS:
            keep = self.kept_indexes(turns)
            for level in SUMMARY_LEVELS:
                yield "summary", self._with_summary(original, keep, level)
        keep = self.kept_indexes(1)
        for length in _CUTS:
            for last_level in (SUMMARY_LEVELS[-1], 0):
                shorter = self._with_summary(original, keep, last_level)
                yield "last_turn", [kept.shortened(length) for kept in shorter]

    def _with_summary(self, original: Messages, keep: set[int], level: int) -> list[_KeptMessage]:
        """Return the kept messages with a summary of the others, in the place of the first of them."""
        gone = [index for index in range(len(original)) if index not in keep]
        made = [_KeptMessage(self.messages[index], index in self.pins) for index in sorted(keep)]
        if gone and level:
            place = self.outside_pairs(gone[0])
            before = sum(index < place for index in keep)
            made.insert(before, _KeptMessage(summary(original, gone, level=level), False))
        return made

    def _clear_results(self) -> None:
        """Clear old results, including those written as text for models without tools."""
        # By place: results for models without tools are plain text, and belong to no call.
        named = {(pair.result_at, pair.part_at): pair for pair in answered_calls(self.messages)}
        first, end = (
            self.start_of_last(len(self.messages) + 1),
            self.start_of_last(RESULT_TURNS),
        )
        for index in range(first, end):
            for at, part in enumerate(self.messages[index].parts):
                text = result_text(part)
                if text is not None and not is_reply(self.messages[index]):
                    pair = named.get((index, at))
                    what = f"{len(text.encode('utf-8', 'surrogatepass'))} bytes of output"
                    what += f" of {pair.name}" if pair else ""
                    what += f", kept as artifact {pair.artifact}" if pair and pair.artifact else ""
                    self._replace_result(index, at, f"[cleared: {what}]")

    def _replace_result(self, index: int, at: int, line: str) -> None:
        message: Any = self.messages[index]
        text = result_text(message.parts[at])
        if index in self.pins or text is None:
            return
        if len(text) <= max(len(line), _LEAST_CLEARED) and not holds_picture(message.parts[at]):
            return
        parts = [with_text(part, line) if number == at else part for number, part in enumerate(message.parts)]
        self.messages[index] = replace(message, parts=parts)
