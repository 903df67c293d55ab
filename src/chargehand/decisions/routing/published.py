"""The prior that ships with the product, fitted to published outcomes of coding agents by `scripts/fit-prior`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files

from msgspec.structs import replace

from chargehand.core.codec import decode_as
from chargehand.core.text import late_pattern
from chargehand.decisions.routing.prior import ArmTally, PublishedPrior, add_prior, extend_prior
from chargehand.decisions.routing.records import RouterCandidate

_DATE = late_pattern(r"-(20\d{6}|20\d\d-\d\d-\d\d|latest)$")


@cache
def published_prior() -> PublishedPrior:
    """Return the shipped prior; its models have names as `model_key` returns."""
    return decode_as((files("chargehand.decisions.routing") / "published.json").read_bytes(), PublishedPrior)


@lru_cache(maxsize=8)
def _extended_prior(tallies: tuple[ArmTally, ...]) -> PublishedPrior:
    return extend_prior(published_prior(), [replace(each, model=model_key(each.model)) for each in tallies])


def add_published_prior(
    candidates: Sequence[RouterCandidate], tallies: tuple[ArmTally, ...] = ()
) -> tuple[RouterCandidate, ...]:
    """Return the candidates with the prior of published outcomes and further ones.

    One of an unknown model and family has none.
    """
    prior = _extended_prior(tallies) if tallies else published_prior()
    families = {candidate.family for candidate in _as_candidates(prior)}
    known = [replace(each, model=model_key(each.model)) for each in candidates]
    found = add_prior(prior, known)
    return tuple(
        replace(each, prior=with_prior.prior if with_prior.family in families else None, level=with_prior.level)
        for each, with_prior in zip(candidates, found, strict=True)
    )


def model_key(name: str) -> str:
    """Return a model's name without provider and date, in small letters with hyphens: `claude-opus-4-6`."""
    bare = re.split(r"[/:]", name.strip())[-1].lower()
    return _DATE.sub("", re.sub(r"[._ ]+", "-", bare))


def _as_candidates(prior: PublishedPrior) -> list[RouterCandidate]:
    return [RouterCandidate(id=each.model, agent=each.agent, model=each.model) for each in prior.arms]
