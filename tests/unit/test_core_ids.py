from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.core.ids import Kind, new_id

MOMENTS = st.integers(0, 2**45 - 1)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_an_id_is_safe_in_paths_refs_and_file_names(kind: Kind) -> None:
    assert re.fullmatch(r"[a-z]-[0-9a-hjkmnp-tv-z]{14}", new_id(kind))


def test_each_kind_has_a_unique_letter() -> None:
    assert len({new_id(kind)[0] for kind in get_args(Kind)}) == len(get_args(Kind))


@given(MOMENTS, MOMENTS)
def test_ids_sort_by_creation_time(one: int, other: int) -> None:
    if one != other:
        assert (new_id("mission", now_ms=one) < new_id("mission", now_ms=other)) == (one < other)


def test_ids_with_equal_creation_times_differ() -> None:
    assert len({new_id("artifact", now_ms=1) for _ in range(200)}) == 200
