"""The mapping of events to the seven steps of a mission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from chargehand.core import attempt_events as w
from chargehand.core import mission_events as p
from chargehand.core import plan_events as c
from chargehand.core.events import Payload

MissionStep = Literal["analyse", "environment", "repository", "selection", "execution", "validation", "promotion"]
# The steps, in order.
MISSION_STEPS: tuple[MissionStep, ...] = get_args(MissionStep)

_BY_TYPE: Mapping[type[Payload], MissionStep] = {
    p.MissionCreated: "analyse",
    p.BaseResolved: "repository",
    **dict.fromkeys((c.PlanWanted, c.PlannerStarted, c.PlanProposed, c.PlanMade), "analyse"),
    c.TaskStarted: "selection",
    c.TaskHeld: "selection",
    c.TaskAllowed: "selection",
    c.ReviewStarted: "validation",
    c.TaskReviewed: "validation",
    c.TaskNoted: "promotion",
    c.TaskDelegated: "promotion",
    c.TaskMerged: "promotion",
    c.TaskReturned: "promotion",
    c.TaskEnded: "promotion",
    w.TierChosen: "environment",
    p.AgentSelected: "selection",
    p.RetryDeclined: "selection",
    p.LessonsRecalled: "selection",
    w.RoleChosen: "selection",
    w.BreakerChanged: "selection",
    w.AttemptStarted: "execution",
    w.AttemptResumed: "execution",
    w.ActionJudged: "execution",
    w.CommandFinished: "execution",
    w.ModelCalled: "execution",
    w.SecretUsed: "execution",
    w.ReplayDiverged: "execution",
    w.MessageDelivered: "execution",
    w.MessageAcknowledged: "execution",
    w.MessageReceived: "execution",
    w.MessageUndelivered: "promotion",
    w.BudgetAlert: "execution",
    w.CheckpointMade: "execution",
    w.FilesSeen: "execution",
    w.StateCaptured: "execution",
    w.ReportMade: "validation",
    p.ChangesReverted: "validation",
    p.AttemptFinished: "validation",
    p.MergeConflicted: "promotion",
    p.QuestionExpired: "execution",
    p.ApprovalGiven: "promotion",
    p.PromotionPrepared: "promotion",
    p.PromotionDone: "promotion",
    p.HeadSigned: "promotion",
    p.ExportChanged: "promotion",
    p.ApplyChanged: "promotion",
    p.DeliveryChanged: "promotion",
    p.ForgeActed: "promotion",
    p.PromotionFollowed: "promotion",
    p.MissionRolledBack: "promotion",
    p.MissionFinished: "promotion",
}
_BY_PURPOSE: Mapping[str, MissionStep] = {"setup": "environment", "checks": "validation", "agent": "execution"}
_BY_SCOPE: Mapping[str, MissionStep] = {"base": "repository", "attempt": "validation", "merged": "promotion"}
_BY_NAME: Mapping[str, MissionStep] = {
    "setup/detected": "environment",
    "verdict/base": "repository",
    "agent": "selection",
    "verdict/merged": "promotion",
}


def step_of(payload: Payload) -> MissionStep | None:
    """Return the step that an event belongs to; `None` for orders, waits, messages and manual actions."""
    match payload:
        case w.SandboxOpened() | w.SandboxClosed() | w.NetworkRequested():
            return _BY_PURPOSE.get(payload.purpose)
        case p.VerdictGiven():
            return _BY_SCOPE[payload.verdict.scope]
        case p.StepFinished():
            return _by_name(payload.step)
        case p.SetupDetected():
            return "environment"
        case p.QuestionAsked():
            return "promotion" if payload.question == p.PROMOTE else "execution"
        case w.ActionJudged(kind="setup"):
            return "environment"
        case w.ActionJudged(kind="check"):
            return "repository"
        case w.ActionJudged(attempt=""):
            return None
    return _BY_TYPE.get(type(payload))


def _by_name(step: str) -> MissionStep | None:
    """Return the step that a recorded step is part of."""
    if step in _BY_NAME:
        return _BY_NAME[step]
    match step.split("/"):
        case ["attempt", _, "work", *_]:
            return "execution"
        case ["attempt", _, "verdict"]:
            return "validation"
        case ["attempt", _, "agent"]:
            return "selection"
        case ["merge-verdict" | "merge", *_]:
            return "promotion"
    return None
