"""Ranks the files of several repositories for one request, and finds the best lines of a file.

The rank of a file in its repository says nothing about other repositories. Each file therefore also has a score
that can be compared: BM25 with the rarity of words in the whole library. Both orders are merged by reciprocal rank
(Cormack, Clarke, Buettcher: Reciprocal Rank Fusion outperforms Condorcet, SIGIR 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from chargehand.knowledge._graph import CodeGraph, DefinitionRow
from chargehand.knowledge._ranking import MapRequest, file_share, rank_files
from chargehand.knowledge._words import search_words

_FUSION = 60  # the constant of the source
_EXCERPT_LINES, _EXCERPT_WIDTH = 5, 200


class RepositoryMatches(Struct, frozen=True, kw_only=True):
    """The matches in one repository: paths by local rank, and each word's count and frequencies by path."""

    name: str
    contents: int
    ranked: tuple[str, ...]
    words: Mapping[str, tuple[int, Mapping[str, float]]]


def match_repository(
    name: str, graph: CodeGraph, request: MapRequest, keep: Callable[[str], bool]
) -> RepositoryMatches:
    """Return the matches of a request in one repository, of the paths to keep only."""
    paths: dict[int, str] = {}

    def path_of(file: int) -> str:
        if file not in paths:
            paths[file] = graph.path_of(file)
        return paths[file]

    words = {}
    for word in request.words:
        count, found = graph.match_word(word)
        words[word] = (count, {path: value for file, value in found.items() if keep(path := path_of(file))})
    ranked = tuple(path for file, _ in rank_files(graph, request) if keep(path := path_of(file)))
    return RepositoryMatches(name=name, contents=graph.count_contents(), ranked=ranked, words=words)


def word_weights(matches: Sequence[RepositoryMatches]) -> dict[str, float]:
    """Return the rarity of each word in all repositories together, as in BM25."""
    total = sum(each.contents for each in matches)
    counts: dict[str, int] = {}
    for each in matches:
        for word, (count, _) in each.words.items():
            counts[word] = counts.get(word, 0) + count
    return {word: math.log(1 + (total - count + 0.5) / (count + 0.5)) for word, count in counts.items() if count}


def merge_matches(
    matches: Sequence[RepositoryMatches], weights: Mapping[str, float]
) -> list[tuple[RepositoryMatches, str]]:
    """Return the files of all repositories as (repository, path), the most relevant first."""
    scores: dict[tuple[int, str], float] = {}
    fused: dict[tuple[int, str], float] = {}
    for number, each in enumerate(matches):
        for word, (_, found) in each.words.items():
            for path, value in found.items():
                key = (number, path)
                scores[key] = scores.get(key, 0.0) + weights[word] * value * file_share(path)
        for place, path in enumerate(each.ranked):
            fused[(number, path)] = 1 / (_FUSION + place + 1)
    for place, key in enumerate(sorted(scores, key=lambda key: (-scores[key], key))):
        fused[key] = fused.get(key, 0.0) + 1 / (_FUSION + place + 1)
    order = sorted(fused, key=lambda key: (-fused[key], -scores.get(key, 0.0), key))
    return [(matches[number], path) for number, path in order]


def best_line(lines: Sequence[str], definitions: Sequence[DefinitionRow], weights: Mapping[str, float]) -> int:
    """Return the number of the line, from 1, that a request is most likely about.

    It is the line with the most weight of words; the words of a defined name count twice.
    """
    stems = {word[: max(4, len(word) - 2)]: weight for word, weight in weights.items()}

    def weight_of(text: str) -> float:
        found = set(search_words(text))
        return sum(weight for stem, weight in stems.items() if any(each.startswith(stem) for each in found))

    values = [weight_of(line) for line in lines]
    for row in definitions:
        if 0 < row.line <= len(values):
            values[row.line - 1] += weight_of(row.name)
    return max(range(len(values)), key=lambda number: (values[number], -number), default=0) + 1


def cut_excerpt(lines: Sequence[str], line: int) -> tuple[int, str]:
    """Return the last line and the text of an excerpt that begins at a line; long lines are cut."""
    shown = lines[line - 1 : line - 1 + _EXCERPT_LINES]
    return line + max(0, len(shown) - 1), "\n".join(each[:_EXCERPT_WIDTH].rstrip() for each in shown)
