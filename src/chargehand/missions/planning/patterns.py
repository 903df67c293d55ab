"""Path patterns of plans: validation, and whether two may match the same path.

The syntax is that of `.gitignore`: `*`, `?` and `[…]` within a name, `**` between names, and a pattern that
matches a directory matches everything below it. Two paths count as the same if a file system that ignores case or
the form of accents would treat them as one file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from chargehand.core.text import late_pattern

LONGEST_PATTERN = 400
_CONTROL = late_pattern(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ODD_IN_BRACKETS = late_pattern(r"[\[\\]|--|&&|~~|\|\|")
_RANGE = late_pattern(r"(.)(?:-(.))?", re.DOTALL)
# A class of more characters is not listed: it is assumed to overlap any other class.
_MOST_LISTED = 600


class _CharacterClass(Struct, frozen=True):
    """The content of brackets; `folded` are its characters without case, `None` if there are too many."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool
    folded: frozenset[str] | None

    def may_match(self, folded: frozenset[str]) -> bool:
        variants = {variant for char in folded for variant in (char, char.upper(), char.lower())}
        return any(
            any(low <= char <= high for low, high in self.ranges) != self.negated
            for char in variants
            if len(char) == 1
        )


# Within a name: a character without case, `?`, `*` or a class. Between names: a name or `**`. No name contains a
# "/", so a name cannot equal one of these constants.
_ANY, _STAR, _GAP = "/?", "/*", "/**"
_Token = str | _CharacterClass
_Segment = str | tuple[_Token, ...]
CompiledPattern = tuple[_Segment, ...]


def pattern_problem(text: str, *, areas: bool = False) -> tuple[str, str]:
    """Return the problem of a pattern and the way out, both empty if it is valid.

    Patterns of `areas` may begin with `/`, as in `.gitignore`; other paths begin at the top of the repository.
    """
    parts = text.removeprefix("/").removesuffix("/").split("/")
    example = "write 'src/**' or 'docs/index.md'"
    if not text.strip() or text != text.strip():
        return "is empty or has blanks at its ends", example
    if len(text) > LONGEST_PATTERN:
        return f"has more than {LONGEST_PATTERN} characters", "name a directory above it"
    if _CONTROL.search(text):
        return "has a control character", "remove it"
    if text.startswith(("!", "#")):
        return f"begins with {text[0]!r}", f"write '\\{text[0]}…' for a name that begins with it"
    if (text.startswith("/") and not areas) or ".." in parts or re.match(r"[A-Za-z]:[\\/]", text):
        return "leads out of the repository", f"{example}: paths begin at the top of the repository"
    if {"", "."} & set(parts):
        return "is not a plain path", f"{example}, without '.' and '//'"
    if any(_fold(part.replace("\\", "")).rstrip(". ") == ".git" for part in parts):
        return "is in git's own directory", "a plan changes files of the repository only"
    try:
        compile_pattern(text, floating=areas)
    except ValueError as error:
        return str(error), "write '\\[' for a bracket and '\\\\' for a backslash of a name"
    return "", ""


@lru_cache(maxsize=4096)
def compile_pattern(text: str, *, floating: bool = False) -> CompiledPattern:
    """Return a compiled pattern; a `floating` one without `/` matches at any depth, as in `.gitignore`.

    Raises `ValueError` for an unclosed or unordered bracket, and for a backslash at the end.
    """
    body = text.strip("/").split("/")
    segments: list[_Segment] = [_GAP] if floating and "/" not in text.rstrip("/") else []
    segments += [_GAP if part == "**" else _compile_name(part) for part in body]
    if text.endswith("/") or body[-1] == "**":
        segments.append((_STAR,))  # something below it
    return (*segments, _GAP)


def compile_path(path: str) -> CompiledPattern:
    """Return a path as a pattern that matches it and everything below it."""
    return (*(_fold(part) for part in path.strip("/").split("/")), _GAP)


def is_plain(pattern: CompiledPattern) -> bool:
    """Return whether a pattern is a single path with everything below it."""
    return all(isinstance(part, str) for part in pattern) and pattern.index(_GAP) == len(pattern) - 1


def patterns_meet(left: CompiledPattern, right: CompiledPattern) -> bool:
    """Return whether two patterns may match the same path."""
    for one, other in zip(left, right, strict=False):
        if not isinstance(one, str) or not isinstance(other, str) or _GAP in (one, other):
            break
        if one != other:
            return False  # the usual case, decided by the first differing names
    return _sequences_meet(left, right, gap=_GAP, agree=_names_meet)


def _sequences_meet(
    left: Sequence[Any], right: Sequence[Any], *, gap: str, agree: Callable[[Any, Any], bool]
) -> bool:
    """Return whether two sequences have a common reading, if `gap` matches any number of symbols."""
    seen = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        i, j = pending.pop()
        one = left[i] if i < len(left) else None
        other = right[j] if j < len(right) else None
        if one is None and other is None:
            return True
        steps: list[tuple[int, int]] = []
        if one == gap:
            steps += [(i + 1, j)] if other in (None, gap) else [(i + 1, j), (i, j + 1)]
        if other == gap:
            steps += [(i, j + 1)] if one in (None, gap) else [(i, j + 1), (i + 1, j)]
        if one not in (None, gap) and other not in (None, gap) and agree(one, other):
            steps.append((i + 1, j + 1))
        for step in steps:
            if step not in seen:
                seen.add(step)
                pending.append(step)
    return False


@lru_cache(maxsize=4096)
def _names_meet(left: _Segment, right: _Segment) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _sequences_meet(left, right, gap=_STAR, agree=_characters_meet)


def _characters_meet(left: _Token, right: _Token) -> bool:
    if _ANY in (left, right):
        return True
    one = frozenset([left]) if isinstance(left, str) else left.folded
    other = frozenset([right]) if isinstance(right, str) else right.folded
    if one is not None and other is not None:
        return not one.isdisjoint(other)
    if one is not None and isinstance(right, _CharacterClass):
        return right.may_match(one)
    if other is not None and isinstance(left, _CharacterClass):
        return left.may_match(other)
    return True


def _compile_name(name: str) -> _Segment:
    """Return a plain name without case, or the tokens of any other."""
    text = unicodedata.normalize("NFC", name)
    tokens: list[_Token] = []
    plain = True
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\":
            if at == len(text):
                raise ValueError("ends with a backslash")
            tokens.append(_fold(text[at]))
            at += 1
        elif char == "[":
            made, at = _compile_class(text, at)
            tokens.append(made)
            plain = False
        elif char in "*?":
            plain = False
            if char == "?" or tokens[-1:] != [_STAR]:
                tokens.append(_ANY if char == "?" else _STAR)
        else:
            tokens.append(_fold(char))
    return "".join(map(str, tokens)) if plain else tuple(tokens)


def _compile_class(text: str, at: int) -> tuple[_Token, int]:
    """Return the content of brackets from `at` on, and the position after them."""
    end = text.find("]", at + 1 + (text[at : at + 1] in ("!", "^")))
    if end < 0:
        raise ValueError("has a bracket that is not closed")
    negated = text[at] in "!^"
    inside = text[at + negated : end]
    if odd := _ODD_IN_BRACKETS.search(inside):
        raise ValueError(f"has {odd[0]!r} in brackets, which git and others read differently")
    ranges = [(found[1], found[2] or found[1]) for found in _RANGE.finditer(inside)]
    if wrong := next((f"{low}-{high}" for low, high in ranges if low > high), None):
        raise ValueError(f"has {wrong!r} in brackets, which is not in order")
    few = sum(ord(high) - ord(low) + 1 for low, high in ranges) <= _MOST_LISTED
    folded = None
    if few and not negated:
        codes = (code for low, high in ranges for code in range(ord(low), ord(high) + 1))
        folded = frozenset(_fold(chr(code)) for code in codes)
    return _CharacterClass(tuple(ranges), negated, folded), end + 1


def _fold(text: str) -> str:
    """Return a text without differences of case, with the same number of characters."""
    out = []
    for char in unicodedata.normalize("NFC", text):
        upper = char.upper()
        lower = (upper if len(upper) == 1 else char).lower()
        out.append(lower if len(lower) == 1 else char)
    return "".join(out)
