"""The map of one tree: the text for an agent's first message, and queries about definitions and their users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chargehand.core.errors import NotFoundError
from chargehand.knowledge._graph import MOST_DEFINERS, CodeGraph, DefinitionRow, ReferenceRow
from chargehand.knowledge._languages import is_test, is_test_file
from chargehand.knowledge._ranking import MapRequest, rank_files
from chargehand.knowledge._rendering import render_files
from chargehand.knowledge._words import search_words
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.records import CodeHit, MapError, MapSummary

DEFAULT_TOKENS = 2000
_MOST_HITS = 50
_MOST_IMPACT = 200
_MOST_REACHED = 300  # definitions that are looked at for tests
_DEEPEST = 3  # calls between a definition and a use of it
_DEEPEST_TEST = 4
_SEPARATORS = re.compile(r"::|->|[#/:]")


class RepositoryMap:
    """The map of the tree `tree` in an index; bring the tree first. Safe to use from several threads.

    Users of a definition are found by its name: two definitions of one name share their users. Raises `MapError`
    (`map_not_ready`) if the tree is not in the index.
    """

    def __init__(self, index: CodeIndex, tree: str) -> None:
        self._index = index
        self.tree = tree

    def bring(self, *, seconds: float | None = None) -> MapSummary:
        """Bring the tree into the index; see `CodeIndex.bring`."""
        return self._index.bring(self.tree, seconds=seconds)

    @contextmanager
    def _graph(self) -> Iterator[CodeGraph]:
        with self._index.reading() as connection:
            slot = self._index.find_slot(self.tree)
            if slot is None:
                raise MapError(
                    f"tree {self.tree} is not in the index", code="map_not_ready", hint="bring it first"
                )
            yield CodeGraph(connection, slot)

    def rank(self, request: str) -> list[str]:
        """Return the paths of the files that a request is likely about, the most likely first."""
        with self._graph() as graph:
            return [graph.path_of(file) for file, _ in rank_files(graph, MapRequest.parse(request))]

    def render(self, request: str, *, tokens: int = DEFAULT_TOKENS) -> str:
        """Return a text of at most `tokens` (of four bytes) that lists the files a request is likely about.

        Each of the first files comes with its definitions and their lines. "" if nothing matches.
        """
        with self._graph() as graph:
            parsed = MapRequest.parse(request)
            ranked = rank_files(graph, parsed)
            return render_files(graph, parsed, ranked, self._index.source, limit=4 * tokens)

    def search_code(self, words: str, *, most: int = _MOST_HITS) -> tuple[CodeHit, ...]:
        """Return the definitions that words name, exact names first, then files that contain the words."""
        with self._graph() as graph:
            request = MapRequest.parse(words)
            found: dict[tuple[str, int], CodeHit] = {}
            for name in dict.fromkeys([_last_part(words.strip()), *request.names]):
                for row in graph.definitions_of(name, most=most):
                    found.setdefault((row.path, row.line), _hit_of(row))
            wanted = set(request.words)
            for file in graph.match_words(request.words, most=20):
                rows = graph.definitions_in(file)
                shared = [(len(wanted & set(search_words(row.name))), row) for row in rows]
                best = sorted((pair for pair in shared if pair[0]), key=lambda pair: (-pair[0], pair[1].line))
                for _, row in best[:5]:
                    found.setdefault((row.path, row.line), _hit_of(row))
                if not best:
                    path = graph.path_of(file)
                    found.setdefault((path, 1), CodeHit(path=path, line=1, name="", kind="file"))
            return tuple(found.values())[:most]

    def who_calls(self, symbol: str, *, most: int = _MOST_HITS) -> tuple[CodeHit, ...]:
        """Return the places that refer to a symbol: calls first, then imports, types and other uses.

        `symbol` is a name, or a qualified one such as `Config.from_file`; its last part is searched.
        Raises `NotFoundError` (`symbol_not_found`) if the tree neither defines nor uses it.
        """
        with self._graph() as graph:
            name = _last_part(symbol)
            references = graph.references_to(name)
            if not references and not graph.definitions_of(name, most=1):
                raise _unknown(symbol)
            order = ("call", "type", "use", "import")
            references.sort(
                key=lambda each: (order.index(each.kind), is_test_file(each.path), each.path, each.line)
            )
            return tuple(_caller(graph, each, name, kind=each.kind) for each in references[:most])

    def impact_of(self, targets: Sequence[str], *, most: int = _MOST_IMPACT) -> tuple[CodeHit, ...]:
        """Return the definitions that use the targets (paths or symbols), directly or through up to three calls.

        Names with more than 20 definitions are not followed. Raises `NotFoundError` (`symbol_not_found`).
        """
        with self._graph() as graph:
            return tuple(self._users(graph, targets, depth=_DEEPEST, most=most))

    def tests_for(self, targets: Sequence[str], *, most: int = _MOST_HITS) -> tuple[CodeHit, ...]:
        """Return the tests that reach the targets (paths or symbols), the most direct ones first.

        Raises `NotFoundError` (`symbol_not_found`).
        """
        with self._graph() as graph:
            found = []
            for hit in self._users(graph, targets, depth=_DEEPEST_TEST, most=_MOST_REACHED):
                name = hit.name.rpartition(".")[2]
                if is_test(hit.path, name, hit.kind):
                    found.append(hit)
            return tuple(found[:most])

    def _users(self, graph: CodeGraph, targets: Sequence[str], *, depth: int, most: int) -> Iterator[CodeHit]:
        """Yield the users of targets in breadth-first order, each definition once."""
        level = [row for target in targets for row in _resolve(graph, target)]
        seen = {(row.file, row.position) for row in level}
        names = set[str]()
        left = most
        for distance in range(depth):
            following: list[DefinitionRow] = []
            for name in dict.fromkeys(row.name for row in level):
                if name in names or len(graph.definitions_of(name, most=MOST_DEFINERS + 1)) > MOST_DEFINERS:
                    continue
                names.add(name)
                for reference in graph.references_to(name):
                    key = (reference.file, reference.within)
                    if reference.kind == "import" or key in seen:
                        continue
                    seen.add(key)
                    yield _caller(graph, reference, name, depth=distance)
                    left -= 1
                    if not left:
                        return
                    if (row := graph.definition_at(*key)) is not None:
                        following.append(row)
            level = following


def _resolve(graph: CodeGraph, target: str) -> list[DefinitionRow]:
    """Return the definitions that a path or a symbol names."""
    files = graph.files_at(target) if target.strip("/") else []
    if files:
        return [row for file in files for row in graph.definitions_in(file)]
    rows = graph.definitions_of(_last_part(target))
    wanted = _with_dots(target)
    within = [row for row in rows if f".{row.qualified}".endswith(f".{wanted}")]
    if not rows:
        raise _unknown(target)
    return within or rows


def _with_dots(symbol: str) -> str:
    return _SEPARATORS.sub(".", symbol.strip().removesuffix("()")).strip(".")


def _last_part(symbol: str) -> str:
    return _with_dots(symbol).rpartition(".")[2]


def _unknown(symbol: str) -> NotFoundError:
    return NotFoundError(
        f"the tree has no path and no symbol {symbol!r}",
        code="symbol_not_found",
        hint="chargehand map --search WORDS finds definitions by words",
    )


def _hit_of(row: DefinitionRow) -> CodeHit:
    return CodeHit(path=row.path, line=row.line, name=row.qualified, kind=row.kind, signature=row.signature)


def _caller(graph: CodeGraph, reference: ReferenceRow, name: str, *, kind: str = "", depth: int = 0) -> CodeHit:
    around = graph.definition_at(reference.file, reference.within)
    if around is None:
        return CodeHit(
            path=reference.path, line=reference.line, name="", kind=kind or "file", via=name, depth=depth
        )
    return CodeHit(
        path=reference.path,
        line=reference.line,
        name=around.qualified,
        kind=kind or around.kind,
        signature=around.signature,
        via=name,
        depth=depth,
    )
