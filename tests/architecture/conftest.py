"""Frees the syntax trees after the last rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.architecture import trees


@pytest.fixture(scope="package", autouse=True)
def _shared_trees() -> Iterator[None]:
    yield
    trees.nodes.cache_clear()
    trees.parse.cache_clear()
