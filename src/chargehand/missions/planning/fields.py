"""Typed readers for the keys of one table of a plan file; invalid values are reported and left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from chargehand.core.errors import nearest
from chargehand.core.text import (
    LARGEST_AMOUNT,
    LONGEST_SECONDS,
    format_seconds,
    late_pattern,
    parse_number,
    parse_seconds,
)
from chargehand.missions.planning.loading import PlanTable
from chargehand.missions.planning.patterns import pattern_problem
from chargehand.missions.planning.problems import PlanProblems, quote_value

LONGEST_TEXT = 50_000
_LONGEST_LINE = 1_000
_MOST_ENTRIES = 200
# Texts may contain newlines and tabs, but no other invisible characters.
_NOT_IN_TEXT = late_pattern(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_WHOLE = late_pattern(r"[+-]?[0-9]{1,18}")
_C = TypeVar("_C", bound=str)
_D = TypeVar("_D", int, None)


class PlanFields:
    """Reads the keys of one table at `where`; every problem is noted in `problems`."""

    def __init__(
        self, table: Mapping[str, Any], known: Iterable[str], where: str, problems: PlanProblems, *, line: int = 0
    ) -> None:
        self._table = table
        self._where = where
        self._problems = problems
        self._line = getattr(table, "line", 0) or line
        known = list(known)
        for key in table:
            if key not in known:
                self.note(f"unknown key {quote_value(key)}", nearest(key, known))

    def note(self, message: str, hint: str) -> None:
        """Note a problem of this table."""
        self._problems.add(self._where, message, hint, line=self._line)

    def has(self, key: str) -> bool:
        """Return whether the table has a value for a key."""
        return self._table.get(key) not in (None, "")

    def read_text(self, key: str, *, needed: bool = False) -> str:
        """Return a text of any number of lines, stripped; "" if missing."""
        value = self._table.get(key)
        text = "" if value is None else self._check_text(key, value)
        if needed and not text and not isinstance(value, list | dict):
            self.note(f"{key!r} is {'missing' if value is None else 'empty'}", f"write {key}: …")
        return text

    def read_line(self, key: str, *, needed: bool = False) -> str:
        """Return a text of one line; "" if missing."""
        text = self.read_text(key, needed=needed)
        return text if self._is_line(key, text) else ""

    def read_texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, each once; a single one needs no list."""
        value = self._table.get(key)
        entries = value if isinstance(value, list) else [] if value in (None, "") else [value]
        if len(entries) > _MOST_ENTRIES:
            self.note(
                f"{key!r} has {len(entries)} entries, more than {_MOST_ENTRIES}", "name directories or patterns"
            )
            return ()
        texts = []
        for entry in entries:
            text = self._check_text(key, entry, in_list=True)
            if text:
                texts.append(text)
            elif isinstance(entry, str | None):
                self.note(f"{key!r} has an entry that is empty", "remove it")
        return tuple(dict.fromkeys(texts))

    def read_lines(self, key: str) -> tuple[str, ...]:
        """Return a list of texts of one line each."""
        return tuple(text for text in self.read_texts(key) if self._is_line(key, text))

    def read_patterns(self, key: str, *, areas: bool = False) -> tuple[str, ...]:
        """Return a list of paths or patterns below the repository."""
        good = []
        for text in self.read_texts(key):
            problem, hint = pattern_problem(text, areas=areas)
            if problem:
                self.note(f"{key!r}: {quote_value(text)} {problem}", hint)
            else:
                good.append(text)
        return tuple(good)

    def read_count(self, key: str, *, least: int, most: int, default: _D) -> int | _D:
        """Return a whole number in a range, `default` if missing."""
        value = self._table.get(key)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.note(f"{key!r} must be a whole number, got {quote_value(value)}", f"write {key}: {max(least, 1)}")
        elif not least <= value <= most:
            self.note(f"{key!r} must be from {least} to {most}, got {value}", "choose a number in that range")
        else:
            return value
        return default

    def read_seconds(self, key: str) -> float | None:
        """Return a duration in seconds, `None` if missing."""
        value = self._table.get(key)
        if value is None:
            return None
        seconds = parse_seconds(value)
        if seconds is None:
            hint = "write '90s', '30m', '2h', '1h30m' or a number of seconds"
            self.note(f"{key!r} must be a duration, got {quote_value(value)}", hint)
        elif not 0 < seconds <= LONGEST_SECONDS:
            limit = f"more than 0 and at most {format_seconds(LONGEST_SECONDS)}"
            self.note(f"{key!r} must be {limit}, got {quote_value(value)}", "choose a duration in that range")
            seconds = None
        return seconds

    def read_usd(self, key: str) -> float | None:
        """Return an amount in USD, `None` if missing."""
        value = self._table.get(key)
        usd = parse_number(value.strip()) if isinstance(value, str) else value
        if value is None:
            return None
        if isinstance(usd, bool) or not isinstance(usd, int | float):
            negative = isinstance(value, str) and parse_number(value.strip().removeprefix("-")) is not None
            if not negative:
                self.note(
                    f"{key!r} must be an amount in USD, got {quote_value(value)}", "write a number, such as 2.50"
                )
                return None
            usd = -1
        if not 0 < usd <= LARGEST_AMOUNT:
            limit = f"more than 0 and at most {LARGEST_AMOUNT} USD"
            self.note(f"{key!r} must be {limit}, got {quote_value(value)}", "choose an amount in that range")
            return None
        return float(usd)

    def read_choice(self, key: str, choices: tuple[_C, ...]) -> _C:
        """Return one of `choices`, the first if missing."""
        text = self.read_line(key)
        for choice in choices:
            if text == choice:
                return choice
        if text:
            self.note(f"{key!r} is {quote_value(text)}", "use one of: " + ", ".join(choices))
        return choices[0]

    def read_table(self, key: str, known: Iterable[str]) -> PlanFields | None:
        """Return a reader of the table under a key, `None` if missing."""
        value = self._table.get(key)
        if value is None:
            return None
        known = list(known)
        if not isinstance(value, dict):
            hint = f"write {key}: {{{known[0]}: …}}"
            self.note(f"{key!r} must be a table, got {quote_value(value)}", hint)
            return None
        return PlanFields(value, known, f"{self._where}: {key!r}", self._problems, line=self._line)

    def read_items(self, key: str, text_key: str) -> list[Any]:
        """Return the entries of a list of tables, or of a mapping from ids to tables or texts (`text_key`)."""
        value = self._table.get(key)
        if isinstance(value, dict):
            entries: list[Any] = []
            for name, entry in value.items():
                table = PlanTable({text_key: entry}) if isinstance(entry, str) else entry
                if isinstance(table, PlanTable):
                    made = PlanTable({"id": name, **table})
                    made.line = table.line
                    table = made
                entries.append(table)
            return entries
        if value is None or isinstance(value, list):
            return value or []
        self.note(f"{key!r} must be a list, got {quote_value(value)}", f"write {key}: [{{id: …, {text_key}: …}}]")
        return []

    def _check_text(self, key: str, value: Any, *, in_list: bool = False) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18:
            value = str(value)
        if not isinstance(value, str):
            what = "a list of texts" if in_list else "a text"
            self.note(f"{key!r} must be {what}, got {quote_value(value)}", 'put quotes around it: "…"')
            return ""
        text = value.replace("\r\n", "\n").strip()
        if found := _NOT_IN_TEXT.search(text):
            self.note(f"{key!r} has the control character {found[0]!r}", "remove it")
            return ""
        if len(text) > LONGEST_TEXT:
            hint = "put long text into a file of the repository and name it"
            self.note(f"{key!r} has {len(text)} characters, more than {LONGEST_TEXT}", hint)
            return ""
        return text

    def _is_line(self, key: str, text: str) -> bool:
        if len(text) <= _LONGEST_LINE and not set("\n\t") & set(text):
            return True
        self.note(
            f"{key!r} must be one line of at most {_LONGEST_LINE} characters, got {quote_value(text)}",
            "shorten it",
        )
        return False
