"""The parts of a reply, put together from its stream."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from msgspec import Struct, field

from chargehand.agents.model_messages import ReplyCall, ReplyPart, ReplyText, ReplyThinking


class PartDraft(Struct):
    """A part that is still arriving; `args` is a list of pieces, or an object if the provider sends one."""

    pieces: list[str] = field(default_factory=list)
    id: str = ""
    signature: str | None = None
    provider: str | None = None
    name: str = ""
    args: dict[str, Any] | None = None
    given: bool = False

    def finish(self, kind: type[ReplyPart]) -> ReplyPart | None:
        """Return the part; `None` for a call without a name, which cannot be carried out."""
        text = "".join(self.pieces)
        if kind is ReplyText:
            return ReplyText(text)
        if kind is ReplyThinking:
            return ReplyThinking(text, self.id or None, self.signature, self.provider)
        args = self.args if self.args is not None else text if self.given else None
        return ReplyCall(self.name, args, self.id) if self.name else None


class ReplyParts:
    """The parts of a reply in the order in which they began, found again by the keys that the dialect gives."""

    def __init__(self) -> None:
        self._drafts: list[tuple[type[ReplyPart], PartDraft]] = []
        self._places: dict[Hashable, int] = {}

    def kind_of(self, key: Hashable) -> type[ReplyPart] | None:
        """Return the kind of the part with this key, `None` if there is none."""
        return self._drafts[self._places[key]][0] if key in self._places else None

    def open(self, key: Hashable, kind: type[ReplyPart]) -> tuple[PartDraft, bool]:
        """Return the part with this key, and whether it begins; raises `ValueError` if it has another kind."""
        place = self._places.get(key)
        if place is None:
            self._places[key] = len(self._drafts)
            self._drafts.append((kind, PartDraft()))
            return self._drafts[-1][1], True
        found, draft = self._drafts[place]
        if found is not kind:
            raise ValueError(f"the reply continues a part of kind {found.__name__} as {kind.__name__}")
        return draft, False

    def forget(self, key: Hashable) -> None:
        """End a part: the next one with this key begins anew."""
        self._places.pop(key, None)

    def last_call(self) -> PartDraft | None:
        """Return the last part if it is a call."""
        kind, draft = self._drafts[-1] if self._drafts else (None, None)
        return draft if kind is ReplyCall else None

    def finish(self) -> list[ReplyPart]:
        """Return the parts."""
        return [part for kind, draft in self._drafts if (part := draft.finish(kind)) is not None]


def add_call(draft: PartDraft, name: object, args: object, id: object) -> None:
    """Add a piece of a call; raises `ValueError` if the arguments change between text and object."""
    draft.name += _text(name)
    draft.id = _text(id) or draft.id
    if isinstance(args, str):
        if draft.args is not None:
            raise ValueError("the arguments of a call are both text and an object")
        draft.given = True
        draft.pieces.append(args)
    elif isinstance(args, dict):
        if draft.given:
            raise ValueError("the arguments of a call are both text and an object")
        draft.args = {**(draft.args or {}), **args}
    elif args is not None:
        raise ValueError("the arguments of a call are neither text nor an object")


def _text(value: object) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError("a name in the reply is not a text")
    return value or ""
