"""Writes the map as text: the likely files with their most relevant definitions, within a budget of bytes."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from chargehand.core.text import printable, shown_path
from chargehand.knowledge._graph import CodeGraph, DefinitionRow
from chargehand.knowledge._ranking import MapRequest
from chargehand.knowledge._words import search_words
from chargehand.knowledge.index import TreeSource

_DETAILED = 10  # files that are listed with definitions
_DETAIL_SHARE = 0.6  # of the budget; the rest is for paths alone
_MOST_DEFINITIONS = 8  # of one file
_LONGEST_LINE = 110
_READ_BYTES = 400_000
_HEAD = "Files that the request is likely about, the most likely first, with lines of definitions:"
_MORE = "Further files:"
_LEFT_OUT = "{:3} less likely files are left out."


def render_files(
    graph: CodeGraph,
    request: MapRequest,
    ranked: Sequence[tuple[int, float]],
    source: TreeSource,
    *,
    limit: int,
) -> str:
    """Return the text for ranked files, at most `limit` bytes; "" without files or room."""
    lines = [_HEAD]
    left = limit - len(_HEAD) - 1
    detail = int(left * _DETAIL_SHARE)
    shown = 0
    for file, _ in ranked[:_DETAILED]:
        block = _render_file(graph, request, file, source)
        while len(block) > 1 and _size(block) > detail:
            block.pop()
        if _size(block) > detail:
            break
        lines += block
        detail -= _size(block)
        left -= _size(block)
        shown += 1
    further = []
    left -= len(_MORE) + len(_LEFT_OUT) + 2  # with their line ends
    for file, _ in ranked[shown:]:
        path = shown_path(graph.path_of(file))
        if _size([path]) > left:
            break
        further.append(path)
        left -= _size([path])
    if not shown and not further:
        return ""
    left_out = len(ranked) - shown - len(further)
    note = [_LEFT_OUT.format(left_out).strip()] if left_out and left >= 0 else []
    return "\n".join([*lines, *([_MORE, *further] if further else []), *note])


def _size(lines: Sequence[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _render_file(graph: CodeGraph, request: MapRequest, file: int, source: TreeSource) -> list[str]:
    """Return the lines of one file: its path and its most relevant definitions in their order."""
    rows = graph.definitions_in(file)
    scores = _score_definitions(graph, request, rows, source)
    best = sorted(range(len(rows)), key=lambda at: (-scores[at], rows[at].line))[:_MOST_DEFINITIONS]
    if any(scores):
        best = [at for at in best if scores[at] > 0]
    lines = [shown_path(graph.path_of(file))]
    for at in sorted(best):
        row = rows[at]
        indent = "  " * (1 + min(3, row.qualified.count(".")))
        lines.append(f"{indent}{row.line}: {printable(row.signature)[:_LONGEST_LINE].rstrip()}")
    return lines


def _score_definitions(
    graph: CodeGraph, request: MapRequest, rows: Sequence[DefinitionRow], source: TreeSource
) -> list[float]:
    """Return how well the name and the body of each definition match the request."""
    wanted = frozenset(request.words)
    names = frozenset(request.names)
    inside = _words_by_line(graph, rows, source, wanted)
    # A word on most lines of the file says little about one definition.
    total = Counter(word for words in inside.values() for word in words)
    scores = []
    for row in rows:
        score = sum(2.0 / math.sqrt(1 + total[word]) for word in wanted & {*search_words(row.name)})
        body = {word for line in range(row.line, row.end_line + 1) for word in inside.get(line, ())}
        score += sum(1.0 / (1 + total[word]) for word in body)
        if row.name in names:
            score += 4.0
        scores.append(score * (0.5 if row.kind in ("field", "constant") else 1.0))
    return scores


def _words_by_line(
    graph: CodeGraph, rows: Sequence[DefinitionRow], source: TreeSource, wanted: frozenset[str]
) -> dict[int, set[str]]:
    """Return the request's words on each line of a file."""
    if not rows or not wanted:
        return {}
    content = source.read_blob(graph.oid_of(rows[0].blob).hex())[:_READ_BYTES].decode("utf-8", "replace").lower()
    starts = [0, *(found.end() for found in re.finditer("\n", content))]
    made: dict[int, set[str]] = {}
    for found in _word_pattern(wanted).finditer(content):
        made.setdefault(bisect_right(starts, found.start()), set()).add(found[0])
    return made


@lru_cache(8)
def _word_pattern(words: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern for words; a short one must be a whole part of a name."""
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return re.compile(
        "|".join(re.escape(w) if len(w) > 3 else rf"(?<![a-z0-9]){re.escape(w)}(?![a-z0-9])" for w in ordered)
    )
