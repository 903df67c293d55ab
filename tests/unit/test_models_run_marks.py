"""Two runs of the same work differ only in ids, hashes, times and durations, recognised by their form."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chargehand.models.request_matching import RunPairs, find_marks

THEN, NOW = datetime(2026, 11, 22, 19, tzinfo=UTC), datetime(2026, 12, 31, 8, tzinfo=UTC)


def pairs() -> RunPairs:
    return RunPairs(then=THEN, now=NOW)


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        ("Recent commits:\n8368f87 first", "Recent commits:\nd2da67a first"),
        ("one 1234567 first", "one d2da67a first"),
        ("Today's date is 2026-11-22.", "Today's date is 2026-12-31."),
        ("Today's date is Sunday, November 22, 2026 (in", "Today's date is Friday, January 1, 2027 (in"),
        ("date: Sun Nov 22 2026", "date: Thu Dec 31 2026"),
        ("it is 22 Nov 2026 now", "it is 31 December 2026 now"),
        ("Nov 22 19:23 a.py", "Jan  1 19:24 a.py"),
        ("11/22/2026, 7:23:27 PM", "31/12/2026, 8:23:27 AM"),
        ("at 2026-11-22T19:23:27.123Z.", "at 2026-12-31T08:00:00.001Z."),
        ("Date:   Sun Nov 22 19:23:27 2026 +0000", "Date:   Thu Dec 31 08:23:27 2026 +0100"),
        ('"since": 1795368000', '"since": 1798704000'),
        ("3 passed in 0.52s", "3 passed in 12.25s"),
        ("Chunk ID: abcdef\nWall time: 0.5000 seconds", "Chunk ID: 0f1e2d\nWall time: 3 seconds"),
        ("x-anthropic-billing-header: v=2; cch=abc;", "x-anthropic-billing-header: v=2; cch=0;"),
        ("see /tmp/tmpab12cd/out", "see /tmp/tmpxy98zw/out"),
        ("at http://127.0.0.1:4123/x", "at http://127.0.0.1:51234/x"),
        ("ses_7d9f3bXyz01234567", "ses_0a1B2c3D4e5F6g7H8"),
        ("process pid 123", "process pid 4567"),
    ],
)
def test_another_run_of_the_same(recorded: str, sent: str) -> None:
    assert pairs().is_alike(recorded, sent)


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        ("a - b", "a + b"),
        ("release on 2026-01-01", "release on 2026-02-01"),
        ("LIMIT = 1000000", "LIMIT = 2000000"),
        ("wait 5 seconds", "wait 6 seconds"),
        ("meet at 10:00", "meet at 11:00"),
        ("color: #ff0000", "color: #00ff00"),
        ("0xdeadbeef", "0xcafebabe"),
        ("d2da67a", "d2da67ab"),
        ("d2da67a", "2026-11-22"),
        ("8368f87 is 8368f87", "aaaaaa1 is aaaaaa2"),
        ("8368f87 is 9999f87", "aaaaaa1 is aaaaaa1"),
        ("x-one-header: 1", "x-other-header: 1"),
        ("in 0.52s", "in 0.52 minutes"),
        ("msg_0123456789abcdefG", "ses_0123456789abcdefH"),
        ("on May 99", "on June 99"),
        ("d2da67a", ""),
    ],
)
def test_other_work(recorded: str, sent: str) -> None:
    assert not pairs().is_alike(recorded, sent)


def test_an_id_keeps_its_partner_once_its_request_was_found() -> None:
    both = pairs()
    assert both.is_alike("commit 8368f87", "commit aaaaaa1")
    both.forget()
    assert both.is_alike("commit 8368f87", "commit aaaaaa2")
    both.confirm()
    assert both.todays == {"8368f87": "aaaaaa2"}
    assert both.is_alike("again 8368f87", "again aaaaaa2")
    assert not both.is_alike("again 8368f87", "again aaaaaa1")
    assert not both.is_alike("again 1111f87", "again aaaaaa2")


@given(st.text("abcdef0123456789-:/. TZxidNov=\n", max_size=80))
def test_joining_the_marks_of_a_text_restores_the_text(text: str) -> None:
    assert "".join(each.text for each in find_marks(text, THEN)) == text


HEX = st.text("0123456789abcdef", min_size=7, max_size=7).filter(lambda found: not found.isdecimal())


@given(words=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8), data=st.data())
def test_any_renaming_of_ids_is_the_same_run_and_no_other_word_is(words: list[str], data: st.DataObject) -> None:
    names = data.draw(st.lists(HEX, min_size=8, max_size=8, unique=True))
    then, now = dict(zip("abcd", names[:4], strict=True)), dict(zip("abcd", names[4:], strict=True))
    recorded, sent = (" and ".join(ids[word] for word in words) for ids in (then, now))
    assert pairs().is_alike(recorded, sent)
    assert not pairs().is_alike(recorded, sent.replace(now[words[0]], "another", 1))
