"""File formats of networks and cases: NDJSON, read and written, and the Bayesian interchange format, read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.network import (
    BeliefNetwork,
    BeliefNode,
    Rows,
    build_network,
    combinations,
    find_problem,
    network_error,
)

_T = TypeVar("_T")
_LONGEST_EXCERPT = 100
_MOST_CASES = 50_000
# The words of the interchange format: punctuation, quoted names, and anything else up to the next of them. State
# names such as `<5`, `12+` and `Asy/Patchy` are words; a comment begins only at the beginning of a word.
_WORDS = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|(?P<word>[{}()\[\];,|]|"[^"\n]*"|[^\s{}()\[\];,|"]+)', re.DOTALL)


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
        return _BifReader(content).read()
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


class _BifWord(NamedTuple):
    line: int
    text: str
    is_quoted: bool = False


class _BifReader:
    """Reads one file of the Bayesian interchange format (Cozman 1998), as the bnlearn repository writes it."""

    def __init__(self, content: bytes) -> None:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise network_error(f"line {line}: {content[error.start : error.start + 1]!r} is not UTF-8") from error
        self._words = list(_split_words(text))
        self._place = 0
        self._states: dict[str, tuple[str, ...]] = {}
        self._nodes: dict[str, tuple[BeliefNode, int]] = {}

    def read(self) -> BeliefNetwork:
        while self._place < len(self._words):
            word = self._next()
            if word.text == "network":
                while self._next().text != "{":
                    pass
                self._skip_block()
            elif word.text == "variable":
                self._read_variable()
            elif word.text == "probability":
                self._read_probability(word.line)
            else:
                raise self._word_error(word, "network, variable or probability")
        for name in self._states:
            if name not in self._nodes:
                raise network_error(f"{name!r} has no probability block")
        found = [self._nodes[name] for name in self._states]
        return build_network([node for node, _ in found], places=[f"line {line}" for _, line in found])

    def _read_variable(self) -> None:
        name = self._next()
        if name.text in self._states:
            raise network_error(f"line {name.line}: {name.text!r} is declared twice")
        self._expect("{")
        states: list[str] = []
        while (word := self._next()).text != "}":
            if word.text == "type":
                self._expect("discrete")
                self._expect("[")
                size = self._next()
                self._expect("]")
                self._expect("{")
                states = self._read_list("}")
                self._expect(";")
                if size.text != str(len(states)):
                    raise network_error(
                        f"line {size.line}: {name.text!r} declares {size.text} states and names {len(states)}"
                    )
            elif word.text == "property":
                self._skip_to(";")
            else:
                raise self._word_error(word, "type or property")
        self._states[name.text] = tuple(states)

    def _read_probability(self, line: int) -> None:
        self._expect("(")
        name = self._next()
        parents: list[str] = []
        closing = self._next()
        if closing.text == "|":
            parents = self._read_list(")")
        elif closing.text != ")":
            raise self._word_error(closing, "| or )")
        for each in (name.text, *parents):
            if each not in self._states:
                raise network_error(f"line {line}: {each!r} is no declared variable")
        if name.text in self._nodes:
            raise network_error(f"line {line}: {name.text!r} has two probability blocks")
        node = BeliefNode(name=name.text, states=self._states[name.text], parents=tuple(parents))
        if problem := find_problem(node):
            raise network_error(f"line {line}: {name.text!r}: {problem}")
        known = {each: BeliefNode(name=each, states=self._states[each]) for each in (name.text, *parents)}
        rows = self._read_rows(node, known)
        table = tuple(rows[given] for given in combinations(node, known) if given in rows)
        if len(table) < math.prod(len(self._states[parent]) for parent in parents):
            missing = next(given for given in combinations(node, known) if given not in rows)
            raise network_error(f"line {line}: {name.text!r} has no row for ({', '.join(missing)})")
        made = BeliefNode(name=node.name, states=node.states, parents=node.parents, table=table)
        self._nodes[name.text] = (made, line)

    def _read_rows(
        self, node: BeliefNode, known: Mapping[str, BeliefNode]
    ) -> dict[tuple[str, ...], tuple[float, ...]]:
        self._expect("{")
        rows: dict[tuple[str, ...], tuple[float, ...]] = {}
        default: tuple[float, ...] = ()
        while (word := self._next()).text != "}":
            if word.text == "(":
                given = tuple(self._read_list(")"))
                known_states = [known[parent].states for parent in node.parents]
                if len(given) != len(known_states) or not all(map(_contains, known_states, given)):
                    raise network_error(
                        f"line {word.line}: {node.name!r}: {given} are no states of {', '.join(node.parents)}"
                    )
                if given in rows:
                    raise network_error(f"line {word.line}: {node.name!r} has two rows for {given}")
                rows[given] = self._read_numbers()
            elif word.text == "table":
                # The order of a table with parents differs between the programs that write it.
                if node.parents:
                    raise network_error(
                        f"line {word.line}: {node.name!r} has parents and a `table`; write rows instead"
                    )
                rows[()] = self._read_numbers()
            elif word.text == "default":
                default = self._read_numbers()
            elif word.text == "property":
                self._skip_to(";")
            else:
                raise self._word_error(word, "a row, table, default or property")
        if default:
            rows = dict.fromkeys(combinations(node, known), default) | rows
        return rows

    def _read_numbers(self) -> tuple[float, ...]:
        line = self._words[self._place].line if self._place < len(self._words) else 0
        numbers = []
        for text in self._read_list(";"):
            try:
                numbers.append(float(text))
            except ValueError:
                raise network_error(f"line {line}: {text!r} is not a number") from None
        return tuple(numbers)

    def _read_list(self, end: str) -> list[str]:
        found = []
        while True:
            word = self._next()
            if word.text in "{}()[];,|" and not word.is_quoted:
                raise self._word_error(word, "a name or number")
            found.append(word.text)
            closing = self._next()
            if closing.text == end:
                return found
            if closing.text != ",":
                raise self._word_error(closing, f", or {end}")

    def _skip_block(self) -> None:
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self._next().text, 0)

    def _skip_to(self, end: str) -> None:
        while self._next().text != end:
            pass

    def _expect(self, text: str) -> None:
        word = self._next()
        if word.text != text:
            raise self._word_error(word, text)

    def _next(self) -> _BifWord:
        if self._place == len(self._words):
            raise network_error(f"line {self._words[-1].line if self._words else 1}: the file ends too early")
        self._place += 1
        return self._words[self._place - 1]

    @staticmethod
    def _word_error(word: _BifWord, wanted: str) -> UsageError:
        return network_error(f"line {word.line}: {word.text!r} instead of {wanted}")


def _split_words(text: str) -> Iterator[_BifWord]:
    place, line = 0, 1
    while place < len(text):
        found = _WORDS.match(text, place)
        if found is None:
            raise network_error(f"line {line}: {text[place : place + 20]!r} is an unclosed quote")
        word = found["word"]
        if word is not None:
            is_quoted = word.startswith('"')
            yield _BifWord(line, word[1:-1] if is_quoted else word, is_quoted)
        line += found[0].count("\n")
        place = found.end()


def _contains(states: Sequence[str], state: str) -> bool:
    return state in states
