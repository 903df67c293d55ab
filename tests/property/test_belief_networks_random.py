"""Random belief networks against the enumeration of all combinations of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.evidence import read_evidence
from chargehand.decisions.beliefs.formats import LearningCase, read_network, write_network
from chargehand.decisions.beliefs.inference import JunctionTree, QueryCache, infer
from chargehand.decisions.beliefs.learning import learn_cases
from chargehand.decisions.beliefs.network import BeliefNetwork, BeliefNode, build_network

_T = TypeVar("_T")


@st.composite
def networks(draw: st.DrawFn) -> BeliefNetwork:
    size = draw(st.integers(1, 7))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    nodes: list[BeliefNode] = []
    zeros = draw(st.booleans())
    for place in range(size):
        parents = draw(st.lists(st.sampled_from(nodes), max_size=3, unique=True)) if nodes else []
        states = draw(st.integers(2, 4))
        rows = int(np.prod([len(parent.states) for parent in parents], dtype=int))
        table = generator.gamma(0.5, size=(rows, states)) + 1e-6
        if zeros:
            table[generator.random(table.shape) < 0.2] = 0
            table[np.arange(rows), generator.integers(states, size=rows)] += 0.5
        table /= table.sum(axis=1, keepdims=True)
        nodes.append(
            BeliefNode(
                name=f"n{place}",
                states=tuple(f"s{each}" for each in range(states)),
                parents=tuple(parent.name for parent in parents),
                table=tuple(map(tuple, table.tolist())),
            )
        )
    draw(st.randoms()).shuffle(nodes)
    return build_network(nodes)


def enumerate_joint(network: BeliefNetwork) -> np.ndarray:
    """Return the probability of each combination of states, an axis for each node."""
    sizes = [len(node.states) for node in network.nodes]
    axes = {node.name: axis for axis, node in enumerate(network.nodes)}
    joint = np.zeros(sizes)
    for place in np.ndindex(*sizes):
        probability = 1.0
        for node in network.nodes:
            row = 0
            for parent in node.parents:
                row = row * sizes[axes[parent]] + place[axes[parent]]
            probability *= node.table[row][place[axes[node.name]]]
        joint[place] = probability
    return joint


@given(networks(), st.data())
@settings(max_examples=80, deadline=None)
def test_every_posterior_equals_enumeration(network: BeliefNetwork, data: st.DataObject) -> None:
    joint = enumerate_joint(network)
    assert joint.sum() == pytest.approx(1)
    evidence = {}
    for axis, node in enumerate(network.nodes):
        kind = data.draw(st.sampled_from(["none", "none", "hard", "soft"]))
        if kind == "none":
            continue
        chosen = data.draw(st.integers(0, len(node.states) - 1))
        weights = data.draw(st.lists(st.floats(0.01, 5), min_size=len(node.states), max_size=len(node.states)))
        likelihood = [float(place == chosen) for place in range(len(node.states))] if kind == "hard" else weights
        evidence[node.name] = likelihood
        shape = [-1 if each == axis else 1 for each in range(joint.ndim)]
        joint = joint * np.reshape(likelihood, shape)
    if joint.sum() == 0:
        with pytest.raises(UsageError, match="probability 0"):
            infer(network, [network.nodes[0].name], evidence)
        return
    for axis, node in enumerate(network.nodes):
        expected = joint.sum(axis=tuple(each for each in range(joint.ndim) if each != axis)) / joint.sum()
        posterior = infer(network, [node.name], evidence)
        assert np.abs(posterior.probabilities - expected).max() <= 1e-9
        assert posterior.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-9)
    axes = data.draw(st.lists(st.sampled_from(range(joint.ndim)), unique=True, min_size=1, max_size=3))
    expected = joint.sum(axis=tuple(each for each in range(joint.ndim) if each not in axes)) / joint.sum()
    expected = expected.transpose([sorted(axes).index(each) for each in axes])
    cache = QueryCache()
    for _ in range(2):
        found = cache.query(network, [network.nodes[each].name for each in axes], evidence)
        assert np.abs(found.probabilities - expected).max() <= 1e-9


@given(networks())
@settings(max_examples=50, deadline=None)
def test_a_written_network_reads_back_unchanged(network: BeliefNetwork) -> None:
    assert read_network(write_network(network)) == network


@given(networks(), st.integers(0, 2**32), st.booleans())
@settings(max_examples=50, deadline=None)
def test_learning_adds_one_to_each_node_for_each_case(network: BeliefNetwork, seed: int, complete: bool) -> None:
    joint = enumerate_joint(network)
    generator = np.random.default_rng(seed)
    cases = []
    for number in range(5):
        place = np.unravel_index(generator.choice(joint.size, p=joint.ravel() / joint.sum()), joint.shape)
        states = {
            node.name: node.states[index]
            for node, index in zip(network.nodes, place, strict=True)
            if complete or generator.random() < 0.6
        }
        cases.append(LearningCase(number + 1, states))
    assume(complete or any(len(case.states) < len(network.nodes) for case in cases))
    learned = learn_cases(network, cases)
    for before, after in zip(network.nodes, learned.network.nodes, strict=True):
        grown = np.array(after.counts) - 10 * np.array(before.table)
        assert grown.min() >= -1e-9
        assert grown.sum() == pytest.approx(5, abs=1e-6)
    # Expectation maximisation never lowers the probability of the cases times that of the tables under the prior.
    assert score(learned.network, network, cases) >= score(network, network, cases) - 1e-6


def score(network: BeliefNetwork, prior: BeliefNetwork, cases: list[LearningCase]) -> float:
    """Return the log-likelihood of cases plus the log-density of the tables, each row's mean weighing 10."""
    tree = JunctionTree(network)
    likelihood = 0.0
    for case in cases:
        evidence = {
            name: [float(state == each) for each in network.node(name).states]
            for name, state in case.states.items()
        }
        likelihood += tree.calibrate(evidence).log_evidence
    for node in network.nodes:
        weights, table = 10 * np.array(prior.node(node.name).table), np.array(node.table)
        likelihood += float((weights[weights > 0] * np.log(table[weights > 0])).sum())
    return likelihood


NDJSON = (
    '{"note": "n"}\n{"node": "a", "states": ["x", "y"], "table": [[0.5, 0.5]]}\n'
    '{"node": "b", "states": ["x", "y"], "parents": ["a"], "counts": [[1, 2], [3, 4]]}\n'
)
BIF = (
    "network n { }\nvariable A { type discrete [ 2 ] { <5, Asy/Patchy }; property x ; }\n"
    'variable B { type discrete [ 2 ] { "b, c", 12+ }; }\nprobability ( A ) { table 0.1, 0.9 ; }\n'
    "/* c */ probability ( B | A ) { default 0.5, 0.5; (<5) 0.2, 0.8; }\n"
)


def result_or_code(work: Callable[[], _T]) -> tuple[_T | None, str]:
    """Return the result, or the code of a refusal."""
    try:
        return work(), ""
    except UsageError as error:
        return None, error.code


@given(st.sampled_from([NDJSON, BIF]), st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_file_is_read_or_refused_with_a_reason(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        other = data.draw(st.one_of(st.text(max_size=3), st.sampled_from(text.split() or [""])))
        text = text[:start] + other + text[end:]
    network, code = result_or_code(lambda: read_network(text.encode(errors="replace")))
    if network is None:
        assert code == "network_invalid"
    else:
        assert read_network(write_network(network)) == network


@given(networks(), st.text(max_size=30) | st.from_regex(r"n[0-3]=s[0-3](:[0-9.]{1,3},s[0-3]:[0-9.]{1,3})?"))
@settings(max_examples=100, deadline=None)
def test_any_text_is_evidence_or_refused_with_a_reason(network: BeliefNetwork, text: str) -> None:
    evidence, code = result_or_code(lambda: read_evidence(network, [text]))
    if evidence is None:
        assert code == "evidence_invalid"
    else:
        lengths = {name: len(likelihood) for name, likelihood in evidence.items()}
        assert lengths == {name: len(network.node(name).states) for name in evidence}
