"""Evidence as a person writes it."""

from __future__ import annotations

from collections.abc import Sequence

from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.network import BeliefNetwork, BeliefNode


def read_evidence(network: BeliefNetwork, given: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the likelihood of each state for each given node.

    `NODE=STATE` is an observed state. `NODE=STATE:LIKELIHOOD,...` is soft (virtual) evidence: the likelihood of an
    observation in each of the node's states; only their ratios count. Raises `UsageError` (`evidence_invalid`).
    """
    evidence: dict[str, tuple[float, ...]] = {}
    for text in given:
        # Names of nodes and states may contain the separators, so both are compared with the network's.
        named = [node for node in network.nodes if text.startswith(f"{node.name}=")]
        if not named:
            raise _invalid(f"{text!r} does not begin with a node of the network and '='")
        node = max(named, key=lambda each: len(each.name))
        if node.name in evidence:
            raise _invalid(f"{text!r}: {node.name!r} is given twice")
        value = text[len(node.name) + 1 :]
        if value in node.states:
            evidence[node.name] = tuple(float(state == value) for state in node.states)
        else:
            evidence[node.name] = _read_likelihoods(text, value, node)
    return evidence


def _read_likelihoods(text: str, value: str, node: BeliefNode) -> tuple[float, ...]:
    known = ", ".join(map(repr, node.states))
    likelihoods: dict[str, float] = {}
    rest, comma = value, ","
    while comma:
        named = [state for state in node.states if rest.startswith(f"{state}:")]
        state = max(named, key=len, default="")
        if not named or state in likelihoods:
            raise _invalid(f"{text!r}: {rest!r} does not begin with another state of {node.name!r}: {known}")
        number, comma, rest = rest[len(state) + 1 :].partition(",")
        try:
            likelihoods[state] = float(number)
        except ValueError:
            raise _invalid(f"{text!r}: {number!r} is not a number") from None
    missing = [state for state in node.states if state not in likelihoods]
    if missing:
        raise _invalid(f"{text!r}: the likelihood of {missing[0]!r} is missing")
    return tuple(likelihoods[state] for state in node.states)


def _invalid(message: str) -> UsageError:
    hint = "give NODE=STATE, or NODE=STATE:LIKELIHOOD,... with each state of the node"
    return UsageError(message, code="evidence_invalid", hint=hint)
