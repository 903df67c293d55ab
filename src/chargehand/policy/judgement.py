"""Judges one action by all rules."""

from __future__ import annotations

from typing import Any

from chargehand.core.errors import RefusedError
from chargehand.policy._requests import Request, requests_of
from chargehand.policy.actions import ORDER, Action, Effect, Judgement, Part, Surroundings
from chargehand.policy.rules import Match, Rules

# The rule named if no rule matches.
NO_RULE = "none"
# The rule named if a rule could not be evaluated.
BROKEN = "rule-error"


def judge(action: Action, context: Surroundings, rules: Rules) -> Judgement:
    """Return whether an action is allowed, needs approval or is denied, by which rule and why; changes nothing.

    An action is split into commands, files and hosts, each judged by all rules: deny is stronger than ask, ask
    than allow, and a request that no rule matches is denied. Raises `ConfigError` if the rules are invalid.
    """
    requests = list(requests_of(action, context))
    matches = rules.matching(
        [
            {
                "principal": {"type": "Agent", "id": context.who},
                "action": {"type": "Action", "id": request.action},
                "resource": {"type": request.resource[0], "id": _plain(request.resource[1])},
                "context": {key: _plain(value) for key, value in request.facts.items()},
            }
            for request in requests
        ]
    )
    parts = tuple(_judge_part(request, match) for request, match in zip(requests, matches, strict=True))
    if not parts:
        return Judgement(effect="allow", rule="nothing", reason="it runs nothing", subject="")
    # the first of those that are equally strong; among allowed ones, first a part that a person's rule allowed,
    # then a part that was not inspected
    worst = max(parts, key=lambda part: (ORDER[part.effect], bool(part.overridden), part.kind == "shell"))
    subject = f"{worst.text} ({worst.where})" if worst.where else worst.text
    return Judgement(effect=worst.effect, rule=worst.rule, reason=worst.reason, subject=subject, parts=parts)


def denied(what: str, judgement: Judgement) -> RefusedError:
    """Return the error (`policy_denied`) of an action that may not happen; `what` names its kind.

    An action that needs approval is denied if no person can be asked.
    """
    verb = "is denied" if judgement.effect == "deny" else "needs approval, which cannot be given here,"
    return RefusedError(
        f"{what}: {judgement.subject[:300]!r} {verb} by rule {judgement.rule}: {judgement.reason}",
        code="policy_denied",
        hint=f'chargehand policy allow {judgement.rule} --reason "…" sets a shipped rule aside; '
        "`chargehand project trust` trusts a repository's own setup and checks",
    )


def _plain(value: Any) -> Any:
    # Cedar accepts only UTF-8: other bytes of a name, which Python keeps as surrogates, are escaped.
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _judge_part(request: Request, match: Match) -> Part:
    """Judge one request by the matching rules: overrides set rules aside, then the strongest effect counts."""
    matching = {rule.id for rule in match.rules}
    overriding = [rule for rule in match.rules if rule.overrides in matching]
    set_aside = tuple(dict.fromkeys(rule.overrides for rule in overriding))
    left = [
        rule
        for rule in match.rules
        if rule.id not in set_aside and (not rule.overrides or rule in overriding)
    ]  # fmt: skip
    effect: Effect
    if match.errors:  # Cedar skips a rule that it cannot evaluate: it might be a denying one
        effect, name, reason = "deny", BROKEN, f"a rule could not be evaluated: {match.errors[0]}"
    # A repository's rules only restrict: they allow nothing themselves, so another rule must allow the request.
    elif all(rule.origin == "repository" for rule in left):
        effect, name, reason = "deny", NO_RULE, "no rule allows it"
    else:
        effect = max((rule.effect for rule in left), key=ORDER.__getitem__)
        strongest = [rule for rule in left if rule.effect == effect]
        # Among rules that allow, name the one that set another aside.
        named = next((rule for rule in strongest if rule in overriding), strongest[0])
        name, reason = named.id, named.reason
    return Part(
        kind=request.action,
        text=request.text,
        effect=effect,
        rule=name,
        reason=reason,
        via=request.via,
        where=request.where,
        overridden=set_aside,
    )
