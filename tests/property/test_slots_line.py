"""For any arrivals, waits, deaths and departures: never more holders than places, given in order."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conftest import examples

from chargehand.durable.admission import Ticket


@dataclass(eq=False)
class Waiter:
    """A waiter in line, with the order in which it must be served."""

    ticket: Ticket
    order: tuple[bool, int]


class Line(RuleBasedStateMachine):
    """Tickets and places as several processes would hold them: the kernel tracks each open file separately."""

    @initialize(places=st.integers(1, 3))
    def begin(self, places: int) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.directory = Path(self.scratch.name, "slots")
        self.places, self.arrived = places, 0
        self.waiting: list[Waiter] = []
        self.holding: list[int] = []

    @rule(urgent=st.booleans())
    def arrive(self, urgent: bool) -> None:
        self.arrived += 1
        self.waiting.append(Waiter(Ticket(self.directory, urgent=urgent), (not urgent, self.arrived)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Let one waiter look: it is served exactly if it is the first and a place is free."""
        waiter = data.draw(st.sampled_from(self.waiting))
        before = sum(other.order < waiter.order for other in self.waiting)
        assert waiter.ticket.before() == before
        held = waiter.ticket.take(self.places)
        assert (held is not None) == (before == 0 and len(self.holding) < self.places)
        if held is not None:
            self.waiting.remove(waiter)
            waiter.ticket.leave()
            self.holding.append(held)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), killed=st.booleans())
    def end_waiting(self, data: st.DataObject, killed: bool) -> None:
        """Let one waiter give up or be killed: on a kill the kernel closes its file, and no process removes it."""
        waiter = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(waiter)
        if killed:
            assert waiter.ticket._fd is not None
            os.close(waiter.ticket._fd)
        else:
            waiter.ticket.leave()

    @precondition(lambda self: self.holding)
    @rule(data=st.data())
    def end_holding(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.holding))
        self.holding.remove(held)
        os.close(held)

    @invariant()
    def all_is_used(self) -> None:
        """If all look, in any order, as many as possible hold a place."""
        assert len(self.holding) <= self.places

    def teardown(self) -> None:
        for waiter in self.waiting:
            waiter.ticket.leave()
        for held in self.holding:
            os.close(held)
        self.scratch.cleanup()


Line.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestLine = Line.TestCase
