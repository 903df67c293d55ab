"""Assigns the tasks of a plan to agents and models, with the areas they may change."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.agents.roles import DEVELOPER, NO_ROLE, Role
from chargehand.app.selection.agents import named_agent
from chargehand.app.selection.choice import (
    CandidateSource,
    explain_refusal,
    needs_detection,
    require_models,
    standing_settings,
)
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.configuration.areas import meet_areas
from chargehand.configuration.records import ResolvedConfig
from chargehand.core.choices import (
    AgentFacts,
    Candidate,
    Choice,
    ChoiceContext,
    FixedChoice,
    TriedCandidate,
    render_reasons,
)
from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.core.plans import Plan, Task
from chargehand.core.ports import ArtifactSink, KeySource
from chargehand.core.records import ChoiceReason, MissionRequest
from chargehand.decisions.decider import Decider
from chargehand.missions.services import NO_WISH, PreparedTask, TaskWish

_BY_OPTION = ChoiceReason("option", source="--agent")


class TaskAssigner(Struct, frozen=True, kw_only=True):
    """Derives the request of a task from that of the whole mission; the current role file's content is stored."""

    resolved: ResolvedConfig
    roles: RoleCatalogue
    environ: Mapping[str, str]
    keys: KeySource
    artifacts: ArtifactSink
    decider: Decider = field(default_factory=Decider)

    def __call__(self, whole: MissionRequest, task: Task, model: str | None) -> MissionRequest:
        """Return the request of a task's mission, as `assign` does."""
        return self.assign(whole, task, TaskWish(model=model)).request

    def assign(self, whole: MissionRequest, task: Task, wish: TaskWish = NO_WISH) -> PreparedTask:
        """Return the request of a task's mission, with the task's role and the agent that the chooser names.

        Raises the errors of `RoleCatalogue.find` and `choose_for_request`, `UsageError` (`agent_unable`), and
        `ConfigError` if task, role and mission leave no area that may be changed.
        """
        config = self.resolved.config
        request = replace(
            whole,
            model=wish.model or whole.model,
            extra_checks=tuple(dict.fromkeys((*whole.extra_checks, *task.checks))),
            allow=meet_areas(whole.allow, task.areas),
            attempts=task.attempts or whole.attempts,
            seconds=task.seconds or whole.seconds,
        )
        inherits = not task.role and not task.agent and not task.needs
        role, file = (NO_ROLE, None) if inherits else self.roles.find(task.role or whole.role or DEVELOPER, config)
        context = self._context(whole, task, role, wish, inherits=inherits)
        choice = self.decider.choose(context)
        chosen = choice.chosen
        if chosen is None:
            raise _explain_refusal(config, choice, context, task)
        if not inherits:
            own = named_agent(config, chosen.agent)
            named = chosen.model if chosen.model in (wish.model, whole.model) else None
            require_models(config, named, own.model, *own.fallback, *chosen.fallback)
        same = Candidate(agent=whole.agent, model=request.model, fallback=whole.fallback)
        if file is not None or chosen != same:
            request = replace(
                request,
                agent=chosen.agent,
                command=named_agent(config, chosen.agent).command,
                model=chosen.model,
                fallback=chosen.fallback,
                why=render_reasons(choice.reasons),
            )
        if file is not None:
            request = replace(
                request,
                allow=meet_areas(request.allow, role.areas),
                role=role.name,
                role_text=self.artifacts.put(file.content, kind="role"),
                role_from=file.place,
            )
        return PreparedTask(request=request, chosen=choice.reasons)

    def _context(
        self, whole: MissionRequest, task: Task, role: Role, wish: TaskWish, *, inherits: bool
    ) -> ChoiceContext:
        """Gather the facts for the choice of a task's agent and model."""
        config = self.resolved.config
        source = CandidateSource(config=config, environ=self.environ, keys=self.keys)
        settings = () if inherits else standing_settings(config, role)
        is_same = role.name == whole.role
        recorded = ChoiceReason("recorded", source=whole.why) if whole.why else _BY_OPTION
        reasons = wish.chosen or (recorded,)
        by_role = None if is_same else next((each for each in settings if each.agent and not each.general), None)
        fixed = FixedChoice(model=wish.model)
        # Needs come before the settings of the role, and before an agent that a person named for the whole run.
        if wish.agent or task.agent:
            why = ChoiceReason("retry" if wish.agent else "plan", wish.agent or task.agent)
            fixed = replace(fixed, agent=why.subject, reasons=(why,))
        elif by_role is not None and not task.needs:
            why = replace(by_role.reason, subject=by_role.agent or "")
            fixed = replace(fixed, agent=why.subject, reasons=(why,))
        elif "agent" in whole.named and not task.needs:
            fixed = replace(fixed, agent=whole.agent, reasons=reasons)
        names = (fixed.agent,) if fixed.agent else dict.fromkeys((whole.agent, *config.agents))
        if inherits or task.needs:  # an unknown agent offers nothing, and whoever opens one refuses it
            agents = [AgentFacts.of(config, name) for name in names]
        else:
            require_models(config, fixed.model)
            agents = [source.agent(name) for name in names]
        able = [each for each in agents if fixed.agent or (task.needs and {*task.needs} <= {*each.offers})]
        return ChoiceContext(
            moment="task",
            candidates=source.find(
                agents,
                fixed=fixed,
                settings=settings,
                current=whole.model,
                detects=any(needs_detection(each, fixed, settings, whole.model) for each in able),
            ),
            fixed=fixed,
            settings=settings,
            needs=task.needs,
            current=Candidate(agent=whole.agent, model=whole.model, fallback=whole.fallback),
            current_reasons=reasons,
            current_named=whole.named,
            inherits=inherits,
            same_role=is_same,
            tried=tuple(TriedCandidate(candidate=Candidate(agent=name)) for name in sorted(wish.avoid)),
        )


def _explain_refusal(config: Config, choice: Choice, context: ChoiceContext, task: Task) -> UsageError:
    """Return the error for a task without a choice."""
    reason = choice.reasons[0]
    if reason.code != "unable":
        return explain_refusal(config, choice, context, shutil.which)
    needs = ", ".join(task.needs)
    who = f"agent {reason.subject!r} does not offer" if reason.subject else "no agent offers"
    hint = f"add offers = {list(task.needs)} to the [agents.NAME] that has it, or leave out 'needs'"
    return UsageError(f"{who} all that it needs: {needs}", code="agent_unable", hint=hint)


class PlanCheck(Struct, frozen=True, kw_only=True):
    """Checks, before any work, that an agent can do each task of a plan.

    `require_ready` returns if an agent can be started with models.
    """

    assigner: TaskAssigner
    require_ready: Callable[[str, tuple[str, ...]], None]

    def __call__(self, whole: MissionRequest, plan: Plan) -> None:
        """Return if an agent can do each task and each review; raise as `check_task`, and `UsageError`."""
        for member in plan.team:  # agents are told that they may delegate parts to each of these roles
            with _naming_errors("team"):
                self.assigner.roles.find(member.role, self.assigner.resolved.config)
        known: set[object] = set()
        for task in plan.tasks:
            who = (task.role, task.agent, task.models, task.areas, task.needs, task.make, task.change, task.delete)
            if who not in known:
                known.add(who)
                self.check_task(whole, task)
            for name in task.reviewers:
                if name in known:
                    continue
                known.add(name)
                member = plan.member(name)
                reviewing = Task(id=task.id, text="", role=name, agent=member.agent, models=member.models)
                self.check_task(whole, reviewing)
                role, _ = self.assigner.roles.find(name, self.assigner.resolved.config)
                if role.writes and role.must_add != "failing_test":
                    message = (
                        f"task {task.id!r}: the role {name!r} cannot review: it changes the files that it reviews"
                    )
                    hint = (
                        "name a role that only reads, or one that adds a failing test, such as reviewer or tester"
                    )
                    raise UsageError(message, hint=hint)

    def check_task(self, whole: MissionRequest, task: Task) -> None:
        """Return if an agent can do a task; raise the errors of `TaskAssigner`, with the task's id."""
        for model in task.models or (None,):
            with _naming_errors(f"task {task.id}"):
                request = self.assigner(whole, task, model)
                self.require_ready(
                    request.agent, (*((request.model,) if request.model else ()), *request.fallback)
                )
                paths = (*task.make, *task.change, *task.delete)
                if paths:
                    # Imported here: most missions have no plan.
                    from chargehand.missions.plan_documents import outside_areas

                    name = task.role or request.role
                    if name and not self.assigner.roles.find(name, self.assigner.resolved.config)[0].writes:
                        raise UsageError(
                            f"the role {name!r} only reads, and it is to change {paths[0]!r}",
                            code="plan_invalid",
                            hint="give it another role, or leave out 'make', 'change' and 'delete'",
                        )
                    outside = outside_areas(task, request.allow)
                    if outside is not None:
                        raise UsageError(
                            f"it is to {outside}, and may only change {', '.join(map(repr, request.allow))}",
                            code="plan_invalid",
                            hint="allow it (--allow, or the areas of its role), or leave it out",
                        )


@contextlib.contextmanager
def _naming_errors(what: str) -> Iterator[None]:
    """Prefix errors raised in the block with the name of a part of a plan."""
    try:
        yield
    except ChargehandError as error:
        error.message = f"{what}: {error.message}"
        error.args = (error.message,)
        raise
