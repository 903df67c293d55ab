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
from chargehand.core.choices import (
    AgentFacts,
    BreakerFact,
    Candidate,
    Choice,
    ChoiceContext,
    FixedChoice,
    KnownModel,
    PossibleCandidate,
    TriedCandidate,
    named_by_person,
    render_reasons,
    task_work,
)
from chargehand.core.codec import convert_to
from chargehand.core.config import Config
from chargehand.core.errors import StoreError, WaitingError
from chargehand.core.events import Event, Payload, read_payload
from chargehand.core.mission_events import (
    AgentSelected,
    AttemptFinished,
    MissionClaimed,
    MissionCreated,
    QuestionAsked,
    RetryDeclined,
    StepFinished,
)
from chargehand.core.records import AttemptStatus, ChoiceReason, MissionRequest, Reason, ReasonCode
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


class BreakerLog:
    """What a project's last missions say about agents with their models; the missions are read once.

    A mission whose configuration had another entry for the agent or the model than `config` is ignored: with a
    corrected `base_url`, a model is called again at once. `live` returns whether a worker holds a mission. Raises
    `StoreError`.
    """

    def __init__(self, store: Store, project: str, *, live: Callable[[MissionRow], bool], config: Config) -> None:
        rows = store.log.missions(project=project, limit=_MISSIONS)
        self._missions = [(row, list(_decode(store.log.read(row.id, types=_READ)))) for row in rows]
        self._live = live
        self._config = msgspec.json.decode(msgspec.json.encode(config))

    def events(self, who: AgentModel) -> list[BreakerEvent]:
        """Return the events of an agent with its model."""
        found, entries = [], _entries_of(self._config, who)
        for row, lines in self._missions:
            events = list(_read_mission(lines, who, entries))
            # Its worker died during the probe.
            if events and events[-1].kind in ("probe", "forced") and not self._live(row):
                events.append(replace(events[-1], kind="void"))
            found += events
        # Missions run concurrently: their events interleave.
        return sorted(found, key=lambda event: event.time)

    def breaker(self, agent: str, model: str | None) -> AgentBreaker:
        """Return the breaker of an agent with its model."""
        return fold_breaker(self.events(AgentModel(agent=agent, model=model)))


def _entries_of(config: object, who: AgentModel) -> list[object]:
    """Return a configuration's (JSON) entries of an agent and of its model."""
    parts = config if isinstance(config, dict) else {}
    tables = ((parts.get("agents"), who.agent), (parts.get("models"), who.model))
    return [table.get(name) if isinstance(table, dict) else None for table, name in tables]


def _decode(lines: Iterable[Event]) -> Iterator[tuple[Event, Payload | None]]:
    for line in lines:
        # Most lines are steps that choose no agent: they are recognised by their bytes, without decoding.
        if line.type != StepFinished.type or _STEP_SUFFIX.encode() in (line.payload or b""):
            yield line, read_payload(line)


def _read_mission(
    lines: Iterable[tuple[Event, Payload | None]], who: AgentModel, entries: list[object]
) -> Iterator[BreakerEvent]:
    """Yield the events of `who` in one mission, if its configuration has the same `entries`."""
    current, claimed = None, False
    for line, payload in lines:
        time = datetime.fromisoformat(line.time)
        match payload:
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
_AGAIN: ReasonCode = "person_again"
_NAMED: ReasonCode = "person_named"


class Admission(Struct, eq=False):
    """Has the agent and model for each attempt of one mission chosen, and records breaker changes."""

    services: Services
    journal: Journal
    queue: SlotQueue

    async def admitted(
        self, request: MissionRequest, number: int, *, fault: str = "", wanted: bool = False
    ) -> MissionRequest | None:
        """Return the request with the agent and models for an attempt; another than before is recorded and final.

        `None`: the attempt is not worth it, unless a person `wanted` it. `fault` is the provider's fault in the
        previous attempt, if that ended the mission's work. If a person has to choose, raises `WaitingError`
        (`breaker_open`, `provider_down`).
        """
        name, state = agent_step(number), self.journal.state
        if name in state.steps:
            return _with_choice(request, self.journal.recall(state.steps[name]))
        # A started attempt continues with its agent.
        if state.attempt(number) is not None:
            return request
        context = self._context(request, number, fault)
        choice = self.services.decider.choose(context)
        if _keeps(context, choice) or (choice.action == "stop" and wanted):
            return request

        async def choose() -> dict[str, Any]:
            context = self._context(request, number, fault)
            choice = self.services.decider.choose(context)
            if choice.action == "ask":
                self._ask_person(request, number, fault)
            return _record_of(context, choice)

        def events(record: dict[str, Any]) -> Sequence[Payload]:
            reasons = convert_to(record["reasons"], tuple[ChoiceReason, ...])
            if record.get("stop"):
                return (RetryDeclined(action="stop", attempt=number, reasons=reasons),)
            agent, model = record["agent"], record["model"]
            kind = AgentFacts.of(self.services.config, agent).kind
            selected = AgentSelected(agent=agent, kind=kind, reason=record["why"], reasons=reasons)
            breaker = self._log().breaker(agent, model)
            if not record["probe"] or breaker.state != "open":
                return (selected,)
            who = AgentModel(agent=agent, model=model)
            return (selected, _change_event(who, replace(breaker, state="half_open")))

        # The input of the step: for another request the choice is made again.
        given = [request.agent, request.model, *request.fallback]
        async with self.queue.turn("probes"):  # if two missions find the cool-down over, only one probes
            record: dict[str, Any] = await self.journal.step(name, given, choose, events=events)
        return _with_choice(request, record)

    def _context(self, request: MissionRequest, number: int, fault: str) -> ChoiceContext:
        """Gather the facts for the choice of an attempt's agent and models."""
        config, state, now = self.services.config, self.journal.state, self.services.clock.now()
        log = self._log()
        blocked = bool(fault) or log.breaker(request.agent, request.model).state != "closed"
        fixed = (self._take_answer(request, number) if blocked else None) or FixedChoice()
        pairs = [(request.agent, model) for model in (request.model, *request.fallback)]
        if fixed.forced:
            pairs = [(fixed.agent, fixed.model)]
        else:
            # Another choice is possible only if no person made this one.
            named = named_by_person(request, state.chosen)
            if "model" not in named:
                pairs += [(request.agent, model) for model in self._other_models(request)]
            if "agent" not in named:
                pairs += [(name, config.agents[name].model) for name in self._other_agents(request)]
            if self._is_patch(request):
                pairs.append((PATCH_AGENT, None))
        candidates = (
            PossibleCandidate(
                agent=AgentFacts.of(config, agent),
                model=None if model is None else KnownModel(name=model),
                breaker=_breaker_fact(log.breaker(agent, model), now),
            )
            for agent, model in dict.fromkeys(pairs)
        )
        return ChoiceContext(
            moment="attempt" if number == 1 else "retry",
            kind=self.services.project,
            work=task_work(state.parent or state.id, state.task),
            candidates=tuple(candidates),
            fixed=fixed,
            current=Candidate(agent=request.agent, model=request.model, fallback=request.fallback),
            current_reasons=state.chosen,
            current_named=request.named,
            tried=tuple(self._list_tried(number)),
            fault=fault,
            money_left=self.services.money_left(state.parent or state.id),
            seconds_left=max(0.0, request.seconds - state.seconds_used),
        )

    def _list_tried(self, number: int) -> Iterator[TriedCandidate]:
        """Yield the agents and models of earlier attempts, with the causes of their ends."""
        state = self.journal.state
        assert state.request is not None
        for attempt in state.attempts:
            if attempt.number < number:
                chosen = self._chosen(state.request, attempt.number)
                cause = attempt_cause(attempt)
                yield TriedCandidate(
                    candidate=Candidate(agent=chosen.agent, model=chosen.model, fallback=chosen.fallback),
                    cause=cause.kind if cause is not None else "",
                    ends=attempt.reasons,
                )

    def _is_patch(self, request: MissionRequest) -> bool:
        """Return whether a request for a model is a patch, which needs no model."""
        if request.model is None or not is_patch(request.text):
            return False
        text = request.role_text and self.services.store.artifacts.get(request.role_text).decode()
        return not text or parse_role(request.role, text, place="").writes

    def _take_answer(self, request: MissionRequest, number: int) -> FixedChoice | None:
        """Return the choice in a person's answer, `None` without an answer or if it names no choice."""
        asked = [found for found in self.journal.state.questions.values() if found.id.startswith(_prefix(number))]
        answer = (asked[-1].answer or "").strip() if asked else ""
        agent, model, fallback, code = request.agent, request.model, request.fallback, _AGAIN
        if answer.lower() != _ANYWAY:
            name, code = answer[len(_USE) :].strip() if answer.lower().startswith(_USE) else "", _NAMED
            entry = self.services.config.agents[name] if name in self._other_agents(request) else None
            if entry is not None:
                agent, model, fallback = name, entry.model, entry.fallback
            elif name in self._other_models(request):
                model, fallback = name, ()
            else:
                return None
        reasons = (ChoiceReason(code, agent, model or ""),)
        return FixedChoice(agent=agent, model=model, fallback=fallback, reasons=reasons, forced=True)

    def _ask_person(self, request: MissionRequest, number: int, fault: str) -> NoReturn:
        who = Candidate(agent=request.agent, model=request.model)
        breaker = self._log().breaker(request.agent, request.model)
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
        request = self._chosen(request, number)
        who = AgentModel(agent=request.agent, model=request.model)
        with contextlib.suppress(StoreError):  # the state follows from the events already recorded
            events = self._log().events(who)
            # Up to this mission's own last event: other missions record their own changes.
            own = [place for place, event in enumerate(events) if event.mission == self.journal.mission]
            before = fold_breaker(events[: own[-1]]) if own else AgentBreaker()
            after = fold_breaker(events[: own[-1] + 1]) if own else AgentBreaker()
            if before.state != after.state:
                self.journal.record(_change_event(who, after))

    def _chosen(self, request: MissionRequest, number: int) -> MissionRequest:
        """Return a request with the last agent and models recorded for an attempt up to `number`."""
        steps = self.journal.state.steps
        chosen = next((agent_step(each) for each in range(number, 0, -1) if agent_step(each) in steps), None)
        recorded = _with_choice(request, self.journal.recall(steps[chosen])) if chosen is not None else None
        return recorded or request

    def _log(self) -> BreakerLog:
        services = self.services
        return BreakerLog(services.store, services.project, live=services.live, config=services.config)


def _prefix(number: int) -> str:
    return f"attempt/{number}/agent/"


def _keeps(context: ChoiceContext, choice: Choice) -> bool:
    """Return whether a choice is the current one, and no probe."""
    now = context.find(context.current.agent, context.current.model) if context.current else None
    is_closed = now is not None and now.breaker == "closed"
    return choice.chosen == context.current and is_closed and not context.fixed.forced


def _record_of(context: ChoiceContext, choice: Choice) -> dict[str, Any]:
    """Return what the step of a choice records; without a chosen candidate the current one, with `stop`."""
    chosen = choice.chosen or context.current
    assert chosen is not None
    found = context.find(chosen.agent, chosen.model)
    is_probe = choice.chosen is not None and found is not None and found.breaker == "ready"
    return {
        "agent": chosen.agent,
        "model": chosen.model,
        "fallback": chosen.fallback,
        "why": render_reasons(choice.reasons),
        "probe": "forced" if context.fixed.forced else "probe" if is_probe else "",
        "reasons": msgspec.to_builtins(choice.reasons),
        **({} if choice.chosen else {"stop": True}),
    }


def _with_choice(request: MissionRequest, record: dict[str, Any]) -> MissionRequest | None:
    if record.get("stop"):
        return None
    return replace(
        request,
        agent=record["agent"],
        model=record["model"],
        fallback=tuple(record["fallback"]),
        why=record["why"],
    )


def _breaker_fact(breaker: AgentBreaker, now: datetime) -> BreakerFact:
    if breaker.state == "closed":
        return "closed"
    return "ready" if breaker.may_probe(now) else "open"


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
