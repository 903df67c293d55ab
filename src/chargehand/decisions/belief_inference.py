"""Inference and learning for other packages; loads numpy."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.decisions.beliefs.inference import Evidence as Evidence
from chargehand.decisions.beliefs.inference import Posterior as Posterior
from chargehand.decisions.beliefs.inference import QueryCache
from chargehand.decisions.beliefs.learning import learn_cases as learn_cases
from chargehand.decisions.beliefs.network import BeliefNetwork

# One for the process: its keys are digests of whole versions, so that no answer becomes stale.
_CACHE = QueryCache()


def query_network(network: BeliefNetwork, targets: Sequence[str], evidence: Evidence) -> Posterior:
    """Return the joint distribution of nodes given evidence, cached by the network's version.

    Raises `NotFoundError` for an unknown node; `UsageError`: `evidence_invalid`, `evidence_impossible`,
    `network_too_large`.
    """
    return _CACHE.query(network, targets, evidence)
