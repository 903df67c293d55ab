"""Who works on the task of a plan, and what it may change."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import DEVELOPER
from chargehand.app.config.areas import meet_areas
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.selection.agents import named_agent
from chargehand.app.selection.choice import choose_agent
from chargehand.app.selection.roles import RoleCatalogue
from chargehand.core.plans import Task
from chargehand.core.ports import ArtifactSink, KeySource
from chargehand.core.records import MissionRequest


class TaskAssigner(Struct, frozen=True, kw_only=True):
    """Makes the request of a task out of that of the whole mission; the file of its role is kept as it is now."""

    resolved: ResolvedConfig
    roles: RoleCatalogue
    environ: Mapping[str, str]
    keys: KeySource
    artifacts: ArtifactSink

    def __call__(self, whole: MissionRequest, task: Task, model: str | None) -> MissionRequest:
        """Return what the mission of a task is asked: by the task's role and agent, else by those of the whole.

        Raises what `RoleCatalogue.find` and `choose_agent` do, and `ConfigError` where task, role and mission
        leave no area that may be changed.
        """
        request = replace(
            whole,
            model=model or whole.model,
            extra_checks=tuple(dict.fromkeys((*whole.extra_checks, *task.checks))),
            allow=meet_areas(whole.allow, task.areas),
            attempts=task.attempts or whole.attempts,
            seconds=task.seconds or whole.seconds,
        )
        if not task.role and not task.agent:
            return request
        config = self.resolved.config
        role, file = self.roles.find(task.role or whole.role or DEVELOPER, config)
        agent = task.agent or (None if role.agent else whole.agent)
        choice = choose_agent(config, self.environ, self.keys, agent=agent, model=model, role=role)
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
