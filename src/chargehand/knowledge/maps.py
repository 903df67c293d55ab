"""The map of one tree: the text for an agent's first message, and queries about definitions and their users."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath

from chargehand.core.errors import NotFoundError
from chargehand.knowledge._graph import MOST_DEFINERS, CodeGraph, DefinitionRow, ReferenceRow
from chargehand.knowledge._languages import is_test, is_test_file
from chargehand.knowledge._ranking import MapRequest, rank_files
from chargehand.knowledge._rendering import render_files
from chargehand.knowledge._words import search_words
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.records import CodeHit, CodeHits, MapError, MapSummary

DEFAULT_TOKENS = 2000
_MOST_HITS = 50
_MOST_IMPACT = 200
_MOST_SEARCHED = 200  # files that are searched for words
_MOST_REACHED = 1000  # definitions that are followed at one distance from the targets
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

    def search_code(self, words: str, *, most: int = _MOST_HITS) -> CodeHits:
        """Return the definitions that words name, exact names first, then files that contain the words."""
        with self._graph() as graph:
            request = MapRequest.parse(words)
            found: dict[tuple[str, int], CodeHit] = {}
            for name in dict.fromkeys([_last_part(words), *request.names]):
                for row in graph.definitions_of(name):
                    found.setdefault((row.path, row.line), _hit_of(row))
            wanted = set(request.words)
            files = list(graph.match_words(request.words, most=_MOST_SEARCHED))
            unread = 0
            for number, file in enumerate(files):
                if len(found) >= most:
                    unread = len(files) - number  # each has one place at least
                    break
                rows = graph.definitions_in(file)
                shared = [(len(wanted & set(search_words(row.name))), row) for row in rows]
                best = sorted((pair for pair in shared if pair[0]), key=lambda pair: (-pair[0], pair[1].line))
                for _, row in best[:5]:
                    found.setdefault((row.path, row.line), _hit_of(row))
                unread += len(best[5:])
                if not best:
                    path = graph.path_of(file)
                    found.setdefault((path, 1), CodeHit(path=path, line=1, name="", kind="file"))
            counted = len(files) < _MOST_SEARCHED and len(found) < most
            return _cut(list(found.values()), most, unread=unread, counted=counted)

    def who_calls(self, symbol: str, *, most: int = _MOST_HITS) -> CodeHits:
        """Return the places that refer to a symbol: calls first, then types and other uses, then imports.

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
            hits = [
                _caller(each, graph.definition_at(each.file, each.within), name, kind=each.kind)
                for each in references[:most]
            ]
            return CodeHits(hits=tuple(hits), left_out=len(references) - len(hits))

    def impact_of(self, targets: Sequence[str], *, directory: str = "", most: int = _MOST_IMPACT) -> CodeHits:
        """Return the definitions that use the targets (paths or symbols), directly or through up to three calls.

        A path is relative to `directory`, else to the top of the tree, which is `/`. Of a name with more than 20
        definitions only the users near a target are followed. Raises `NotFoundError` (`symbol_not_found`).
        """
        with self._graph() as graph:
            walk = _UserWalk(graph, targets, directory)
            walk.follow(_DEEPEST)
            return _cut(walk.hits, most, counted=walk.counted, common=walk.common)

    def tests_for(self, targets: Sequence[str], *, directory: str = "", most: int = _MOST_HITS) -> CodeHits:
        """Return the tests that reach the targets (see `impact_of`), the most direct ones first.

        Of equally direct ones those come first that share more words with the targets.
        Raises `NotFoundError` (`symbol_not_found`).
        """
        with self._graph() as graph:
            walk = _UserWalk(graph, targets, directory, tests_first=True)
            walk.follow(_DEEPEST_TEST)
            found = [hit for hit in walk.hits if is_test(hit.path, hit.name.rpartition(".")[2], hit.kind)]
            wanted = {word for target in targets for word in search_words(target)}

            def rank(hit: CodeHit) -> tuple[int, int]:
                return hit.depth, -len(wanted.intersection(search_words(f"{hit.path} {hit.name}")))

            return _cut(sorted(found, key=rank), most, counted=walk.counted, common=walk.common)


class _UserWalk:
    """A walk from targets to the definitions that use them, in breadth-first order, each definition once."""

    def __init__(
        self, graph: CodeGraph, targets: Sequence[str], directory: str, *, tests_first: bool = False
    ) -> None:
        self._graph = graph
        self._tests_first = tests_first
        self._level = [row for target in targets for row in _resolve(graph, target, directory)]
        self._seen = {(row.file, row.position) for row in self._level}
        self._names = set[str]()
        self.hits: list[CodeHit] = []
        self.common: list[str] = []
        self.counted = True

    def follow(self, depth: int) -> None:
        """Find users through up to `depth` references."""
        for distance in range(depth):
            by_name: dict[str, list[DefinitionRow]] = {}
            for row in self._level:
                if row.name not in self._names:
                    by_name.setdefault(row.name, []).append(row)
            self._names.update(by_name)
            is_only = not distance and len(by_name) == 1
            found = [
                (name, reference)
                for name, rows in by_name.items()
                for reference in self._references(name, rows if not distance else (), is_only=is_only)
            ]
            if self._tests_first:  # or a symbol with very many users would have no tests
                found.sort(key=lambda pair: not is_test_file(pair[1].path))
            self._level = self._add(found, distance)

    def _references(self, name: str, rows: Sequence[DefinitionRow], *, is_only: bool) -> list[ReferenceRow]:
        """Return the references to a name; to a common one, only those in files that also use a target's scope."""
        references = self._graph.references_to(name)
        if len(self._graph.definitions_of(name, most=MOST_DEFINERS + 1)) <= MOST_DEFINERS:
            return references
        self.common.append(name)
        near = {row.file for row in rows}
        for scope in {_scope_of(row) for row in rows}:
            near.update(each.file for each in self._graph.references_to(scope))
        likely = [each for each in references if each.file in near]
        return references if is_only and not likely else likely

    def _add(self, found: Sequence[tuple[str, ReferenceRow]], distance: int) -> list[DefinitionRow]:
        """Add the users at one distance as hits, and return their definitions."""
        following: list[DefinitionRow] = []
        added = 0
        for name, reference in found:
            key = (reference.file, reference.within)
            if reference.kind == "import" or key in self._seen:
                continue
            if added == _MOST_REACHED:
                self.counted = False
                break
            added += 1
            self._seen.add(key)
            around = self._graph.definition_at(*key)
            self.hits.append(_caller(reference, around, name, depth=distance))
            if around is not None:
                following.append(around)
        return following


def _scope_of(row: DefinitionRow) -> str:
    """Return the name of the definition around another one, else that of its module."""
    return row.qualified.rpartition(".")[0].rpartition(".")[2] or PurePosixPath(row.path).stem


def _cut(
    found: Sequence[CodeHit], most: int, *, unread: int = 0, counted: bool = True, common: Sequence[str] = ()
) -> CodeHits:
    left_out = max(0, len(found) - most) + unread
    return CodeHits(hits=tuple(found[:most]), left_out=left_out, counted=counted, common=tuple(common))


def _files_at(graph: CodeGraph, path: str, directory: str) -> list[int]:
    """Return the files at or below a path, relative to a directory of the tree, else to its top, which is `/`."""
    for start in dict.fromkeys((directory, "")) if path.strip("/") else ():
        place = posixpath.normpath(posixpath.join(start, path))
        if place != "." and (files := graph.files_at(place)):
            return files
    return []


def _resolve(graph: CodeGraph, target: str, directory: str) -> list[DefinitionRow]:
    """Return the definitions that a path or a symbol names."""
    if files := _files_at(graph, target, directory):
        return [row for file in files for row in graph.definitions_in(file)]
    rows = graph.definitions_of(_last_part(target))
    wanted = _with_dots(target)
    within = [row for row in rows if f".{row.qualified}".endswith(f".{wanted}")]
    if not rows:
        raise _unknown(target)
    return within or rows


def _with_dots(symbol: str) -> str:
    # No name of the index has bytes that are not UTF-8, and SQLite refuses them.
    text = symbol.encode(errors="replace").decode()
    return _SEPARATORS.sub(".", text.strip().removesuffix("()")).strip(".")


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


def _caller(
    reference: ReferenceRow, around: DefinitionRow | None, name: str, *, kind: str = "", depth: int = 0
) -> CodeHit:
    """Return a reference as a hit, with the definition around it."""
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
