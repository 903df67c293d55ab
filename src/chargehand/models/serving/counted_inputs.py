"""Bounds the input of a request by the provider's count of an earlier request that it continues."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from chargehand.models._json import as_mappings, dump_json
from chargehand.models.metering import bound_input

# Below that, a bound by bytes costs little.
_LEAST_BYTES = 4_096
# Parallel conversations of an attempt, for example those of an agent's own helpers.
_MOST_KEPT = 32
_LISTS = ("messages", "contents", "input")
# Fields that the model does not read.
_NO_INPUT = frozenset(
    {"model", "stream", "stream_options", "metadata", "max_tokens", "max_completion_tokens", "max_output_tokens"}
)
# Marks move from message to message, and are not tokens.
_CACHE_MARK = re.compile(rb',?"cache_control":\{[^{}]*\}')


class _RequestHashes(NamedTuple):
    """A request by the hashes of its parts: one for everything but the messages, and one per message."""

    frame: int
    messages: tuple[int, ...]

    def goes_on_from(self, before: _RequestHashes) -> bool:
        return self.frame == before.frame and self.messages[: len(before.messages)] == before.messages


class CountedRequest(NamedTuple):
    """The highest input of one request to one model, and a callback for its provider's count."""

    tokens: int
    note_count: Callable[[int], None] | None = None


class CountedInputs:
    """The providers' token counts for the requests of one attempt.

    A conversation grows at its end. The provider itself counted the earlier part in its own tokens, so only the
    added part has to be bounded by its bytes.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[object, _RequestHashes], int] = OrderedDict()

    def bound(self, model: object, raw: bytes, body: Mapping[str, Any]) -> CountedRequest:
        """Return the bound of a request to `model`, named by any value; `raw` is the body as received."""
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
    # A plain text equals a list with that text: clients put a text into a list to mark it.
    if isinstance(text := part.get("content"), str):
        part = {**part, "content": [{"type": "text", "text": text}]}
    encoded = dump_json(part)
    return _CACHE_MARK.sub(b"", encoded) if b'"cache_control"' in encoded else encoded
