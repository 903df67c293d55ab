"""How output looks: how much of it there is, and whether it has colours."""

from __future__ import annotations

import os
from typing import IO, Any, Literal

# How much of a running mission is shown: nothing but its result, its story, or every event of its log.
Detail = Literal["result", "story", "events"]


def wants_colour(stream: IO[Any], *, refused: bool = False) -> bool:
    """Tell whether what is written to a stream may be coloured; `refused` is `--no-color`."""
    refused = refused or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not refused and stream.isatty()
