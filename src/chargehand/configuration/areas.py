"""The intersection of two lists of areas, as a list of areas.

Patterns are those of `.gitignore`: a path matches when one of its leading parts does. Both patterns become
sequences with gaps (`**` between segments, `*` within one), whose intersection is a finite union of such
sequences. Parts that cannot be compared (character classes, escapes) intersect only if they are equal: the result
may be narrower than the true intersection, never wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chargehand.core.errors import ConfigError

_GAP = "**"
_STAR = "*"
# The limit of patterns in a result: a stranger writes the repository's list, and two patterns with many gaps have
# a huge intersection.
_MOST_PATTERNS = 400
Tokens = tuple[str, ...]


class _TooManyError(Exception):
    """The intersection has more parts than anyone can read."""


def meet_areas(ours: Sequence[str], theirs: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that match only what both lists match, sorted; an empty list means everything.

    Raises `ConfigError` if the intersection of two nonempty lists is empty: an empty list would mean all.
    """
    if not ours or not theirs:
        return tuple(ours or theirs)
    # A pattern of both lists already covers its intersection with every other pattern.
    common = set(ours) & set(theirs)
    met = set(common)
    try:
        # The pairs are bounded before any is compared, the results as they come.
        _bound((len(ours) - len(common)) * (len(theirs) - len(common)) // _MOST_PATTERNS)
        for left in set(ours) - common:
            for right in set(theirs) - common:
                found = _meet_sequences(
                    _split_pattern(left), _split_pattern(right), gap=_GAP, symbols=_meet_segments
                )
                met |= {_join_tokens(tokens) for tokens in _merge_neighbours(set(found))}
                _bound(len(met))
    except (_TooManyError, RecursionError) as error:
        message = f"allow lists that cannot be joined: {list(ours)!r} and {list(theirs)!r}"
        raise ConfigError(message, hint="write fewer '**' and '*'") from error
    if not met:
        message = f"no area may be changed: {list(ours)!r} and {list(theirs)!r} have nothing in common"
        raise ConfigError(message, hint="allow (or --allow) only narrows what the other sources allow")
    return tuple(sorted(met))


def _merge_neighbours(found: set[Tokens]) -> set[Tokens]:
    """Return the same union with `a/b` and `a/*/**/b` written as `a/**/b`."""
    pending = sorted(found)
    while pending:
        tokens = pending.pop()
        for at in range(len(tokens) - 1):
            short = tokens[:at] + tokens[at + 2 :]
            if tokens[at : at + 2] == (_STAR, _GAP) and short in found and tokens in found:
                wide = _drop_doubled_gaps((*tokens[:at], *tokens[at + 1 :]))
                found -= {short, tokens}
                found.add(wide)
                pending.append(wide)
    return found


def _bound(found: int) -> None:
    if found > _MOST_PATTERNS:
        raise _TooManyError


def _split_pattern(pattern: str) -> Tokens:
    """Return the pattern as segments and gaps; everything below a match is a gap at its end."""
    *body, last = pattern.strip("/").split("/")
    anchored = "/" in pattern.rstrip("/")
    start = [] if anchored or last == _GAP else [_GAP]
    name = _STAR if last == _GAP else last
    if pattern.endswith("/"):
        tail: Tokens = (name, _STAR, _GAP)  # a directory, so something below it
    elif last == _STAR and anchored:
        # Git lets `dir/*` match deeper paths, some readers do not: the narrower reading is valid for both.
        tail = (name,)
    else:
        tail = (name, _GAP)
    return _drop_doubled_gaps((*start, *body, *tail))


def _drop_doubled_gaps(tokens: Sequence[str]) -> Tokens:
    out: list[str] = []
    for token in tokens:
        if token != _GAP or not out or out[-1] != _GAP:
            out.append(token)
    return tuple(out)


def _join_tokens(tokens: Tokens) -> str:
    """Return the tokens as a pattern; the gap at the end is implied."""
    parts = list(tokens)
    if parts[-1] == _GAP:
        parts.pop()
        if parts[-1] == _STAR:
            parts.pop()
            if not parts or parts[-1] != _GAP:
                parts.append(_GAP)
    text = "/".join(parts)
    # A pattern without any slash would match at every depth.
    return text if len(parts) > 1 or text == _GAP else f"/{text}"


def _meet_segments(left: str, right: str) -> set[str]:
    if left == right:
        return {left}
    if left == _STAR or right == _STAR:
        return {right if left == _STAR else left}
    if any(mark in side for side in (left, right) for mark in ("[", "\\", _GAP)):
        return set()
    found = _meet_sequences(tuple(left), tuple(right), gap=_STAR, symbols=_meet_characters)
    return {"".join(tokens) for tokens in found}


def _meet_characters(left: str, right: str) -> set[str]:
    if left == right or right == "?":
        return {left}
    return {right} if left == "?" else set()


def _meet_sequences(
    left: Tokens, right: Tokens, *, gap: str, symbols: Callable[[str, str], set[str]]
) -> frozenset[Tokens]:
    """Return the sequences whose union is the intersection; `gap` matches any number of symbols."""
    known: dict[tuple[int, int], frozenset[Tokens]] = {}

    def prefixed(heads: set[str], tails: frozenset[Tokens]) -> set[Tokens]:
        _bound(len(heads) * len(tails))
        return {(head, *tail) if head != gap or tail[:1] != (gap,) else tail for head in heads for tail in tails}

    def met(i: int, j: int) -> frozenset[Tokens]:
        if (i, j) not in known:
            known[i, j] = frozenset(step(i, j))
            _bound(len(known[i, j]))
        return known[i, j]

    def step(i: int, j: int) -> set[Tokens]:
        if i == len(left) or j == len(right):
            rest = (*left[i:], *right[j:])
            return {()} if all(token == gap for token in rest) else set()
        if left[i] == gap and right[j] == gap:
            return prefixed({gap}, met(i + 1, j) | met(i, j + 1))
        if left[i] == gap:
            return prefixed({right[j]}, met(i, j + 1)) | met(i + 1, j)
        if right[j] == gap:
            return prefixed({left[i]}, met(i + 1, j)) | met(i, j + 1)
        return prefixed(symbols(left[i], right[j]), met(i + 1, j + 1))

    return met(0, 0)
