"""Rights on the server: a pure function of an action, a role and the scopes of a token."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, get_args

from msgspec import Struct

from chargehand.core.records import QuestionKind

AccountRole = Literal["viewer", "operator", "admin"]
AccessScope = Literal["read", "steer", "decide", "administer"]
# The lowest role whose accounts need a second factor.
FactorRole = Literal["none", "viewer", "operator", "admin"]
# Each role has the rights of those before it.
ROLES: tuple[AccountRole, ...] = get_args(AccountRole)
SCOPES: tuple[AccessScope, ...] = get_args(AccessScope)
_SCOPES_OF_ROLE: Mapping[AccountRole, tuple[AccessScope, ...]] = {
    "viewer": ("read",),
    "operator": ("read", "steer", "decide"),
    "admin": SCOPES,
}
_FAILURES_BEFORE_LOCK = 5
_FIRST_LOCK_SECONDS, _LONGEST_LOCK_SECONDS = 60.0, 900.0


class AccessRule(NamedTuple):
    """The requirements of an action: at least this role, and exactly this scope."""

    role: AccountRole
    scope: AccessScope


class AccessJudgement(Struct, frozen=True, kw_only=True):
    """The decision on an action; `reason` gives its requirement and the missing right."""

    allowed: bool
    reason: str


_ACTIONS: Mapping[AccessRule, str] = {
    AccessRule("viewer", "read"): "session.show session.close mission.list mission.show mission.events "
    "mission.transcript mission.plan mission.report mission.diff mission.review mission.checkpoints "
    "mission.artifacts mission.output artifact.show event.follow project.list agent.list model.list "
    "stats.show system.show question.list action.list action.log policy.test token.own.list "
    "knowledge.show memory.show factor.own.list",
    # It reads all of the log and every stored file: work for the machine, without revealing anything.
    AccessRule("operator", "read"): "audit.verify",
    AccessRule("operator", "steer"): "mission.start mission.pause mission.resume mission.cancel mission.send "
    "mission.answer mission.fork mission.continue mission.restore mission.replan mission.look action.cancel "
    "agent.probe model.probe alert.test memory.change",
    AccessRule("operator", "decide"): "mission.approve mission.promote mission.discard mission.rollback "
    "mission.feedback action.answer",
    # Notes on a change belong to one person and decide nothing; a token of a viewer cannot have the scope.
    AccessRule("viewer", "decide"): "review.decide",
    # A person's account, whatever the role; of tokens, only those with the scope to administer can make others.
    AccessRule("viewer", "administer"): "token.own.create token.own.revoke password.own.set "
    "factor.own.add factor.own.remove",
    AccessRule("admin", "administer"): "user.list user.create user.role user.password user.disable "
    "user.enable user.remove user.link user.unlink factor.reset token.list token.create token.revoke config.show "
    "config.set secret.list secret.set project.trust policy.allow audit.export access.list store.check "
    "store.backup store.restore store.rebuild store.collect knowledge.import knowledge.update knowledge.remove",
}
# Actions that give or take rights, or reach every project: an account with a second factor shows a fresh code.
NEEDS_PROOF = frozenset(
    {
        *("user.create", "user.role", "user.password", "user.disable", "user.enable", "user.remove"),
        *("user.link", "user.unlink", "factor.reset", "factor.own.remove", "password.own.set"),
        *("token.own.create", "token.create", "config.set", "secret.set", "project.trust", "policy.allow"),
        *("store.restore", "store.rebuild"),
    }
)
# The actions of an account that has not yet added the second factor that its role needs.
ENROLMENT = frozenset(["session.show", "session.close", "factor.own.list", "factor.own.add"])
ACCESS_RULES: Mapping[str, AccessRule] = {
    action: rule for rule, actions in _ACTIONS.items() for action in actions.split()
}


def judge_access(action: str, role: str, scopes: Collection[str]) -> AccessJudgement:
    """Return whether an account with a role may do an action with these scopes; changes nothing.

    A logged-in person has all `SCOPES`, so that only the role counts; a token has its own scopes. An action
    without a rule, and an unknown role, is denied.
    """
    rule = ACCESS_RULES.get(action)
    if rule is None:
        return AccessJudgement(allowed=False, reason=f"no rule allows {action!r}")
    if role not in ROLES:
        return AccessJudgement(allowed=False, reason=f"{role!r} is not a role")
    if ROLES.index(role) < ROLES.index(rule.role):
        return AccessJudgement(allowed=False, reason=f"{action} needs the role {rule.role}, yours is {role}")
    if rule.scope not in scopes:
        return AccessJudgement(allowed=False, reason=f"{action} needs a token with the scope {rule.scope}")
    return AccessJudgement(allowed=True, reason=f"{action} is allowed from the role {rule.role} on")


def scopes_of_role(role: AccountRole) -> tuple[AccessScope, ...]:
    """Return the scopes that a token of an account with this role can have."""
    return _SCOPES_OF_ROLE[role]


def answer_action(kind: QuestionKind) -> str:
    """Return the action of an answer: permitting or deciding something needs more rights than clarifying it."""
    return "mission.answer" if kind == "clarification" else "mission.approve"


def lock_seconds(failures: int) -> float:
    """Return how long log-in is locked after consecutive failures: 0 up to four, then 1 to 15 minutes."""
    if failures < _FAILURES_BEFORE_LOCK:
        return 0.0
    # The exponent is bounded, so that a count from a damaged file costs no time.
    doubled: float = _FIRST_LOCK_SECONDS * 2 ** min(failures - _FAILURES_BEFORE_LOCK, 10)
    return min(doubled, _LONGEST_LOCK_SECONDS)
