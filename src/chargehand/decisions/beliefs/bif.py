"""Reads the Bayesian interchange format (Cozman 1998), as the bnlearn repository publishes it."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from itertools import product
from typing import NamedTuple

from chargehand.core.errors import UsageError
from chargehand.decisions.beliefs.network import (
    MOST_NUMBERS,
    BeliefNetwork,
    BeliefNode,
    build_network,
    network_error,
)

# Punctuation, quoted names, and anything else up to the next of them. State names such as `<5`, `12+` and
# `Asy/Patchy` are words; a comment begins only at the beginning of a word.
_WORDS = re.compile(r'\s+|//[^\n]*|/\*.*?\*/|(?P<word>[{}()\[\];,|]|"[^"\n]*"|[^\s{}()\[\];,|"]+)', re.DOTALL)
_PUNCTUATION = "{}()[];,|"
_States = dict[str, tuple[str, ...]]


def read_bif(content: bytes) -> BeliefNetwork:
    """Return the network of a file. Raises `UsageError` (`network_invalid`) that names line, value and reason."""
    words = _BifWords(content)
    states: _States = {}
    nodes: dict[str, tuple[BeliefNode, str]] = {}
    while not words.is_at_end:
        word = words.take()
        if word.text == "network":
            words.skip_to("{")
            words.skip_to("}")
        elif word.text == "variable":
            name = words.take()
            if name.text in states:
                raise words.fault(name, f"{name.text!r} is declared twice")
            states[name.text] = _read_states(words, name)
        elif word.text == "probability":
            node = _read_node(words, states, word, known=nodes)
            nodes[node.name] = (node, words.place_of(word))
        else:
            raise words.unlike(word, "network, variable or probability")
    for each in states:
        if each not in nodes:
            raise network_error(f"{each!r} has no probability block")
    found = [nodes[each] for each in states]
    return build_network([node for node, _ in found], places=[place for _, place in found])


class _BifWord(NamedTuple):
    offset: int
    text: str
    is_quoted: bool = False


class _BifWords:
    """The words of a file, taken one after the other."""

    def __init__(self, content: bytes) -> None:
        try:
            self._text = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            wrong = content[error.start : error.start + 1]
            raise network_error(f"line {line}: {wrong!r} is not UTF-8") from error
        self._words: list[_BifWord] = []
        self._next = end = 0
        for found in _WORDS.finditer(self._text):
            if found.start() != end:  # only a quote without its end is skipped
                break
            end = found.end()
            if word := found["word"]:
                quoted = word.startswith('"')
                self._words.append(_BifWord(found.start(), word.strip('"') if quoted else word, quoted))
        if end != len(self._text):
            raise self.fault(_BifWord(end, ""), f"{self._text[end : end + 20]!r} is an unclosed quote")

    @property
    def is_at_end(self) -> bool:
        return self._next == len(self._words)

    def take(self, *wanted: str) -> _BifWord:
        """Return the next word; with `wanted` take exactly these, and return the last one."""
        for text in wanted or ("",):
            if self.is_at_end:
                raise self.fault(self._words[-1], "the file ends too early")
            word = self._words[self._next]
            self._next += 1
            if text and word.text != text:
                raise self.unlike(word, text)
        return word

    def take_list(self, end: str) -> list[str]:
        """Return words separated by commas, up to the word `end`."""
        found = []
        while True:
            word = self.take()
            if word.text in _PUNCTUATION and not word.is_quoted:
                raise self.unlike(word, "a name or number")
            found.append(word.text)
            closing = self.take()
            if closing.text == end:
                return found
            if closing.text != ",":
                raise self.unlike(closing, f", or {end}")

    def take_numbers(self) -> tuple[float, ...]:
        """Return numbers separated by commas, up to a semicolon."""
        first = self._words[self._next - 1]
        numbers = []
        for text in self.take_list(";"):
            try:
                numbers.append(float(text))
            except ValueError:
                raise self.fault(first, f"{text!r} is not a number") from None
        return tuple(numbers)

    def skip_to(self, end: str) -> None:
        while self.take().text != end:
            pass

    def place_of(self, word: _BifWord) -> str:
        line = self._text.count("\n", 0, word.offset) + 1
        return f"line {line}"

    def fault(self, word: _BifWord, problem: str) -> UsageError:
        return network_error(f"{self.place_of(word)}: {problem}")

    def unlike(self, word: _BifWord, wanted: str) -> UsageError:
        return self.fault(word, f"{word.text!r} instead of {wanted}")


def _read_states(words: _BifWords, name: _BifWord) -> tuple[str, ...]:
    words.take("{")
    states: list[str] = []
    while (word := words.take()).text != "}":
        if word.text == "property":
            words.skip_to(";")
        elif word.text == "type":
            words.take("discrete", "[")
            size = words.take()
            words.take("]", "{")
            states = words.take_list("}")
            words.take(";")
            if size.text != str(len(states)):
                problem = f"{name.text!r} declares {size.text} states and names {len(states)}"
                raise words.fault(size, problem)
        else:
            raise words.unlike(word, "type or property")
    return tuple(states)


def _read_node(words: _BifWords, states: _States, start: _BifWord, *, known: Container[str]) -> BeliefNode:
    words.take("(")
    name = words.take().text
    closing = words.take()
    parents = words.take_list(")") if closing.text == "|" else []
    if closing.text not in "|)":
        raise words.unlike(closing, "| or )")
    for each in (name, *parents):
        if each not in states:
            raise words.fault(start, f"{each!r} is no declared variable")
    if name in known:
        raise words.fault(start, f"{name!r} has two probability blocks")
    own = [states[parent] for parent in parents]
    rows = _read_rows(words, name, own)
    if math.prod(map(len, own)) > MOST_NUMBERS:  # a default for all of them
        raise words.fault(start, f"{name!r} has more than {MOST_NUMBERS} rows; use fewer parents")
    table = []
    for given in product(*own):
        if given not in rows and () not in rows:
            raise words.fault(start, f"{name!r} has no row for ({', '.join(given)})")
        table.append(rows[given] if given in rows else rows[()])
    return BeliefNode(name=name, states=states[name], parents=tuple(parents), table=tuple(table))


def _read_rows(
    words: _BifWords, name: str, parents: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return rows by the parents' states; a default, and the table of a node without parents, have the key ()."""
    words.take("{")
    rows: dict[tuple[str, ...], tuple[float, ...]] = {}
    while (word := words.take()).text != "}":
        given: tuple[str, ...] = ()
        if word.text == "property":
            words.skip_to(";")
            continue
        if word.text == "(":
            given = tuple(words.take_list(")"))
            if len(given) != len(parents) or any(
                each not in own for each, own in zip(given, parents, strict=True)
            ):
                raise words.fault(word, f"{name!r}: {given} are no states of its {len(parents)} parents")
        elif word.text not in ("table", "default"):
            raise words.unlike(word, "a row, table, default or property")
        elif word.text == "table" and parents:
            # The order of a table with parents differs between the programs that write it.
            raise words.fault(word, f"{name!r} has parents and a `table`; write rows instead")
        if given in rows:
            raise words.fault(word, f"{name!r} has two rows for {given}")
        rows[given] = words.take_numbers()
    return rows
