"""Exact inference by a junction tree (Lauritzen and Spiegelhalter 1988), triangulated by minimum fill-in."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.network import BeliefNetwork

Floats = NDArray[np.float64]
# The likelihood of each state of a node: of an observed state 1, and 0 of the others; or a sensor's likelihoods.
Evidence = Mapping[str, Sequence[float]]
_V = TypeVar("_V")
# 32 MB of tables for each kept tree; one more node in the largest clique can double it.
_MOST_NUMBERS = 4_000_000
_MOST_JOINT = 10_000


class Posterior(Struct, frozen=True, kw_only=True):
    """The distribution of the `targets` given evidence.

    `probabilities` has one axis for each target, in their order. `log_evidence` is the natural logarithm of the
    evidence's probability.
    """

    targets: tuple[str, ...]
    probabilities: Floats
    log_evidence: float


class _Clique(Struct, frozen=True, kw_only=True):
    """A clique with its variables, ascending, and how messages pass between it and its parent in the tree.

    Up: sum over `up_axes` of the clique, then reshape to `up_shape` of the parent; down: the same the other way.
    """

    variables: tuple[int, ...]
    parent: int = -1
    up_axes: tuple[int, ...] = ()
    up_shape: tuple[int, ...] = ()
    down_axes: tuple[int, ...] = ()
    down_shape: tuple[int, ...] = ()


class JunctionTree:
    """The compiled form of one network; threads may share it.

    Nodes in `joined` share a clique, so that their joint distribution can be read.
    """

    def __init__(self, network: BeliefNetwork, *, joined: Collection[str] = ()) -> None:
        self._indexes = {node.name: place for place, node in enumerate(network.nodes)}
        self._sizes = tuple(len(node.states) for node in network.nodes)
        self._families = [
            (*(self._indexes[parent] for parent in node.parents), place)
            for place, node in enumerate(network.nodes)
        ]
        groups = [*self._families, tuple(self._indexes[name] for name in joined)]
        self._cliques, self._homes, self._eliminated = _build_cliques(self._sizes, groups)
        self._potentials = self._multiply_tables(network)

    def replace_tables(self, network: BeliefNetwork) -> JunctionTree:
        """Return the tree of a network that differs from this tree's only in its tables."""
        tree = JunctionTree.__new__(JunctionTree)
        tree.__dict__.update(self.__dict__)
        tree._potentials = self._multiply_tables(network)
        return tree

    def calibrate(self, evidence: Evidence) -> CalibratedTree:
        """Return the beliefs given evidence. Raises `UsageError` (`evidence_impossible`)."""
        beliefs = list(self._potentials)
        log = 0.0
        for name, likelihood in evidence.items():
            index = self._indexes[name]
            home = self.home(self._families[index])
            shape = self._shape(self._cliques[home].variables, (index,))
            beliefs[home], log = _rescale(beliefs[home] * np.reshape(likelihood, shape), log)
        messages: dict[int, Floats] = {}
        # A clique precedes its children, so that messages go upwards in reverse order.
        for place in range(len(self._cliques) - 1, 0, -1):
            clique = self._cliques[place]
            messages[place] = beliefs[place].sum(axis=clique.up_axes)
            product = beliefs[clique.parent] * messages[place].reshape(clique.up_shape)
            beliefs[clique.parent], log = _rescale(product, log)
        log += math.log(float(beliefs[0].sum()))
        return CalibratedTree(self, beliefs, messages, log)

    def send_down(self, beliefs: list[Floats], messages: dict[int, Floats], place: int) -> None:
        """Complete the belief of a clique, sending the messages on its way from the root that are still unsent."""
        way = []
        while place in messages:
            way.append(place)
            place = self._cliques[place].parent
        for each in reversed(way):
            clique, sent = self._cliques[each], messages.pop(each)
            wanted = beliefs[clique.parent].sum(axis=clique.down_axes)
            ratio = np.divide(wanted, sent, out=np.zeros_like(sent), where=sent > 0)
            beliefs[each], _ = _rescale(beliefs[each] * ratio.reshape(clique.down_shape), 0.0)

    def indexes(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the variables of nodes."""
        return tuple(self._indexes[name] for name in names)

    def family(self, name: str) -> tuple[int, ...]:
        """Return the variables of a node's parents and of the node."""
        return self._families[self._indexes[name]]

    def home(self, variables: Sequence[int]) -> int:
        """Return a clique with all of these variables, which are neighbours of each other."""
        return self._homes[min(variables, key=self._eliminated.__getitem__)]

    def read(self, belief: Floats, home: int, variables: tuple[int, ...]) -> Floats:
        """Return the joint distribution of variables, one axis each, from the belief of their clique."""
        own = self._cliques[home].variables
        table = belief.sum(axis=tuple(axis for axis, each in enumerate(own) if each not in variables))
        ordered = sorted(variables)
        table = table.transpose([ordered.index(each) for each in variables])
        return np.asarray(table / table.sum())

    def _shape(self, own: Sequence[int], kept: Collection[int]) -> tuple[int, ...]:
        return tuple(self._sizes[each] if each in kept else 1 for each in own)

    def _multiply_tables(self, network: BeliefNetwork) -> list[Floats]:
        potentials = [np.ones(self._shape(clique.variables, clique.variables)) for clique in self._cliques]
        for node, family in zip(network.nodes, self._families, strict=True):
            table = np.array(node.table).reshape([self._sizes[each] for each in family])
            table = table.transpose(sorted(range(len(family)), key=family.__getitem__))
            home = self.home(family)
            potentials[home] *= table.reshape(self._shape(self._cliques[home].variables, family))
        return potentials


class CalibratedTree:
    """The beliefs of a junction tree given evidence; `log_evidence` is ln P(evidence).

    Messages from the root are sent when a clique is first read; only one thread may read.
    """

    def __init__(
        self, tree: JunctionTree, beliefs: list[Floats], messages: dict[int, Floats], log_evidence: float
    ) -> None:
        self._tree = tree
        self._beliefs = beliefs
        self._messages = messages
        self.log_evidence = log_evidence

    def joint(self, names: Sequence[str]) -> Floats:
        """Return the joint distribution of one node, or of nodes that were joined, one axis each."""
        return self._read(self._tree.indexes(names))

    def family(self, name: str) -> Floats:
        """Return the joint distribution of a node's parents and the node, one axis each in this order."""
        return self._read(self._tree.family(name))

    def _read(self, variables: tuple[int, ...]) -> Floats:
        home = self._tree.home(variables)
        self._tree.send_down(self._beliefs, self._messages, home)
        return self._tree.read(self._beliefs[home], home, variables)


class QueryCache:
    """The newest trees and posteriors by version of a network; threads may share it."""

    def __init__(self) -> None:
        self._trees: _Recent[JunctionTree] = _Recent(8)
        self._posteriors: _Recent[Posterior] = _Recent(1024)

    def query(self, network: BeliefNetwork, targets: Sequence[str], evidence: Evidence) -> Posterior:
        """Return the joint distribution of `targets` as `infer` does."""
        given = tuple(sorted((name, tuple(likelihood)) for name, likelihood in evidence.items()))
        key = (network.version, tuple(targets), given)
        found = self._posteriors.get(key)
        if found is None:
            joined = frozenset(targets) if len(targets) > 1 else frozenset()
            tree = self._trees.get((network.version, joined)) or JunctionTree(network, joined=sorted(joined))
            self._trees.put((network.version, joined), tree)
            found = _infer(tree, network, targets, evidence)
            self._posteriors.put(key, found)
        return found


def infer(network: BeliefNetwork, targets: Sequence[str], evidence: Evidence) -> Posterior:
    """Return the joint distribution of one or more nodes given evidence.

    Raises `NotFoundError` for an unknown node, `UsageError`: `evidence_invalid` for a likelihood that is not a
    positive vector of the node's states, `evidence_impossible` if its probability is 0, and `network_too_large`.
    """
    return _infer(JunctionTree(network, joined=targets if len(targets) > 1 else ()), network, targets, evidence)


def check_query(network: BeliefNetwork, targets: Sequence[str], evidence: Evidence) -> None:
    """Raise the errors of `infer` that need no inference."""
    if not targets or len(set(targets)) < len(targets):
        raise UsageError(f"the targets {tuple(targets)} are not different nodes", code="evidence_invalid")
    size = math.prod(len(network.node(name).states) for name in targets)
    if size > _MOST_JOINT:
        raise UsageError(
            f"the joint distribution has {size} numbers, more than {_MOST_JOINT}",
            code="network_too_large",
            hint="ask for fewer nodes at once",
        )
    for name, likelihood in evidence.items():
        states = network.node(name).states
        valid = all(math.isfinite(value) and value >= 0 for value in likelihood) and any(likelihood)
        if len(likelihood) != len(states) or not valid:
            raise UsageError(
                f"the likelihood {tuple(likelihood)} of {name!r} is not a number from 0 on for each of its "
                f"{len(states)} states, one of them positive",
                code="evidence_invalid",
            )


def _infer(tree: JunctionTree, network: BeliefNetwork, targets: Sequence[str], evidence: Evidence) -> Posterior:
    check_query(network, targets, evidence)
    beliefs = tree.calibrate(evidence)
    joint = beliefs.joint(targets)
    joint.flags.writeable = False
    return Posterior(targets=tuple(targets), probabilities=joint, log_evidence=beliefs.log_evidence)


def _rescale(table: Floats, log: float) -> tuple[Floats, float]:
    """Return a table with the maximum 1, so that long products do not underflow, and the log of the factor."""
    largest = float(table.max())
    if not largest > 0:
        raise UsageError(
            "the evidence is impossible: the network gives it the probability 0",
            code="evidence_impossible",
            hint="leave out one of the given states, or correct the network's zeros",
        )
    return table / largest, log + math.log(largest)


def _build_cliques(
    sizes: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[list[_Clique], list[int], list[int]]:
    """Return the cliques, parents first; the clique in which each variable is eliminated; the order of that."""
    order, members = _eliminate(sizes, groups)
    position = [0] * len(sizes)
    for place, variable in enumerate(order):
        position[variable] = place
    # The next variable to go of those that are left in a clique leads to its parent. A clique that is a part of a
    # child's is replaced by it.
    owner: list[int] = list(range(len(order)))
    top: list[int] = list(range(len(order)))
    children: list[list[int]] = [[] for _ in order]
    above = [-1] * len(order)
    for place in range(len(order)):
        for child in children[place]:
            if members[place] <= members[owner[child]]:
                owner[place] = owner[child]
                top[owner[place]] = place
                break
        rest = [position[each] for each in members[place] if position[each] > place]
        if rest:
            above[place] = min(rest)
            children[min(rest)].append(place)
    kept = sorted((place for place in range(len(order)) if owner[place] == place), key=lambda each: -top[each])
    number = {place: index for index, place in enumerate(kept)}
    cliques: list[_Clique] = []
    for place in kept:
        variables = tuple(sorted(members[place]))
        if not cliques:
            cliques.append(_Clique(variables=variables))
            continue
        # A part without a connection to the rest hangs at the first clique.
        parent = number[owner[above[top[place]]]] if above[top[place]] >= 0 else 0
        cliques.append(_connect(variables, cliques[parent].variables, parent, sizes))
    homes = [number[owner[position[variable]]] for variable in range(len(sizes))]
    return cliques, homes, position


def _connect(own: tuple[int, ...], above: tuple[int, ...], parent: int, sizes: Sequence[int]) -> _Clique:
    shared = set(own) & set(above)
    return _Clique(
        variables=own,
        parent=parent,
        up_axes=tuple(axis for axis, each in enumerate(own) if each not in shared),
        up_shape=tuple(sizes[each] if each in shared else 1 for each in above),
        down_axes=tuple(axis for axis, each in enumerate(above) if each not in shared),
        down_shape=tuple(sizes[each] if each in shared else 1 for each in own),
    )


def _eliminate(sizes: Sequence[int], groups: Sequence[Sequence[int]]) -> tuple[list[int], list[set[int]]]:
    """Return variables in the order of minimum fill-in (ties: smallest table), and each one's clique then."""
    neighbours: list[set[int]] = [set() for _ in sizes]
    for group in groups:
        for each in group:
            neighbours[each].update(group)
    for variable, around in enumerate(neighbours):
        around.discard(variable)
    costs = {variable: _fill_in(variable, neighbours, sizes) for variable in range(len(sizes))}
    order, members, numbers = [], [], 0
    queue = [(cost, variable) for variable, cost in costs.items()]
    heapify(queue)
    while costs:
        cost, variable = heappop(queue)
        if costs.get(variable) != cost:  # it changed since
            continue
        around = neighbours[variable]
        order.append(variable)
        members.append({variable, *around})
        numbers += math.prod(sizes[each] for each in members[-1])
        if numbers > _MOST_NUMBERS:
            raise UsageError(
                f"exact inference needs tables of more than {_MOST_NUMBERS} numbers",
                code="network_too_large",
                hint="give nodes fewer parents or states, or ask for fewer nodes at once",
            )
        del costs[variable]
        for each in around:
            neighbours[each] |= around
            neighbours[each] -= {each, variable}
        # Other costs change only with new edges between neighbours.
        for each in around.union(*(neighbours[near] for near in around)) if cost[0] else around:
            costs[each] = _fill_in(each, neighbours, sizes)
            heappush(queue, (costs[each], each))
    return order, members


def _fill_in(variable: int, neighbours: Sequence[set[int]], sizes: Sequence[int]) -> tuple[int, int]:
    around = neighbours[variable]
    # Counted from the existing edges, since a node may have thousands of neighbours.
    present = sum(len(neighbours[each] & around) for each in around)
    missing = (len(around) * (len(around) - 1) - present) // 2
    return missing, math.prod(sizes[each] for each in around) * sizes[variable]


class _Recent(Generic[_V]):
    """The most recently used values."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._values: OrderedDict[object, _V] = OrderedDict()

    def get(self, key: object) -> _V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: object, value: _V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
