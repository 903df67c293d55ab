"""Chooses the sandbox tier for a mission's sensitivity; a pure function of facts and available tiers."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.core.errors import TierUnavailableError
from chargehand.core.records import TierCandidate, TierChoice, TierFacts, TierName
from chargehand.core.text import late_pattern

AUTO = "auto"
# The tiers that `auto` chooses among, from the weakest to the strongest: `vm` has its own kernel, `container` adds
# the engine's isolation to ours. The strength of an extension's tier is unknown: only a person chooses it.
TIERS: tuple[TierName, ...] = ("none", "process", "container", "vm")
_DOCUMENTATION = late_pattern(
    r"/?(?:docs?|documentation|man)/[^.]*(?:\.(?:md|rst|adoc|txt))?|(?:.*/)?[^/]*\.(?:md|rst|adoc)|"
    r"/?(?:README|CHANGELOG)(?:\.\w+)?"
)
_WAY_OUT = "`chargehand project trust` trusts the repository, --sandbox NAME takes a weaker tier at your own risk"


def only_documentation(areas: Sequence[str]) -> bool:
    """Return whether areas (patterns as in .gitignore, empty for all) contain only documentation."""
    return bool(areas) and all(_DOCUMENTATION.fullmatch(area) for area in areas)


def needed_tier(facts: TierFacts) -> tuple[TierName, str]:
    """Return the weakest tier that the facts permit, and the reason.

    Programs of an untrusted repository get the isolation of a container engine around ours, or a separate kernel
    if they can also reach hosts. A mission that may change only documentation gets one step less: its result runs
    nowhere.
    """
    if facts.trusted:
        return "process", "a person trusts the repository"
    # Process and container share the host's kernel: programs that can also reach hosts get a separate kernel.
    steps = 2 if facts.network else 1
    why = "the repository is not trusted yet" + (", and it may reach hosts" if facts.network else "")
    # Less, but never no step: `docs/**` may hold a `conf.py` that a build runs.
    if facts.documentation:
        return TIERS[steps], f"{why}; but it may change documentation alone"
    return TIERS[steps + 1], why


def in_question(facts: TierFacts) -> tuple[TierName, ...]:
    """Return the permitted tiers in the order in which they are tried: the weakest first."""
    needed, _ = needed_tier(facts)
    return TIERS[TIERS.index(needed) :]


def choose_tier(facts: TierFacts, candidates: Sequence[TierCandidate]) -> TierChoice:
    """Return the tier to take, and the reason: a person's wish unchanged, else the weakest sufficient offer.

    `candidates` are the tiers that were tried; a tier that is not among them counts as not offered. Raises
    `TierUnavailableError` that names the missing tier: a weaker tier than needed is never taken.
    """
    needed, why = needed_tier(facts)
    weaker = [TierCandidate(tier=name, offered=None, detail="weaker than needed") for name in TIERS]
    considered = (*weaker[: TIERS.index(needed)], *candidates)
    # A tier that a person names is never replaced; `needed` is what `auto` would take.
    if facts.wish != AUTO:
        by = facts.origin or "the mission's configuration"
        return TierChoice(tier=facts.wish, needed=needed, reason=by, facts=facts)
    offered = {each.tier for each in candidates if each.offered}
    for name in in_question(facts):
        if name in offered:
            stronger = "" if name == needed else f"; {needed} is not available here, {name} is stronger"
            return TierChoice(
                tier=name, needed=needed, reason=f"{why}{stronger}", facts=facts, candidates=considered
            )
    tried = "; ".join(f"{each.tier}: {each.detail}" for each in candidates) or "nothing was tried"
    raise TierUnavailableError(
        f"this mission needs a sandbox of tier {needed!r} or stronger ({why}), and none is here: {tried}",
        hint="; ".join((*(each.mend for each in candidates if each.mend), _WAY_OUT)),
    )
