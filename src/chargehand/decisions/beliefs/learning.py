"""Learning of a network's tables from cases: Dirichlet updates (Beta for two states), and expected counts.

Spiegelhalter and Lauritzen, Sequential updating of conditional probabilities on directed graphical structures,
1990.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.formats import LearningCase
from chargehand.decisions.beliefs.inference import Evidence, Floats, JunctionTree
from chargehand.decisions.beliefs.network import BeliefNetwork, BeliefNode, build_network

# A row of a table without counts weighs as much as so many cases.
TABLE_WEIGHT = 10.0
_MOST_ROUNDS = 50
# Rounds end when no probability moves by more.
_CONVERGED = 1e-6
_MOST_PATTERNS = 2_000


class LearnedNetwork(Struct, frozen=True, kw_only=True):
    """The new version; `incomplete` of the `cases` had unobserved nodes, and took `rounds` of expectation."""

    network: BeliefNetwork
    cases: int
    incomplete: int
    rounds: int


def learn_cases(network: BeliefNetwork, cases: Sequence[LearningCase]) -> LearnedNetwork:
    """Return the version of a network after cases that `read_cases` accepted; `network` does not change.

    A complete case adds 1 to one count of each node. An incomplete one adds its expected counts under the new
    tables, which are computed by expectation maximisation from the old ones. Raises `UsageError` (`cases_invalid`)
    for a case that the network considers impossible, or too many different incomplete cases.
    """
    nodes = {node.name: node for node in network.nodes}
    counts = {name: _prior_counts(node) for name, node in nodes.items()}
    partial: Counter[frozenset[tuple[str, str]]] = Counter()
    lines: dict[frozenset[tuple[str, str]], int] = {}
    for case in cases:
        if len(case.states) == len(nodes):
            _add_complete(counts, nodes, case)
        else:
            pattern = frozenset(case.states.items())
            partial[pattern] += 1
            lines.setdefault(pattern, case.line)
    if len(partial) > _MOST_PATTERNS:
        raise _impossible(f"the file has {len(partial)} different incomplete cases, more than {_MOST_PATTERNS}")
    current, rounds = _replace_counts(network, counts), 0
    if partial:
        tree = JunctionTree(network)
        evidence = {pattern: _as_evidence(nodes, pattern) for pattern in partial}
        for rounds in range(1, _MOST_ROUNDS + 1):  # noqa: B007 - the number of rounds is part of the result
            tree = tree.replace_tables(current)
            expected = {name: table.copy() for name, table in counts.items()}
            for pattern, times in partial.items():
                _add_expected(expected, tree, evidence[pattern], times, lines[pattern])
            former, current = current, _replace_counts(network, expected)
            if _largest_move(former, current) <= _CONVERGED:
                break
    return LearnedNetwork(network=current, cases=len(cases), incomplete=sum(partial.values()), rounds=rounds)


def _prior_counts(node: BeliefNode) -> Floats:
    return np.array(node.counts) if node.counts else np.array(node.table) * TABLE_WEIGHT


def _add_complete(counts: Mapping[str, Floats], nodes: Mapping[str, BeliefNode], case: LearningCase) -> None:
    for name, node in nodes.items():
        row = 0
        for parent in node.parents:
            states = nodes[parent].states
            row = row * len(states) + states.index(case.states[parent])
        column = node.states.index(case.states[name])
        if counts[name][row, column] == 0:
            raise _impossible(
                f"line {case.line}: the network gives {name}={case.states[name]} the probability 0 in this case"
            )
        counts[name][row, column] += 1


def _add_expected(
    counts: Mapping[str, Floats], tree: JunctionTree, evidence: Evidence, times: int, line: int
) -> None:
    try:
        beliefs = tree.calibrate(evidence)
    except UsageError as error:
        raise _impossible(f"line {line}: the network gives this case the probability 0") from error
    for name, table in counts.items():
        table += times * beliefs.family(name).reshape(table.shape)


def _as_evidence(nodes: Mapping[str, BeliefNode], pattern: frozenset[tuple[str, str]]) -> Evidence:
    return {name: [float(each == state) for each in nodes[name].states] for name, state in pattern}


def _replace_counts(network: BeliefNetwork, counts: Mapping[str, Floats]) -> BeliefNetwork:
    nodes = [replace(node, counts=tuple(map(tuple, counts[node.name].tolist()))) for node in network.nodes]
    return build_network(nodes, note=network.note, parent=network.version)


def _largest_move(before: BeliefNetwork, after: BeliefNetwork) -> float:
    moves = (
        np.abs(np.array(old.table) - np.array(new.table)).max()
        for old, new in zip(before.nodes, after.nodes, strict=True)
    )
    return float(max(moves))


def _impossible(message: str) -> UsageError:
    hint = "correct the case or the network's zeros, or split the file; nothing was learned"
    return UsageError(message, code="cases_invalid", hint=hint)
