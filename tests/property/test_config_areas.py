"""The intersection of areas never matches what one side does not, and commutes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec

from chargehand.app.config.areas import meet_areas
from chargehand.core.errors import ConfigError

_PLAIN = ["a", "b", "ab", "*", "a*", "*b", "?", "a?", "**"]
_ODD = ["[ab]", "a**b", "\\*", "***", "[!a]b"]


def _patterns(segments: list[str], *, ends: list[str]) -> st.SearchStrategy[str]:
    body = st.lists(st.sampled_from(segments), min_size=1, max_size=4).map("/".join)
    return st.tuples(st.sampled_from(["", "/"]), body, st.sampled_from(ends)).map("".join)


_EXACT = _patterns(_PLAIN, ends=["", "/**"]).filter(lambda text: not text.endswith("/*"))
_ANY = _patterns(_PLAIN + _ODD, ends=["", "/", "/**", "/*"])
_PATHS = st.lists(st.sampled_from(["a", "b", "ab", "aab", "abb", "cb", "ac", "c"]), min_size=1, max_size=6).map(
    "/".join
)


def _match(patterns: tuple[str, ...] | list[str], path: str) -> bool:
    return not patterns or GitIgnoreSpec.from_lines(patterns).match_file(path)


@given(st.lists(_ANY, max_size=3), st.lists(_ANY, max_size=3), st.lists(_PATHS, min_size=5, max_size=25))
@example(["src/**"], ["src/*"], ["src/a/b"])
@example(["a"], ["/*/"], ["a", "a/b"])
def test_never_wider_than_either_side(ours: list[str], theirs: list[str], paths: list[str]) -> None:
    try:
        met = meet_areas(ours, theirs)
    except ConfigError:
        return
    assert bool(met) == bool(ours or theirs)
    for path in paths:
        assert not _match(met, path) or (_match(ours, path) and _match(theirs, path))


@given(
    st.lists(_EXACT, min_size=1, max_size=2),
    st.lists(_EXACT, min_size=1, max_size=2),
    st.lists(_PATHS, min_size=5, max_size=25),
)
def test_exactly_what_both_sides_match(ours: list[str], theirs: list[str], paths: list[str]) -> None:
    both = [path for path in paths if _match(ours, path) and _match(theirs, path)]
    try:
        met = meet_areas(ours, theirs)
    except ConfigError:
        assert not both
        return
    assert [path for path in paths if _match(met, path)] == both


@given(st.lists(_ANY, min_size=1, max_size=3), st.lists(_ANY, min_size=1, max_size=3))
@example(["a*"], ["*b"])
def test_commutes(ours: list[str], theirs: list[str]) -> None:
    def outcome(left: list[str], right: list[str]) -> tuple[str, ...] | None:
        try:
            return meet_areas(left, right)
        except ConfigError:
            return None

    assert outcome(ours, theirs) == outcome(theirs, ours)


@pytest.mark.parametrize(
    ("ours", "theirs", "met"),
    [
        (["src/**"], ["src/pkg/**"], ["src/pkg/**"]),
        (["src/**"], ["**/*.py"], ["src/**/*.py"]),
        (["src"], ["/src/a.py"], ["src/a.py"]),
        (["*.py"], ["test_*"], ["**/*.py/**/test_*", "**/test_*.py"]),
        (["src/**", "tests/**"], ["tests/**", "src/**"], ["src/**", "tests/**"]),
        (["/src"], ["src/**", "docs/**"], ["src/**"]),
        (["**"], ["docs/*.md"], ["docs/*.md"]),
    ],
)
def test_what_people_write_stays_readable(ours: list[str], theirs: list[str], met: list[str]) -> None:
    found = meet_areas(ours, theirs)
    for wanted in met:
        assert wanted in found
    assert len(found) <= len(met) + 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(["src/**"], ["docs/**"]), (["/a.py"], ["/b.py"]), (["/a"], ["x/a"]), (["/[ab]"], ["/[ab]c"])],
)
def test_nothing_in_common_is_an_error(ours: list[str], theirs: list[str]) -> None:
    with pytest.raises(ConfigError, match="nothing in common"):
        meet_areas(ours, theirs)


def test_what_nobody_could_read_is_an_error() -> None:
    left = "/".join(f"**/a{i}" for i in range(14))
    right = "/".join(f"**/b{i}" for i in range(14))
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas([left], [right])
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas(["*" + "a" * 3000], ["b" * 3000 + "*"])
    with pytest.raises(ConfigError, match="cannot be joined"):
        meet_areas([f"a{i}" for i in range(2000)], [f"b{i}" for i in range(2000)])
