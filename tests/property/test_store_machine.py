"""The store against a model that is a plain dictionary, with operations in any order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tests.conftest import examples

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError
from chargehand.core.events import Payload, encode
from chargehand.core.ids import new_id
from chargehand.core.mission_events import MissionCreated, StepFinished
from chargehand.core.records import MissionRequest
from chargehand.store.audit import verify
from chargehand.store.store import open_store

REQUEST = MissionRequest(text="x", agent="a", command=(), slug="x")
outputs = (
    st.none()
    | st.integers(-9, 9)
    | st.text(max_size=20)
    | st.dictionaries(st.text(max_size=3), st.none(), max_size=2)
)
steps = st.builds(StepFinished, step=st.text(max_size=5), input=st.just(""), output=outputs, seconds=st.just(0.5))


class StoreMachine(RuleBasedStateMachine):
    missions = Bundle("missions")

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.clock = SteppedClock()
        self.store = open_store(self.directory / "home", clock=self.clock)
        self.model: dict[str, list[bytes | None]] = {}
        self.projects: dict[str, str] = {}
        self.artifacts: dict[str, bytes] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    @rule(target=missions, project=st.sampled_from("pq"), durable=st.booleans(), first=st.lists(steps, max_size=2))
    def create(self, project: str, durable: bool, first: list[Payload]) -> Any:
        self.clock.advance(1)
        mission = new_id("mission", now_ms=len(self.model))
        payloads = [MissionCreated(project=project, repository="/r", request=REQUEST), *first]
        self.store.log.append(mission, *payloads, durable=durable)
        self.model[mission] = [encode(payload) for payload in payloads]
        self.projects[mission] = project
        return mission

    @rule(mission=missions, payloads=st.lists(steps, max_size=3), durable=st.booleans())
    def append(self, mission: str, payloads: list[Payload], durable: bool) -> None:
        lines = self.store.log.append(mission, *payloads, durable=durable)
        assert [line.seq for line in lines] == [len(self.model[mission]) + n for n in range(1, len(payloads) + 1)]
        self.model[mission] += [encode(payload) for payload in payloads]

    @rule(mission=missions, at=st.integers(1, 8))
    def erase(self, mission: str, at: int) -> None:
        if at > len(self.model[mission]):
            with pytest.raises(NotFoundError):
                self.store.erase_payload(mission, at, reason="asked")
        else:
            self.store.erase_payload(mission, at, reason="asked")
            self.model[mission][at - 1] = None

    @rule(content=st.binary(max_size=30) | st.just(b"long" * 3000), durable=st.booleans())
    def put(self, content: bytes, durable: bool) -> None:
        self.artifacts[self.store.artifacts.put(content, kind="k", durable=durable)] = content

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = open_store(self.directory / "home", clock=self.clock)

    @rule()
    def restore_a_backup(self) -> None:
        self.store.backup(self.directory / "copy")
        self.store.close()
        shutil.rmtree(self.directory / "home")
        (self.directory / "copy").rename(self.directory / "home")
        self.store = open_store(self.directory / "home", clock=self.clock)

    @rule(mission=missions, after=st.integers(0, 9))
    def read(self, mission: str, after: int) -> None:
        kept = [line.payload for line in self.store.log.read(mission, after=after)]
        assert kept == self.model[mission][after:]
        assert self.store.log.find(mission) == mission

    @rule(project=st.sampled_from("pqr"))
    def list(self, project: str) -> None:
        mine = [mission for mission in self.model if self.projects[mission] == project]
        assert [row.id for row in self.store.log.missions(project=project)] == mine
        latest = self.store.log.latest(project)
        assert (latest.id if latest else None) == (mine[-1] if mine else None)

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        if not hasattr(self, "store"):
            return
        report = verify(self.store)
        assert report.ok, report.problems
        assert report.events == sum(len(lines) for lines in self.model.values())
        rows = {row.id: row.last_seq for row in self.store.log.missions()}
        assert rows == {mission: len(lines) for mission, lines in self.model.items()}
        assert all(self.store.artifacts.get(name) == content for name, content in self.artifacts.items())


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=examples(12), stateful_step_count=12, deadline=None)
