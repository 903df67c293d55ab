"""Which tier of sandbox a mission's sensitivity asks for; a pure function of facts and of what is offered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from chargehand.core.errors import TierUnavailableError
from chargehand.core.records import TIERS, TierCandidate, TierChoice, TierFacts, TierName
from chargehand.core.text import late_pattern

AUTO = "auto"
_DOCUMENTATION = late_pattern(
    r"/?(?:docs?|documentation|man)/[^.]*(?:\.(?:md|rst|adoc|txt))?|(?:.*/)?[^/]*\.(?:md|rst|adoc)|"
    r"/?(?:README|CHANGELOG)(?:\.\w+)?"
)
_WAY_OUT = "`chargehand project trust` trusts the repository, --sandbox NAME takes a weaker tier at your own risk"


def only_documentation(areas: Sequence[str]) -> bool:
    """Tell whether areas (patterns as in .gitignore, empty for all) hold documentation alone."""
    return bool(areas) and all(_DOCUMENTATION.fullmatch(area) for area in areas)


def needed_tier(facts: TierFacts) -> tuple[TierName, str]:
    """Return the least tier that the facts ask for, and why.

    Programs of a repository that nobody vouches for get walls of an engine around ours, or a kernel of their own
    where they can also reach hosts. A mission that may change documentation alone gets one step less: what it
    promotes runs nowhere.
    """
    if facts.trusted:
        return "process", "a person trusts the repository"
    # Process and container share the host's kernel: what can also reach hosts gets a kernel of its own.
    steps = 2 if facts.network else 1
    why = "the repository is not trusted yet" + (", and it may reach hosts" if facts.network else "")
    # Less, and never none: `docs/**` may hold a `conf.py` that a build runs.
    if facts.documentation:
        return TIERS[steps], f"{why}; but it may change documentation alone"
    return TIERS[steps + 1], why


def in_question(facts: TierFacts) -> tuple[TierName, ...]:
    """Return the tiers that may be taken, in the order in which they are tried: the least one first."""
    needed, _ = needed_tier(facts)
    return TIERS[TIERS.index(needed) :]


def choose_tier(facts: TierFacts, candidates: Sequence[TierCandidate]) -> TierChoice:
    """Return the tier to take, and why: a person's wish as it is, else the least one that is offered and enough.

    `candidates` are what was tried; one that is not among them counts as not offered. Raises
    `TierUnavailableError` that names what is missing: a weaker tier than needed is never taken.
    """
    needed, why = needed_tier(facts)
    weaker = [TierCandidate(tier=name, offered=None, detail="weaker than needed") for name in TIERS]
    considered = (*weaker[: TIERS.index(needed)], *candidates)
    # A tier that a person names is never exchanged; what `auto` would need stands beside it.
    if facts.wish != AUTO:
        wish: TierName = next(name for name in get_args(TierName) if name == facts.wish)
        more = "" if TIERS.index(wish) >= TIERS.index(needed) else f"; auto would need {needed}: {why}"
        known = {"": "the mission's configuration names it", "default": "it is the default"}
        by = known.get(facts.origin, "you chose it")
        return TierChoice(tier=wish, needed=needed, reason=f"{by}{more}", facts=facts)
    offered = {each.tier for each in candidates if each.offered}
    for name in in_question(facts):
        if name in offered:
            stronger = "" if name == needed else f"; {needed} is not available here, {name} is stronger"
            return TierChoice(
                tier=name, needed=needed, reason=f"{why}{stronger}", facts=facts, candidates=considered
            )
    tried = "; ".join(f"{each.tier}: {each.detail}" for each in candidates) or "nothing was tried"
    raise TierUnavailableError(
        f"this mission needs a sandbox of tier {needed!r} or stronger ({why}); none is available here: {tried}",
        hint="; ".join((*(each.mend for each in candidates if each.mend), _WAY_OUT)),
    )
