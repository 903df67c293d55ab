"""What runs the snippets of a session's agents: one pool, proven when it is first needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chargehand.core.errors import TierUnavailableError

if TYPE_CHECKING:
    from chargehand.sandbox.snippet_pool import SnippetPool


class SessionSnippets:
    """The snippet pool of one session, an asynchronous context manager; a call opens the pool, or says why not."""

    def __init__(self) -> None:
        self._pool: SnippetPool | None = None
        self._missing: TierUnavailableError | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> SessionSnippets:
        return self

    async def __aexit__(self, *_: object) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def __call__(self) -> SnippetPool:
        """Return the pool; raises `TierUnavailableError` where this machine has none, tried once."""
        async with self._opening:
            if self._missing is not None:
                raise self._missing
            if self._pool is None:
                try:
                    self._pool = await _proven()
                except TierUnavailableError as error:
                    self._missing = error
                    raise
            return self._pool


async def _proven() -> SnippetPool:
    from chargehand.sandbox.snippet_pool import SnippetPool

    pool = await SnippetPool(size=2).__aenter__()
    try:
        part = await pool.probe("python")
    except BaseException:
        await pool.close()
        raise
    if not part.ok:
        await pool.close()
        raise TierUnavailableError(
            f"the tier isolate does not run snippets as it should: {part.detail}",
            hint=part.mend or "chargehand doctor tries each language",
        )
    return pool
