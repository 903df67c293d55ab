"""Removes a provider's key from that provider's replies, in any form and however it is split."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any

from msgspec import Struct

from chargehand.core.errors import UpstreamError
from chargehand.core.redaction import SHORTEST_SECRET, collect_delta_texts, decided_characters, redaction_mark
from chargehand.models._json import dump_json, parse_json
from chargehand.models.contract import REPLY_BYTES, DerivedChunks
from chargehand.models.event_stream import EVENT_STREAM, EventSplitter, event_bytes, event_data, parse_events

# Shorter keys, and words without a digit, are dummies for servers without keys: "ollama", "sk-no-key-required".
_SHORTEST = 12
_SHORTEST_WORDS = 24
# This much of a key's beginning may be sent before the rest arrives and can be recognised.
_HEAD = 4
# A beginning of this length is hidden even if the rest never arrives.
_TOO_MUCH = 16
_MOST_HELD = 512
# More than any form of a key with separators between its characters.
_ENDS = 2_048
_LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"
_LOWER = bytes(range(256)).lower()
_SEPARATORS = bytes(set(range(256)) - set(_LETTERS) - set(_LETTERS.upper()))
_LINE_ESCAPES = (b"\\n", b"\\r", b"\\t", b"\\b", b"\\f")
_ESCAPE = re.compile(
    rb"\\{1,8}u([0-9a-fA-F]{4})|\\{1,8}x([2-7][0-9a-fA-F])|%([2-7][0-9a-fA-F])|&#x([2-7][0-9a-fA-F]);|&#(\d{2,3});"
)
_HALF_ESCAPE = re.compile(
    rb"(?:\\{1,8}(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?|%[0-9a-fA-F]?|&(?:#(?:x[0-9a-fA-F]{0,2}|\d{0,3})?)?)\Z"
)
_TOKEN = re.compile(_ESCAPE.pattern + rb"|\\{1,8}[nrtbf]()|([0-9A-Za-z])", re.DOTALL)


class KeyFilter:
    """Finds a key written plainly, backwards, in base64, base32, hexadecimal or decimal, or by escapes.

    Case and characters between those of the key (spaces, line breaks, quotes, commas) are ignored. `name` goes
    into the mark that replaces the key. A key that is as short, or as much of a word, as the dummies for servers
    without keys also occurs in honest replies, so it is removed only from errors and headers (`in_replies` is
    false). Fewer than six characters are not a key (`active` is false).
    """

    def __init__(self, key: str | None, name: str = "") -> None:
        content = (key or "").strip().encode("utf-8", "replace")
        self.active = len(content) >= SHORTEST_SECRET
        self.in_replies = len(content) >= (_SHORTEST if re.search(rb"\d", content) else _SHORTEST_WORDS)
        self._mark = redaction_mark(name).encode()
        # Each spelling of the key, reduced to letters and digits.
        forms = list[bytes]()
        if self.active:
            forms = [content, content[::-1], codecs.encode(content.decode("latin-1"), "rot13").encode("latin-1")]
            for pattern in ("{:02x}", "0x{:02x}", "{}"):
                forms.append("".join(pattern.format(byte) for byte in content).encode())
            forms += decided_characters(content, base64.b64encode, 3, 6)
            forms += decided_characters(content, base64.b32encode, 5, 5)
        shortest = _SHORTEST if self.in_replies else SHORTEST_SECRET
        self._forms = tuple(sorted({form for form in map(_flatten, forms) if len(form) >= shortest}))
        self._heads = {form[:_HEAD] for form in self._forms}
        self._longest = max(map(len, self._forms), default=0)

    def holds(self, content: bytes) -> bool:
        """Return whether the content contains the key."""
        flat = _flatten(content)
        return any(form in flat for form in self._forms)

    def scrub(self, content: bytes) -> bytes:
        """Return content without the key; JSON stays JSON. Raises `UpstreamError` if that is impossible."""
        if not self.holds(content):
            return content
        clean = self._replace(content, self._mark)
        if not _is_json(content) or _is_json(clean):
            return clean
        quoted = self._replace(content, b'"%b"' % self._mark)  # for example a list of numbers
        if _is_json(quoted):
            return quoted
        raise UpstreamError("the reply repeats the key all over", code="reply_unreadable")

    def scrub_text(self, text: str, *, before: str = "") -> str:
        """Return text without the key, nor the rest of a key that begins in `before`, the preceding text."""
        start, whole = (part.encode("utf-8", "surrogatepass") for part in (before, before + text))
        return self._replace(whole, self._mark, since=len(start)).decode("utf-8", "surrogatepass")

    def begun(self, text: bytes) -> int:
        """Return how many characters of the key's beginning end a text; 0 for fewer than four."""
        # An incomplete escape does not stand for a character yet.
        flat = _flatten(_HALF_ESCAPE.sub(b"", text))[-self._longest :]
        if not any(head in flat for head in self._heads):
            return 0
        lengths = range(min(self._longest, len(flat)), _HEAD - 1, -1)
        return next((size for size in lengths if any(form.startswith(flat[-size:]) for form in self._forms)), 0)

    def hide_beginning(self, text: str, *, before: str = "") -> str:
        """Return text without a long beginning of the key at its end; part of it may be in `before`."""
        start, content = (part.encode("utf-8", "surrogatepass") for part in (before, before + text))
        size = self.begun(content)
        if size < _TOO_MUCH:
            return text
        content = _HALF_ESCAPE.sub(b"", content)
        first = [token.start() for token in _TOKEN.finditer(content) if _letter(token)][-size]
        return (content[len(start) : first] + self._mark).decode("utf-8", "surrogatepass")

    def _replace(self, content: bytes, mark: bytes, *, since: int = 0) -> bytes:
        tokens = [(letter, token.span()) for token in _TOKEN.finditer(content) if (letter := _letter(token))]
        flat = b"".join(letter for letter, _ in tokens)
        places = sorted(
            (found.start(), found.end()) for form in self._forms for found in re.finditer(re.escape(form), flat)
        )
        pieces = list[bytes]()
        done = since
        for first, last in places:
            start = max(since, tokens[first][1][0])
            end = tokens[last - 1][1][1]
            if start >= done and end > since:
                pieces += [content[done:start], mark]
            done = max(done, end)
        return b"".join([*pieces, content[done:]])


def explain_weak_key(key: str | None) -> str:
    """Return which protection a key that is too short or too much of a word lacks; empty if it has all."""
    if not key or KeyFilter(key).in_replies:
        return ""
    where = "errors and headers" if KeyFilter(key).active else "nothing"
    return (
        f"it has fewer than {_SHORTEST} characters, or {_SHORTEST_WORDS} without a digit: if a model's provider"
        f" repeats it, it is removed from {where}, but not from replies"
    )


class FilteredChunks(DerivedChunks):
    """The body of a reply without the key, whole or as a stream of events; to be closed as any other body.

    A body that is not a stream arrives in one piece at its end; until then, empty pieces signal progress. Events
    pass unchanged, unless one ends with a possible beginning of the key: those wait for more.
    """

    def __init__(self, chunks: AsyncIterator[bytes], filter: KeyFilter, content_type: str) -> None:
        streamed = content_type.lower().startswith(EVENT_STREAM)
        super().__init__(self._filter_events(filter) if streamed else self._filter_whole(filter), chunks)

    async def _filter_whole(self, filter: KeyFilter) -> AsyncGenerator[bytes, None]:
        body = bytearray()
        try:
            async for chunk in self._source:
                body += chunk
                if len(body) > REPLY_BYTES:
                    raise UpstreamError(f"the reply is larger than {REPLY_BYTES} B", code="upstream_malformed")
                yield b""
        except UpstreamError:
            yield filter.scrub(filter.hide_beginning(body.decode("latin-1")).encode("latin-1"))
            raise
        yield filter.scrub(bytes(body))

    async def _filter_events(self, filter: KeyFilter) -> AsyncGenerator[bytes, None]:
        split = EventSplitter()
        stream = _StreamFilter(filter)
        try:
            async for chunk in self._source:
                yield b"".join(out for event in split.feed(chunk) for out in stream.take(event))
        except UpstreamError:
            yield b"".join(stream.finish())
            raise
        if rest := split.rest():
            yield b"".join(stream.take(rest))
        yield b"".join(stream.finish())


# A text inside decoded JSON: its container, and its key or index there.
_Leaf = tuple[Any, Any]


class _HeldEvent(Struct, kw_only=True):
    """A waiting event: its decoded data, and the texts in it by their places in the reply."""

    raw: bytes
    data: Any
    texts: dict[Any, list[_Leaf]]
    changed: bool = False

    def to_bytes(self) -> bytes:
        if not self.changed:
            return self.raw
        name = next((event.event for event in parse_events(self.raw)), "")
        data = self.data[0]
        return event_bytes(data if isinstance(data, str) else dump_json(data).decode(), name)


class _StreamFilter:
    """Follows each text of a stream across its events, since a key may be split over several events."""

    def __init__(self, filter: KeyFilter) -> None:
        self._filter = filter
        self._held: list[_HeldEvent] = []
        # The end of each text that was sent, by its place in the reply.
        self._ends: dict[Any, str] = {}

    def take(self, event: bytes) -> Iterator[bytes]:
        """Take in one event; yield the events to send."""
        clean = self._filter.scrub(event)
        data = event_data(event)
        if clean != event or data.startswith(b"[DONE]"):  # this one holds the whole key, or the stream is over
            yield from self.finish()
            yield clean
            return
        # In a list, so that even a lone text has a container.
        try:
            found = parse_json(data) if data else None
        except ValueError:
            found = None
        decoded: list[Any] = [found if isinstance(found, dict | list) else data.decode("utf-8", "replace")]
        texts: dict[Any, list[_Leaf]] = {}
        if data:
            texts = {(): [(decoded, 0)]} if isinstance(decoded[0], str) else collect_delta_texts(decoded)
        self._held.append(_HeldEvent(raw=event, data=decoded, texts=texts))
        # The key is removed from waiting events; `pending` says whether more of it may come.
        pending = False
        for place in {place for held in self._held for place in held.texts}:
            before = self._ends.get(place, "")
            own = self._waiting(place)
            text = (before + own).encode("utf-8", "surrogatepass")
            if self._filter.holds(text):
                # Its first characters may have been sent already: the rest is hidden.
                self._change(place, self._filter.scrub_text(own, before=before))
            else:
                pending = self._filter.begun(text) > 0 or pending
        if not pending or len(self._held) > _MOST_HELD:
            yield from self._release()

    def finish(self) -> Iterator[bytes]:
        """Yield the waiting events; hide a beginning of the key too long to be chance."""
        for place in {place for held in self._held for place in held.texts}:
            self._change(
                place, self._filter.hide_beginning(self._waiting(place), before=self._ends.get(place, ""))
            )
        yield from self._release()

    def _waiting(self, place: Any) -> str:
        return "".join(container[key] for held in self._held for container, key in held.texts.get(place, ()))

    def _change(self, place: Any, text: str) -> None:
        """Replace the waiting text at a place; the new text goes into the first of its events."""
        if text == self._waiting(place):
            return
        for held in self._held:
            for container, key in held.texts.get(place, ()):
                container[key] = text
                text = ""
                held.changed = True

    def _release(self) -> Iterator[bytes]:
        held = self._held
        self._held = []
        for event in held:
            for place, leaves in event.texts.items():
                added = "".join(container[key] for container, key in leaves)
                self._ends[place] = (self._ends.get(place, "") + added)[-_ENDS:]
            yield event.to_bytes()


def _flatten(content: bytes) -> bytes:
    """Return only the letters, in lower case, and digits; escapes count as the characters they encode."""
    if b"\\" in content:
        for escape in _LINE_ESCAPES:
            content = content.replace(escape, b"")
    if b"\\" in content or b"%" in content or b"&#" in content:
        content = _ESCAPE.sub(lambda found: _letter(found) or b"", content)
    return content.translate(_LOWER, _SEPARATORS)


def _letter(token: re.Match[bytes]) -> bytes:
    """Return the letter or digit that a token is or encodes; empty if it is neither."""
    *sixteen, ten = token.groups()[:5]
    code = next((int(each, 16) for each in sixteen if each), int(ten) if ten else None)
    if code is None:
        return (token[7] or b"").lower() if token.re is _TOKEN else b""
    letter = bytes([code]).lower() if code < 128 else b""
    return letter if letter and letter in _LETTERS else b""


def _is_json(content: bytes) -> bool:
    try:
        parse_json(content)
    except ValueError:
        return False
    return True
