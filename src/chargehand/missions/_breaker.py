"""Whether an agent with its model is let work: after failures in a row of what it runs on, one try at a time.

Everything follows from the log and from who is alive. What counts is machinery: that an agent or its model could
not be reached or started, or that the sandbox under it failed. What it wrote, and what checks say of it, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Literal

import msgspec

from chargehand.core.events import Event, Payload, decode
from chargehand.core.mission_events import AttemptFinished, MissionClaimed, MissionCreated, StepFinished
from chargehand.core.records import AttemptStatus, Reason
from chargehand.core.state import AttemptState
from chargehand.missions._causes import Cause, attempt_cause
from chargehand.store.log import MissionRow
from chargehand.store.store import Store

FAILURES = 3
"""Failures in a row after which nothing more is begun."""
COOL_DOWN = timedelta(minutes=5)
"""How long nothing is begun then; afterwards one probe is let through."""
PROGRAM_MISSING = "agent_missing"
"""The code of an agent whose program cannot be run: of class agent, and still no word on its work."""
_PERSONS = frozenset({"no_key", "no_space", "not_permitted", "store_full", "too_many_files"})
"""What a person mends and the next attempt finds out at once, for nothing: it opens no breaker."""
_MISSIONS = 12
"""How many of a project's missions are looked at: the last ones that were asked for."""
_READ = {MissionCreated.type, MissionClaimed.type, StepFinished.type, AttemptFinished.type}
_STEP_SUFFIX = "/agent"

BreakerState = Literal["closed", "open", "half_open"]
FactKind = Literal["worked", "failed", "void", "probe", "forced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What a breaker is about: an agent as the request names it, and the model it begins with."""

    agent: str
    model: str | None

    def __str__(self) -> str:
        return f"agent {self.agent!r}" + (f" with model {self.model!r}" if self.model else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What the log tells: an attempt worked, failed or says nothing (`void`); a probe began, or a `forced` one."""

    time: datetime
    mission: str
    kind: FactKind
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """`closed`: work; `open` since then: nothing begins; `half_open`: one mission probes, nothing else begins."""

    state: BreakerState = "closed"
    failures: int = 0
    since: datetime | None = None
    probe: str | None = None
    why: str = ""

    def may_probe(self, now: datetime) -> bool:
        """Tell whether a probe may begin."""
        return self.state == "open" and self.since is not None and now >= self.since + COOL_DOWN

    def after(self, fact: Fact) -> Breaker:
        """Return the breaker after one more fact."""
        match fact.kind:
            case "worked":
                return Breaker()
            case "failed":
                return self._failed(fact)
            case "void" if self.probe == fact.mission:
                return replace(self, state="open", probe=None)
            case "forced" if self.state != "closed":
                return replace(self, state="half_open", probe=fact.mission)
            case "probe" if self.may_probe(fact.time):
                return replace(self, state="half_open", probe=fact.mission)
        return self

    def _failed(self, fact: Fact) -> Breaker:
        failures = self.failures + 1
        if failures < FAILURES:
            return replace(self, failures=failures, why=fact.why)
        return Breaker(state="open", failures=failures, since=fact.time, why=fact.why)


def breaker_of(facts: Iterable[Fact]) -> Breaker:
    """Return the breaker after all facts, which come in the order of their times."""
    return reduce(Breaker.after, facts, Breaker())


def agent_step(number: int) -> str:
    """Return the name of the step that says who makes an attempt where that was not simply who was asked for."""
    return f"attempt/{number}{_STEP_SUFFIX}"


def find_facts(store: Store, project: str, who: Who, *, live: Callable[[MissionRow], bool]) -> list[Fact]:
    """Return what the last missions of a project tell of an agent with its model. Raises `StoreError`."""
    found = []
    for row in store.log.missions(project=project)[-_MISSIONS:]:
        told = list(_facts(store.log.read(row.id, types=_READ), who))
        if told and told[-1].kind in ("probe", "forced") and not live(row):  # nobody makes it any more
            told.append(replace(told[-1], kind="void"))
        found += told
    return sorted(found, key=lambda fact: fact.time)


def _facts(events: Iterable[Event], who: Who) -> Iterator[Fact]:
    """Yield what one mission tells; what a fork took over happened in another one."""
    now, claimed = None, False
    for line in events:
        payload = _payload(line)
        if isinstance(payload, MissionCreated):
            now = Who(agent=payload.request.agent, model=payload.request.model)
        elif isinstance(payload, MissionClaimed):
            claimed = True
        elif isinstance(payload, StepFinished):
            now, kind = _chosen(payload.output)
            if now == who and kind is not None and claimed:
                yield Fact(time=_time(line), mission=line.mission, kind=kind)
        elif isinstance(payload, AttemptFinished) and now == who and claimed:
            kind, why = _end(payload)
            yield Fact(time=_time(line), mission=line.mission, kind=kind, why=why)


def _payload(line: Event) -> Payload | None:
    if line.type not in _READ or line.payload is None:
        return None
    if line.type == StepFinished.type and _STEP_SUFFIX.encode() not in line.payload:
        return None
    try:
        payload = decode(line.type, line.payload)
    except msgspec.ValidationError:  # a newer version's
        return None
    if isinstance(payload, StepFinished) and not _is_agent_step(payload):
        return None
    return payload


def _is_agent_step(step: StepFinished) -> bool:
    parts = step.step.split("/")
    return len(parts) == 3 and parts[0] == "attempt" and parts[2] == "agent" and isinstance(step.output, dict)


def _chosen(output: dict[str, object]) -> tuple[Who, FactKind | None]:
    model, probe = output.get("model"), output.get("probe")
    who = Who(agent=str(output.get("agent")), model=None if model is None else str(model))
    return who, "forced" if probe == "forced" else "probe" if probe == "probe" else None


def _end(ended: AttemptFinished) -> tuple[FactKind, str]:
    """Return what the end of an attempt says of the machinery that made it, and in which words."""
    if ended.status in ("succeeded", "refused"):
        return "worked", ""
    cause = _cause(ended.status, ended.reasons)
    if cause is None or cause.kind not in ("agent", "engine", "provider"):  # a person, the clock or the money
        return "void", ""
    if not _counts(cause):
        return "worked" if cause.kind == "agent" else "void", ""
    said = next((reason.message for reason in ended.reasons if reason.code == cause.code), "")
    return "failed", f"{cause.code}: {said}" if said else str(cause.code)


def is_failure(code: str) -> bool:
    """Tell whether an attempt that ends with this code counts as a failure of what its agent runs on."""
    cause = _cause("failed", (Reason(code=code, message=""),))
    return cause is not None and _counts(cause)


def _cause(status: AttemptStatus, reasons: tuple[Reason, ...]) -> Cause | None:
    return attempt_cause(AttemptState(id="", number=0, agent="", workspace="", status=status, reasons=reasons))


def _counts(cause: Cause) -> bool:
    if cause.code in _PERSONS:
        return False
    return cause.kind in ("engine", "provider") or cause.code == PROGRAM_MISSING


def _time(line: Event) -> datetime:
    return datetime.fromisoformat(line.time)
