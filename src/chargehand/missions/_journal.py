"""A mission's own view of the log: notes what happens, and remembers the steps that are done."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from chargehand.core import Clock, Event, MissionState, Payload, StepFinished, apply, encode_json
from chargehand.store import Store

Watch = Callable[[Event, Payload], None]
"""Told of every event as it is written: progress on a terminal, a stream, a test."""
STEP_BYTES = 8192
"""The largest output that is kept in the log itself; a larger one is an artifact."""


def ignore(event: Event, payload: Payload) -> None:
    """Watch nothing."""


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
    `FencedError` and nothing is written.
    """

    def __init__(
        self, store: Store, mission: str, *, clock: Clock, watch: Watch = ignore, epoch: int | None = None
    ) -> None:
        self.mission: str = mission
        self.clock = clock
        self._store = store
        self._watch = watch
        self.epoch = epoch
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
            return self._recall(done)
        started = self.clock.monotonic()
        output = await work()
        finished = self._finished(name, digest, output, seconds=self.clock.monotonic() - started)
        self.note(*(notes(output) if notes else ()), finished)
        return output

    def recorded(self, prefix: str) -> list[tuple[str, Any]]:
        """Return name (after `prefix`) and output of each finished step below it, as they were first done."""
        found = [step for step in self.state.steps.values() if step.step.startswith(prefix)]
        return [(step.step.removeprefix(prefix), self._recall(step)) for step in found]

    def _finished(self, name: str, digest: str, output: object, *, seconds: float) -> StepFinished:
        encoded = encode_json(output)
        if len(encoded) <= STEP_BYTES:
            return StepFinished(step=name, input=digest, output=output, seconds=seconds)
        artifact = self._store.artifacts.put(encoded, kind="step", mission=self.mission)
        return StepFinished(step=name, input=digest, output=None, seconds=seconds, artifact=artifact)

    def _recall(self, done: StepFinished) -> Any:
        if done.artifact is None:
            return done.output
        return msgspec.json.decode(self._store.artifacts.get(done.artifact))
