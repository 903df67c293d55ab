"""The problems of a plan, collected so that one error reports them all."""

from __future__ import annotations

from chargehand.core.errors import UsageError
from chargehand.core.text import printable

# No one reads more in one error: the rest follow from these, or show up once these are fixed.
MOST_PROBLEMS = 20


class PlanProblems:
    """Problems in the order of discovery, each with its place, the value and the way out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self._shown: list[tuple[str, str]] = []

    def add(self, where: str, message: str, hint: str, *, line: int = 0) -> None:
        """Note one problem at `where`, such as `task 'api'`; `line` is 0 if unknown."""
        self.count += 1
        if len(self._shown) < MOST_PROBLEMS:
            place = f"{self.name}:{line}" if line else self.name
            text = printable(": ".join(part for part in (place, where, message) if part)).replace("\n", " ")
            self._shown.append((text, printable(hint).replace("\n", " ")))

    def raise_first(self) -> None:
        """Raise `UsageError` (`plan_invalid`) if there are any: the first in its message, the rest in its hint."""
        if not self._shown:
            return
        (message, hint), *others = self._shown
        lines = [hint, *(f"also {other} ({way})" if way else f"also {other}" for other, way in others)]
        if self.count > len(self._shown):
            lines.append(f"and {self.count - len(self._shown)} more")
        raise UsageError(message, code="plan_invalid", hint="\n".join(filter(None, lines)))


def quote_value(value: object) -> str:
    """Return a value on one line, at most 80 characters of it."""
    if isinstance(value, dict):
        return f"a table with {', '.join(map(repr, list(value)[:5])) or 'no keys'}"[:200]
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
