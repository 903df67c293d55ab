"""Who makes an attempt: who was asked for; where that failed too often the next, a probe, or a person's word."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from chargehand.core.attempt_events import BreakerChanged
from chargehand.core.errors import StoreError, WaitingError
from chargehand.core.events import Payload
from chargehand.core.mission_events import AgentSelected, QuestionAsked
from chargehand.core.records import MissionRequest, Reason
from chargehand.missions._breaker import COOL_DOWN, Breaker, Fact, Who, agent_step, breaker_of, find_facts
from chargehand.missions._journal import Journal
from chargehand.missions._queue import Queue
from chargehand.missions._services import Services

_ANYWAY = "try anyway"
_USE = "use "


class Admission:
    """Decides for one mission, before each attempt, and tells what its end changed."""

    def __init__(self, services: Services, journal: Journal, queue: Queue) -> None:
        self._services = services
        self._journal = journal
        self._queue = queue

    async def admitted(self, request: MissionRequest, number: int) -> MissionRequest:
        """Return the request with the agent and models that make an attempt; asked and begun once, it stays so.

        Raises `WaitingError` (`breaker_open`) where only a person can say how to go on.
        """
        name, state = agent_step(number), self._journal.state
        if name not in state.steps:
            if state.attempt(number) is not None or self._breaker(_who(request)).state == "closed":
                return request
            async with self._queue.turn("probes"):  # of two missions that find the time has come one probes
                return _with(request, await self._choose(request, number))
        return _with(request, self._journal.recall(state.steps[name]))

    async def _choose(self, request: MissionRequest, number: int) -> dict[str, Any]:
        async def chosen() -> dict[str, Any]:
            return self._said(request, number) or self._next(request) or self._ask(request, number)

        given = [request.agent, request.model, *request.fallback]
        done: dict[str, Any] = await self._journal.step(agent_step(number), given, chosen, notes=self._told)
        return done

    def _said(self, request: MissionRequest, number: int) -> dict[str, Any] | None:
        """Return what a person answered, `None` where nobody did in words that name a way."""
        asked = [found for found in self._journal.state.questions.values() if found.id.startswith(_prefix(number))]
        answer = (asked[-1].answer or "").strip() if asked else ""
        if answer.lower() == _ANYWAY:
            return _choice(request, why="a person wants it tried anyway", probe="forced")
        name = answer[len(_USE) :].strip() if answer.lower().startswith(_USE) else ""
        if name in self._agents(request):
            agent = self._services.config.agents[name]
            request = structs.replace(request, agent=name, model=agent.model, fallback=agent.fallback)
        elif name in self._models(request):
            request = structs.replace(request, model=name, fallback=())
        else:
            return None
        return _choice(request, why="a person named it", probe="forced")

    def _next(self, request: MissionRequest) -> dict[str, Any] | None:
        """Return the first of the models that is let work, or may be probed."""
        now = self._services.clock.now()
        models = [request.model, *request.fallback]
        breakers = {model: self._breaker(_who(structs.replace(request, model=model))) for model in models}
        for place, model in enumerate(models):
            breaker = breakers[model]
            if breaker.state != "closed" and not breaker.may_probe(now):
                continue
            rest = tuple(other for other in models[place + 1 :] if other and breakers[other].state == "closed")
            passed = ", ".join(str(_who(structs.replace(request, model=other))) for other in models[:place])
            why = f"{passed} failed too often" if passed else "a probe after it failed too often"
            probe = "" if breaker.state == "closed" else "probe"
            return _choice(structs.replace(request, model=model, fallback=rest), why=why, probe=probe)
        return None

    def _ask(self, request: MissionRequest, number: int) -> dict[str, Any]:
        who = _who(request)
        text = _question(who, self._breaker(who))
        others = (*self._agents(request), *self._models(request))
        question = f"{_prefix(number)}{len(self._journal.state.questions) + 1}"
        reason = Reason(code="breaker_open", message=text)
        assert self._journal.state.base is not None
        self._journal.note(
            QuestionAsked(
                question=question,
                tree=self._journal.state.base.tree,
                reasons=(reason,),
                text=text,
                options=(_ANYWAY, *(f"{_USE}{name}" for name in others)),
            ),
            durable=True,
        )
        raise WaitingError(text, code="breaker_open")

    def _agents(self, request: MissionRequest) -> list[str]:
        """Return the other agents that need nothing more to be told than their names."""
        agents = self._services.config.agents
        ready = (name for name, agent in agents.items() if agent.kind == "command" or agent.model)
        return sorted(name for name in ready if name != request.agent)

    def _models(self, request: MissionRequest) -> list[str]:
        """Return the other models, where the agent has one at all."""
        if request.model is None:
            return []
        return sorted(set(self._services.config.models) - {request.model, *request.fallback})

    def _told(self, chosen: dict[str, Any]) -> Sequence[Payload]:
        agent = self._services.config.agents.get(chosen["agent"])
        kind = agent.kind if agent is not None else chosen["agent"].partition(":")[0]
        selected = AgentSelected(agent=chosen["agent"], kind=kind, reason=chosen["why"])
        who = Who(agent=chosen["agent"], model=chosen["model"])
        breaker = self._breaker(who)
        if not chosen["probe"] or breaker.state != "open":
            return (selected,)
        return (selected, _changed(who, replace(breaker, state="half_open")))

    def tell(self, request: MissionRequest, number: int) -> None:
        """Note what the end of an attempt, just noted, changed."""
        who = _who(self._in_force(request, number))
        with contextlib.suppress(StoreError):  # the state follows from what is noted already
            facts = self._facts(who)
            own = [place for place, fact in enumerate(facts) if fact.mission == self._journal.mission]
            before = breaker_of(facts[: own[-1]]) if own else Breaker()
            after = breaker_of(facts[: own[-1] + 1]) if own else Breaker()
            if before.state != after.state:
                self._journal.note(_changed(who, after))

    def _in_force(self, request: MissionRequest, number: int) -> MissionRequest:
        """Return the request as it was decided last, up to an attempt."""
        steps = self._journal.state.steps
        names = [agent_step(each) for each in range(number, 0, -1) if agent_step(each) in steps]
        return _with(request, self._journal.recall(steps[names[0]])) if names else request

    def _breaker(self, who: Who) -> Breaker:
        return breaker_of(self._facts(who))

    def _facts(self, who: Who) -> list[Fact]:
        services = self._services
        return find_facts(services.store, services.project, who, live=services.live)


def _who(request: MissionRequest) -> Who:
    return Who(agent=request.agent, model=request.model)


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


def _with(request: MissionRequest, chosen: dict[str, Any]) -> MissionRequest:
    return structs.replace(
        request,
        agent=chosen["agent"],
        model=chosen["model"],
        fallback=tuple(chosen["fallback"]),
        why=chosen["why"],
    )


def _question(who: Who, breaker: Breaker) -> str:
    last = f" (the last time: {breaker.why})" if breaker.why else ""
    when = f"; a probe may begin at {_until(breaker)[11:19]} UTC" if breaker.state == "open" else ""
    return f"{who} failed {breaker.failures} times in a row{last}{when}. Try anyway, or name another one?"


def _until(breaker: Breaker) -> str:
    return (breaker.since + COOL_DOWN).isoformat(timespec="seconds") if breaker.since is not None else ""


def _changed(who: Who, breaker: Breaker) -> BreakerChanged:
    return BreakerChanged(
        agent=who.agent,
        model=who.model,
        state=breaker.state,
        failures=breaker.failures,
        until=_until(breaker) if breaker.state == "open" else "",
        reason=breaker.why,
    )
