"""Assigns the tasks of a plan to agents and models, with the areas they may change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import DEVELOPER, Role
from chargehand.app.selection.agents import named_agent
from chargehand.app.selection.choice import (
    WITHOUT_MODELS,
    RoleSetting,
    assigned_model,
    choose_agent,
    role_settings,
    specific_settings,
)
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.configuration.areas import meet_areas
from chargehand.configuration.records import ResolvedConfig
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.core.plans import Plan, Task
from chargehand.core.ports import ArtifactSink, KeySource
from chargehand.core.records import MissionRequest


class TaskAssigner(Struct, frozen=True, kw_only=True):
    """Derives the request of a task from that of the whole mission; the current role file's content is stored."""

    resolved: ResolvedConfig
    roles: RoleCatalogue
    environ: Mapping[str, str]
    keys: KeySource
    artifacts: ArtifactSink

    def __call__(
        self, whole: MissionRequest, task: Task, model: str | None, avoid: Collection[str] = ()
    ) -> MissionRequest:
        """Return the request of a task's mission, with the task's role and agent, or those of the whole mission.

        A task with needs goes to its own agent, or to one that announces them all, preferably not one in `avoid`,
        which lost its announced capabilities. Raises the errors of `RoleCatalogue.find` and `choose_agent`, and
        `ConfigError` if task, role and mission leave no area that may be changed.
        """
        config = self.resolved.config
        request = replace(
            whole,
            model=model or whole.model,
            extra_checks=tuple(dict.fromkeys((*whole.extra_checks, *task.checks))),
            allow=meet_areas(whole.allow, task.areas),
            attempts=task.attempts or whole.attempts,
            seconds=task.seconds or whole.seconds,
        )
        if not task.role and not task.agent and not task.needs:
            return request
        role, file = self.roles.find(task.role or whole.role or DEVELOPER, config)
        # The choice for the whole mission already considered the settings of its own role, after the command line.
        own = () if role.name == whole.role else specific_settings(config, role)
        by_role = next(((each.agent, each.where) for each in own if each.agent), None)
        named = (task.agent, "the plan") if task.agent else by_role or (whole.agent, whole.why or "--agent")
        if task.needs:
            named = self._able_agent(task, named[0], whole.agent, avoid), "what it needs"
        choice = choose_agent(
            config,
            self.environ,
            self.keys,
            agent=named[0],
            model=model or self._model_of_whole(whole, named[0], role, own),
            role=role,
            agent_from=named[1],
        )
        return replace(
            request,
            agent=choice.agent,
            command=named_agent(config, choice.agent).command,
            model=choice.model,
            fallback=choice.fallback,
            why=choice.why,
            allow=meet_areas(request.allow, role.areas),
            role=role.name,
            role_text=self.artifacts.put(file.content, kind="role"),
            role_from=file.place,
        )

    def _able_agent(self, task: Task, first: str, second: str, avoid: Collection[str]) -> str:
        """Return an agent that announces everything a task needs: one in `avoid` only if there is no other.

        Raises `UsageError` (`agent_unable`).
        """
        agents = self.resolved.config.agents
        wanted = (task.agent,) if task.agent else tuple(dict.fromkeys((first, second, *agents)))
        able = [name for name in wanted if name in agents and {*task.needs} <= {*agents[name].offers}]
        if able:
            return next((name for name in able if name not in avoid), able[0])
        needs = ", ".join(task.needs)
        who = f"agent {task.agent!r} does not offer" if task.agent else "no agent offers"
        hint = f"add offers = {list(task.needs)} to the [agents.NAME] that has it, or leave out 'needs'"
        raise UsageError(f"{who} all that it needs: {needs}", code="agent_unable", hint=hint)

    def _model_of_whole(
        self, whole: MissionRequest, agent: str, role: Role, own: Sequence[RoleSetting]
    ) -> str | None:
        """Return the whole mission's model if it applies to a task in a role, `None` if other settings decide.

        The role's model and that of the task's own agent take precedence, and so does `[roles.default]` unless a
        person named the model for the run. A configured model that no setting names never replaces it.
        """
        config = self.resolved.config
        named = named_agent(config, agent)
        if assigned_model(own) is not None or (agent != whole.agent and named.model):
            return None
        if "model" in whole.named or (agent == whole.agent and role.name == whole.role):
            return whole.model
        if named.kind in WITHOUT_MODELS or named.model or assigned_model(role_settings(config, role)):
            return None
        return whole.model


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
