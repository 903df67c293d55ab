"""The gates of a tree, and the areas that a mission may change."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from chargehand.checks.areas import Areas
from chargehand.checks.detection import detect_checks
from chargehand.checks.execution import CheckPlan
from chargehand.core.records import Base, MissionRequest
from chargehand.missions.sandboxes.packages import installed_modules
from chargehand.missions.sandboxes.provisioning import BaseEnvironment
from chargehand.missions.services import DepotReader, Services

OUTSIDE = "outside: "
"""The prefix of an outside check's name."""


class Gates(Struct, frozen=True, kw_only=True):
    """The gates of a tree: commands, acceptance files (artifact id, path), and whether no checks are wanted.

    `on_base` are the commands of `plan` that judge the base too, and a tree with the base's tests: all except
    those of `tasks` whose work is not in the base. `outside` are the checks that run in a separate sandbox, with
    their own files. `typed` are the commands that a person gave with the mission.
    """

    plan: CheckPlan
    on_base: CheckPlan
    outside: CheckPlan
    acceptance: tuple[tuple[str, str], ...]
    explicit_none: bool
    typed: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()

    @property
    def commands(self) -> tuple[str, ...]:
        """All commands, wherever they run."""
        return (*self.plan.commands, *self.outside.commands)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checks in a verdict, without the runs with the base's tests."""
        return (*self.plan.commands, *(f"{OUTSIDE}{command}" for command in self.outside.commands))

    @property
    def checks_key(self) -> str:
        """A text that is equal for gates whose checks judge a tree alike."""
        return "/".join((self.plan.digest(), *(f"{name}:{path}" for name, path in self.acceptance)))

    def with_tasks(self, checks: Collection[str], *, in_base: Collection[str] = ()) -> Gates:
        """Return the gates with the checks of more tasks; those `in_base` must also pass on the base.

        Their order does not depend on the order of merges: a verdict is stored under its commands in their order.
        """
        first = tuple(each for each in self.plan.commands if each not in self.tasks)
        added = tuple(sorted({*self.tasks, *checks} - {*first}))
        known = tuple(each for each in added if each in in_base or each in self.on_base.commands)
        return replace(
            self,
            plan=replace(self.plan, commands=(*first, *added)),
            on_base=replace(self.on_base, commands=(*first, *known)),
            typed=self.typed | {*added},
            tasks=added,
        )


def find_gates(services: Services, base: Base, request: MissionRequest) -> Gates:
    """Return the gates: the configured commands, else the detected ones, plus the added ones."""
    configured = services.config.project.checks
    if request.only_checks is not None:
        commands = request.only_checks
    elif configured is not None:
        commands = configured
    else:
        commands = detect_checks(DepotReader(services.depot), base.tree, request.checks_directory).commands
    added = tuple(check for check in request.extra_checks if check not in commands)
    plan = CheckPlan(
        commands=(*commands, *added),
        seconds_each=services.config.limits.check_time,
        acceptance=request.check_files,
        directory=request.checks_directory,
    )
    outside = CheckPlan(
        commands=services.config.project.outside_checks,
        seconds_each=services.config.limits.check_time,
        acceptance=request.outside_files,
        directory=request.checks_directory,
    )
    typed = frozenset((*(request.only_checks or ()), *request.extra_checks, *request.outside_checks))
    none_wanted = request.only_checks is None and configured == () and not added
    return Gates(
        plan=plan,
        on_base=plan,
        outside=outside,
        acceptance=request.check_files,
        explicit_none=none_wanted,
        typed=typed,
    )


def areas_of(
    services: Services, request: MissionRequest, gates: Gates, environment: BaseEnvironment | None = None
) -> Areas:
    """Return the mission's areas: the project's, narrowed by the request.

    Without the checks' `environment`, the names of installed packages are unknown.
    """
    project = services.config.project
    return Areas(
        allow=request.allow or project.allow,  # the request's is already met with the project's
        forbid=(*project.forbid, *request.forbid),
        protect=project.protect,
        commands=gates.plan.commands,
        directory=gates.plan.directory,
        outside=gates.outside.commands,
        installed=installed_modules(environment.layer if environment else None),
        acceptance=tuple(path for _, path in gates.acceptance),
    )
