"""The forge's order of comments decides who works on an issue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chargehand.app.forge.claims import LEASE, ClaimMark, claim_issue, find_claim, read_mark, with_mark
from chargehand.core.clock import SystemClock
from chargehand.forges.contract import ForgeComment, ForgeError
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import create_repository
from chargehand.testing.forges.flaky import FlakyForge, ForgeFault

NAME = "ada/demo"
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def open_forge(tmp_path: Path) -> Callable[[str], LocalForge]:
    create_repository(tmp_path, NAME, {"ada": "admin", "eve": "read", **{f"robot{n}": "write" for n in range(20)}})
    return lambda login: LocalForge(tmp_path, login)


def _claim(forge: LocalForge | FlakyForge, number: int, mission: str, **more: bool) -> bool:
    own, _ = claim_issue(forge, NAME, number, mission=mission, text="mine", now=SystemClock().now(), **more)
    return own is not None


def test_each_issue_goes_to_one_of_many_workers(open_forge: Callable[[str], LocalForge]) -> None:
    numbers = [open_forge("ada").create_issue(NAME, f"issue {each}", "") for each in range(100)]

    def work(worker: int) -> list[int]:
        forge = open_forge(f"robot{worker}")
        return [number for number in numbers if _claim(forge, number, f"m-{worker}")]

    with ThreadPoolExecutor(20) as pool:
        taken = Counter(number for won in pool.map(work, range(20)) for number in won)
    assert taken == Counter(numbers)
    for number in numbers:  # those who lost leave no comment
        assert len(open_forge("ada").comments(NAME, number)) == 1


def test_a_mark_of_a_stranger_claims_nothing(open_forge: Callable[[str], LocalForge]) -> None:
    number = open_forge("ada").create_issue(NAME, "issue", "")
    open_forge("eve").add_comment(NAME, number, with_mark("mine", ClaimMark(mission="m-eve")))
    assert _claim(open_forge("robot1"), number, "m-1")
    assert not _claim(open_forge("robot2"), number, "m-2")


def test_a_released_claim_is_replaced_only_if_asked(open_forge: Callable[[str], LocalForge]) -> None:
    forge = open_forge("robot1")
    number = open_forge("ada").create_issue(NAME, "issue", "")
    assert _claim(forge, number, "m-1")
    (own,) = forge.comments(NAME, number)
    forge.edit_comment(NAME, number, own.id, with_mark("over", ClaimMark(mission="m-1", state="released")))
    assert not _claim(open_forge("robot2"), number, "m-2")
    assert _claim(open_forge("robot2"), number, "m-2", again=True)
    assert not _claim(open_forge("robot3"), number, "m-3", again=True)


@pytest.mark.parametrize("when", ["before", "lost_before", "lost_after"])
def test_a_lost_reply_to_a_claim_is_looked_for(
    open_forge: Callable[[str], LocalForge], when: Literal["before", "lost_before", "lost_after"]
) -> None:
    number = open_forge("ada").create_issue(NAME, "issue", "")
    forge = FlakyForge(open_forge("robot1"), ForgeFault(method="add_comment", when=when))
    if when == "lost_after":
        assert _claim(forge, number, "m-1")
    else:
        with pytest.raises(ForgeError):
            _claim(forge, number, "m-1")
        assert _claim(forge, number, "m-1")
    assert len(forge.comments(NAME, number)) == 1


# Claims in any order, by holders whose marks name any earlier one.
_CLAIMS = st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), max_size=8)


def _comments(claims: Sequence[tuple[int, bool, int]]) -> list[ForgeComment]:
    return [
        ForgeComment(
            id=place,
            author="writer" if writes else "reader",
            body=with_mark("x", ClaimMark(mission=f"m-{place}", after=after)),
            created=START,
            updated=START + timedelta(minutes=late),
        )
        for place, (after, writes, late) in enumerate(claims, 1)
    ]


@given(_CLAIMS, _CLAIMS)
@settings(max_examples=200, deadline=None)
def test_a_replaced_claim_never_holds_again(
    first: list[tuple[int, bool, int]], later: list[tuple[int, bool, int]]
) -> None:
    comments = _comments([*first, *later])
    held: list[int] = []
    for count in range(len(comments) + 1):
        holds = find_claim(comments[:count], may_claim=lambda login: login == "writer")
        if holds is not None and (not held or held[-1] != holds.comment.id):
            held.append(holds.comment.id)
    assert held == sorted(set(held))
    # Edits, which renew a claim or change its text, change nothing.
    edited = [
        ForgeComment(
            id=each.id, author=each.author, body=f"later\n{each.body}", created=START, updated=START + LEASE
        )
        for each in comments
    ]
    before, after = (find_claim(each, may_claim=lambda login: login == "writer") for each in (comments, edited))
    assert (before and before.comment.id) == (after and after.comment.id)


@given(st.text(), st.text())
@settings(max_examples=200, deadline=None)
def test_a_mark_is_read_whatever_stands_before_it(text: str, other: str) -> None:
    mark = ClaimMark(mission="m-1", after=3)
    assert read_mark(with_mark(text, mark)) == mark
    assert read_mark(with_mark(text, mark) + f"\n{other}x") in (None, mark)
    assert read_mark(f"<!-- chargehand:claim {other} -->") is None or "mission" in other
