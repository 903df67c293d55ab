"""Decides whether a request was asked before, ignoring values that differ between runs of the same work.

Ids, hashes, moments and durations are recognised by their form (decision 0033).
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, Literal

from msgspec import Struct

from chargehand.core.redaction import Redactor
from chargehand.core.text import late_pattern

MarkKind = Literal["text", "id", "moment", "span", "header"]
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},?[ ])"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_TIME = r"\d{1,2}[:-]\d\d(?:[:-]\d\d(?:[.,-]\d+)?)?(?:[ \u202f]?[AaPp][Mm]\b)?"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT)?(?:[+-]\d\d:?\d\d)?)"
_FORM = late_pattern(
    r"(?<![0-9A-Za-z])(?:"
    # A header in the text belongs to the program and its run: claude's billing mark is one.
    r"(?P<header>(?m:^)x-[a-z0-9-]+:[^\n]*)"
    r"|(?P<uuid>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})"
    rf"|(?P<moment>(?:(?P<iso>\d{{4}}-\d\d-\d\d)|(?P<slashes>\d{{1,2}}/\d{{1,2}}/\d{{4}})"
    rf"|{_WEEKDAY}?(?P<named>{_MONTH}[ ]+\d{{1,2}}(?:st|nd|rd|th)?\b|\d{{1,2}}[ ]{_MONTH}))"
    rf"(?:(?:T|,?[ ]|-|[ ]at[ ])(?:{_TIME}))?(?:,?[ ](?P<year>\d{{4}})\b)?(?:[ ](?:{_TIME}))?{_ZONE})"
    rf"|(?P<clock>\d{{1,2}}:\d\d:\d\d(?:\.\d+)?(?:[ \u202f]?[AaPp][Mm]\b)?)"
    # Seconds since 1970, from 2001 to 2033, also with milliseconds.
    r"|(?P<epoch>1\d{9}(?:\d{3}|\.\d+)?(?![0-9A-Za-z]))"
    # From git's short hashes to SHA-256.
    r"|(?P<hex>[0-9a-f]{7,64})(?![0-9A-Za-z])"
    # Shorter ones only if they are called an id, as in the `Chunk ID` of codex.
    r"|(?P<labelled>(?i:id)\"?[ ]?[:=][ ]?\"?[0-9a-f]{6,})(?![0-9A-Za-z])"
    r"|(?P<pid>(?i:pid)\"?[ ]?[:=]?[ ]?\d+)(?![0-9A-Za-z])"
    r"|(?P<random>[a-z]{2,12}[_-](?=[A-Za-z]*\d)[0-9A-Za-z]{16,})(?![0-9A-Za-z])"
    r"|(?P<span>\d+[.]\d+[ ]?(?:ms|s|secs?|seconds?|m|min|minutes?)|\d+[ ]?ms"
    r"|(?i:time|took|elapsed|duration(?:_ms)?)\"?[:=]?[ ]\d+(?:[.]\d+)?(?:[ ]?(?:s|secs?|seconds?))?)"
    r"(?![0-9A-Za-z])"
    r"|(?P<port>(?:127\.0\.0\.1|localhost):\d{4,5})(?![0-9A-Za-z])"
    r")|(?P<scratch>(?<=/tmp/)[A-Za-z0-9._-]{6,})"
)
_KINDS: dict[str, MarkKind] = {
    "uuid": "id",
    "hex": "id",
    "labelled": "id",
    "random": "id",
    "scratch": "id",
    "moment": "moment",
    "epoch": "moment",
    "clock": "span",
    "span": "span",
    "pid": "span",
    "port": "span",
    "header": "header",
}
_NEAR = timedelta(days=2)
_DIGITS = late_pattern(r"[0-9]+(?:[.][0-9]+)?")
ID_FORM = late_pattern(r"(?<![0-9A-Fa-f-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Fa-f-])")
_MIDDLE = late_pattern(r"-[0-9a-f]{4}-[0-9a-f]{4}-")  # begins with a letter to look for, which is much faster
_NAMED = late_pattern(r"\{\{chargehand-id-[0-9]+\}\}")
# Fields of a request that may differ: the client, its names, and the output that the budget allows.
_VOLATILE = frozenset(
    {
        "client_metadata",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "metadata",
        "model",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
# Characters of a value in a message, and how many of them before the first difference of two texts.
_LONGEST_SHOWN = 80
_BEFORE = 30
_ABSENT = object()


class Mark(Struct, frozen=True, kw_only=True):
    """A piece of a text: pieces of kind `text` are equal in every run, others may differ between runs.

    `days` are the days that a moment may mean.
    """

    kind: MarkKind
    form: str
    text: str
    days: tuple[datetime, ...] = ()


class RunPairs:
    """Pairs of corresponding ids of two runs, found by comparing their texts.

    `then` and `now` are the times of the runs: a moment may differ only if each text names that of its own run,
    give or take two days. An id keeps its partner. Without `then` every moment of the earlier run may differ.
    """

    def __init__(self, *, then: datetime | None, now: datetime) -> None:
        self._then = then
        self._now = now
        self._todays: dict[str, str] = {}
        self._thens: dict[str, str] = {}
        self._found: list[tuple[str, str]] = []

    @property
    def todays(self) -> dict[str, str]:
        """The ids of the earlier run that changed, with their counterparts in this run."""
        return self._todays

    def is_alike(self, recorded: str, sent: str) -> bool:
        """Return whether two texts differ only as runs do; `confirm` confirms the pairs of ids it finds."""
        if recorded == sent:
            return True
        lines = recorded.split("\n")
        others = sent.split("\n")
        if len(lines) != len(others):
            return False
        # No mark spans lines, and in a long prompt only one or two lines differ.
        for line, other in zip(lines, others, strict=True):
            if line != other:
                was = list(find_marks(line, self._then))
                now = list(find_marks(other, self._now))
                if len(was) != len(now) or not all(map(self._is_same, was, now)):
                    return False
        return True

    def confirm(self) -> None:
        """Keep the pairs found since: the two requests are the same."""
        for was, now in self._found:
            self._todays[was] = now
            self._thens[now] = was
        self._found.clear()

    def forget(self) -> None:
        """Drop the pairs found since: the two requests are not the same."""
        self._found.clear()

    def _is_same(self, was: Mark, now: Mark) -> bool:
        if was.text == now.text:
            return True
        if was.form != now.form or was.kind == "text":
            return False
        match was.kind:
            case "id":
                # Two ids may be partners; each id has only one partner, in both directions.
                if len(was.text) != len(now.text) or _split_label(was.text) != _split_label(now.text):
                    return False
                if was.form == "hex" and (was.text + now.text).isdecimal():
                    return False  # two numbers
                one, other = (mark.text.removeprefix(_split_label(mark.text)) for mark in (was, now))
                pending = dict(self._found)
                back = {now: was for was, now in self._found}
                known = self._todays.get(one, pending.get(one))
                known_back = self._thens.get(other, back.get(other))
                if (known, known_back) == (None, None):
                    self._found.append((one, other))
                    return True
                return (known, known_back) == (other, one)
            case "moment":
                return _is_near(was, self._then) and _is_near(now, self._now)
            case "header":
                return was.text.partition(":")[0] == now.text.partition(":")[0]
            case _:
                return _DIGITS.sub("", was.text) == _DIGITS.sub("", now.text)


def find_marks(text: str, at: datetime | None) -> Iterator[Mark]:
    """Yield the pieces of a text in order; `at` is when it was written, for moments that name no year."""
    last = 0
    for found in _FORM.finditer(text):
        if found.start() > last:
            yield Mark(kind="text", form="text", text=text[last : found.start()])
        form = found.lastgroup or ""
        days = tuple(_read_days(found, at)) if _KINDS[form] == "moment" else ()
        yield Mark(kind=_KINDS[form], form=form, text=found[0], days=days)
        last = found.end()
    if last < len(text):
        yield Mark(kind="text", form="text", text=text[last:])


def _split_label(text: str) -> str:
    """Return the text before the last word of an id: a label, the kind of the id."""
    return text[: max(text.rfind(sign) for sign in ':=" _') + 1]


def _is_near(mark: Mark, at: datetime | None) -> bool:
    return at is None or any(abs(day - at) <= _NEAR for day in mark.days)


def _read_days(found: re.Match[str], at: datetime | None) -> Iterator[datetime]:
    """Yield the days that a moment may mean: 3/4/2026 is one of two."""
    if found["epoch"]:
        yield datetime.fromtimestamp(int(found["epoch"][:10]), UTC)
        return
    year = int(found["year"] or (at.year if at else 1))
    if found["iso"]:
        year, month, day = map(int, found["iso"].split("-"))
        tries = [(year, month, day)]
    elif found["slashes"]:
        one, two, year = map(int, found["slashes"].split("/"))
        tries = [(year, one, two), (year, two, one)]
    else:
        month = next(n for n, name in enumerate(_MONTHS, 1) if name in found["named"].lower())
        day = int("".join(filter(str.isdecimal, found["named"])))
        # The last days of one year are near the first of the next.
        tries = [(each, month, day) for each in ((year,) if found["year"] else (year - 1, year, year + 1))]
    for each, month, day in tries:
        with contextlib.suppress(ValueError):
            yield datetime(each, month, day, 12, tzinfo=UTC)


class RunNames:
    """Names for the ids of one run: the first id in a request becomes `{{chargehand-id-1}}`, and so on.

    A program that does the same in another run shows its ids in the same order. So equal requests are equal under
    these names, and a reply kept under them gets the ids of the run that receives it.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name_request(self, value: Any) -> Any:
        """Replace the ids in a request's decoded JSON by names; new ids get a name."""

        def name(id: str) -> str:
            return self._names.setdefault(id, f"{{{{chargehand-id-{len(self._names) + 1}}}}}")

        return _change_texts(value, lambda text: _replace_ids(text, name))

    def name_reply(self, value: Any) -> Any:
        """Replace the ids in a reply's decoded JSON that appeared in a request by their names."""
        if not self._names:
            return value
        return _change_texts(value, lambda text: _replace_ids(text, lambda real: self._names.get(real, real)))

    def expand(self, value: Any) -> Any:
        """Return decoded JSON with the names replaced by the ids of this run."""
        real = {name: found for found, name in self._names.items()}
        return _change_texts(value, lambda text: _NAMED.sub(lambda found: real.get(found[0], found[0]), text))


def _replace_ids(text: str, name: Callable[[str], str]) -> str:
    return ID_FORM.sub(lambda found: name(found[0]), text) if _MIDDLE.search(text) else text


def _change_texts(value: Any, change: Any) -> Any:
    """Return decoded JSON with every text changed, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _change_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_change_texts(item, change) for item in value]
    return value


def normalise_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the values that may differ from run to run."""
    kept = {key: value for key, value in request.items() if key not in _VOLATILE and value is not None}
    config = kept.get("generationConfig")
    if isinstance(config, Mapping):
        kept["generationConfig"] = {key: value for key, value in config.items() if key != "maxOutputTokens"}
    return {**kept, "stream": request.get("stream") is True}


def find_difference(
    recorded: Any, sent: Any, pointer: str = "", *, alike: Callable[[str, str], bool] = operator.eq
) -> tuple[str, Any, Any] | None:
    """Return the JSON pointer of the first difference between two trees, with both values.

    `alike` decides which texts count as equal.
    """
    if isinstance(recorded, Mapping) and isinstance(sent, Mapping):
        keys = [*recorded, *(key for key in sent if key not in recorded)]
        pairs = [(str(key), recorded.get(key, _ABSENT), sent.get(key, _ABSENT)) for key in keys]
    elif isinstance(recorded, list) and isinstance(sent, list):
        longest = zip_longest(recorded, sent, fillvalue=_ABSENT)
        pairs = [(str(number), was, now) for number, (was, now) in enumerate(longest)]
    elif isinstance(recorded, str) and isinstance(sent, str):
        return None if alike(recorded, sent) else (pointer, recorded, sent)
    else:
        same = recorded == sent and isinstance(recorded, bool) == isinstance(sent, bool)
        return None if same else (pointer, recorded, sent)
    for key, was, now in pairs:
        escaped = key.replace("~", "~0").replace("/", "~1")
        found = find_difference(was, now, f"{pointer}/{escaped}", alike=alike)
        if found is not None:
            return found
    return None


class Divergence(Struct, frozen=True, kw_only=True):
    """The first place (a JSON pointer) where a call differs from the recording, with both values, shortened."""

    attempt: int
    turn: int
    pointer: str
    recorded: str
    sent: str

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt}, turn {self.turn} differs from the recording at {self.pointer or '/'}: "
            f"recorded {self.recorded}, sent {self.sent}"
        )


def describe_difference(
    recorded: Any, sent: Any, *, alike: Callable[[str, str], bool] = operator.eq
) -> tuple[str, str, str]:
    """Return the first difference between two trees as a pointer and both values, shortened."""
    pointer, was, now = find_difference(recorded, sent, alike=alike) or ("", recorded, sent)
    return pointer, *shorten_pair(was, now)


def shorten_pair(was: Any, now: Any) -> tuple[str, str]:
    """Return two values shortened; long texts start shortly before their first difference."""
    if isinstance(was, str) and isinstance(now, str):
        same = next((n for n, (one, other) in enumerate(zip(was, now, strict=False)) if one != other), _BEFORE)
        start = max(0, same - _BEFORE)
        if start and max(len(was), len(now)) > _LONGEST_SHOWN:
            was = f"…{was[start:]}"
            now = f"…{now[start:]}"
    return _short(was), _short(now)


def _short(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def update_ids(reply: dict[str, Any], todays: Mapping[str, str]) -> dict[str, Any]:
    """Replace the ids of the earlier run in a reply by those of this run, even if a stream splits them."""
    if not todays:
        return reply
    names = {f"chargehand-run-{number}": was for number, was in enumerate(todays)}
    then = Redactor(templates=names)
    named = {"sse": then.stream(reply["sse"])} if "sse" in reply else then.tree(reply)
    made: dict[str, Any] = Redactor(templates={name: todays[was] for name, was in names.items()}).expand(named)
    return made
