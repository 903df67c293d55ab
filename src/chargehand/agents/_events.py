"""What an agent of another program says and does, in one form for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from chargehand.models.contract import Usage

EventKind = Literal["session", "text", "thought", "call", "result", "usage", "error", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """One thing that an agent told of itself; all of it is its own word.

    `text` is what it said, a tool's output or an error; `tool` and `call` name a tool and one call of it, with its
    `arguments`. The `usage` of a "usage" event is of one call to a model, of an "end" event of the whole session.
    An "end" that `failed` has its reason in `text`. The text of a `piece` goes on with that of the piece before.
    """

    kind: EventKind
    text: str = ""
    tool: str = ""
    call: str = ""
    arguments: Any = None
    failed: bool = False
    usage: Usage | None = None
    piece: bool = False
