"""The port that chooses agent, model and strategy, with the records of its facts and of its choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.config import AgentConfig, Config
from chargehand.core.records import ChoiceReason, MissionRequest, Reason, ReasonCode

# `request`: a whole mission. `task`: a task of a plan. `attempt`: the first attempt of a mission. `retry`: each
# later attempt of a mission, and each next round of a task after one without a good result.
Moment = Literal["request", "task", "attempt", "retry"]
# `ask`: a person has to decide. `stop`: nothing more is worth trying.
Action = Literal["use", "ask", "stop"]
# Ways to run the next round of a task: see `plan_events.Rung`. "" is the usual way.
Strategy = Literal["", "approach", "model", "best_of"]
# `open`: it failed too often; `ready`: one mission may probe it; `unknown`: not read at this moment.
BreakerFact = Literal["unknown", "closed", "ready", "open"]
# Each code with its sentence. `subject` is the agent or model that the reason is about, `source` its origin: an
# option, a role, a key, a number of models.
SENTENCES: Mapping[ReasonCode, str] = {
    # Named by a person.
    "option": "{source}",
    "role_setting": "[roles.{source}]",
    "role_file": "the file of role {source}",
    "plan": "the plan",
    "recorded": "{source}",  # from a log without structured reasons
    "person_again": "a person asked to try anyway",
    "person_named": "a person named it",
    # Found by the rules.
    "needs": "what it needs",
    "only_agent": "the only one configured",
    "only_model": "{subject}, the only model configured",
    "first_with_key": "{subject}, the first of {source} models that has its key",
    "first_model": "{subject}, the first of {source} models",
    "key_set": "{subject}: {source} is set",
    "served_locally": "{subject}: Ollama runs on this machine",
    "probe": "it gets a probe after failing too often",
    "patch": "no model answers, and the request is a patch",
    "retry": "the choice for the next round",
    "learned": "{subject}: {source}",  # the source has chance, price and the number of outcomes
    "not_worth_it": "another try is not worth its cost{source}",  # the source begins with a colon
    "rollout": "in roll-out {subject} to {source} % of projects",
    "rollout_outside": "outside of roll-out {subject} to {source} % of projects",
    "rollout_shadow": "shadow roll-out {subject} would choose {source}",
    # Why a candidate is excluded.
    "breaker_open": "{subject} failed too often",
    "unable": "{subject} does not offer all that it needs",
    "tried": "was tried",
    "no_money": "the budget is used up",
    "other_cause": "it failed for another reason than the work",
    "no_advice": "its agent cannot receive advice",
    "no_other_model": "there is no other model",
    "no_models": "there are no models to try in parallel",
    # Why a person has to choose.
    "provider_fault": "the provider of {subject} failed",
    "no_agent": "no agent is configured",
    "several_agents": "{source} agents are configured",
    "no_model": "{subject} needs a model",
}
# Codes of a person's choices, which no chooser may change.
BY_PERSON: frozenset[ReasonCode] = frozenset(
    {"option", "role_setting", "role_file", "plan", "person_again", "person_named"}
)
# Codes of the roll-outs that a choice takes part in; their subject is the roll-out's name.
OF_ROLLOUTS: frozenset[ReasonCode] = frozenset({"rollout", "rollout_outside", "rollout_shadow"})
_ROLES = ("role_setting", "role_file")
# Their subject is a model ("": no model), their source its agent.
_OF_CANDIDATES = ("breaker_open", "provider_fault")
NATIVE = "native"


class Candidate(Struct, frozen=True, kw_only=True):
    """An agent as a request names it, its model (`None`: no model), and the models to switch to, in order."""

    agent: str
    model: str | None = None
    fallback: tuple[str, ...] = ()
    strategy: Strategy = ""

    def __str__(self) -> str:
        return f"agent {self.agent!r}" + (f" with model {self.model!r}" if self.model else "")


class AgentFacts(Struct, frozen=True, kw_only=True):
    """The announced facts of an agent: its kind, the model and fallback models of its entry, its capabilities.

    `configured` marks an entry of `[agents]`, `short` a short form of `--agent`, which names its model.
    """

    name: str
    kind: str = NATIVE
    model: str | None = None
    fallback: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    configured: bool = False
    short: bool = False

    @classmethod
    def of(cls, config: Config, name: str, entry: AgentConfig | None = None) -> AgentFacts:
        """Return the facts of an agent: of its `entry`, by default the configured one, else by its short form."""
        kind, short, _ = name.partition(":")
        entry = entry or config.agents.get(name)
        if entry is None:
            return cls(name=name, kind=kind if short else NATIVE, short=bool(short))
        return cls(
            name=name,
            kind=entry.kind,
            model=entry.model,
            fallback=entry.fallback,
            offers=entry.offers,
            configured=name in config.agents,
            short=bool(short),
        )

    @property
    def takes_models(self) -> bool:
        """Whether it works with a model chosen for it, and heeds advice in a request."""
        return self.kind not in ("command", "patch")


class KnownModel(Struct, frozen=True, kw_only=True):
    """A model and how it is known: named somewhere, an entry of `[models]`, by its `key`, or served by Ollama.

    `has_key` is `None` if the key was not looked up. `served` is the provider's name for the model, if another.
    Its calls cost nothing if it `is_free`.
    """

    name: str
    known: Literal["named", "configured", "key", "local"] = "named"
    has_key: bool | None = None
    key: str = ""
    served: str = ""
    is_free: bool = False


class PossibleCandidate(Struct, frozen=True, kw_only=True):
    """A pair that can be chosen; a native agent without a model only shows that it needs one."""

    agent: AgentFacts
    model: KnownModel | None = None
    breaker: BreakerFact = "unknown"
    strategy: Strategy = ""

    @property
    def is_ready(self) -> bool:
        """Whether it can start; with another approach a task keeps its model."""
        return self.model is not None or self.agent.kind != NATIVE or self.strategy == "approach"

    @property
    def candidate(self) -> Candidate:
        """The pair as a candidate, without fallback models."""
        model = None if self.model is None else self.model.name
        return Candidate(agent=self.agent.name, model=model, strategy=self.strategy)


class StandingSetting(Struct, frozen=True, kw_only=True):
    """A role's setting of agent and models; `general` marks [roles.default]."""

    reason: ChoiceReason
    agent: str | None = None
    model: str | None = None
    fallback: tuple[str, ...] = ()
    general: bool = False


class FixedChoice(Struct, frozen=True, kw_only=True):
    """The agent ("": any) and model (`None`: any) that a person named; `forced` also overrides an open breaker."""

    agent: str = ""
    model: str | None = None
    fallback: tuple[str, ...] = ()
    reasons: tuple[ChoiceReason, ...] = ()
    forced: bool = False


class TriedCandidate(Struct, frozen=True, kw_only=True):
    """A candidate that was tried in this mission or task; `rung` and `round` are those of a task.

    `cause` is the class of its end in `causes.toml`, "" if it ended well or is not known. `ends` are the reasons
    with which it ended.
    """

    candidate: Candidate
    cause: str = ""
    rung: str = ""
    round: int = 0
    ends: tuple[Reason, ...] = ()


class ChoiceContext(Struct, frozen=True, kw_only=True):
    """All facts about one choice; a moment leaves the fields empty that it does not know.

    `kind` is the project, which has its own prices and rates. `work` is the mission, or the task of a plan,
    whose attempts share their difficulty: see `ChoiceOutcome`. `candidates` are possible and respect `fixed`.
    `settings` are ordered by precedence. `current` is the choice so far (for a task: the whole mission's),
    with its `current_reasons`; a person named the parts in `current_named` for the whole run. A task that
    `inherits` has no role, agent or needs; `same_role`: it has the mission's role. `fault` is the provider's
    fault that ended the last attempt. `fresh`: the current agent did not try the task yet, and others failed
    it. Unless it `explores`, nothing is tried only to learn from it. `money_left` is in USD, `None` if
    unlimited or not known, as is `seconds_left`.
    """

    moment: Moment
    kind: str = ""
    work: str = ""
    candidates: tuple[PossibleCandidate, ...] = ()
    fixed: FixedChoice = FixedChoice()
    settings: tuple[StandingSetting, ...] = ()
    needs: tuple[str, ...] = ()
    current: Candidate | None = None
    current_reasons: tuple[ChoiceReason, ...] = ()
    current_named: tuple[Literal["agent", "model"], ...] = ()
    inherits: bool = False
    same_role: bool = False
    tried: tuple[TriedCandidate, ...] = ()
    fault: str = ""
    fresh: bool = False
    money_left: float | None = None
    seconds_left: float | None = None
    explores: bool = True

    @property
    def agents(self) -> tuple[AgentFacts, ...]:
        """The agents of the candidates, each once, in order."""
        return tuple({each.agent.name: each.agent for each in self.candidates}.values())

    def find(self, agent: str, model: str | None, strategy: Strategy = "") -> PossibleCandidate | None:
        """Return the possible candidate with this agent, model and strategy."""
        wanted = Candidate(agent=agent, model=model, strategy=strategy)
        return next((each for each in self.candidates if each.candidate == wanted), None)


class ConsideredCandidate(Struct, frozen=True, kw_only=True):
    """A considered candidate, and the reason if it is excluded."""

    candidate: Candidate
    excluded: ChoiceReason | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """The chosen candidate, `None` unless the action is `use`; the first reason is the agent's, the others follow.

    The candidates in `beside` run at the same time.
    """

    chosen: Candidate | None = None
    action: Action = "use"
    reasons: tuple[ChoiceReason, ...] = ()
    considered: tuple[ConsideredCandidate, ...] = ()
    beside: tuple[Candidate, ...] = ()


class ChoiceOutcome(Struct, frozen=True, kw_only=True):
    """The end of work by a candidate; the cost in USD, and the time in seconds, are `None` if unknown.

    `work` is the mission that it was done for, or `task_work` of a task of a plan; `kind` as in `ChoiceContext`.
    `rollouts` are the reasons `OF_ROLLOUTS` of the mission's choice.
    `proved_right` is the last word on a good result, by a person or by its fate after promotion, if there is one.
    """

    candidate: Candidate
    is_good: bool
    cost_usd: float | None = None
    kind: str = ""
    work: str = ""
    rollouts: tuple[ChoiceReason, ...] = ()
    seconds: float | None = None
    proved_right: bool | None = None


class BenchmarkTally(Struct, frozen=True, kw_only=True):
    """The attempts of a candidate at one kind of work that is not the user's.

    `priced` of them have a known cost above 0, and `log_cost` is the sum of the logarithms of these costs in USD.
    """

    candidate: Candidate
    kind: str
    attempts: int
    good: int
    priced: int = 0
    log_cost: float = 0.0


class ChoiceHistory(Struct, frozen=True, kw_only=True):
    """The outcomes of earlier choices, oldest first, and the benchmarks that a person lets choices learn from."""

    outcomes: tuple[ChoiceOutcome, ...] = ()
    benchmarks: tuple[BenchmarkTally, ...] = ()

    def after(self, outcome: ChoiceOutcome) -> ChoiceHistory:
        """Return the history with one more outcome."""
        return replace(self, outcomes=(*self.outcomes, outcome))


class GreenChange(Struct, frozen=True, kw_only=True):
    """The facts of a change that passed all checks: its author, its size, and the number of its attempt.

    `areas` counts the top-level directories that it changes. `unread_files` is `None` if reads were not observed.
    """

    author: Candidate
    changed_lines: int
    areas: int
    attempts: int
    unread_files: int | None = None


class Chooser(Protocol):
    """Chooses agent, model and strategy for a request, a task, an attempt or a retry."""

    def choose(self, context: ChoiceContext, history: ChoiceHistory, /) -> Choice:
        """Return a choice that `find_fault` accepts, always the same for the same arguments; no I/O, no clock."""
        ...


def task_work(mission: str, task: str) -> str:
    """Return the work of a mission, or of a task of its plan: its rounds are attempts on the same work."""
    return f"{mission}/{task}" if task else mission


def find_exclusion(context: ChoiceContext, each: PossibleCandidate) -> ChoiceReason | None:
    """Return why a candidate cannot be chosen, `None` if it can."""
    current, own = context.current, each.candidate
    # The current candidate was able to start before.
    if not each.is_ready and (current is None or (own.agent, own.model) != (current.agent, current.model)):
        return ChoiceReason("no_model", own.agent)
    if context.moment == "task" and not {*context.needs} <= {*each.agent.offers}:
        return ChoiceReason("unable", own.agent)
    if each.breaker == "open" and not context.fixed.forced:
        return ChoiceReason("breaker_open", own.model or "", own.agent)
    return None


def find_fault(context: ChoiceContext, choice: Choice) -> str:
    """Return how a choice breaks the contract of a chooser, "" if it keeps it."""
    if (choice.chosen is None) == (choice.action == "use"):
        return f"the action {choice.action!r} does not fit the candidate {choice.chosen}"
    if choice.chosen is None:
        return "" if choice.reasons else f"the action {choice.action!r} has no reason"
    faults = (_find_fault_of(context, each) for each in (choice.chosen, *choice.beside))
    return next(filter(None, faults), "")


def _find_fault_of(context: ChoiceContext, chosen: Candidate) -> str:
    fixed, found = context.fixed, context.find(chosen.agent, chosen.model, chosen.strategy)
    if found is None:
        return f"{chosen} is not possible"
    if (fixed.agent and chosen.agent != fixed.agent) or (fixed.model and chosen.model != fixed.model):
        return f"{chosen} is not the choice of a person"
    excluded = find_exclusion(context, found)
    if excluded is not None:
        return f"{chosen}: {render_reason(excluded)}"
    known = {each.candidate.model for each in context.candidates if each.agent.name == chosen.agent}
    known |= {*found.agent.fallback, *(context.current.fallback if context.current else ())}
    foreign = {*chosen.fallback} - known - {model for each in context.settings for model in each.fallback}
    return f"{chosen} falls back to unknown models: {', '.join(sorted(foreign))}" if foreign else ""


def named_by_person(request: MissionRequest, reasons: Sequence[ChoiceReason]) -> frozenset[str]:
    """Return which of `agent` and `model` a person named, by the reasons for a request (empty in older logs)."""
    agent = {"agent"} if reasons and reasons[0].code in BY_PERSON else set[str]()
    model = {"model"} if any(each.code in BY_PERSON for each in reasons[1:]) else set[str]()
    return frozenset({*request.named, *agent, *model})


def render_reasons(reasons: Sequence[ChoiceReason]) -> str:
    """Return the reasons of a choice as one sentence, "" if there are none."""
    passed = ", ".join(_describe_subject(each) for each in reasons if each.code == "breaker_open")
    if passed:  # a candidate that is probed after others were passed over is explained by them
        return SENTENCES["breaker_open"].format(subject=passed)
    return ", ".join(_render(reasons))


def render_reason(reason: ChoiceReason) -> str:
    """Return one reason as a sentence."""
    return SENTENCES[reason.code].format(subject=_describe_subject(reason), source=reason.source)


def _describe_subject(reason: ChoiceReason) -> str:
    if reason.code not in _OF_CANDIDATES:
        return reason.subject
    return str(Candidate(agent=reason.source, model=reason.subject or None))


def _render(reasons: Sequence[ChoiceReason]) -> Iterator[str]:
    for number, each in enumerate(reasons):
        # After the agent's own reason, a role's setting is the source of the model.
        yield f"{each.subject} by {render_reason(each)}" if number and each.code in _ROLES else render_reason(each)
