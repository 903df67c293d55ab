"""Questions to people: what answers one, when it expires, and what comes of it then."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chargehand.app.composition import App
from chargehand.app.documents import mission_document, to_json
from chargehand.app.missions import question_document
from chargehand.app.story import describe_event
from chargehand.core.clock import SteppedClock
from chargehand.core.config import Config, LimitsConfig
from chargehand.core.errors import RefusedError
from chargehand.core.events import decode
from chargehand.core.mission_events import CLOCK, MissionCreated, QuestionAsked, QuestionExpired
from chargehand.core.plan_events import CoordinatorSlept
from chargehand.core.records import MissionRequest, Reason
from chargehand.core.state import MissionState
from chargehand.missions._questions import next_expiry, rest_for_person
from chargehand.missions.journal import Journal

REQUEST = MissionRequest(text="x", agent="a", command=("x",), slug="x")
LIMITS = {"values": msgspec.to_builtins(Config(limits=LimitsConfig(question_seconds=60.0)))}
MINUTE = "2026-01-01T00:01:00+00:00"


class Inquiry:
    """A mission that asks, in a store of its own."""

    def __init__(self, place: Path) -> None:
        self.clock = SteppedClock()
        environ = {"CHARGEHAND_HOME": str(place / "home"), "HOME": str(place)}
        self.app = App(environ=environ, cwd=place, clock=self.clock, role="worker")
        self.app.store.log.append(
            "m-1", MissionCreated(project="p", repository="/r", request=REQUEST, config=LIMITS)
        )

    def ask(self, *, asleep: bool = False, **more: object) -> None:
        journal = Journal(self.app.store, "m-1", clock=self.clock)
        asked = QuestionAsked(question="q", tree="t", reasons=(), text="Which way?", attempt="a-1", **more)
        journal.record(journal.limited(asked))
        if asleep:
            journal.record(CoordinatorSlept(tasks=("a",), wakes=next_expiry(journal.state)))
        else:
            journal.record(rest_for_person(journal.state, Reason(code="question", message="Which way?")))

    @property
    def state(self) -> MissionState:
        return self.app.mission_reader.state("m-1")

    @property
    def expired(self) -> list[QuestionExpired]:
        lines = self.app.store.log.read("m-1", types=(QuestionExpired.type,))
        return [decode(line.type, line.payload or b"") for line in lines]  # type: ignore[misc]

    def refused(self, text: str) -> RefusedError:
        with pytest.raises(RefusedError) as refused:
            self.app.steering.answer("m-1", text)
        assert refused.value.hint
        return refused.value


@pytest.fixture
def inquiry(tmp_path: Path) -> Iterator[Inquiry]:
    made = Inquiry(tmp_path)
    yield made
    made.app.close()


def test_the_default_is_taken_by_the_worker_that_looks_and_by_no_reader(inquiry: Inquiry) -> None:
    inquiry.ask(options=("left", "right"), default="left", kind="decision")
    assert list(inquiry.app.mission_reader.sleepers()) == ["m-1"]
    assert not inquiry.app.steering.wake("m-1", now=inquiry.clock.now())
    inquiry.clock.advance(61)
    assert (inquiry.state.status, inquiry.expired) == ("waiting", [])
    assert inquiry.app.steering.wake("m-1", now=inquiry.clock.now())
    asked = inquiry.state.questions["q"]
    assert (asked.answer, asked.identity, asked.expired) == ("left", CLOCK, True)
    assert (inquiry.state.status, inquiry.app.store.log.get("m-1").runnable) == ("planned", True)
    assert inquiry.expired == [QuestionExpired(question="q", default="left")]
    last = inquiry.app.store.log.read("m-1")[-1]
    assert describe_event(last) == "nobody answered in time: 'left' is taken as the answer"
    assert (inquiry.refused("right").code, inquiry.app.mission_reader.sleepers()) == ("question_expired", {})


def test_without_a_default_a_person_is_needed_whose_resume_asks_again(inquiry: Inquiry) -> None:
    inquiry.ask()
    inquiry.clock.advance(61)
    late = inquiry.refused("left")
    assert (late.code, "resume" in str(late.hint)) == ("question_expired", True)
    assert [reason.code for reason in inquiry.state.reasons] == ["needs_human"]
    assert (inquiry.state.status, inquiry.state.open_question) == ("waiting", None)
    assert mission_document(inquiry.state).next[0].startswith("chargehand mission resume")
    assert not inquiry.app.store.log.get("m-1").runnable
    assert inquiry.app.steering.resume("m-1").status == "planned"
    assert inquiry.state.questions == {}, "who asked finds no question, and asks again"
    inquiry.ask()
    assert inquiry.app.steering.answer("m-1", "left").status == "planned"


def test_resume_takes_a_default_that_no_worker_took(inquiry: Inquiry) -> None:
    inquiry.ask(default="left")
    inquiry.clock.advance(61)
    assert inquiry.app.steering.resume("m-1").questions["q"].answer == "left"


def test_a_coordinator_that_sleeps_is_woken_for_its_question(inquiry: Inquiry) -> None:
    inquiry.ask(asleep=True)
    assert list(inquiry.app.mission_reader.sleepers()) == ["m-1"]
    inquiry.clock.advance(61)
    assert inquiry.app.steering.wake("m-1", now=inquiry.clock.now())
    assert inquiry.app.store.log.get("m-1").runnable
    assert inquiry.state.needs_person


def test_one_answer_counts_and_the_second_names_it(inquiry: Inquiry) -> None:
    inquiry.ask()
    inquiry.app.steering.answer("m-1", "left")
    second = inquiry.refused("right")
    assert (second.code, "'left'" in second.message) == ("question_answered", True)
    assert inquiry.state.questions["q"].answer == "left"


def test_a_closed_question_takes_its_options_alone(inquiry: Inquiry) -> None:
    inquiry.ask(options=("left", "right"), closed=True)
    wrong = inquiry.refused("up")
    assert (wrong.code, wrong.message) == ("answer_unknown", "the answer must be one of 'left', 'right', got 'up'")
    assert inquiry.app.steering.answer("m-1", "right").questions["q"].answer == "right"


def test_the_documents_tell_kind_expiry_and_default(inquiry: Inquiry) -> None:
    inquiry.ask(kind="risk", default="left", options=("left",), closed=True)
    assert inquiry.state.open_question is not None
    for document in (
        mission_document(inquiry.state).question,
        question_document(inquiry.state, inquiry.state.open_question),
    ):
        told = to_json(document)
        assert (told["kind"], told["closed"], told["expires"], told["default"]) == ("risk", True, MINUTE, "left")
    shown = describe_event(inquiry.app.store.log.read("m-1", types=(QuestionAsked.type,))[0])
    assert shown == "the agent asks (risk): Which way? (to be answered until 2026-01-01 00:01:00 UTC)"


def test_questions_of_older_logs_are_free_and_never_expire() -> None:
    old = b'{"attempt":null,"options":[],"question":"q","reasons":[],"text":"?","tree":"t"}'
    asked = decode("question.asked", old)
    assert isinstance(asked, QuestionAsked)
    assert (asked.kind, asked.closed, asked.expires, asked.default) == ("clarification", False, "", "")
