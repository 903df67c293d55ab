"""A pool of snippets with blocking calls."""

from __future__ import annotations

import asyncio
from typing import Any

from chargehand.sandbox.snippet_pool import SnippetPool
from chargehand.sandbox.snippets import SnippetResult, SnippetSpec


class Place:
    """One pool; every test blocks on its answers."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.pool: SnippetPool = self.runner.run(SnippetPool(size=2).__aenter__())

    def close(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()

    def run(self, language: Any, source: str, **more: Any) -> SnippetResult:
        return self.runner.run(self.pool.run(SnippetSpec(language=language, source=source, **more)))

    def value(self, language: Any, source: str, **more: Any) -> Any:
        result = self.run(language, source, **more)
        assert result.error is None, result.error
        return result.value

    def kind(self, language: Any, source: str, **more: Any) -> str | None:
        result = self.run(language, source, **more)
        assert result.value is None or result.error is None
        return result.error.kind if result.error else None
