"""What recorded data and log lines show: secrets removed, changing values replaced by names, fields of context."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, quote_plus

from chargehand.core.text import late_pattern

SHORTEST_SECRET = 6
REDACTED = "[redacted]"
# A boundary before, so that "task-…" is left alone; in JSON text the letter of an escape like \n is a boundary
# too.
_EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))"
# Words have no digits: "sk-learn-like-estimators" and "Bearer authentication" are prose.
_BEARER = r"(?:(?=[A-Za-z._~+/=-]*[0-9])[A-Za-z0-9._~+/=-]{8,}|[A-Za-z._~+/=-]{24,})"
KEY_SHAPES = late_pattern(
    rf"{_EDGE}(?:((?i:Bearer)\s+){_BEARER}|sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{{16,}}|gh[pousr]_[A-Za-z0-9]{{20,}}"
    r"|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}"
    r"|xox[abeprs]-[0-9A-Za-z-]{10,})"
)
# Every key contains one of these. Looking for them takes a tenth of the time of looking for shapes.
_MARKS = ("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AKIA", "ASIA", "AIza", "xox")
# Keys and short values are repeated in each event of a stream.
_SHORT = 64
_REMEMBERED = 2_048
# The fields under which the four dialects put the pieces of a streamed reply.
_PIECES = ("delta", "candidates")
_INDEXES = ("index", "output_index", "content_index", "summary_index")
_Place = tuple[object, ...]
# A text inside decoded JSON: its container, and its key or index there.
_Leaf = tuple[Any, Any]
_NAME = late_pattern(r"[^A-Za-z0-9_.-]")
_FIELDS: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=MappingProxyType({}))


class Redactor:
    """Replaces known secrets, text that looks like a key, and values that have a name here.

    `secrets` and `templates` map a name to its value. A secret becomes `[redacted:NAME]`, also if it is written as
    base64, hexadecimal, URL-quoted or escaped as in JSON. Text in the shape of a well-known key becomes
    `[redacted]`. A template's value becomes `{{NAME}}`. Values of fewer than six characters stay.
    """

    def __init__(
        self, secrets: Mapping[str, str] | None = None, templates: Mapping[str, str] | None = None
    ) -> None:
        self._templates = {
            name: value for name, value in (templates or {}).items() if len(value) >= SHORTEST_SECRET
        }
        self._secrets = _forms(
            (form, redaction_mark(name))
            for name, value in (secrets or {}).items()
            for form in _secret_forms(value)
        )
        self._named = _forms(
            (form, _slot(name)) for name, value in self._templates.items() for form in _escape_json(value)
        )
        # JSON is encoded letter by letter, so its text contains a form whenever one of its values does.
        self._in_json = tuple({json.dumps(form)[1:-1] for form in (*self._secrets, *self._named)})
        self._hide = _replacing(self._secrets)
        self._name = _replacing(self._named)
        self._short = lru_cache(_REMEMBERED)(lambda text: self._clean(self._hide(text)))

    def text(self, text: str, *, cut: bool = False) -> str:
        """Return `text` without secrets; `cut` says that it broke off, maybe in the middle of a secret."""
        if cut:
            hidden = self._hide(text)
            # A secret that broke off: its beginning, of at least six characters, at the very end.
            for form, mark in self._secrets.items():
                for length in range(min(len(form) - 1, len(hidden)), SHORTEST_SECRET - 1, -1):
                    if hidden.endswith(form[:length]):
                        return self._clean(hidden[:-length] + mark)
            return self._clean(hidden)
        return self._short(text) if len(text) <= _SHORT else self._clean(self._hide(text))

    def _clean(self, hidden: str) -> str:
        if _may_hold_a_key(hidden):
            hidden = KEY_SHAPES.sub(lambda found: (found[1] or "") + REDACTED, hidden)
        return self._name(hidden)

    def tree(self, value: Any) -> Any:
        """Return decoded JSON without secrets, in keys and numbers as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.tree(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = repr(value)
            hidden = self._hide(shown)
            return value if hidden == shown else hidden
        return value

    def stream(self, events: Sequence[Any], *, cut: bool = False) -> list[Any]:
        """Return the decoded data of a stream's events without secrets, even if split over several pieces.

        The pieces of such a text are joined in the first of them.
        """
        # One search over the whole stream: most replies contain nothing to hide.
        written = json.dumps(events)
        if not (cut or _may_hold_a_key(written) or any(form in written for form in self._in_json)):
            wholes = map(
                "".join, ([holder[key] for holder, key in found] for found in collect_delta_texts(events).values())
            )
            if all(self.text(whole) == whole for whole in wholes):
                return list(events)
        copied = json.loads(written)
        for leaves in collect_delta_texts(copied).values():
            texts = [container[key] for container, key in leaves]
            whole = self.text("".join(texts), cut=cut)
            if whole != "".join(map(self.text, texts)):
                for number, (container, key) in enumerate(leaves):
                    container[key] = whole if number == 0 else ""
        return [self.tree(event) for event in copied]

    def expand(self, value: Any) -> Any:
        """Return decoded JSON with the templates' names replaced by their values."""
        if isinstance(value, str):
            for name, real in self._templates.items():
                value = value.replace(_slot(name), real)
            return value
        if isinstance(value, Mapping):
            return {self.expand(key): self.expand(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.expand(item) for item in value]
        return value


def redaction_mark(name: str) -> str:
    """Return the mark that replaces the secret of that name."""
    return f"[redacted:{_NAME.sub('_', name)}]" if name else REDACTED


def collect_delta_texts(events: Sequence[Any]) -> dict[_Place, list[_Leaf]]:
    """Return the texts of streamed replies, grouped by their part; an index distinguishes parts."""
    found: dict[_Place, list[_Leaf]] = {}
    for event in events:
        _collect(event, (), found, inside=False)
    return found


def _collect(value: Any, place: _Place, found: dict[_Place, list[_Leaf]], *, inside: bool) -> None:
    if isinstance(value, dict):
        place = (*place, *((name, value[name]) for name in _INDEXES if isinstance(value.get(name), int)))
        for key in value:
            _take(value, key, (*place, key), found, inside=inside or key in _PIECES)
    elif isinstance(value, list):
        for number in range(len(value)):
            _take(value, number, place, found, inside=inside)


def _take(holder: Any, key: Any, place: _Place, found: dict[_Place, list[_Leaf]], *, inside: bool) -> None:
    if not isinstance(holder[key], str):
        _collect(holder[key], place, found, inside=inside)
    elif inside:
        found.setdefault(place, []).append((holder, key))


def _may_hold_a_key(text: str) -> bool:
    return any(mark in text for mark in _MARKS) or "bearer" in text.lower()


def _slot(name: str) -> str:
    return f"{{{{{name}}}}}"


def _forms(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return replacements by text, the longest first: an alternation takes the first that matches."""
    return dict(sorted(pairs, key=lambda pair: (-len(pair[0]), pair[0])))


def _replacing(forms: Mapping[str, str]) -> Callable[[str], str]:
    if not forms:
        return lambda text: text
    found_by = re.compile("|".join(map(re.escape, forms)))

    def replace_forms(text: str) -> str:
        # Mostly the text contains no form, and looking for one word at a time is much faster.
        if not any(form in text for form in forms):
            return text
        return found_by.sub(lambda found: forms[found[0]], text)

    return replace_forms


def _secret_forms(secret: str) -> Iterator[str]:
    written = {secret, secret.strip()}
    for value in sorted(written):
        content = value.encode(errors="surrogatepass")
        quoted = (quote(content, safe=""), quote(content), quote_plus(content))
        # RFC 3986 allows escapes in either case.
        lower = (re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), one) for one in quoted)
        hexadecimal = (content.hex(), content.hex().upper())
        base64_forms = [form.decode() for form in decided_characters(content, base64.b64encode, 3, 6)]
        base64_forms += [form.translate(str.maketrans("+/", "-_")) for form in base64_forms]
        every = {*_escape_json(value), *quoted, *lower, *hexadecimal, *base64_forms}
        yield from (form for form in every if len(value) >= SHORTEST_SECRET and len(form) >= SHORTEST_SECRET)


def _escape_json(value: str) -> set[str]:
    """Return a value unchanged and as written in JSON text, up to JSON within JSON."""
    once = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {value, *once, *(json.dumps(form, ensure_ascii=False)[1:-1] for form in once)}


def decided_characters(content: bytes, encode: Callable[[bytes], bytes], group: int, bits: int) -> Iterator[bytes]:
    """Yield, for each position of `content` within encoded data, the characters that it alone determines.

    The encoding writes groups of `group` bytes, in characters of `bits` bits.
    """
    for before in range(group):
        first = -(-before * 8 // bits)
        last = (before + len(content)) * 8 // bits
        yield encode(b"\0" * before + content)[first:last]


@contextmanager
def log_fields(**fields: str) -> Iterator[None]:
    """Add these fields to every line logged within the block and in tasks that begin in it."""
    token = _FIELDS.set({**_FIELDS.get(), **fields})
    try:
        yield
    finally:
        _FIELDS.reset(token)


def current_log_fields() -> Mapping[str, str]:
    """Return the fields for a line logged now."""
    return _FIELDS.get()
