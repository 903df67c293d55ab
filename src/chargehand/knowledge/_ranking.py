"""Ranks the files of a tree for a request: full-text hits and named places, spread over the graph of code.

Personalised PageRank by forward push (Andersen, Chung, Lang: Local Graph Partitioning using PageRank Vectors,
2006): only the neighbourhood of the seeds is read, so that the cost does not grow with the tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from chargehand.knowledge._graph import MOST_DEFINERS, CodeGraph
from chargehand.knowledge._languages import is_test_file, language_of
from chargehand.knowledge._words import names_in, search_words, stop_words

_SEEDS = 40
_RESTART = 0.75  # the probability that the walk returns to a seed
_LEAST_RESIDUE = 0.002
_MOST_PUSHES = 60
_MOST_WORDS = 40
_MOST_RANKED = 300
_TEXT, _PATH, _NAME, _PLACE = 1.0, 0.5, 1.0, 3.0  # the shares of the kinds of seeds
_TEXT_FILE_SHARE = 0.5  # pages have many words, and most requests are about code
_TEST_SHARE = 0.4  # a request is rarely about the test itself
_CODE_IN_TEXT = re.compile(r"`[^`\n]{1,200}`|[\w.]+\(")
_PATH_IN_TEXT = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)+|[\w@+-]+\.[A-Za-z]\w{0,7}\b")


class MapRequest(Struct, frozen=True, kw_only=True):
    """The parts of a request that are ranked by: words for the search, names, and texts that look like paths."""

    words: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> MapRequest:
        """Return the parts of a text; stop words and numbers are left out."""
        names = dict.fromkeys(name for name in names_in(text) if len(name) > 1)
        words = dict.fromkeys(word for name in names for word in search_words(name))
        # A word that is written as code is a name, however common it is.
        code = {name for found in _CODE_IN_TEXT.finditer(text) for name in names_in(found[0])}
        plain = {word for name in names if name in code for word in search_words(name)}
        return cls(
            words=tuple(w for w in words if w in plain or (len(w) > 1 and w not in stop_words()))[:_MOST_WORDS],
            names=tuple(n for n in names if n in code or (len(n) > 2 and n.lower() not in stop_words())),
            places=tuple(dict.fromkeys(_PATH_IN_TEXT.findall(text))),
        )


def rank_files(graph: CodeGraph, request: MapRequest) -> list[tuple[int, float]]:
    """Return files by their relevance to a request, the most relevant first."""
    seeds = find_seeds(graph, request)
    if not seeds:
        return []
    spread = spread_rank(graph, seeds)
    likely = sorted(spread, key=lambda file: -spread[file])[:_MOST_RANKED]
    paths = {file: graph.path_of(file) for file in likely}
    scores = {file: spread[file] * file_share(paths[file]) for file in likely}
    return sorted(scores.items(), key=lambda item: (-item[1], paths[item[0]]))


def file_share(path: str) -> float:
    """Return the factor of a file's score by its kind: code, text or tests."""
    if language_of(path) is None:
        return _TEXT_FILE_SHARE
    return _TEST_SHARE if is_test_file(path) else 1.0


def find_seeds(graph: CodeGraph, request: MapRequest) -> dict[int, float]:
    """Return the files that a request names or whose words it uses, with weights that add up to 1."""
    seeds: dict[int, float] = {}
    _add(seeds, graph.match_words(request.words, most=_SEEDS), _TEXT)
    _add(seeds, graph.match_paths(request.words, most=_SEEDS), _PATH)
    named: dict[int, float] = {}
    for name in request.names:
        files = dict.fromkeys(row.file for row in graph.definitions_of(name, most=4 * MOST_DEFINERS))
        if len(files) <= MOST_DEFINERS:
            for file in files:
                named[file] = named.get(file, 0.0) + 1 / len(files)
    _add(seeds, named, _NAME)
    placed: dict[int, float] = {}
    for place in request.places:
        files = dict.fromkeys([*graph.files_at(place)[:_SEEDS], *graph.files_named(place)])
        for file in files:
            placed[file] = placed.get(file, 0.0) + 1 / len(files)
    _add(seeds, placed, _PLACE)
    total = sum(seeds.values())
    return {file: weight / total for file, weight in seeds.items()} if total > 0 else {}


def _add(seeds: dict[int, float], found: Mapping[int, float], share: float) -> None:
    most = max(found.values(), default=0.0)
    for file, score in found.items():
        seeds[file] = seeds.get(file, 0.0) + share * score / most if most > 0 else seeds.get(file, 0.0)


def spread_rank(graph: CodeGraph, seeds: Mapping[int, float]) -> dict[int, float]:
    """Return the approximate PageRank of the files near the seeds, personalised to them."""
    rank = dict.fromkeys(seeds, 0.0)
    residue = dict(seeds)
    for _ in range(_MOST_PUSHES):
        if not residue:
            break
        # The first of equal ones: the order is that of paths, since ids change when slots move.
        file = max(residue, key=residue.__getitem__)
        mass = residue.pop(file)
        if mass < _LEAST_RESIDUE:
            residue[file] = mass
            break
        rank[file] = rank.get(file, 0.0) + _RESTART * mass
        neighbours = graph.neighbours(file)
        total = sum(neighbours.values())
        if not total:
            rank[file] += (1 - _RESTART) * mass
            continue
        for other, weight in neighbours.items():
            residue[other] = residue.get(other, 0.0) + (1 - _RESTART) * mass * weight / total
    for file, mass in residue.items():  # too little to push: it stays at its file
        rank[file] = rank.get(file, 0.0) + _RESTART * mass
    return rank
