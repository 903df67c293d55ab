"""The server's routes, its feed and its cached answers: requests and followers see the current state."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli_help import COMMANDS
from tests.conftest import examples
from tests.server_kit import environment, record_missions
from tests.unit.core_strategies import payloads

from chargehand.app.missions import ListRequest, list_missions, read_transcript
from chargehand.configuration.run_options import run_options
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.core.events import Payload, decode
from chargehand.core.mission_events import (
    MessageSent,
    MissionCreated,
    MissionFinished,
    QuestionAsked,
    StepFinished,
)
from chargehand.core.records import MissionRequest
from chargehand.durable.workers import LocalWorkers
from chargehand.policy.access import ACCESS_RULES
from chargehand.reports.reading import StateReader
from chargehand.reports.statistics import StatisticsRequest, mission_statistics
from chargehand.reports.story import PageRequest, page_events, page_missions, page_transcript
from chargehand.server import _feed
from chargehand.server._feed import EventFeed, FeedFilter
from chargehand.server._responses import KnownAnswers, document_response
from chargehand.server._routes import NamedMission, RestArguments, read_arguments
from chargehand.server.commands import LOCAL_COMMANDS, call_arguments, find_call, known_routes, served_commands
from chargehand.server.openapi import ROUTES, openapi_document


def test_every_command_has_a_route_or_a_reason() -> None:
    commands = {" ".join(path) for path in COMMANDS}
    served = served_commands()
    assert not served & set(LOCAL_COMMANDS)
    assert commands == served | set(LOCAL_COMMANDS)
    assert all(LOCAL_COMMANDS.values())


@pytest.mark.parametrize("command", sorted(served_commands()))
def test_a_commands_parameters_lead_to_arguments_of_its_routes(command: str) -> None:
    parameters = {each.name: True for each in COMMANDS[tuple(command.split())].params if each.expose_value}
    taken: set[str] = set()
    needed: set[str] = set()
    for said in ((), *((name,) for name in parameters)):
        route, call = find_call(command, said)
        assert command in route.commands
        arguments, untaken = call_arguments(route, call, parameters)
        assert arguments.keys() <= route.arguments.keys()
        taken |= set(parameters) - set(untaken)
        needed |= set(route.path_names) - arguments.keys()
    assert not needed
    # Parameters that derive the answer, or need a file or a checkout of this machine.
    refused = set(parameters) - taken
    assert refused <= REFUSED.get(command, set())
    assert REFUSED.get(command, set()) <= refused


REFUSED = {
    # options that a server does not accept, and why
    "run": {"accept_known", *(name for name, option in run_options().items() if option.withheld)},
    "mission plan": {"file"},
    "mission report": {"otlp"},  # a server sends its traces to a collector by itself
    "audit verify": {"export"},
    "audit provenance": {"commit"},
}


def test_the_routes_known_to_the_client_match_the_server() -> None:
    # scripts/pages writes the client's file
    assert list(known_routes().values()) == [route.signature for route in ROUTES]


def test_routes_have_unique_names_and_known_actions() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        assert route.action in ACCESS_RULES
        fields = {field.name for field in msgspec.structs.fields(route.takes)}
        assert set(route.path_names) <= fields
        # A response that a key can repeat is a document.
        assert route.method == "GET" or not route.raw


def test_the_document_describes_every_route_and_leads_nowhere_else() -> None:
    document = openapi_document()
    assert document["openapi"] == "3.1.0"

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
            return own.union(*map(references, value.values()))
        return set[str]().union(*map(references, value)) if isinstance(value, list) else set()

    for reference in references(document):
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    for route in ROUTES:
        operation = document["paths"][f"/api/v1{route.path}"][route.method.lower()]
        assert operation["summary"] == route.summary
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(route.path_names)
        assert {"401", "403", "429"} <= set(operation["responses"])


def test_the_openapi_document_lists_the_responses_of_a_login() -> None:
    described = openapi_document()["paths"]["/api/v1/session"]["post"]["responses"]
    assert {"200", "400", "401", "403", "422", "429", "503"} <= set(described)


class Numbers(RestArguments, frozen=True):
    """Arguments of several kinds."""

    count: int = 0
    sure: bool = False
    names: tuple[str, ...] = ()


def nested(depth: int) -> list[Any]:
    """Return lists in lists."""
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def test_path_and_query_arguments_are_converted_to_the_types_of_the_route() -> None:
    query = [("count", "3"), ("sure", "true"), ("names", "a"), ("names", "b")]
    assert read_arguments(Numbers, path={}, query=query, body={}) == Numbers(count=3, sure=True, names=("a", "b"))
    assert read_arguments(NamedMission, path={"mission": "m-1"}, query=(), body={}).mission == "m-1"


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ([("count", "x")], {}),
        ([("count", "1"), ("count", "2")], {}),
        ([("unknown", "1")], {}),
        ((), {"count": "3"}),
        ((), {"count": 1, "unknown": 2}),
        ((), {"names": ["a\0"]}),
        ((), {"names": "a"}),
        ([("names", "a")], {"names": "b"}),
        ([("names", "a")], {"names": ["b"]}),
        ([("count", "1")], {"count": None}),
        ((), {"names": nested(5_000)}),
    ],
)
def test_a_wrong_argument_is_refused(query: list[tuple[str, str]], body: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        read_arguments(Numbers, path={}, query=query, body=body)
    assert caught.value.code == "arguments_invalid"
    assert caught.value.hint


# --- pages


def test_pages_of_missions_are_the_list_cut_in_pieces(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        names = record_missions(reader, 23)
        found: list[str] = []
        before: str | None = None
        while True:
            page = page_missions(reader, PageRequest(limit=5, before=before))
            assert page.counts == {"planned": 23}
            assert page.position == reader.store.log.last_position()
            found += [each.mission for each in page.missions]
            if page.next is None:
                break
            assert len(page.missions) == 5
            before = page.next
        assert found == names[::-1]
        assert page_missions(reader, PageRequest(statuses=("failed",))).missions == []
        with pytest.raises(NotFoundError):
            page_missions(reader, PageRequest(before="m-unknown"))


def test_a_search_finds_ids_and_words_in_any_case(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        names = record_missions(reader, 30, text="Mend Parser")
        assert [each.mission for each in page_missions(reader, PageRequest(text="PARSER 7")).missions] == [
            names[7]
        ]
        by_id = page_missions(reader, PageRequest(text="00012"))
        assert [each.mission for each in by_id.missions] == ["m-00012"]
        first = page_missions(reader, PageRequest(text="parser", limit=10))
        second = page_missions(reader, PageRequest(text="parser", limit=10, before=first.next))
        assert [each.mission for each in (*first.missions, *second.missions)] == names[::-1][:20]


def test_a_search_ignores_case_and_finds_stale_or_damaged_summaries(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        names = record_missions(reader, 4, text='Straße "q" \\x')
        record_missions_of(reader, "m-other", "nothing of that")

        def found(text: str) -> list[str]:
            return sorted(each.mission for each in page_missions(reader, PageRequest(text=text)).missions)

        for text in ("STRASSE", "straße", '"q" \\x', "e"):
            assert found(text)[: len(names)] == names, text
        assert found("% 1") == found("\0") == []
        with reader.store.database.write() as connection:
            connection.execute("UPDATE mission_summaries SET form = 0 WHERE mission = ?", (names[0],))
            connection.execute("UPDATE mission_summaries SET summary = x'7bff' WHERE mission = ?", (names[1],))
            connection.execute("UPDATE mission_summaries SET summary = x'7b7d' WHERE mission = ?", (names[2],))
        assert {names[0], names[1], names[3]} <= set(found("strasse"))


def record_missions_of(reader: StateReader, name: str, text: str) -> None:
    request = MissionRequest(text=text, agent="command:true", command=("true",), slug="m")
    project = reader.store.projects.register(reader.cwd)
    created = MissionCreated(project=project.id, repository=str(project.path), request=request)
    reader.store.log.append(name, created)


def test_pages_of_events_cover_every_event(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        (name,) = record_missions(reader, 1)
        for number in range(9):
            asked = QuestionAsked(
                question=f"q-{number}", text="Which?\x1b[2J", options=("a", "b"), tree="t", reasons=()
            )
            reader.store.log.append(name, asked)
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = page_events(reader, name, after=after, limit=4)
            assert all("\x1b" not in each.text for each in page.events)
            seen += [each.seq for each in page.events]
            after = page.next
        assert seen == list(range(1, 11))
        assert page.last_seq == 10
        empty = page_transcript(reader, name)
        assert (empty.lines, empty.next, empty.end) == ([], None, 0)


def test_a_transcript_page_reads_only_the_shown_content(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        (name,) = record_missions(reader, 1)

        def step(path: str, output: dict[str, Any]) -> None:
            done = StepFinished(step=f"attempt/1/work/{path}", input="", output=output, seconds=0.0)
            reader.store.log.append(name, done)

        for turn in range(1, 4):
            parts = [{"part_kind": "text", "content": f"turn {turn}"}]
            parts += [{"part_kind": "tool-call", "tool_name": "bash", "args": "{}"}] * 2
            step(f"turn/{turn}/reply", {"message": {"parts": parts}, "model": "m", "notes": []})
            for index in range(2):
                result = {"text": f"result {turn}.{index}", "failed": False, "artifact": None}
                step(f"turn/{turn}/call/{index}", result)
        told = [{"kind": "text", "text": f"{number} {'x' * 900_000}"} for number in range(4)]
        kept = reader.store.artifacts.put(
            b"\n".join(map(msgspec.json.encode, told)), kind="agent-events", mission=name
        )
        step("told/0", {"artifact": kept})
        whole = [each.text[:12] for each in read_transcript(reader, name)]
        for limit in (1, 2, 3, 200):
            texts, tools, after = list[str](), list[str](), 0
            while True:
                page = page_transcript(reader, name, after=after, limit=limit)
                assert len(page.lines) <= limit
                assert sum(len(each.text) for each in page.lines) <= 2_000_000
                texts += [each.text[:12] for each in page.lines]
                tools += [each.tool for each in page.lines if each.speaker == "result"]
                if page.next is None:
                    break
                after = page.next
            assert texts == whole
            assert tools == ["bash"] * 6
        # A client with all lines asks from its end on, and gets the lines added since.
        step("turn/4/reply", {"message": {"parts": parts[:1]}, "model": "m", "notes": []})
        assert [each.text for each in page_transcript(reader, name, after=page.end).lines] == ["turn 3"]
        # A page does not read content that it does not show, so that content may be missing.
        (reader.home / "artifacts" / kept[:2] / kept).unlink(missing_ok=True)
        assert len(page_transcript(reader, name, limit=15).lines) == 15


@contextlib.asynccontextmanager
async def running(reader: StateReader) -> AsyncIterator[EventFeed]:
    feed = EventFeed(reader, pause=0.0)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def valid() -> bool:
    return True


async def read_to_end(feed: EventFeed, after: int | None, seen: asyncio.Event) -> list[bytes]:
    """Follow until the feed ends the stream."""
    found = []
    async for piece in feed.follow(after, FeedFilter(), is_valid=valid):
        found.append(piece)
        seen.set()
    return found


async def test_followers_of_a_restored_log_are_disconnected_and_reset(tmp_path: Path) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 3)
        async with running(reader) as feed:
            seen = asyncio.Event()
            following = asyncio.create_task(read_to_end(feed, None, seen))
            await seen.wait()
            with reader.store.database.write() as connection:
                connection.execute("DELETE FROM events WHERE position = 3")
            assert await following == [b": connected\n\n"]
            # A client that reconnects learns the log's current end.
            first = await anext(feed.follow(3, FeedFilter(), is_valid=valid))
            assert first == b'id: 2\nevent: reset\ndata: {"position":2}\n\n'


async def test_a_fault_of_ours_ends_the_streams_and_not_the_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StateReader.open(environ=environment(tmp_path), cwd=tmp_path) as reader:
        record_missions(reader, 1)
        whole = _feed.events_after
        failed: list[int] = []

        def fail_once(*given: Any, **more: Any) -> object:
            if not failed:
                failed.append(1)
                raise ZeroDivisionError
            return whole(*given, **more)

        async with running(reader) as feed:
            seen = asyncio.Event()
            monkeypatch.setattr(_feed, "events_after", fail_once)
            assert await read_to_end(feed, None, seen) == [b": connected\n\n"]
            again: Any = feed.follow(0, FeedFilter(), is_valid=valid)
            assert await anext(again) == b": connected\n\n"
            assert b"mission.created" in await anext(again)
            await again.aclose()


MISSIONS = 3
LISTS = (
    ListRequest(everywhere=True),
    ListRequest(everywhere=True, limit=2),
    ListRequest(everywhere=True, statuses=("planned", "waiting")),
)
said = st.one_of(
    st.just(MessageSent(message="s", text="a word", identity="os:ada")),
    st.builds(MissionFinished, status=st.sampled_from(["promoted", "failed", "waiting"])),
    payloads(later=True),
)
deeds = st.sampled_from(["say", "add", "claim", "release", "erase", "leave", "join", "nothing"])
steps = st.lists(st.tuples(deeds, st.integers(0, MISSIONS - 1), said), max_size=8)


def answers(reader: StateReader, known: KnownAnswers) -> list[tuple[bytes, ...]]:
    """Return the answers about all missions, each as sent plain and compressed."""
    made = [*(list_missions(reader, asked) for asked in LISTS)]
    made.append(mission_statistics(reader, StatisticsRequest(everywhere=True)))
    return [
        tuple(bytes(document_response(each, gzipped=gzipped, answers=known).body) for gzipped in (False, True))
        for each in made
    ]


class Changes:
    """Changes missions as other programs next to the server do, including a worker that joins and leaves."""

    def __init__(self, reader: StateReader) -> None:
        self.log = reader.store.log
        self.names = record_missions(reader, MISSIONS)
        line = self.log.read(self.names[0])[0]
        self.first = decode(line.type, line.payload or b"")
        self.workers = LocalWorkers(reader.home, version="1")
        self.worker = self.workers.join("worker")

    def make(self, deed: str, number: int, payload: Payload) -> None:
        log, mission = self.log, self.names[number]
        match deed:
            case "say":
                log.append(mission, payload)
            case "add":
                self.names.append(f"m-{len(self.names):05}")
                log.append(self.names[-1], self.first)
            case "claim":
                log.claim(mission, owner=self.worker.id, epoch=log.get(mission).epoch)
            case "release":
                log.release(mission, epoch=log.get(mission).epoch)
            case "erase":
                log.erase(mission, log.last_seq(mission), reason="asked")
            case "leave":  # its missions have no living holder, and no line says so
                self.worker.leave()
            case "join":
                self.worker.leave()
                self.worker = self.workers.join("worker")


@given(steps)
@settings(max_examples=examples(20), deadline=None)
def test_cached_answers_equal_freshly_computed_answers(given_steps: list[tuple[str, int, Payload]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        place, known = Path(directory), KnownAnswers()
        environ = environment(place)
        opened = [StateReader.open(environ=environ, cwd=place) for _ in range(2)]
        with opened[0] as kept, opened[1] as other:
            kept.keeps_missions = True
            changes = Changes(other)
            for step in given_steps:
                changes.make(*step)
                with StateReader.open(environ=environ, cwd=place) as fresh:
                    told = answers(fresh, KnownAnswers())
                assert answers(kept, known) == told  # as computed
                assert answers(kept, known) == told  # as cached
            changes.worker.leave()
