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
from chargehand.core.records import Base, ChoiceReason, MissionRequest
from chargehand.core.state import MissionState
from chargehand.store.log import EventLog
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store

# The largest output that is kept in the log itself; a larger one is an artifact.
STEP_BYTES = 8192

# Purposes of sandboxes and workspaces, as events name them.
SETUP, CHECKS, AGENT = "setup", "checks", "agent"


class MissionSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A user's request in a project, on a base, under the configuration of that moment.

    The mission does the `task` of the coordinator `parent`, or is a coordinator if it has or wants a `plan`.
    `chosen` are the reasons for its agent and model.
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
    chosen: tuple[ChoiceReason, ...] = ()


def create_mission(
    store: Store, new: MissionSubmission, *, mission: str | None = None, owner: str | None = None
) -> str:
    """Record a new mission and return its id; from now on any worker may take it, or only `owner` if given.

    With an id from the caller, raises `UsageError` (`mission_exists`) for all but the first call with that id.
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
        chosen=new.chosen,
    )
    planned = () if new.plan is None else (new.plan,)
    store.log.append(mission, created, BaseResolved(base=new.base), *planned, durable=True, owner=owner)
    return mission


class Liveness(Protocol):
    """Knows whether a living worker holds a mission."""

    def live(self, row: MissionRow, /) -> bool:
        """Return whether a living worker holds the mission right now."""
        ...


@contextlib.contextmanager
def claim_mission(
    log: EventLog, mission: str, *, worker: str, look: Liveness, created: bool = False
) -> Iterator[int]:
    """Hold a mission for the block, as `worker`, and yield the epoch to write under.

    `created` means that this worker recorded the mission for itself and has held it since. Raises `RefusedError`
    (`mission_held`) if a living worker holds it, `NotFoundError`.
    """
    row = log.get(mission)
    if look.live(row) and not (created and row.owner == worker):
        raise RefusedError(
            f"mission {mission!r} is held by another process",
            code="mission_held",
            hint=f"chargehand mission cancel {mission} stops it",
        )
    # The claim compares the epoch that was just read: of two workers that both saw a dead holder only one
    # succeeds, and a holder that only seemed dead is fenced from here on.
    epoch = log.claim(mission, owner=worker, epoch=row.epoch)
    try:
        yield epoch
    finally:
        # It may fail on a full disk. The worker's lock ends with this process, so the mission counts as free
        # anyway.
        with contextlib.suppress(StoreError):
            log.release(mission, epoch=epoch)


def store_step_output(store: Store, mission: str, done: StepFinished) -> StepFinished:
    """Return a finished step in its logged form: a large output is replaced by an artifact."""
    encoded = encode_json(done.output)
    if len(encoded) <= STEP_BYTES:
        return replace(done, artifact=None)
    return replace(done, output=None, artifact=store.artifacts.put(encoded, kind="step", mission=mission))


def load_step_output(store: Store, done: StepFinished) -> Any:
    """Return the output of a finished step, from the log or from its artifact."""
    return done.output if done.artifact is None else msgspec.json.decode(store.artifacts.get(done.artifact))


class EventSink(Protocol):
    """Records events of workspaces and sandboxes: a mission's `Journal`, or `Unlogged`."""

    @property
    def mission(self) -> str | None:
        """The mission, `None` outside one."""
        ...

    @property
    def epoch(self) -> int | None:
        """The epoch of the claim in use, `None` without one."""
        ...

    @property
    def fenced(self) -> bool:
        """Whether another worker has claimed the mission since."""
        ...

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Append all payloads to the log in order; if one fails, append nothing."""
        ...


class Unlogged:
    """Records nothing: for a command that a person runs outside a mission."""

    mission: str | None = None
    epoch: int | None = None
    fenced = False

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Discard the payloads."""


class Journal:
    """Writes the events of one mission in order and keeps its state current.

    Raises `StoreError` (`mission_damaged`) if the log was damaged: no worker continues from that.

    `epoch` is the claim it writes under: once another worker has claimed the mission, every `record` raises
    `FencedError` and nothing is written. `queued_seconds` is the mission's waiting time for slots, which belongs
    to no step. `before_step` is called before a step runs, but not for a step already in the log.
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
        """Whether another worker has claimed the mission since."""
        return self.epoch is not None and self._store.log.get(self.mission).epoch != self.epoch

    def limited(self, question: QuestionAsked) -> QuestionAsked:
        """Return a question with the expiry from the mission's configuration."""
        config = self.state.config
        seconds = config.limits.question_seconds if config is not None else None
        if seconds is None:
            return question
        moment = self.clock.now() + timedelta(seconds=seconds)
        return replace(question, expires=moment.isoformat(timespec="seconds"))

    def record(self, *payloads: Payload, durable: bool = False) -> None:
        """Append to the log, then to the state; `durable` waits until the disk has it."""
        # The log first: it refuses a fenced writer, whose state must not run ahead of the log.
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
        """Run a recorded step once: if its end is in the log, return its output instead.

        Mission, `name` and the digest of `input` are the key: the same name with another input runs again. `input`
        and the output must be JSON. `events` makes events from the output; they and the end of the step are
        written together or not at all. A step whose process died before that runs again, so its external effects
        must be repeatable.
        """
        # A digest, since inputs contain whole requests and reports and are only compared.
        digest = hashlib.sha256(encode_json(input)).hexdigest()
        done = self.state.steps.get(name)
        if done is not None and done.input == digest:
            return self.recall(done)
        if self.before_step is not None:
            self.before_step(name)
        # Work recorded within the step by an earlier process counts towards its time too.
        before = self.state.seconds_of(f"{name}/") if done is None else 0.0
        started, queued = self.clock.monotonic(), self.queued_seconds
        output = await work()
        seconds = before + self.clock.monotonic() - started - (self.queued_seconds - queued)
        finished = StepFinished(step=name, input=digest, output=output, seconds=seconds)
        # The artifact of a large output is stored before the line that names it: a crash in between leaves an
        # unnamed artifact, never a name without its artifact.
        finished = store_step_output(self._store, self.mission, finished)
        self.record(*(events(output) if events else ()), finished)
        return output

    def recorded(self, prefix: str) -> list[tuple[str, Any]]:
        """Return the name (after `prefix`) and output of each finished step below it, by first run."""
        found = [step for step in self.state.steps.values() if step.step.startswith(prefix)]
        return [(step.step.removeprefix(prefix), self.recall(step)) for step in found]

    def recall(self, done: StepFinished) -> Any:
        """Return the output of a finished step."""
        return load_step_output(self._store, done)
