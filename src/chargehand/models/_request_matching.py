"""What a text says of the run that it was written in: ids, hashes, moments, durations; told by their form."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

MarkKind = Literal["text", "id", "moment", "span", "header"]
_WEEKDAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},?[ ])"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_TIME = r"\d{1,2}[:-]\d\d(?:[:-]\d\d(?:[.,-]\d+)?)?(?:[ \u202f]?[AaPp][Mm]\b)?"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT)?(?:[+-]\d\d:?\d\d)?)"
_FORM = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    # A header among the words is of the program and its run: claude's billing mark is one.
    r"(?P<header>(?m:^)x-[a-z0-9-]+:[^\n]*)"
    r"|(?P<uuid>[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})"
    rf"|(?P<moment>(?:(?P<iso>\d{{4}}-\d\d-\d\d)|(?P<slashes>\d{{1,2}}/\d{{1,2}}/\d{{4}})"
    rf"|{_WEEKDAY}?(?P<named>{_MONTH}[ ]+\d{{1,2}}(?:st|nd|rd|th)?\b|\d{{1,2}}[ ]{_MONTH}))"
    rf"(?:(?:T|,?[ ]|-|[ ]at[ ])(?:{_TIME}))?(?:,?[ ](?P<year>\d{{4}})\b)?(?:[ ](?:{_TIME}))?{_ZONE})"
    rf"|(?P<clock>\d{{1,2}}:\d\d:\d\d(?:\.\d+)?(?:[ \u202f]?[AaPp][Mm]\b)?)"
    r"|(?P<epoch>1\d{9}(?:\d{3}|\.\d+)?(?![0-9A-Za-z]))"
    r"|(?P<hex>[0-9a-f]{7,64})(?![0-9A-Za-z])"
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
_DIGITS = re.compile(r"[0-9]+(?:[.][0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A piece of a text: `text` is the same in every run, all else may be another one in another run.

    `days` are those that a moment may mean.
    """

    kind: MarkKind
    form: str
    text: str
    days: tuple[datetime, ...] = ()


class RunPairs:
    """Which ids of one run are which of another, found out by putting their texts side by side.

    `then` and `now` are when the runs were: a moment may differ only where each text says that of its own run,
    give or take two days. An id keeps its partner. Without `then` every moment of then may differ.
    """

    def __init__(self, *, then: datetime | None, now: datetime) -> None:
        self._then, self._now = then, now
        self._todays: dict[str, str] = {}
        self._thens: dict[str, str] = {}
        self._found: list[tuple[str, str]] = []

    @property
    def todays(self) -> dict[str, str]:
        """The ids of then that are others now, with those of now."""
        return self._todays

    def alike(self, recorded: str, sent: str) -> bool:
        """Return whether two texts differ only as two runs do; ids that it pairs are kept by `keep`."""
        if recorded == sent:
            return True
        # No mark spans lines, and of a long prompt one or two lines differ.
        lines, others = recorded.split("\n"), sent.split("\n")
        return len(lines) == len(others) and all(map(self._alike_line, lines, others))

    def keep(self) -> None:
        """Hold on to the pairs that were found since: the two requests are one."""
        for was, now in self._found:
            self._todays[was], self._thens[now] = now, was
        self._found.clear()

    def forget(self) -> None:
        """Let go of the pairs that were found since: the two requests are not one."""
        self._found.clear()

    def _alike_line(self, recorded: str, sent: str) -> bool:
        if recorded == sent:
            return True
        was, now = (list(marks(text, at)) for text, at in ((recorded, self._then), (sent, self._now)))
        return len(was) == len(now) and all(map(self._same, was, now))

    def _same(self, was: Mark, now: Mark) -> bool:
        if was.text == now.text:
            return True
        if was.form != now.form or was.kind == "text":
            return False
        match was.kind:
            case "id":
                return self._paired(was, now)
            case "moment":
                return _around(was, self._then) and _around(now, self._now)
            case "header":
                return was.text.partition(":")[0] == now.text.partition(":")[0]
            case _:
                return _DIGITS.sub("", was.text) == _DIGITS.sub("", now.text)

    def _paired(self, was: Mark, now: Mark) -> bool:
        if len(was.text) != len(now.text) or _label(was.text) != _label(now.text):
            return False
        if was.form == "hex" and (was.text + now.text).isdecimal():
            return False  # two numbers
        one, other = (mark.text.removeprefix(_label(mark.text)) for mark in (was, now))
        pending, back = dict(self._found), {now: was for was, now in self._found}
        known = self._todays.get(one, pending.get(one))
        known_back = self._thens.get(other, back.get(other))
        if (known, known_back) == (None, None):
            self._found.append((one, other))
            return True
        return (known, known_back) == (other, one)


def marks(text: str, at: datetime | None) -> Iterator[Mark]:
    """Yield the pieces of a text in order; `at` is when it was written, for moments that name no year."""
    last = 0
    for found in _FORM.finditer(text):
        if found.start() > last:
            yield Mark(kind="text", form="text", text=text[last : found.start()])
        form = found.lastgroup or ""
        days = tuple(_days(found, at)) if _KINDS[form] == "moment" else ()
        yield Mark(kind=_KINDS[form], form=form, text=found[0], days=days)
        last = found.end()
    if last < len(text):
        yield Mark(kind="text", form="text", text=text[last:])


def _label(text: str) -> str:
    """Return what stands before the last word of an id: a label, the kind of the id."""
    return text[: max(text.rfind(sign) for sign in ':=" _') + 1]


def _around(mark: Mark, at: datetime | None) -> bool:
    return at is None or any(abs(day - at) <= _NEAR for day in mark.days)


def _days(found: re.Match[str], at: datetime | None) -> Iterator[datetime]:
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


_ID = re.compile(r"(?<![0-9A-Fa-f-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Fa-f-])")
_MIDDLE = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-")  # begins with a letter to look for, which is much faster


class RunNames:
    """Names for the ids of one run: the first that a request holds is `{{chargehand-id-1}}`, and so on.

    A program that does the same in another run shows its ids in the same order, so that equal requests are equal
    under these names, and a reply kept under them gets the ids of the run that it is given to.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def asked(self, value: Any) -> Any:
        """Return decoded JSON of a request under names; ids that are new get one."""
        return _each(value, self._asked)

    def answered(self, value: Any) -> Any:
        """Return decoded JSON of a reply with names for those ids that some request held."""
        if not self._names:
            return value
        return _each(value, lambda text: _renamed(text, lambda real: self._names.get(real, real)))

    def expand(self, value: Any) -> Any:
        """Return decoded JSON with the ids of this run in place of their names."""
        real = {name: found for found, name in self._names.items()}
        return _each(value, lambda text: _NAMED.sub(lambda found: real.get(found[0], found[0]), text))

    def _asked(self, text: str) -> str:
        return _renamed(text, self._name)

    def _name(self, id: str) -> str:
        return self._names.setdefault(id, f"{{{{chargehand-id-{len(self._names) + 1}}}}}")


_NAMED = re.compile(r"\{\{chargehand-id-[0-9]+\}\}")


def _renamed(text: str, name: Callable[[str], str]) -> str:
    return _ID.sub(lambda found: name(found[0]), text) if _MIDDLE.search(text) else text


def _each(value: Any, change: Any) -> Any:
    """Return decoded JSON with every text changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    return value
