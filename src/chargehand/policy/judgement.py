"""The judgement of one action by all rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chargehand.core.errors import RefusedError
from chargehand.policy._questions import Request, apart
from chargehand.policy.actions import ORDER, Action, Judgement, Part, Surroundings
from chargehand.policy.rules import Match, Rule, Rules

NO_RULE = "none"
"""The rule that is named where none matches."""
BROKEN = "rule-error"
"""The rule that is named where a rule could not be evaluated."""


def judge(action: Action, context: Surroundings, rules: Rules) -> Judgement:
    """Return whether an action is allowed, to be asked for, or denied, by which rule and why; changes nothing.

    An action is taken apart into commands, files and hosts, each judged by all rules: deny is stronger than ask,
    ask than allow, and what no rule knows is denied. Raises `ConfigError` where the rules are wrong.
    """
    requests = list(apart(action, context))
    matches = rules.matching([_cedar(request, context) for request in requests])
    parts = tuple(_part(request, match) for request, match in zip(requests, matches, strict=True))
    if not parts:
        return Judgement(effect="allow", rule="nothing", reason="it runs nothing", subject="")
    # the first of those that are equally strong; among allowed ones, what a person's own rule let pass, then what
    # was not looked into
    worst = max(parts, key=lambda part: (ORDER[part.effect], bool(part.overridden), part.kind == "shell"))
    subject = f"{worst.text} ({worst.where})" if worst.where else worst.text
    return Judgement(effect=worst.effect, rule=worst.rule, reason=worst.reason, subject=subject, parts=parts)


def denied(what: str, judgement: Judgement) -> RefusedError:
    """Return the error (`policy_denied`) of an action that may not happen; `what` names its kind.

    What is to be asked for is denied where nobody can be asked.
    """
    verb = "is denied" if judgement.effect == "deny" else "would have to be asked for, and nobody can be,"
    return RefusedError(
        f"{what}: {judgement.subject[:300]!r} {verb} by rule {judgement.rule}: {judgement.reason}",
        code="policy_denied",
        hint=f'chargehand policy allow {judgement.rule} --reason "…" sets a shipped rule aside; '
        "`chargehand project trust` vouches for a repository's own setup and checks",
    )


def _part(request: Request, match: Match) -> Part:
    effect, rule, reason, overridden = _combined(match)
    return Part(
        kind=request.action,
        text=request.text,
        effect=effect,
        rule=rule,
        reason=reason,
        via=request.via,
        where=request.where,
        overridden=overridden,
    )


def _cedar(request: Request, context: Surroundings) -> dict[str, Any]:
    kind, name = request.resource
    return {
        "principal": {"type": "Agent", "id": context.who},
        "action": {"type": "Action", "id": request.action},
        "resource": {"type": kind, "id": _text(name)},
        "context": {key: _fact(value) for key, value in request.facts.items()},
    }


def _fact(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    return [_text(each) for each in value] if isinstance(value, list) else value


def _text(text: str) -> str:
    """Return a text as Cedar takes it: bytes that are not UTF-8 are shown."""
    return text.encode("utf-8", "backslashreplace").decode()


def _combined(match: Match) -> tuple[Any, str, str, tuple[str, ...]]:
    """Return the effect of the rules that match: overrides set rules aside, then the strongest counts."""
    matching = {rule.id for rule in match.rules}
    overriding = [rule for rule in match.rules if rule.overrides in matching]
    set_aside = tuple(dict.fromkeys(rule.overrides for rule in overriding))
    counted = [rule for rule in match.rules if not rule.overrides or rule in overriding]
    left = [rule for rule in counted if rule.id not in set_aside]
    trusted = [rule for rule in left if rule.origin != "repository"]
    if match.errors:
        return "deny", BROKEN, f"a rule could not be evaluated: {match.errors[0]}", set_aside
    if not trusted:
        return "deny", NO_RULE, "no rule allows it", set_aside
    worst = _strongest(left, overriding if set_aside else ())
    return worst.effect, worst.id, worst.reason, set_aside


def _strongest(rules: Sequence[Rule], preferred: Sequence[Rule]) -> Rule:
    """Return the first of the strongest rules; among rules that allow, the one that overrode another is named."""
    strongest = max(ORDER[rule.effect] for rule in rules)
    found = [rule for rule in rules if ORDER[rule.effect] == strongest]
    return next((rule for rule in found if rule in preferred), found[0])
