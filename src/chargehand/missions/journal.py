"""The log of one mission: its creation, the claim to write to it, and its recorded steps."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from chargehand.core.clock import Clock
from chargehand.core.errors import RefusedError, StoreError
from chargehand.core.events import OnEvent, Payload, encode_json, ignore_event
from chargehand.core.fold import apply
from chargehand.core.ids import new_id
from chargehand.core.mission_events import BaseResolved, MissionCreated, QuestionAsked, StepFinished
from chargehand.core.plan_events import PlanMade, PlanWanted
from chargehand.core.records import Base, MissionRequest
from chargehand.core.state import MissionState
from chargehand.store.log import EventLog
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store

# The largest output that is kept in the log itself; a larger one is an artifact.
STEP_BYTES = 8192

# What a sandbox or workspace is opened for, as its events name it.
SETUP, CHECKS, AGENT = "setup", "checks", "agent"


class MissionSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks for in a project, on a base, under the configuration of that moment.

    The mission does the `task` of the coordinator `parent`, or is one itself where it has a `plan` or wants one.
    """

    project: str
    request: MissionRequest
    repository: str
    base: Base
    config: dict[str, object]
    user: str = ""
    parent: str = ""
    task: str = ""
    plan: PlanMade | PlanWanted | None = None


def create_mission(
    store: Store, new: MissionSubmission, *, mission: str | None = None, owner: str | None = None
) -> str:
    """Record a new mission and return its id; from now on any worker may take it, or `owner` alone.

    With an id of the caller's, raises `UsageError` (`mission_exists`) for all but the first of that id.
    """
    mission = mission or new_id("mission")
    created = MissionCreated(
        project=new.project,
        repository=new.repository,
        request=new.request,
        config=new.config,
        user=new.user,
        parent=new.parent,
        task=new.task,
    )
    planned = () if new.plan is None else (new.plan,)
    store.log.append(mission, created, BaseResolved(base=new.base), *planned, durable=True, owner=owner)
    return mission


class Liveness(Protocol):
    """Tells whether a living worker holds a mission."""

    def live(self, row: MissionRow, /) -> bool:
        """Tell whether a living worker holds the mission right now."""
        ...


@contextlib.contextmanager
def claim_mission(
    log: EventLog, mission: str, *, worker: str, look: Liveness, created: bool = False
) -> Iterator[int]:
    """Hold a mission for the block, as `worker`, and yield the epoch to write under.

    `created` says that this worker recorded the mission for itself, and holds it since. Raises `RefusedError`
    (`mission_held`) where a living worker holds it, `NotFoundError`.
    """
    row = log.get(mission)
    if look.live(row) and not (created and row.owner == worker):
        raise RefusedError(
            f"mission {mission!r} is held by another process",
            code="mission_held",
            hint=f"chargehand mission cancel {mission} stops it",
        )
    # The claim compares the epoch that was just read: of two workers that both saw a dead holder one gets it, and
    # the holder that only seemed dead is fenced from here on.
    epoch = log.claim(mission, owner=worker, epoch=row.epoch)
    try:
        yield epoch
    finally:
        # On a full disk, say. The worker's lock ends with this process, so the mission counts as free all the
        # same.
        with contextlib.suppress(StoreError):
            log.release(mission, epoch=epoch)


def store_step_output(store: Store, mission: str, done: StepFinished) -> StepFinished:
    """Return a finished step as the log takes it: with a large output as an artifact."""
    encoded = encode_json(done.output)
    if len(encoded) <= STEP_BYTES:
        return replace(done, artifact=None)
    return replace(done, output=None, artifact=store.artifacts.put(encoded, kind="step", mission=mission))


def load_step_output(store: Store, done: StepFinished) -> Any:
    """Return the output of a finished step, from the log or from its artifact."""
    return done.output if done.artifact is None else msgspec.json.decode(store.artifacts.get(done.artifact))


class EventSink(Protocol):
    """Where workspaces and sandboxes record what they do: a mission's `Journal`, or nowhere (`Unlogged`)."""

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

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Append the payloads to the log, in order, all or none."""
        ...


class Unlogged:
    """Records nothing: for a command that a person runs outside a mission."""

    mission: str | None = None
    epoch: int | None = None
    fenced = False

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Forget the payloads."""


class Journal:
    """Writes the events of one mission in order and keeps its state current.

    Raises `StoreError` (`mission_damaged`) where the log is not what was written: nobody goes on from that.

    With `epoch`, the claim it writes under: once another worker claimed the mission, every `record` raises
    `FencedError` and nothing is written. `queued_seconds` is how long the mission waited for slots: no step's own
    time. `before_step` is called before a step is done, and not before one that is in the log.
    """

    def __init__(
        self,
        store: Store,
        mission: str,
        *,
        clock: Clock,
        watch: OnEvent = ignore_event,
        epoch: int | None = None,
    ) -> None:
        self.mission: str = mission
        self.clock = clock
        self._store = store
        self._watch = watch
        self.epoch = epoch
        self.queued_seconds = 0.0
        self.before_step: Callable[[str], None] | None = None
        self.state = MissionState()
        store.log.check(mission)
        for line in store.log.read(mission):
            apply(self.state, line)

    @property
    def fenced(self) -> bool:
        """Whether another worker claimed the mission since."""
        return self.epoch is not None and self._store.log.get(self.mission).epoch != self.epoch

    def limited(self, question: QuestionAsked) -> QuestionAsked:
        """Return a question that expires as the mission's configuration says."""
        config = self.state.config
        seconds = config.limits.question_seconds if config is not None else None
        if seconds is None:
            return question
        moment = self.clock.now() + timedelta(seconds=seconds)
        return replace(question, expires=moment.isoformat(timespec="seconds"))

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Append to the log, then to the state; `durable` waits until the disk has it."""
        # The log first: it refuses a fenced writer, whose state must not run ahead of what is written.
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
        events: Callable[[Any], Sequence[Payload]] | None = None,
    ) -> Any:
        """Run a recorded step once: when its end is in the log, its output is returned instead.

        Mission, `name` and the digest of `input` are the key: the same name with another input is done anew.
        `input` and the output must be JSON. `events` makes the events of the output; they and the end of the step
        are written together or not at all. A step whose process died before that is done again: what it does
        outside must bear that.
        """
        # A digest, since inputs hold whole requests and reports and are compared only.
        digest = hashlib.sha256(encode_json(input)).hexdigest()
        done = self.state.steps.get(name)
        if done is not None and done.input == digest:
            return self.recall(done)
        if self.before_step is not None:
            self.before_step(name)
        # What a process before did of it, and recorded within it, took its time too.
        before = self.state.seconds_of(f"{name}/") if done is None else 0.0
        started, queued = self.clock.monotonic(), self.queued_seconds
        output = await work()
        seconds = before + self.clock.monotonic() - started - (self.queued_seconds - queued)
        finished = StepFinished(step=name, input=digest, output=output, seconds=seconds)
        # The artifact of a large output is stored before the line that names it: a crash between leaves an
        # artifact that nobody names, never a name without one.
        finished = store_step_output(self._store, self.mission, finished)
        self.record(*(events(output) if events else ()), finished)
        return output

    def recorded(self, prefix: str) -> list[tuple[str, Any]]:
        """Return name (after `prefix`) and output of each finished step below it, as they were first done."""
        found = [step for step in self.state.steps.values() if step.step.startswith(prefix)]
        return [(step.step.removeprefix(prefix), self.recall(step)) for step in found]

    def recall(self, done: StepFinished) -> Any:
        """Return the output of a finished step."""
        return load_step_output(self._store, done)
