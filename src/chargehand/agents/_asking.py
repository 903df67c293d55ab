"""How a native agent gets a reply: one model after the other, with what fits into the context of each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from chargehand.agents._compaction import compact
from chargehand.agents._contract import AttemptContext, EndpointModel
from chargehand.agents._conversation import Said, dump_reply, to_messages
from chargehand.agents._model_client import QUOTA, UNCARRIED, ModelClient, NotKeptError
from chargehand.agents._text_protocol import describe
from chargehand.agents._tools_model import ToolSpec
from chargehand.core.errors import ExhaustedError, NotFoundError, UpstreamError

_TRIES = 3
_CONTEXT = 128_000
_REPLY_SHARE = 4
"""A quarter of the context is left to the reply."""


class Asking:
    """Asks the models of one attempt; what it learns of them on the way follows from the recorded replies."""

    def __init__(self, context: AttemptContext, client: ModelClient, *, system: str) -> None:
        assert context.endpoint is not None
        self._context = context
        self._client = client
        self._system = system
        self.models = {model.name: model for model in context.endpoint.models}
        self._tokens: tuple[int, int] | None = None
        self._pictures: dict[str, bytes] = {}

    def other_than(self, model: EndpointModel) -> EndpointModel:
        """Return the model that comes after one, the first after the last."""
        names = list(self.models)
        return self.models[names[(names.index(model.name) + 1) % len(names)]]

    def learn(self, output: Any) -> None:
        """Take from a recorded reply how many tokens a conversation of its size has."""
        tokens = output["message"]["usage"].get("input_tokens") or 0
        if tokens and output.get("size"):
            self._tokens = (tokens, output["size"])

    async def ask(
        self, model: EndpointModel, entries: Sequence[Said], specs: Sequence[ToolSpec], *, kept: bool = False
    ) -> dict[str, Any]:
        """Ask a model, and where it gives no reply the others in turn; return the reply as it is recorded.

        With `kept` only for what was paid for already; raises `NotKeptError` where that is nothing. Raises
        `UpstreamError` and `ExhaustedError` where nobody gives a reply.
        """
        order = [model, *(other for other in self.models.values() if other.name != model.name)]
        first: UpstreamError | ExhaustedError | None = None
        for candidate in order:
            try:
                return await self._ask(candidate, entries, specs, kept=kept)
            except NotKeptError:
                continue
            except (UpstreamError, ExhaustedError) as error:
                if error.code == "budget":
                    raise
                first = error if first is None or error.code == QUOTA else first
        if kept:
            raise NotKeptError
        assert first is not None
        raise first

    async def _ask(
        self, model: EndpointModel, entries: Sequence[Said], specs: Sequence[ToolSpec], *, kept: bool
    ) -> dict[str, Any]:
        system = self._system if model.tools else f"{self._system}\n\n{describe(specs)}"
        limit = (model.context or _CONTEXT) * (_REPLY_SHARE - 1) // _REPLY_SHARE
        shown = model.images and any(entry.image is not None for entry in entries)
        for attempt in range(1, _TRIES + 1):
            picture = self._picture if shown else None
            messages, pins = to_messages(system, entries, native=model.tools, picture=picture)
            fitting = compact(messages, limit=limit, pins=pins, calibration=self._tokens)
            try:
                response = await self._client.request(
                    model, fitting.messages, specs if model.tools else (), on_text=self._show, kept=kept
                )
            except UpstreamError as error:
                # A picture that a provider refuses must not end the work: it stands in every later call.
                refused = shown and error.code in ("model_failed", UNCARRIED)
                shown = shown and not refused
                if attempt == _TRIES or (error.code in ("model_failed", QUOTA, UNCARRIED) and not refused):
                    raise
            else:
                return {
                    "model": model.name,
                    "native": model.tools,
                    "message": dump_reply(response),
                    "size": fitting.size,
                }
        raise AssertionError("the last try returns or raises")

    def _picture(self, artifact: str) -> bytes | None:
        """Return a picture that was read, `None` where it is gone; it is kept once and sent with every call."""
        if artifact not in self._pictures:
            with contextlib.suppress(NotFoundError):
                self._pictures[artifact] = self._context.artifact(artifact)
        return self._pictures.get(artifact)

    def _show(self, text: str) -> None:
        if self._context.on_output is not None:
            self._context.on_output("stdout", text.encode(errors="replace"))
