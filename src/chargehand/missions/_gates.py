"""What a mission's trees must pass, and which areas it may change."""

from __future__ import annotations

from chargehand.checks.areas import Areas
from chargehand.checks.detection import detect_checks
from chargehand.checks.execution import CheckPlan
from chargehand.core.records import Base, MissionRequest
from chargehand.missions._reader import DepotReader
from chargehand.missions._services import Services
from chargehand.missions._validate import Gates


def find_gates(services: Services, base: Base, request: MissionRequest) -> Gates:
    """Return what a tree must pass: the configured commands, else the detected ones, and what was added."""
    configured = services.config.project.checks
    if request.only_checks is not None:
        commands = request.only_checks
    elif configured is not None:
        commands = configured
    else:
        commands = tuple(detect_checks(DepotReader(services.depot), base.tree).commands)
    added = tuple(check for check in request.extra_checks if check not in commands)
    plan = CheckPlan(
        commands=(*commands, *added),
        seconds_each=services.config.limits.check_time,
        acceptance=request.check_files,
    )
    typed = frozenset((*(request.only_checks or ()), *request.extra_checks))
    none_wanted = request.only_checks is None and configured == () and not added
    return Gates(plan=plan, acceptance=request.check_files, explicit_none=none_wanted, typed=typed)


def areas_of(services: Services, request: MissionRequest, gates: Gates) -> Areas:
    """Return what the mission may change: the project's areas, narrowed by the request."""
    project = services.config.project
    return Areas(
        allow=request.allow or project.allow,  # the request's is already met with the project's
        forbid=(*project.forbid, *request.forbid),
        protect=project.protect,
        commands=gates.plan.commands,
    )
