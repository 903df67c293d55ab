"""Parses one file into definitions, references and words. Runs in the parser process only."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import tree_sitter
from msgspec import Struct

from chargehand.knowledge._grammars import GRAMMARS
from chargehand.knowledge._languages import languages, query_text
from chargehand.knowledge._words import search_words
from chargehand.knowledge.records import Definition, ParsedFile, Reference, ReferenceKind

_LONGEST_SIGNATURE = 160
_LONGEST_NAME = 200
_TEXT_BYTES = 60_000  # of comments and strings of one file; the rest is not searched
_MOST_REFERENCES = 20_000  # of one file
# Of several kinds for one name the first counts.
_KINDS: tuple[ReferenceKind, ...] = ("call", "import", "type", "use")
# Definitions that others are inside of.
_SCOPES = frozenset({"function", "method", "class", "struct", "interface", "enum", "module", "test", "macro"})
_CLASSES = frozenset({"class", "struct", "interface", "enum"})


class _Scope(Struct, kw_only=True):
    """A named range of bytes; `position` is that of its definition, -1 for a container without a definition."""

    start: int
    end: int
    name: str
    kind: str
    position: int = -1


@cache
def _language(name: str) -> tuple[tree_sitter.Parser, tree_sitter.Query]:
    language = tree_sitter.Language(GRAMMARS[languages()[name].grammar]())
    return tree_sitter.Parser(language), tree_sitter.Query(language, query_text(name))


def parse_source(language: str, source: bytes) -> ParsedFile:
    """Parse a file in UTF-8; definitions hidden by a syntax error are missing from the result."""
    parser, query = _language(language)
    tree = parser.parse(source)
    found = _Captures(source)
    for _, match in tree_sitter.QueryCursor(query).matches(tree.root_node):
        found.add(match)
    definitions, scopes = found.definitions()
    references = found.references(scopes)
    return ParsedFile(
        definitions=tuple(definitions),
        references=tuple(references),
        symbols=" ".join(word for each in definitions for word in search_words(each.name)),
        words=_collect_words(source, found.text, references),
    )


class _Captures:
    """The captures of all matches in one file."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._definitions: dict[int, tuple[tree_sitter.Node, tree_sitter.Node, str, str]] = {}
        self._containers: list[_Scope] = []
        self._references: dict[int, tuple[int, tree_sitter.Node]] = {}
        self.text: list[tree_sitter.Node] = []

    def add(self, match: dict[str, list[tree_sitter.Node]]) -> None:
        """Add one match: of a definition, a container, a reference or text."""
        names = match.get("name", [])
        for capture, nodes in match.items():
            group, _, kind = capture.partition(".")
            if group == "text":
                self.text += nodes
            elif group == "reference":
                self._add_references(kind, names)
            elif group == "definition":
                scope = match["scope"][0] if "scope" in match else None
                self._add_definition(nodes[0], names[0], kind, "" if scope is None else self._text(scope))
            elif group == "container":
                node, name = nodes[0], self._text(names[0])
                self._containers.append(_Scope(start=node.start_byte, end=node.end_byte, name=name, kind=kind))

    def _add_references(self, kind: str, names: Iterable[tree_sitter.Node]) -> None:
        rank = _KINDS.index(kind)
        for name in names:
            known = self._references.get(name.start_byte)
            if known is None or known[0] > rank:
                self._references[name.start_byte] = (rank, name)

    def _add_definition(self, node: tree_sitter.Node, name: tree_sitter.Node, kind: str, scope: str) -> None:
        known = self._definitions.get(name.start_byte)
        # A test is also matched as a function, and a function's constant as a constant.
        if known is None or kind == "test" or known[2] == "constant":
            self._definitions[name.start_byte] = (node, name, kind, scope)

    def _text(self, node: tree_sitter.Node) -> str:
        text = self._source[node.start_byte : node.end_byte].decode("utf-8", "replace")
        return " ".join(text.split()).strip("\"'`")[:_LONGEST_NAME]

    def definitions(self) -> tuple[list[Definition], list[_Scope]]:
        """Return the definitions in the order of the file, and the scopes in that of their beginnings."""
        scopes = list(self._containers)
        places = sorted(self._definitions.values(), key=lambda found: (found[0].start_byte, -found[0].end_byte))
        for position, (node, name, kind, _) in enumerate(places):
            if kind in _SCOPES:
                text = self._text(name)
                scopes.append(
                    _Scope(start=node.start_byte, end=node.end_byte, name=text, kind=kind, position=position)
                )
        scopes.sort(key=lambda scope: (scope.start, -scope.end))
        made = []
        around = _ScopeStack(scopes)
        for position, (node, name, kind, receiver) in enumerate(places):
            outer = [scope for scope in around.at(node.start_byte, node.end_byte) if scope.position != position]
            text = self._text(name)
            within = [scope.name for scope in outer] + ([receiver] if receiver else [])
            in_class = bool(outer) and outer[-1].kind in _CLASSES
            made.append(
                Definition(
                    name=text,
                    kind="method" if kind == "function" and in_class else kind,
                    qualified=".".join([*within, text])[:_LONGEST_NAME],
                    line=name.start_point.row + 1,
                    end_line=node.end_point.row + 1,
                    signature=self._line(name.start_byte),
                )
            )
        return made, scopes

    def references(self, scopes: list[_Scope]) -> list[Reference]:
        """Return each name once for a line and a scope; the names of definitions are no references."""
        around = _ScopeStack(scopes)
        seen = set[tuple[str, int, int]]()
        made: list[Reference] = []
        for start, (rank, node) in sorted(self._references.items(), key=lambda item: item[0]):
            if start in self._definitions or len(made) >= _MOST_REFERENCES:
                continue
            within = next((s.position for s in reversed(around.at(start, node.end_byte)) if s.position >= 0), -1)
            key = (name := self._text(node), line := node.start_point.row + 1, within)
            if name and key not in seen:
                seen.add(key)
                made.append(Reference(name=name, kind=_KINDS[rank], line=line, within=within))
        return made

    def _line(self, at: int) -> str:
        start = self._source.rfind(b"\n", 0, at) + 1
        end = self._source.find(b"\n", at)
        line = self._source[max(start, at - _LONGEST_SIGNATURE) : end if end >= 0 else None]
        return line[: 4 * _LONGEST_SIGNATURE].decode("utf-8", "replace").strip()[:_LONGEST_SIGNATURE]


class _ScopeStack:
    """Finds the scopes around positions that are asked for in ascending order."""

    def __init__(self, scopes: list[_Scope]) -> None:
        self._scopes = scopes
        self._next = 0
        self._open: list[_Scope] = []

    def at(self, start: int, end: int) -> list[_Scope]:
        """Return the scopes that contain a range, the outermost first."""
        while self._next < len(self._scopes) and self._scopes[self._next].start <= start:
            self._open = [scope for scope in self._open if scope.end > self._scopes[self._next].start]
            self._open.append(self._scopes[self._next])
            self._next += 1
        return [scope for scope in self._open if scope.end >= end]


def _collect_words(source: bytes, text: list[tree_sitter.Node], references: list[Reference]) -> str:
    """Return the words of used names, comments and strings; a word counts as often as it occurs."""
    left = _TEXT_BYTES
    parts = [each.name for each in references]
    for node in text:
        if left <= 0:
            break
        part = source[node.start_byte : min(node.end_byte, node.start_byte + left)]
        left -= len(part)
        parts.append(part.decode("utf-8", "replace"))
    return " ".join(word for part in parts for word in search_words(part))
