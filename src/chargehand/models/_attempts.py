"""Which attempt and turn a call belongs to, told apart by order and not by ids that change from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


class AttemptOrdinals:
    """Numbers attempts from 1 in the order in which they first appear, unless `known` says which one it is."""

    def __init__(self, known: Mapping[str, int] | None = None, *, after: int = 0) -> None:
        self._known: Mapping[str, int] = known if known is not None else {}
        self._seen: dict[str, int] = {}
        self._last = after

    def of(self, attempt: str) -> int:
        """Return the number of an attempt."""
        if attempt in self._known:
            return self._known[attempt]
        if attempt not in self._seen:
            self._last = max(self._last, *self._known.values()) + 1 if self._known else self._last + 1
            self._seen[attempt] = self._last
        return self._seen[attempt]


class Turns(Generic[_T]):
    """What answers each turn of each attempt; a turn asked again gets its next answer, or its last once more."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int], list[_T]] = {}
        self._taken: dict[tuple[int, int], int] = {}

    def add(self, attempt: int, turn: int, answer: _T) -> None:
        """Put an answer after those that the turn already has."""
        self._answers.setdefault((attempt, turn), []).append(answer)

    def take(self, attempt: int, turn: int, *, like: int | None = None) -> _T | None:
        """Return the turn's next answer, `None` where it has none; `like` names whose answers the attempt gets."""
        answers: Sequence[_T] = self._answers.get((attempt if like is None else like, turn), ())
        if not answers:
            return None
        taken = self._taken.get((attempt, turn), 0)
        self._taken[attempt, turn] = taken + 1
        return answers[min(taken, len(answers) - 1)]
