"""Splits names and text into the words of the full-text search."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"[^\W\d]\w*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|\d+")
_LONGEST = 60  # characters of a word; longer ones are data


@cache
def stop_words() -> frozenset[str]:
    """Return the words of requests that say nothing about the place of a change."""
    return frozenset((files(__package__) / "stop_words.txt").read_text().split())


def split_name(name: str) -> list[str]:
    """Return the parts of a name in snake case or camel case, in lower case."""
    return [part.lower() for part in _PART.findall(name)]


def names_in(text: str) -> list[str]:
    """Return the names in a text, in order, with repetitions."""
    return [name for name in _NAME.findall(text) if len(name) <= _LONGEST]


def search_words(text: str) -> list[str]:
    """Return the words of a text for the search: each name in lower case, and its parts if there are several."""
    words = []
    for name in names_in(text):
        parts = split_name(name)
        words.append(name.lower())
        if len(parts) > 1:
            words += parts
    return words
