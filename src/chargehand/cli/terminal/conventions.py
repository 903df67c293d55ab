"""Conventions of all commands: the exit code after an interrupt, and when output is JSON or coloured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any, Literal

# 128 plus the number of SIGINT, as shells report it.
INTERRUPTED = 130
# The exit code of a mission that needs a person, or that continues by itself later.
WAITING = 3
# How much of a running mission is shown: nothing but its result, its story, or every event of its log.
Detail = Literal["result", "story", "events"]


def json_wanted(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; words after `--` belong to another program."""
    # click has parsed nothing yet, so only the words are known: a `--json` that is the value of an option costs
    # only the form of an error.
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def wants_colour(stream: IO[Any], *, refused: bool = False) -> bool:
    """Return whether output to a stream may be coloured; `refused` is `--no-color`."""
    refused = refused or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not refused and stream.isatty()
