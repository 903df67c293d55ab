"""What a server keeps of lists and statistics is what is told to whoever asks first, whatever came between."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.server_kit import environment, record_missions
from tests.unit.core_strategies import payloads

from chargehand.app.missions import ListRequest, list_missions
from chargehand.app.reading import StateReader
from chargehand.app.statistics import StatisticsRequest, mission_statistics
from chargehand.core.events import Payload, decode
from chargehand.core.mission_events import MessageSent, MissionFinished
from chargehand.durable.workers import LocalWorkers
from chargehand.server._responses import KnownAnswers, document_response

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
    """Return what is told of all missions, as it is sent plain and compressed."""
    made = [*(list_missions(reader, asked) for asked in LISTS)]
    made.append(mission_statistics(reader, StatisticsRequest(everywhere=True)))
    return [
        tuple(bytes(document_response(each, gzipped=gzipped, answers=known).body) for gzipped in (False, True))
        for each in made
    ]


class Changes:
    """Changes missions as other programs beside the server do, a worker that comes and goes among them."""

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
            case "leave":  # what it held is held by nobody alive, and no line says so
                self.worker.leave()
            case "join":
                self.worker.leave()
                self.worker = self.workers.join("worker")


@given(steps)
@settings(max_examples=examples(20), deadline=None)
def test_what_is_kept_is_what_is_told_for_the_first_time(given_steps: list[tuple[str, int, Payload]]) -> None:
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
                assert answers(kept, known) == told  # as it is made
                assert answers(kept, known) == told  # as it is known
            changes.worker.leave()
