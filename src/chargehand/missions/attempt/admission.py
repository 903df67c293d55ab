"""Circuit breakers for agents, and the choice of agent and model for each attempt.

After several consecutive machinery failures of an agent, only one mission at a time tries that agent. A breaker's
state follows from the log and from which workers are alive. Only machinery failures count: an agent or its model
could not be reached or started, or its sandbox failed. The agent's changes and the checks' results do not count.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Literal, NoReturn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.patches import is_patch
from chargehand.agents.roles import parse_role
from chargehand.core.attempt_events import BreakerChanged
from chargehand.core.config import Config
from chargehand.core.errors import StoreError, WaitingError
from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    MissionClaimed,
    MissionCreated,
    QuestionAsked,
    StepFinished,
)
from chargehand.core.records import AttemptStatus, MissionRequest, Reason
from chargehand.core.state import AttemptState
from chargehand.missions.causes import attempt_cause
from chargehand.missions.journal import Journal
from chargehand.missions.sandboxes.slots import SlotQueue
from chargehand.missions.services import Services
from chargehand.store.rows import MissionRow
from chargehand.store.store import Store

# Consecutive failures that open a breaker, and how long it stays open before one probe is allowed.
FAILURES = 3
COOL_DOWN = timedelta(minutes=5)
# The code for an agent whose program cannot be run: of class agent, but no statement about its work.
PROGRAM_MISSING = "agent_missing"
# The short form of the agent that applies a request that is a patch.
PATCH_AGENT = "patch:"
# Faults that a person has to fix, and that the next attempt detects at once, at no cost: they open no breaker.
_FIXED_BY_PERSONS = frozenset({"no_key", "no_space", "not_permitted", "store_full", "too_many_files"})
# Faults that a person has to fix at the provider or its entry, and is asked about: they open no breaker either.
_MENDED_BY_PERSONS = ("key_refused", "model_unknown", "upstream_untrusted", "upstream_page")
# Number of a project's newest missions to read: a breaker is evaluated before each attempt, which must not cost
# more with every mission.
_MISSIONS = 12
_READ = {MissionCreated.type, MissionClaimed.type, StepFinished.type, AttemptFinished.type}
_STEP_SUFFIX = "/agent"
_CHOICE_STEP = re.compile(r"attempt/[^/]+/agent")

BreakerState = Literal["closed", "open", "half_open"]
BreakerEventKind = Literal["worked", "failed", "void", "probe", "forced"]


class AgentModel(Struct, frozen=True, kw_only=True):
    """A breaker's key: an agent as the request names it, and its first model."""

    agent: str
    model: str | None

    def __str__(self) -> str:
        return f"agent {self.agent!r}" + (f" with model {self.model!r}" if self.model else "")


class BreakerEvent(Struct, frozen=True, kw_only=True):
    """An event for a breaker: an attempt worked, failed or shows nothing (`void`); a probe began, or a `forced`
    one.
    """

    time: datetime
    mission: str
    kind: BreakerEventKind
    why: str = ""


class AgentBreaker(Struct, frozen=True, kw_only=True):
    """A breaker. `closed`: work; `open` (since `since`): nothing starts; `half_open`: one mission probes."""

    state: BreakerState = "closed"
    failures: int = 0
    since: datetime | None = None
    probe: str | None = None
    why: str = ""

    def may_probe(self, now: datetime) -> bool:
        """Return whether a probe may begin."""
        return self.state == "open" and self.since is not None and now >= self.since + COOL_DOWN

    def after(self, event: BreakerEvent) -> AgentBreaker:
        """Return the breaker after one more event."""
        match event.kind:
            case "worked":
                return AgentBreaker()
            case "failed":
                failures = self.failures + 1
                if failures < FAILURES:
                    return replace(self, failures=failures, why=event.why)
                return AgentBreaker(state="open", failures=failures, since=event.time, why=event.why)
            case "void" if self.probe == event.mission:
                return replace(self, state="open", probe=None)
            case "forced" if self.state != "closed":
                return replace(self, state="half_open", probe=event.mission)
            case "probe" if self.may_probe(event.time):
                return replace(self, state="half_open", probe=event.mission)
        return self


def fold_breaker(events: Iterable[BreakerEvent]) -> AgentBreaker:
    """Return the breaker after all events, which are ordered by time."""
    return reduce(AgentBreaker.after, events, AgentBreaker())


def agent_step(number: int) -> str:
    """Return the name of the step that records an attempt's agent if that differs from the request's."""
    return f"attempt/{number}{_STEP_SUFFIX}"


def read_breaker_events(
    store: Store, project: str, who: AgentModel, *, live: Callable[[MissionRow], bool], config: Config
) -> list[BreakerEvent]:
    """Return the events of an agent with its model in a project's last missions. Raises `StoreError`.

    A mission whose configuration had another entry for the agent or the model than `config` is ignored: with a
    corrected `base_url`, a model is called again at once.
    """
    entries = _entries_of(msgspec.json.decode(msgspec.json.encode(config)), who)
    found = []
    for row in store.log.missions(project=project, limit=_MISSIONS):
        events = list(_read_mission(store.log.read(row.id, types=_READ), who, entries))
        if events and events[-1].kind in ("probe", "forced") and not live(row):  # its worker died during the probe
            events.append(replace(events[-1], kind="void"))
        found += events
    # Missions run concurrently: their events interleave.
    return sorted(found, key=lambda event: event.time)


def _entries_of(config: object, who: AgentModel) -> list[object]:
    """Return a configuration's (JSON) entries of an agent and of its model."""
    parts = config if isinstance(config, dict) else {}
    tables = ((parts.get("agents"), who.agent), (parts.get("models"), who.model))
    return [table.get(name) if isinstance(table, dict) else None for table, name in tables]


def _read_mission(lines: Iterable[Event], who: AgentModel, entries: list[object]) -> Iterator[BreakerEvent]:
    """Yield the events of `who` in one mission, if its configuration has the same `entries`."""
    current, claimed = None, False
    for line in lines:
        # Most lines are steps that choose no agent: they are recognised by their bytes, without decoding.
        if line.type == StepFinished.type and _STEP_SUFFIX.encode() not in (line.payload or b""):
            continue
        time = datetime.fromisoformat(line.time)
        match read_payload(line):
            case MissionCreated(request=request, config=config):
                if "values" in config and _entries_of(config["values"], who) != entries:
                    return
                current = AgentModel(agent=request.agent, model=request.model)
            case MissionClaimed():
                claimed = True  # a fork copied everything before this from another mission
            case StepFinished(step=step, output=dict(choice)) if _CHOICE_STEP.fullmatch(step):
                model, probe = choice.get("model"), choice.get("probe")
                current = AgentModel(agent=str(choice.get("agent")), model=None if model is None else str(model))
                if current == who and probe in ("probe", "forced") and claimed:
                    yield BreakerEvent(time=time, mission=line.mission, kind=probe)
            case AttemptFinished() as ended if current == who and claimed:
                kind, why = _judge_machinery(ended.status, ended.reasons)
                yield BreakerEvent(time=time, mission=line.mission, kind=kind, why=why)


def _judge_machinery(status: AttemptStatus, reasons: tuple[Reason, ...]) -> tuple[BreakerEventKind, str]:
    """Judge an attempt's end by its machinery; return the event kind and the reason."""
    if status in ("succeeded", "refused"):
        return "worked", ""
    cause = attempt_cause(AttemptState(id="", number=0, agent="", workspace="", status=status, reasons=reasons))
    # A person's action, time and money show nothing about the machinery.
    if cause is None or cause.kind not in ("agent", "engine", "provider"):
        return "void", ""
    if cause.code in _FIXED_BY_PERSONS or cause.code in _MENDED_BY_PERSONS:
        return "void", ""
    if cause.kind == "agent" and cause.code != PROGRAM_MISSING:
        return "worked", ""
    message = next((reason.message for reason in reasons if reason.code == cause.code), "")
    return "failed", f"{cause.code}: {message}" if message else str(cause.code)


def provider_fault(attempt: AttemptState | None) -> str:
    """Return the provider's fault that ended an attempt, or ""."""
    cause = None if attempt is None or attempt.status != "failed" else attempt_cause(attempt)
    if attempt is None or cause is None or cause.kind != "provider" or cause.code in _FIXED_BY_PERSONS:
        return ""
    return next(reason.message for reason in attempt.reasons if reason.code == cause.code)


def _mendable_fault(attempt: AttemptState | None) -> str:
    """Return the code of a provider's fault that lasts until a person fixes it, "" for any other."""
    codes = {reason.code for reason in attempt.reasons} if attempt is not None else set[str]()
    return next((code for code in _MENDED_BY_PERSONS if code in codes), "")


def counts_as_failure(code: str) -> bool:
    """Return whether an attempt that ends with this code counts as a machinery failure."""
    return _judge_machinery("failed", (Reason(code=code, message=""),))[0] == "failed"


_ANYWAY = "try anyway"
_USE = "use "


class Admission(Struct, eq=False):
    """Chooses the agent and model for each attempt of one mission, and records breaker changes."""

    services: Services
    journal: Journal
    queue: SlotQueue

    async def admitted(self, request: MissionRequest, number: int, *, fault: str = "") -> MissionRequest:
        """Return the request with the agent and models for an attempt; the choice is recorded and final.

        `fault` is the provider's fault in the previous attempt, if that ended the mission's work. With a fault, or
        while breakers leave no model, a request that is a patch is applied without a model; any other raises
        `WaitingError` (`breaker_open`, `provider_down`): only a person can decide how to continue.
        """
        name, state = agent_step(number), self.journal.state
        if name in state.steps:
            return _with_choice(request, self.journal.recall(state.steps[name]))
        # A started attempt continues with its agent.
        if state.attempt(number) is not None:
            return request
        if not fault and self._breaker(_who(request)).state == "closed":
            return request

        async def choose() -> dict[str, Any]:
            choice = self._take_answer(request, number) or (None if fault else self._find_model(request))
            if choice is not None:
                return choice
            # A request for a model may be a patch, which needs no model.
            text = request.role_text and self.services.store.artifacts.get(request.role_text).decode()
            writes = not text or parse_role(request.role, text, place="").writes
            if request.model is None or not writes or not is_patch(request.text):
                self._ask_person(request, number, fault)
            without_model = replace(request, agent=PATCH_AGENT, model=None, fallback=())
            return _choice(without_model, why="no model answers, and the request is a patch", probe="")

        def events(choice: dict[str, Any]) -> Sequence[Payload]:
            agent = self.services.config.agents.get(choice["agent"])
            kind = agent.kind if agent is not None else choice["agent"].partition(":")[0]
            selected = AgentSelected(agent=choice["agent"], kind=kind, reason=choice["why"])
            who = AgentModel(agent=choice["agent"], model=choice["model"])
            breaker = self._breaker(who)
            if not choice["probe"] or breaker.state != "open":
                return (selected,)
            return (selected, _change_event(who, replace(breaker, state="half_open")))

        # The input of the step: for another request the choice is made again.
        given = [request.agent, request.model, *request.fallback]
        async with self.queue.turn("probes"):  # if two missions find the cool-down over, only one probes
            choice: dict[str, Any] = await self.journal.step(name, given, choose, events=events)
        return _with_choice(request, choice)

    def _take_answer(self, request: MissionRequest, number: int) -> dict[str, Any] | None:
        """Return the choice in a person's answer, `None` without an answer or if it names no choice."""
        asked = [found for found in self.journal.state.questions.values() if found.id.startswith(_prefix(number))]
        answer = (asked[-1].answer or "").strip() if asked else ""
        if answer.lower() == _ANYWAY:
            return _choice(request, why="a person asked to try anyway", probe="forced")
        name = answer[len(_USE) :].strip() if answer.lower().startswith(_USE) else ""
        if name in self._other_agents(request):
            agent = self.services.config.agents[name]
            request = replace(request, agent=name, model=agent.model, fallback=agent.fallback)
        elif name in self._other_models(request):
            request = replace(request, model=name, fallback=())
        else:
            return None
        return _choice(request, why="a person named it", probe="forced")

    def _find_model(self, request: MissionRequest) -> dict[str, Any] | None:
        """Return the first model whose breaker is closed or permits a probe."""
        now = self.services.clock.now()
        models = [request.model, *request.fallback]
        breakers = {model: self._breaker(_who(replace(request, model=model))) for model in models}
        for place, model in enumerate(models):
            breaker = breakers[model]
            if breaker.state != "closed" and not breaker.may_probe(now):
                continue
            # Models before this one are left out, not moved to the end: the gateway must not fall back to them.
            rest = tuple(other for other in models[place + 1 :] if other and breakers[other].state == "closed")
            passed = ", ".join(str(_who(replace(request, model=other))) for other in models[:place])
            why = f"{passed} failed too often" if passed else "it gets a probe after failing too often"
            probe = "" if breaker.state == "closed" else "probe"
            return _choice(replace(request, model=model, fallback=rest), why=why, probe=probe)
        return None

    def _ask_person(self, request: MissionRequest, number: int, fault: str) -> NoReturn:
        who = _who(request)
        breaker = self._breaker(who)
        last = f" (the last time: {breaker.why})" if breaker.why else ""
        when = f"; a probe may begin at {_cool_until(breaker)[11:19]} UTC" if breaker.state == "open" else ""
        failed = fault.rstrip(".") or f"{who} failed {breaker.failures} times in a row{last}{when}"
        text = f"{failed}. Try anyway, or use another one?"
        # A fault that a person has to fix first has its own code, and so its own remedy.
        last_code = _mendable_fault(self.journal.state.attempt(number - 1)) if fault else ""
        reason = Reason(code=last_code or ("provider_down" if fault else "breaker_open"), message=text)
        others = (*self._other_agents(request), *self._other_models(request))
        assert self.journal.state.base is not None
        question = QuestionAsked(
            question=f"{_prefix(number)}{len(self.journal.state.questions) + 1}",
            tree=self.journal.state.base.tree,
            reasons=(reason,),
            text=text,
            options=(_ANYWAY, *(f"{_USE}{name}" for name in others)),
            kind="decision",
        )
        self.journal.record(self.journal.limited(question), durable=True)
        raise WaitingError(text, code=reason.code)

    def _other_agents(self, request: MissionRequest) -> list[str]:
        """Return the other agents that can be started by name alone."""
        agents = self.services.config.agents
        ready = (name for name, agent in agents.items() if agent.kind == "command" or agent.model)
        return sorted(name for name in ready if name != request.agent)

    def _other_models(self, request: MissionRequest) -> list[str]:
        """Return the other models, if the agent uses models at all."""
        if request.model is None:
            return []
        return sorted(set(self.services.config.models) - {request.model, *request.fallback})

    def record_change(self, request: MissionRequest, number: int) -> None:
        """Record how an attempt's end, just recorded, changed its breaker."""
        steps = self.journal.state.steps
        chosen = [agent_step(each) for each in range(number, 0, -1) if agent_step(each) in steps]
        who = _who(_with_choice(request, self.journal.recall(steps[chosen[0]])) if chosen else request)
        with contextlib.suppress(StoreError):  # the state follows from the events already recorded
            events = self._read_events(who)
            # Up to this mission's own last event: other missions record their own changes.
            own = [place for place, event in enumerate(events) if event.mission == self.journal.mission]
            before = fold_breaker(events[: own[-1]]) if own else AgentBreaker()
            after = fold_breaker(events[: own[-1] + 1]) if own else AgentBreaker()
            if before.state != after.state:
                self.journal.record(_change_event(who, after))

    def _breaker(self, who: AgentModel) -> AgentBreaker:
        return fold_breaker(self._read_events(who))

    def _read_events(self, who: AgentModel) -> list[BreakerEvent]:
        services = self.services
        return read_breaker_events(
            services.store, services.project, who, live=services.live, config=services.config
        )


def _who(request: MissionRequest) -> AgentModel:
    return AgentModel(agent=request.agent, model=request.model)


def _prefix(number: int) -> str:
    return f"attempt/{number}/agent/"


def _choice(request: MissionRequest, *, why: str, probe: str) -> dict[str, Any]:
    return {
        "agent": request.agent,
        "model": request.model,
        "fallback": request.fallback,
        "why": why,
        "probe": probe,
    }


def _with_choice(request: MissionRequest, choice: dict[str, Any]) -> MissionRequest:
    return replace(
        request,
        agent=choice["agent"],
        model=choice["model"],
        fallback=tuple(choice["fallback"]),
        why=choice["why"],
    )


def _cool_until(breaker: AgentBreaker) -> str:
    return (breaker.since + COOL_DOWN).isoformat(timespec="seconds") if breaker.since is not None else ""


def _change_event(who: AgentModel, breaker: AgentBreaker) -> BreakerChanged:
    return BreakerChanged(
        agent=who.agent,
        model=who.model,
        state=breaker.state,
        failures=breaker.failures,
        until=_cool_until(breaker) if breaker.state == "open" else "",
        reason=breaker.why,
    )
