"""One small request in any dialect, and whether what comes back is an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.models._contract import Dialect
from chargehand.models._dialects import CODECS
from chargehand.models._talk import Asked, Offer, Text, Turn, UncarriedError, folded


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallAnswer:
    """What came of a small request; `called`: a tool, `cut`: the output limit ended it."""

    message: bool
    called: bool
    cut: bool


def small_request(dialect: Dialect, model: str, *, words: str, tool: str | None, limit: int) -> dict[str, Any]:
    """Return the body of a request with these words, one tool that takes nothing, and `limit` tokens of output."""
    offers = () if tool is None else (Offer(name=tool, description="Says that you can be worked with."),)
    turn = Turn(role="user", parts=(Text(text=words),))
    return CODECS[dialect].body(Asked(turns=(turn,), tools=offers, limit=limit), model)


def small_answer(dialect: Dialect, document: Mapping[str, Any]) -> SmallAnswer:
    """Return what a reply in one piece holds."""
    try:
        said = folded(CODECS[dialect].reader("probe").whole(document))
    except UncarriedError:
        said = folded(())
    known = said.ended and bool({"candidates", "output", "choices", "content"} & set(document))
    return SmallAnswer(message=known and not said.broken, called=bool(said.calls), cut=said.stop == "length")
