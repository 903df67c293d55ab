"""Bounds the input of a request by what its provider counted of an earlier one that this one goes on from."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from chargehand.models._json import as_mappings, dump_json
from chargehand.models.metering import bound_input

# Below that a bound by bytes is of little money.
_LEAST_BYTES = 4_096
# Conversations that an attempt has side by side, such as those of an agent's own helpers.
_MOST_KEPT = 32
_LISTS = ("messages", "contents", "input")
# What is no part of what the model reads.
_NO_INPUT = frozenset(
    {"model", "stream", "stream_options", "metadata", "max_tokens", "max_completion_tokens", "max_output_tokens"}
)
# Marks move from message to message, and are no tokens.
_CACHE_MARK = re.compile(rb',?"cache_control":\{[^{}]*\}')


class _RequestHashes(NamedTuple):
    """A request by the hashes of its parts: what is no message, and each message."""

    frame: int
    messages: tuple[int, ...]

    def goes_on_from(self, before: _RequestHashes) -> bool:
        return self.frame == before.frame and self.messages[: len(before.messages)] == before.messages


class CountedRequest(NamedTuple):
    """What the input of one request to one model is at most, and what is told how many its provider counted."""

    tokens: int
    note_count: Callable[[int], None] | None = None


class CountedInputs:
    """What providers counted of the requests of one attempt.

    A conversation grows at its end. What stood there before was counted by the provider itself, in its own tokens,
    so that only what was added has to be bounded by its bytes.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, _RequestHashes], int] = OrderedDict()

    def bound(self, model: object, raw: bytes, body: Mapping[str, Any]) -> CountedRequest:
        """Return the bound of a request to `model`, whatever names that; `raw` is the body as it came."""
        whole = bound_input(raw, body)
        if len(raw) < _LEAST_BYTES:
            return CountedRequest(whole)
        name = next((one for one in _LISTS if isinstance(body.get(one), list)), "")
        messages = as_mappings(body.get(name))
        if not messages or len(messages) < len(body[name]):
            return CountedRequest(whole)
        encoded = [_encode(one) for one in messages]
        frame = {key: value for key, value in body.items() if key != name and key not in _NO_INPUT}
        conversation = _RequestHashes(hash(_encode(frame)), tuple(map(hash, encoded)))
        length, counted = max(
            (
                (len(before.messages), tokens)
                for (asked, before), tokens in self._known.items()
                if asked == model and conversation.goes_on_from(before)
            ),
            default=(0, 0),
        )
        if length:
            added = bound_input(b"".join(encoded[length:]), {name: messages[length:]})
            whole = min(whole, counted + added)

        def note_count(tokens: int) -> None:
            self._known[model, conversation] = tokens
            self._known.move_to_end((model, conversation))
            if len(self._known) > _MOST_KEPT:  # the oldest is forgotten
                self._known.popitem(last=False)

        return CountedRequest(whole, note_count)


def _encode(part: Mapping[str, Any]) -> bytes:
    # A text alone and a list with it are the same: clients put the text that they mark into one.
    if isinstance(text := part.get("content"), str):
        part = {**part, "content": [{"type": "text", "text": text}]}
    encoded = dump_json(part)
    return _CACHE_MARK.sub(b"", encoded) if b'"cache_control"' in encoded else encoded
