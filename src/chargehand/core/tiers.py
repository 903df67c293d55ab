"""The records of a choice of tier: what it was made from, what was considered, what came of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

TierName = Literal["none", "process", "container", "vm"]
TIERS: tuple[TierName, ...] = ("none", "process", "container", "vm")
"""From the weakest to the strongest: `vm` has a kernel of its own, `container` the engine's walls around ours."""


class TierFacts(Struct, frozen=True, kw_only=True):
    """What is known before anything runs.

    `wish` is the tier that was named, `auto` where the facts are to decide. `trusted`: a person trusts the
    repository's own file exactly as it is (`project trust`), so never one that was not seen before. `network`: its
    sandboxes may reach hosts. `documentation`: it may change documentation and nothing else.
    """

    wish: str
    trusted: bool
    network: bool
    documentation: bool


class TierCandidate(Struct, frozen=True, kw_only=True):
    """One tier as it was considered: `offered` is `None` where it was not tried, `detail` says why so."""

    tier: TierName
    offered: bool | None
    detail: str
    mend: str = ""


class TierChoice(Struct, frozen=True, kw_only=True):
    """The tier that is taken, the least one that the facts ask for, the reason in words, and all candidates."""

    tier: TierName
    needed: TierName
    reason: str
    facts: TierFacts
    candidates: tuple[TierCandidate, ...] = ()
