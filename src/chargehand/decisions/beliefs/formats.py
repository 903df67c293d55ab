"""Files of networks and cases: NDJSON is read and written, the Bayesian interchange format is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.bif import read_bif
from chargehand.decisions.beliefs.network import BeliefNetwork, BeliefNode, Rows, build_network, network_error

_T = TypeVar("_T")
_LONGEST_EXCERPT = 100
_MOST_CASES = 50_000


class NodeLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of a network's file: a node with a `table` or `counts`, or only a `note` on the whole network."""

    node: str = ""
    states: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    table: Rows = ()
    counts: Rows = ()
    note: str = ""


class LearningCase(NamedTuple):
    """A case to learn from: the states of the observed nodes, and its line in the file."""

    line: int
    states: Mapping[str, str]


def read_network(content: bytes, *, parent: str = "") -> BeliefNetwork:
    """Return the network in a file of NDJSON, or of the interchange format (whose first word is `network`).

    Raises `UsageError` (`network_invalid`) that names line, value and reason; nothing is loaded then.
    """
    # Quoted names may contain what begins a comment, so only the beginning is looked at.
    if re.match(rb"(\s|//[^\n]*\n|/\*.*?\*/)*(network|variable)\b", content, re.DOTALL):
        return read_bif(content)
    nodes, places, notes = [], [], []
    for number, line in _decode_lines(content, NodeLine, "network_invalid"):
        if not line.node and line.note and not (line.states or line.parents or line.table or line.counts):
            notes.append(line.note)
            continue
        if bool(line.table) == bool(line.counts):
            raise network_error(f"line {number}: {line.node!r}: it needs either `table` or `counts`")
        nodes.append(
            BeliefNode(
                name=line.node,
                states=line.states,
                parents=line.parents,
                table=line.table,
                counts=line.counts,
                note=line.note,
            )
        )
        places.append(f"line {number}")
    return build_network(nodes, note="\n".join(notes), parent=parent, places=places)


def write_network(network: BeliefNetwork) -> bytes:
    """Return a network as NDJSON that `read_network` reads back unchanged."""
    lines = [NodeLine(note=network.note)] if network.note else []
    for node in network.nodes:
        table = () if node.counts else node.table
        lines.append(
            NodeLine(
                node=node.name,
                states=node.states,
                parents=node.parents,
                table=table,
                counts=node.counts,
                note=node.note,
            )
        )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def read_cases(content: bytes, network: BeliefNetwork) -> tuple[LearningCase, ...]:
    """Return the cases in NDJSON, one object of node and state per line; a missing or null node is unobserved.

    Raises `UsageError` (`cases_invalid`) that names line, value and reason.
    """
    states = {node.name: frozenset(node.states) for node in network.nodes}
    cases = []
    for number, line in _decode_lines(content, dict[str, str | None], "cases_invalid"):
        for name, state in line.items():
            if name not in states:
                raise _cases_error(f"line {number}: the network has no node {name!r}")
            if state is not None and state not in states[name]:
                known = ", ".join(map(repr, network.node(name).states))
                raise _cases_error(f"line {number}: {name!r} has no state {state!r}, only {known}")
        cases.append(LearningCase(number, {name: state for name, state in line.items() if state is not None}))
        if len(cases) > _MOST_CASES:
            raise _cases_error(f"line {number}: more than {_MOST_CASES} cases; split the file")
    if not cases:
        raise _cases_error("the file contains no case")
    return tuple(cases)


def _decode_lines(content: bytes, kind: type[_T], code: str) -> Iterator[tuple[int, _T]]:
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, decode_as(line, kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            shown = line.decode(errors="replace").strip()
            shown = shown if len(shown) <= _LONGEST_EXCERPT else f"{shown[:_LONGEST_EXCERPT]}…"
            make = network_error if code == "network_invalid" else _cases_error
            raise make(f"line {number}: {error}: {shown!r}") from error


def _cases_error(message: str) -> UsageError:
    hint = 'each line is an object such as {"node": "state"}; nothing was learned'
    return UsageError(message, code="cases_invalid", hint=hint)
