"""A mission's own view of the log: notes what happens, and remembers the steps that are done."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from chargehand.core.clock import Clock
from chargehand.core.events import Event, Payload, encode_json
from chargehand.core.fold import apply
from chargehand.core.mission_events import StepFinished
from chargehand.core.state import MissionState
from chargehand.store.store import Store

Watch = Callable[[Event, Payload], None]
"""Told of every event as it is written: progress on a terminal, a stream, a test."""
STEP_BYTES = 8192
"""The largest output that is kept in the log itself; a larger one is an artifact."""


def ignore(event: Event, payload: Payload) -> None:
    """Watch nothing."""


def kept_step(store: Store, mission: str, done: StepFinished) -> StepFinished:
    """Return a finished step as the log takes it: with a large output as an artifact."""
    encoded = encode_json(done.output)
    if len(encoded) <= STEP_BYTES:
        return replace(done, artifact=None)
    return replace(done, output=None, artifact=store.artifacts.put(encoded, kind="step", mission=mission))


def recalled(store: Store, done: StepFinished) -> Any:
    """Return the output of a finished step, wherever it is kept."""
    return done.output if done.artifact is None else msgspec.json.decode(store.artifacts.get(done.artifact))


class Notes(Protocol):
    """Where workspaces and sandboxes note what they do."""

    @property
    def mission(self) -> str | None:
        """The mission, `None` outside one."""
        ...

    @property
    def epoch(self) -> int | None:
        """The claim that is written under, `None` without one."""
        ...

    @property
    def fenced(self) -> bool:
        """Whether another worker claimed the mission since."""
        ...

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Keep the payloads as events of the mission."""
        ...


class Unlogged:
    """Notes nothing: for a command that a person runs by hand."""

    mission: str | None = None
    epoch: int | None = None
    fenced = False

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Forget the payloads."""


class Journal:
    """Writes the events of one mission in order and keeps its state current.

    With `epoch`, the claim it writes under: once another worker claimed the mission, every note raises
    `FencedError` and nothing is written. `stood` is how many seconds the mission stood in line: no step's own.
    """

    def __init__(
        self, store: Store, mission: str, *, clock: Clock, watch: Watch = ignore, epoch: int | None = None
    ) -> None:
        self.mission: str = mission
        self.clock = clock
        self._store = store
        self._watch = watch
        self.epoch = epoch
        self.stood = 0.0
        self.state = MissionState()
        for line in store.log.read(mission):
            apply(self.state, line)

    @property
    def fenced(self) -> bool:
        """Whether another worker claimed the mission since."""
        return self.epoch is not None and self._store.log.get(self.mission).epoch != self.epoch

    def note(self, *payloads: Payload, durable: bool = False) -> None:
        """Append to the log, then to the state; `durable` waits until the disk has it."""
        lines = self._store.log.append(self.mission, *payloads, durable=durable, epoch=self.epoch)
        for line, payload in zip(lines, payloads, strict=True):
            apply(self.state, line)
            self._watch(line, payload)

    async def step(
        self,
        name: str,
        input: object,
        work: Callable[[], Awaitable[Any]],
        *,
        notes: Callable[[Any], Sequence[Payload]] | None = None,
    ) -> Any:
        """Run a recorded step once: when its end is in the log, its output is returned instead.

        Mission, `name` and the digest of `input` are the key: the same name with another input is done anew.
        `input` and the output must be JSON. `notes` makes the events of the output; they and the end of the step
        are written together or not at all. A step whose process died before that is done again: what it does
        outside must bear that.
        """
        digest = hashlib.sha256(encode_json(input)).hexdigest()
        done = self.state.steps.get(name)
        if done is not None and done.input == digest:
            return self.recall(done)
        # What a process before did of it, and recorded within it, took its time too.
        before = self.state.seconds_of(f"{name}/") if done is None else 0.0
        started, stood = self.clock.monotonic(), self.stood
        output = await work()
        seconds = before + self.clock.monotonic() - started - (self.stood - stood)
        done_now = StepFinished(step=name, input=digest, output=output, seconds=seconds)
        finished = kept_step(self._store, self.mission, done_now)
        self.note(*(notes(output) if notes else ()), finished)
        return output

    def recorded(self, prefix: str) -> list[tuple[str, Any]]:
        """Return name (after `prefix`) and output of each finished step below it, as they were first done."""
        found = [step for step in self.state.steps.values() if step.step.startswith(prefix)]
        return [(step.step.removeprefix(prefix), self.recall(step)) for step in found]

    def recall(self, done: StepFinished) -> Any:
        """Return the output of a finished step."""
        return recalled(self._store, done)
