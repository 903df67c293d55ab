"""The curated list: ten repositories for each language, with names and addresses that `library add` accepts."""

from __future__ import annotations

from collections import Counter

from chargehand.knowledge._licences import _table
from chargehand.knowledge.library import _check_name, curated_repositories
from chargehand.workspace.remotes import parse_source


def test_the_curated_list_is_valid() -> None:
    rows = curated_repositories()
    assert Counter(row.language for row in rows) == {"javascript": 10, "python": 10}
    assert len({row.name for row in rows}) == len({row.url for row in rows}) == 20
    for row in rows:
        assert _check_name(row.name) == row.name
        assert parse_source(row.url).protocol == "https"
        assert row.licence in {each.id for each in _table().licence}
