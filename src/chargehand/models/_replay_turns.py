"""What a recording holds for each attempt: its turns in order, each given to one call."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from chargehand.core.clock import Clock
from chargehand.models._contract import Call, Operation
from chargehand.models._gateway_side import is_bare
from chargehand.models._recording import Exchange, Recording
from chargehand.models._run_marks import RunPairs

_Key = tuple[Operation, int]


@dataclass(slots=True, kw_only=True)
class RecordedTurn:
    """A turn and what its tries were answered; `bare`: its request offered no tool.

    `place` is its number among the turns of its attempt that are bare as it is, or are not.
    """

    attempt: int
    number: int
    bare: bool
    place: int = 0
    tries: list[Exchange] = field(default_factory=list)
    taken: int = 0

    @property
    def next(self) -> Exchange:
        """What is due: the next try, or the last one once more."""
        return self.tries[min(self.taken, len(self.tries) - 1)]


class RecordedTurns:
    """The turns of a recording, and which call of this run has which."""

    def __init__(self, recording: Recording, clock: Clock) -> None:
        self._clock = clock
        self._created = _moment(recording.created)
        self._turns: dict[_Key, dict[int, RecordedTurn]] = defaultdict(dict)
        self._given: dict[tuple[_Key, int], RecordedTurn] = {}
        self._pairs: dict[int, RunPairs] = {}
        self._works: set[int] = set()
        self._begun: dict[int, datetime | None] = {}
        for exchange in recording.exchanges:
            self._add(exchange)
        for (operation, attempt), turns in self._turns.items():
            bares = 0
            for turn in sorted(turns.values(), key=lambda turn: turn.number):
                beside = operation == "reply" and attempt in self._works
                turn.place = bares + 1 if beside and turn.bare else turn.number - bares
                bares += beside and turn.bare

    def waiting(self, call: Call, attempt: int) -> Sequence[RecordedTurn]:
        """Return the turns that may answer a call, the likeliest first: its own, else those that nobody has."""
        key = (call.operation, attempt)
        given = self._given.get((key, call.turn))
        if given is not None:
            return [given]
        bare = call.operation == "reply" and is_bare(call.body)
        due = self._place(call, attempt)
        free = [turn for turn in self._turns[key].values() if not turn.taken and turn.bare == bare]
        return sorted(free, key=lambda turn: turn.place != due)

    def recorded(self, call: Call, attempt: int) -> bool:
        """Return whether there is a turn of that place, whoever has it."""
        bare, due = call.operation == "reply" and is_bare(call.body), self._place(call, attempt)
        return any(
            (turn.bare, turn.place) == (bare, due) for turn in self._turns[call.operation, attempt].values()
        )

    def _place(self, call: Call, attempt: int) -> int:
        if call.operation != "reply" or attempt not in self._works:
            return call.turn
        return call.bare + 1 if is_bare(call.body) else call.turn - call.bare

    def take(self, turn: RecordedTurn, call: Call) -> Exchange:
        """Give a turn to a call, for all its tries; return the exchange that is due."""
        self._given[(call.operation, turn.attempt), call.turn] = turn
        exchange = turn.next
        turn.taken += 1
        return exchange

    def beside(self, call: Call, attempt: int) -> bool:
        """Return whether a call is beside its attempt's work: a count, or without tools where others have some."""
        return call.operation == "count" or (attempt in self._works and is_bare(call.body))

    def pairs(self, attempt: int) -> RunPairs:
        """Return which ids of an attempt are which today."""
        if attempt not in self._pairs:
            exchanges = (
                turn.next
                for (_, number), turns in self._turns.items()
                if number == attempt
                for turn in turns.values()
            )
            then = next((at for exchange in exchanges if (at := _moment(exchange.at))), self._created)
            self._pairs[attempt] = RunPairs(then=then, now=self._clock.now())
        return self._pairs[attempt]

    def _add(self, exchange: Exchange) -> None:
        bare = exchange.operation == "reply" and is_bare(exchange.request)
        if exchange.operation == "reply" and not bare:
            self._works.add(exchange.attempt)
        self._begun.setdefault(exchange.attempt, _moment(exchange.at))
        turns = self._turns[exchange.operation, exchange.attempt]
        known = turns.setdefault(
            exchange.turn, RecordedTurn(attempt=exchange.attempt, number=exchange.turn, bare=bare)
        )
        known.tries.append(exchange)


def _moment(text: str) -> datetime | None:
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None
