"""A mission's own view of the log: notes what happens, and remembers the steps that are done."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from chargehand.core import Clock, Event, MissionState, Payload, StepFinished, apply
from chargehand.store import EventLog

Watch = Callable[[Event, Payload], None]
"""Told of every event as it is written: progress on a terminal, a stream, a test."""


def ignore(event: Event, payload: Payload) -> None:
    """Watch nothing."""


class Notes(Protocol):
    """Where workspaces and sandboxes note what they do."""

    @property
    def mission(self) -> str | None:
        """The mission, `None` outside one."""
        ...

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Keep the payloads as events of the mission."""
        ...


class Unlogged:
    """Notes nothing: for a command that a person runs by hand."""

    mission: str | None = None

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Forget the payloads."""


class Journal:
    """Writes the events of one mission in order and keeps its state current."""

    def __init__(self, log: EventLog, mission: str, *, clock: Clock, watch: Watch = ignore) -> None:
        self.mission: str = mission
        self.clock = clock
        self._log = log
        self._watch = watch
        self.state = MissionState()
        for line in log.read(mission):
            apply(self.state, line)

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Append to the log, then to the state; `durable` waits until the disk has it."""
        for line, payload in zip(
            self._log.append(self.mission, *payloads, durable=durable), payloads, strict=True
        ):
            apply(self.state, line)
            self._watch(line, payload)

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step once: when its end is in the log, its output is returned instead.

        `input` and the output must be JSON; the digest of the input is recorded beside the output.
        """
        if name in self.state.steps:
            return self.state.steps[name]
        started = self.clock.monotonic()
        output = await work()
        digest = hashlib.sha256(msgspec.json.encode(input, order="sorted")).hexdigest()
        seconds = self.clock.monotonic() - started
        self.note(StepFinished(step=name, input=digest, output=output, seconds=seconds))
        return output
