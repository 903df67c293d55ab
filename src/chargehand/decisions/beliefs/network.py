"""Records of a belief network, an acyclic graph of discrete variables, and its validation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice, product

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.errors import NotFoundError, UsageError, nearest

Rows = tuple[tuple[float, ...], ...]
# A published table is rounded to a few digits; its rows are scaled to sum to exactly 1.
_ROW_TOLERANCE = 1e-6
_EXACT = 1e-12
_LARGEST_COUNT = 1e12
MOST_NUMBERS = 200_000
_MOST_NODES, _MOST_STATES, _LONGEST_NAME = 2_000, 200, 200


class BeliefNode(Struct, frozen=True, kw_only=True):
    """A variable, its `states`, its `parents`, and the probabilities of its states given theirs.

    `table` has a row for each combination of the parents' states, the last parent's varying fastest, and a column
    for each state. `counts` has the same shape: the parameters of each row's Dirichlet distribution, of which the
    row of `table` is the mean, whatever it was before; it is empty for a table that was never learned.
    """

    name: str
    states: tuple[str, ...]
    parents: tuple[str, ...] = ()
    table: Rows = ()
    counts: Rows = ()
    note: str = ""


class BeliefNetwork(Struct, frozen=True, kw_only=True):
    """One immutable version of a network, valid as `build_network` checks it.

    `version` is a digest of the content and of `parent`, the version from which it was learned ("" if imported).
    """

    nodes: tuple[BeliefNode, ...]
    version: str
    parent: str = ""
    note: str = ""

    def node(self, name: str) -> BeliefNode:
        """Return the node of that name. Raises `NotFoundError`."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.nodes]
        raise NotFoundError(f"the network has no node {name!r}", hint=nearest(name, names))


def build_network(
    nodes: Sequence[BeliefNode], *, note: str = "", parent: str = "", places: Sequence[str] = ()
) -> BeliefNetwork:
    """Return the network of these nodes, in any order; rows that sum to 1 up to rounding are scaled.

    `places` name the origin of each node, such as "line 3". Raises `UsageError` (`network_invalid`) that names the
    place, the value and the reason.
    """
    if not 0 < len(nodes) <= _MOST_NODES:
        raise network_error(f"it has {len(nodes)} nodes, not 1 to {_MOST_NODES}")
    origins = list(places) or [f"node {node.name!r}" for node in nodes]
    known: dict[str, BeliefNode] = {}
    for node, place in zip(nodes, origins, strict=True):
        problem = "another node has this name" if node.name in known else _find_problem(node)
        if problem:
            raise network_error(f"{place}: {node.name!r}: {problem}")
        known[node.name] = node
    scaled = []
    for node, place in zip(nodes, origins, strict=True):
        problem = _find_table_problem(node, known)
        if problem:
            raise network_error(f"{place}: {node.name!r}: {problem}")
        scaled.append(_scale(node))
    try:
        TopologicalSorter({node.name: node.parents for node in scaled}).prepare()
    except CycleError as error:
        raise network_error(f"the nodes form a cycle: {' -> '.join(map(repr, error.args[1]))}") from error
    content = msgspec.json.encode((parent, note, scaled))
    version = hashlib.sha256(content).hexdigest()[:16]
    return BeliefNetwork(nodes=tuple(scaled), version=version, parent=parent, note=note)


def _find_problem(node: BeliefNode) -> str:
    """Return the fault in the names and states of a node, or ""."""
    for text in (node.name, *node.states):
        if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable() or text != text.strip():
            return f"{text!r} is not a name of 1 to {_LONGEST_NAME} printable characters"
    if not 2 <= len(node.states) <= _MOST_STATES:
        return f"it has {len(node.states)} states, not 2 to {_MOST_STATES}"
    for what, names in (("state", node.states), ("parent", node.parents)):
        if len(set(names)) < len(names):
            return f"the {what} {next(each for each in names if names.count(each) > 1)!r} is named twice"
    if node.name in node.parents:
        return "it is its own parent"
    return ""


def network_error(message: str) -> UsageError:
    """Return the error of a network that cannot be loaded; nothing of it is."""
    hint = "`chargehand knowledge export NAME` shows a network in the right form; nothing was loaded"
    return UsageError(message, code="network_invalid", hint=hint)


def _find_table_problem(node: BeliefNode, known: Mapping[str, BeliefNode]) -> str:
    for parent in node.parents:
        if parent not in known:
            return f"its parent {parent!r} is no node of the network"
    rows = math.prod(len(known[parent].states) for parent in node.parents)
    if rows * len(node.states) > MOST_NUMBERS:
        return f"its table has {rows * len(node.states)} numbers, more than {MOST_NUMBERS}; use fewer parents"
    what, table = ("counts", node.counts) if node.counts else ("table", node.table)
    if len(table) != rows:
        return f"{what} has {len(table)} rows, not {rows}, one for each combination of the parents' states"
    for place, row in enumerate(table):
        problem = _find_row_problem(row, len(node.states), is_count=bool(node.counts))
        if problem:
            given = next(islice(product(*(known[parent].states for parent in node.parents)), place, None))
            where = ", ".join(f"{name}={state}" for name, state in zip(node.parents, given, strict=True))
            return f"{what} row {place + 1}{f' ({where})' if where else ''} {problem}"
    return ""


def _find_row_problem(row: Sequence[float], states: int, *, is_count: bool) -> str:
    if len(row) != states:
        return f"has {len(row)} numbers, not {states}, one for each state"
    for value in row:
        if not 0 <= value <= _LARGEST_COUNT:
            return f"contains {value!r}, which is not a number from 0 to {_LARGEST_COUNT:g}"
    total = math.fsum(row)
    if is_count:
        return "" if total > 0 else f"sums to {total:g}; a row of counts needs a positive sum"
    return "" if abs(total - 1) <= _ROW_TOLERANCE else f"sums to {total:.9g}, not to 1"


def _scale(node: BeliefNode) -> BeliefNode:
    table = node.table
    if node.counts:
        table = tuple(tuple(value / math.fsum(row) for value in row) for row in node.counts)
    elif any(abs(math.fsum(row) - 1) > _EXACT for row in table):
        table = tuple(tuple(value / math.fsum(row) for value in row) for row in table)
    return node if table is node.table else replace(node, table=table)
