"""What is known of a mission at one moment; `fold` makes it of the mission's log."""

from __future__ import annotations

from msgspec import Struct, field

from chargehand.core import agent_events as g
from chargehand.core import agent_events as r
from chargehand.core import attempt_events as w
from chargehand.core import mission_events as p
from chargehand.core.config import Config
from chargehand.core.questions import Question
from chargehand.core.records import (
    AttemptStatus,
    Base,
    Checkpoint,
    Export,
    MissionRequest,
    MissionStatus,
    Reason,
    Reverted,
    Verdict,
    VerdictStatus,
)
from chargehand.core.tiers import TierChoice
from chargehand.core.usage import AttemptUsage

SETTLED: frozenset[MissionStatus] = frozenset(
    {"waiting", "paused", "promoted", "refused", "failed", "exhausted", "cancelled", "discarded"}
)
"""Statuses in which no worker goes on by itself: a person (or nobody) acts next."""
_ENDED = SETTLED - {"waiting", "paused"}


class AttemptState(Struct, frozen=True, kw_only=True):
    """What is known of one attempt; `cost_usd` is `None` where it is not known.

    `calls` counts its calls to models, `unknown_calls` those of unknown cost, `model` is the last that answered,
    `booked_usd` what the limits count. `reported_usd` and `computed_usd` add up the calls whose cost is known both
    by the provider's word and by tokens and price. `captured` is the artifact that shows what was going on when it
    ended badly.
    """

    id: str
    number: int
    agent: str
    workspace: str
    status: AttemptStatus = "running"
    verdict: VerdictStatus | None = None
    seconds: float | None = None
    cost_usd: float | None = None
    cost_known: bool = False
    calls: int = 0
    model: str | None = None
    booked_usd: float = 0.0
    unknown_calls: int = 0
    reported_usd: float = 0.0
    computed_usd: float = 0.0
    reasons: tuple[Reason, ...] = ()
    captured: str | None = None
    usage: AttemptUsage = AttemptUsage()


class NetworkUse(Struct, kw_only=True):
    """What a mission's sandboxes asked of the network: requests and bytes; `hosts_refused` counts each place."""

    allowed: int = 0
    refused: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    hosts_refused: dict[str, int] = {}


class MissionState(Struct, kw_only=True):
    """The one mutable record: changed only by `apply`, event by event.

    `base` is what the last checkpoint stands on: it moves where a branch has moved on, and back with a checkpoint
    of before. `stands` tells it of each checkpoint's commit, `promoted_on` of what is promoted.
    """

    id: str = ""
    project: str = ""
    repository: str = ""
    request: MissionRequest | None = None
    config: Config | None = None
    created: str = ""
    updated: str = ""
    finished: str = ""
    status: MissionStatus = "planned"
    base: Base | None = None
    first_base: Base | None = None
    promoted_on: Base | None = None
    attempts: list[AttemptState] = []
    checkpoints: list[Checkpoint] = []
    checkpoint_seconds: list[float] = []
    stands: dict[str, Base] = {}
    tier: TierChoice | None = None
    role: r.RoleChosen | None = None
    reports: list[r.ReportMade] = []
    sandboxes: list[w.SandboxClosed] = []
    network: NetworkUse = field(default_factory=NetworkUse)
    verdicts: list[Verdict] = []
    reverted: list[Reverted] = []
    conflicts: list[p.MergeConflicted] = []
    reasons: tuple[Reason, ...] = ()
    ref: str | None = None
    prepared: p.PromotionPrepared | None = None
    commit: str | None = None
    tree: str | None = None
    signed: str | None = None
    export: Export | None = None
    exported: str | None = None
    applied: Export | None = None
    steps: dict[str, p.StepFinished] = {}
    claims: int = 0
    fruitless_claims: int = 0
    program: str = ""
    worker: str | None = None
    worker_before: str | None = None
    at_rest: bool = True
    queued: p.MissionQueued | None = None
    cancel_asked: bool = False
    calls: set[str] = set()
    questions: dict[str, Question] = {}
    forked_from: str | None = None
    user: str = ""
    messages: list[p.MessageSent] = []
    delivered: set[str] = set()
    acknowledged: set[str] = set()
    received: list[g.MessageReceived] = []
    undelivered: dict[str, Reason] = {}
    unknown_events: int = 0

    def attempt(self, number: int) -> AttemptState | None:
        """Return the attempt of that number, `None` before it was started."""
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    @property
    def open_question(self) -> Question | None:
        """What the mission waits for a person to say, `None` where it waits for nothing."""
        if self.status in _ENDED:
            return None
        return next(
            (asked for asked in self.questions.values() if asked.id != p.PROMOTE and not asked.answer), None
        )

    @property
    def waits_for_quota(self) -> Question | None:
        """The question that the clock answers, where the mission waits for that; `None` otherwise."""
        asked = self.open_question if self.status == "waiting" else None
        return asked if asked is not None and asked.until else None

    def seconds_of(self, prefix: str = "") -> float:
        """Return the seconds of the recorded steps below `prefix`; a finished step has those within it."""
        names = [name for name in self.steps if name.startswith(prefix)]
        return sum(self.steps[name].seconds for name in names if not _within(name, self.steps))


def _within(name: str, steps: dict[str, p.StepFinished]) -> bool:
    parts = name.split("/")
    return any("/".join(parts[:count]) in steps for count in range(1, len(parts)))
