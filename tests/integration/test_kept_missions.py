"""The web server's cache of missions never hides newer lines, nor a log that is damaged or replaced."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server_kit import API, Served, environment, record_missions, serving

from chargehand.app.upkeep import restore
from chargehand.core.events import Event, decode
from chargehand.core.mission_events import MessageSent, MissionFinished
from chargehand.missions.reading import FoldedMissions
from chargehand.reports.reading import StateReader
from chargehand.store.heads import LogHead
from chargehand.store.log import EventLog

GROWS, DAMAGED, ERASED, REPLACED, SHARED, OTHER = (f"m-{number:05}" for number in range(6))
CANCELLED = MissionFinished(status="cancelled")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("kept")
    with StateReader.open(environ=environment(place), cwd=place) as reader:
        record_missions(reader, 6)
    with serving(environment(place), place) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Served) -> httpx.Client:
    return served.owner()


def say(served: Served, mission: str, *texts: str) -> None:
    with served.reader() as reader:
        said = [MessageSent(message=f"s-{text}", text=text, identity="os:ada") for text in texts]
        reader.store.log.append(mission, *said)


@contextlib.contextmanager
def database(served: Served) -> Iterator[sqlite3.Connection]:
    """Open the database for writes that bypass the product."""
    path = Path(served.environ["CHARGEHAND_HOME"]) / "store.db"
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        yield raw


def shown(client: httpx.Client, mission: str) -> dict[str, Any]:
    answer = client.get(f"{API}/missions/{mission}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def texts_of(client: httpx.Client, mission: str) -> list[str]:
    return [said["text"] for said in shown(client, mission)["messages"]]


def test_a_mission_with_new_events_is_shown_up_to_date(served: Served, client: httpx.Client) -> None:
    first = client.get(f"{API}/missions/{GROWS}")
    same = client.get(f"{API}/missions/{GROWS}", headers={"If-None-Match": first.headers["etag"]})
    assert same.status_code == 304
    say(served, GROWS, "a", "b")
    grown = client.get(f"{API}/missions/{GROWS}", headers={"If-None-Match": first.headers["etag"]})
    assert (grown.status_code, [said["text"] for said in grown.json()["messages"]]) == (200, ["a", "b"])
    say(served, GROWS, "c")
    assert texts_of(client, GROWS) == ["a", "b", "c"]
    with served.reader() as reader:  # a command reads the log from its first line
        state = reader.mission_state(GROWS)
    assert (shown(client, GROWS)["updated"], state.damaged_events) == (state.updated, 0)


def test_damaged_new_and_old_events_are_reported(served: Served, client: httpx.Client) -> None:
    say(served, DAMAGED, "a")
    assert shown(client, DAMAGED)["damaged"] == []
    say(served, DAMAGED, "b")
    with database(served) as raw:
        raw.execute("UPDATE events SET payload = x'7b' WHERE mission = ? AND seq = 3", (DAMAGED,))
    for _ in range(2):
        told = shown(client, DAMAGED)
        assert [(each["seq"], each["kind"]) for each in told["damaged"]] == [(3, "payload_changed")]
        assert [said["text"] for said in told["messages"]] == ["a"]
    # A damaged older line is reported too: a log with any damage is read as a whole.
    with database(served) as raw:
        raw.execute("UPDATE events SET payload = x'7b' WHERE mission = ? AND seq = 2", (DAMAGED,))
    assert [each["seq"] for each in shown(client, DAMAGED)["damaged"]] == [2, 3]
    verified = client.post(f"{API}/audit/verify", json={"mission": DAMAGED}).json()
    assert {problem["seq"] for problem in verified["problems"]} == {2, 3}


def test_an_old_line_that_is_damaged_is_named_by_the_audit_at_once(served: Served, client: httpx.Client) -> None:
    say(served, OTHER, "a", "b")
    before = shown(client, OTHER)
    with database(served) as raw:
        raw.execute("UPDATE events SET payload = x'7b' WHERE mission = ? AND seq = 2", (OTHER,))
    assert shown(client, OTHER)["messages"] == before["messages"]  # as written and verified before
    verified = client.post(f"{API}/audit/verify", json={"mission": OTHER}).json()
    assert [problem["seq"] for problem in verified["problems"]] == [2]


def test_an_erased_payload_is_not_shown_from_the_cache(served: Served, client: httpx.Client) -> None:
    say(served, ERASED, "a secret", "b")
    assert texts_of(client, ERASED) == ["a secret", "b"]
    with served.reader() as reader:
        reader.store.erase_payload(ERASED, 2, reason="asked")
    assert texts_of(client, ERASED) == ["b"]
    say(served, ERASED, "c")
    assert texts_of(client, ERASED) == ["b", "c"]


def test_a_replaced_log_is_read_again(served: Served, client: httpx.Client) -> None:
    say(served, REPLACED, "a", "b", "c")
    assert texts_of(client, REPLACED) == ["a", "b", "c"]
    with database(served) as raw:  # as in an older backup
        raw.execute("DELETE FROM events WHERE mission = ? AND seq > 2", (REPLACED,))
        hash_of_2 = raw.execute("SELECT hash FROM events WHERE mission = ? AND seq = 2", (REPLACED,)).fetchone()
        raw.execute("UPDATE missions SET last_seq = 2, last_hash = ? WHERE id = ?", (*hash_of_2, REPLACED))
    assert texts_of(client, REPLACED) == ["a"]
    say(served, REPLACED, "x", "y", "z")
    assert texts_of(client, REPLACED) == ["a", "x", "y", "z"]


def test_concurrent_readers_get_consistent_prefixes_of_the_log(served: Served, client: httpx.Client) -> None:
    asking = [served.owner() for _ in range(4)]

    def ask(who: httpx.Client) -> list[list[str]]:
        return [texts_of(who, SHARED) for _ in range(6)]

    said = [str(number) for number in range(12)]
    with ThreadPoolExecutor(len(asking)) as threads:
        answers = [threads.submit(ask, who) for who in asking]
        for text in said:
            say(served, SHARED, text)
        for answer in answers:
            moments = answer.result()
            assert all(moment == said[: len(moment)] for moment in moments)
            assert [len(moment) for moment in moments] == sorted(len(moment) for moment in moments)
    assert texts_of(client, SHARED) == said


class CountedLog(EventLog):
    """A log that counts the lines read of cached missions."""

    def __init__(self, reader: StateReader) -> None:
        super().__init__(reader.store.database, clock=reader.clock)
        self.lines = 0

    def lines_behind(self, mission: str, head: LogHead, *, limit: int) -> tuple[Event, ...] | None:
        found = super().lines_behind(mission, head, limit=limit)
        self.lines += len(found or ())
        return found


def test_a_few_are_kept_for_a_while_and_no_line_is_read_twice_till_then(tmp_path: Path) -> None:
    moment = 0.0
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        one, two = record_missions(reader, 2)
        log = CountedLog(reader)
        kept = FoldedMissions(log, lines=3, seconds=60, now=lambda: moment)

        def lines_of(mission: str) -> int:
            before, found = log.lines, kept.get(mission)
            assert found is not None
            assert found.state == reader.mission_reader.at_rest(mission)
            return log.lines - before

        assert lines_of(one) == 1
        log.append(one, MessageSent(message="s", text="a", identity="os:ada"))
        assert [lines_of(one), lines_of(two)] == [1, 1]
        assert [lines_of(one), lines_of(two)] == [0, 0]  # three lines: both missions fit
        log.append(two, MessageSent(message="s", text="a", identity="os:ada"))
        assert lines_of(two) == 1  # now the other mission no longer fits
        assert [lines_of(one), lines_of(one)] == [2, 0]
        moment += 61
        assert [lines_of(one), lines_of(one)] == [2, 0]  # lines read long ago are verified again
        kept = FoldedMissions(log, missions=1)
        assert [lines_of(name) for name in (one, one, two, one)] == [2, 0, 2, 2]


def test_a_long_log_is_read_in_pieces_that_follow_each_other(served: Served, client: httpx.Client) -> None:
    with served.reader() as reader:
        said = [MessageSent(message=f"s-{number}", text=str(number), identity="os:ada") for number in range(5001)]
        created = reader.store.log.read(OTHER, limit=1)[0]
        reader.store.log.append("m-long", decode(created.type, created.payload or b""), *said)
    assert texts_of(client, "m-long") == [str(number) for number in range(5001)]
    with database(served) as raw:
        raw.execute("UPDATE events SET payload = x'7b' WHERE mission = 'm-long' AND seq = 5001")
    say(served, "m-long", "more")
    assert shown(client, "m-long")["damaged"] == []
    with served.reader() as reader:
        assert FoldedMissions(reader.store.log).get("m-long") is None


def test_lists_show_the_current_state_of_each_mission(served: Served, client: httpx.Client) -> None:
    def listed() -> dict[str, Any]:
        pages = (client.get(f"{API}/missions").json(), client.get(f"{API}/missions/list").json())
        one, other = ({each["mission"]: each for each in page["missions"]} for page in pages)
        assert one == other
        return one

    before = listed()
    client.get(f"{API}/stats")  # counts the same rows
    assert listed() == before
    say(served, GROWS, "one more")
    after = listed()
    assert after.pop(GROWS)["updated"] > before.pop(GROWS)["updated"]
    assert after == before
    assert client.post(f"{API}/missions/{GROWS}/cancel").status_code == 200
    assert listed()[GROWS]["status"] == "cancelled"


def test_the_catalogue_is_compressed_on_request_and_has_an_etag(client: httpx.Client) -> None:
    found = client.get(f"{API}/catalogue")
    assert (found.headers["content-encoding"], found.headers["vary"]) == ("gzip", "Accept-Encoding")
    plain = client.get(f"{API}/catalogue", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert (plain.content, plain.headers["etag"]) == (found.content, found.headers["etag"])
    again = client.get(f"{API}/catalogue", headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    one = client.get(f"{API}/catalogue", params={"provider": "groq"}).json()["catalogue"]
    assert one == [each for each in found.json()["catalogue"] if each["provider"] == "groq"] != []
    unknown = client.get(f"{API}/catalogue", params={"provider": "grok!"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")


def test_lists_are_of_now_after_idle_connections_were_closed(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 2)
        for _ in range(3):  # cached from the second time on
            assert len(reader.store.log.summaries()) == 2
        reader.close()
        with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as other:
            other.store.log.append("m-00000", MessageSent(message="s", text="a", identity="os:ada"), CANCELLED)
        statuses = [each.summary.status for each in reader.store.log.summaries()]
        assert statuses == ["cancelled", "planned"]


def test_more_lists_than_are_kept_are_read_by_many_at_once(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        names = record_missions(reader, 20)

        def ask(first: int) -> list[str]:
            asked = (names[(first + step * 7) % len(names)] for step in range(150))
            return [name for name in asked if reader.store.log.summary(name).row.id != name]

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # otherwise two threads rarely meet
        try:
            with ThreadPoolExecutor(8) as threads:
                assert list(threads.map(ask, range(8))) == [[]] * 8
        finally:
            sys.setswitchinterval(before)


def test_an_open_reader_uses_the_restored_store(tmp_path: Path) -> None:
    environ, copy = environment(tmp_path), tmp_path / "copy"
    with StateReader.open(environ=environ, cwd=tmp_path) as reader:
        reader.keeps_missions = True
        one, two = record_missions(reader, 2)
        reader.store.backup(copy)
        reader.store.log.append(one, CANCELLED)
        for _ in range(3):
            assert reader.mission_state(one).status == "cancelled"
            assert [each.status for each in reader.mission_reader.summaries()] == ["cancelled", "planned"]
        with StateReader.open(environ=environ, cwd=tmp_path) as other:
            restore(other, copy, confirm=lambda text: None)
        assert reader.mission_state(one).status == "planned"
        assert [each.status for each in reader.mission_reader.summaries()] == ["planned", "planned"]
        reader.store.log.append(two, CANCELLED)
        with StateReader.open(environ=environ, cwd=tmp_path) as other:
            assert [each.status for each in other.mission_reader.summaries()] == ["planned", "cancelled"]
        assert [each.status for each in reader.mission_reader.summaries()] == ["planned", "cancelled"]
