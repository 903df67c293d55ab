"""Missions that wait for a person or for quota: what wakes them, when the wait expires, and the result."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from chargehand.app.composition import App
from chargehand.app.missions import question_document
from chargehand.core.clock import SteppedClock
from chargehand.core.config import Config, LimitsConfig
from chargehand.core.errors import RefusedError, WaitingError
from chargehand.core.events import decode
from chargehand.core.mission_events import (
    CLOCK,
    MissionCreated,
    MissionFinished,
    QuestionAnswered,
    QuestionAsked,
    QuestionExpired,
)
from chargehand.core.plan_events import CoordinatorSlept
from chargehand.core.records import MissionRequest, Reason
from chargehand.core.state import MissionState
from chargehand.missions._messages import wait_for_quota, wake_time
from chargehand.missions._questions import next_expiry, rest_for_person
from chargehand.missions.journal import Journal
from chargehand.models.contract import QuotaRest
from chargehand.reports.documents import mission_document, to_json
from chargehand.reports.story import describe_event

REQUEST = MissionRequest(text="x", agent="a", command=("x",), slug="x")
LIMITS = {"values": msgspec.to_builtins(Config(limits=LimitsConfig(question_seconds=60.0)))}
MINUTE = "2026-01-01T00:01:00+00:00"


class Inquiry:
    """A mission that asks, in a separate store."""

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
    assert describe_event(last) == "no answer in time: 'left' is taken as the answer"
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


def test_a_second_answer_is_refused_and_names_the_first(inquiry: Inquiry) -> None:
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


QUOTA_REQUEST = MissionRequest(text="x", agent="a", command=("x",), slug="x")
CREATED = MissionCreated(project="p", repository="/r", request=QUOTA_REQUEST, user="ann")
HOURS = timedelta(hours=5)


class Bed:
    """Missions that start to wait in one store, and several processes that watch it."""

    def __init__(self, place: Path) -> None:
        self.place, self.clock = place, SteppedClock()
        self.environ = {"CHARGEHAND_HOME": str(place / "home"), "HOME": str(place)}
        self.app = self.process()

    def process(self) -> App:
        return App(environ=self.environ, cwd=self.place, clock=self.clock, role="worker")

    def journal(self, mission: str) -> Journal:
        return Journal(self.app.store, mission, clock=self.clock)

    def begin(self, mission: str) -> None:
        self.app.store.log.append(mission, CREATED)

    def park(self, mission: str, *, after: timedelta = HOURS, rest: bool = True) -> WaitingError:
        """Let a mission meet a quota; without `rest` its worker dies before the mission's status is `waiting`."""
        quota = QuotaRest(model="m", provider="https://api.example.org/v1", until=self.clock.now() + after)
        journal = self.journal(mission)
        now = self.clock.now()
        question, error = wait_for_quota(journal.state, "quota", quota, attempt="a-1", tree="t", now=now)
        if question is not None:
            journal.record(question, durable=True)
        if rest:
            reason = Reason(code=error.code, message=error.message)
            journal.record(MissionFinished(status="waiting", reasons=(reason,)))
        return error

    def state(self, mission: str) -> MissionState:
        return self.app.mission_reader.at_rest(mission)

    def wake(self, app: App, mission: str) -> bool:
        try:
            return app.steering.wake(mission, now=self.clock.now())
        except RefusedError:
            return False

    def seconds(self, mission: str) -> float:
        """Return how long it still waits, without the jitter of its mission."""
        asked = self.state(mission).waits_for_quota
        assert asked is not None
        return (datetime.fromisoformat(asked.until) - self.clock.now()).total_seconds()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    made = Bed(tmp_path)
    yield made
    made.app.close()


def test_a_quota_wait_survives_a_restart_and_is_woken_only_once(bed: Bed) -> None:
    bed.begin("m-1")
    error = bed.park("m-1")
    assert (error.code, error.message) == (
        "quota_exhausted",
        "waiting for quota of api.example.org until 2026-01-01 05:00:01 UTC",
    )
    assert bed.state("m-1").user == "ann"
    bed.app.close()
    bed.app = bed.process()
    (moment,) = bed.app.mission_reader.sleepers().values()
    moment = wake_time("m-1", moment.isoformat())
    assert not bed.app.store.log.get("m-1").runnable
    bed.clock.advance((moment - bed.clock.now()).total_seconds() - 0.001)
    assert not bed.wake(bed.app, "m-1")
    assert bed.state("m-1").status == "waiting"
    bed.clock.advance(0.001)
    others = [bed.process() for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as pool:
            woken = list(pool.map(lambda app: bed.wake(app, "m-1"), others))
    finally:
        for app in others:
            app.close()
    assert sum(woken) == 1
    answers = [line for line in bed.app.store.log.read("m-1") if line.type == QuestionAnswered.type]
    assert len(answers) == 1
    assert bed.state("m-1").status == "planned"
    assert bed.app.store.log.get("m-1").runnable
    assert bed.app.mission_reader.sleepers() == {}


def test_wake_times_of_missions_are_spread_over_seconds(bed: Bed) -> None:
    moments = [wake_time(f"m-{number}", "2026-01-01T05:00:00+00:00") for number in range(200)]
    apart = [(moment - moments[0].replace(second=0, microsecond=0)).total_seconds() for moment in moments]
    assert 0 <= min(apart) < 1
    assert 7 < max(apart) <= 8
    assert len(set(apart)) > 150
    for mission, hours in (("m-1", 3), ("m-2", 1), ("m-3", 2)):
        bed.begin(mission)
        bed.park(mission, after=timedelta(hours=hours))
    assert list(bed.app.mission_reader.sleepers()) == ["m-2", "m-3", "m-1"]


def test_a_question_recorded_by_a_dead_worker_is_not_repeated(bed: Bed) -> None:
    bed.begin("m-1")
    bed.park("m-1", rest=False)
    assert bed.app.mission_reader.sleepers() == {}, "it should go on, so another worker takes it"
    bed.clock.advance(60)
    again = bed.park("m-1", after=timedelta(hours=9))
    assert "2026-01-01 05:00:01" in again.message
    assert len([line for line in bed.app.store.log.read("m-1") if line.type == QuestionAsked.type]) == 1
    assert list(bed.app.mission_reader.sleepers()) == ["m-1"]


def test_waits_in_vain_get_longer_and_a_persons_word_does_not_count(bed: Bed) -> None:
    bed.begin("m-1")
    lasted = []
    for _ in range(9):
        bed.park("m-1", after=timedelta(seconds=61))
        lasted.append(bed.seconds("m-1"))
        bed.clock.advance(lasted[-1] + 8)
        assert bed.wake(bed.app, "m-1")
        assert [asked.identity for asked in bed.state("m-1").questions.values()][-1] == CLOCK
    assert lasted == [62, 121, 241, 481, 961, 1921, 3601, 3601, 3601]
    bed.park("m-1", after=timedelta(seconds=61))
    bed.app.steering.answer("m-1", "go on")
    bed.park("m-1", after=timedelta(seconds=61))
    assert bed.seconds("m-1") == 62


@pytest.mark.parametrize("end", ["cancel", "discard"])
def test_a_cancelled_or_discarded_mission_is_not_woken(bed: Bed, end: str) -> None:
    bed.begin("m-1")
    bed.park("m-1")
    getattr(bed.app.steering, end)("m-1")
    assert bed.app.mission_reader.sleepers() == {}
    bed.clock.advance(10 * 3600)
    assert not bed.wake(bed.app, "m-1")
    assert not bed.app.store.log.get("m-1").runnable


def test_a_question_to_a_person_is_never_answered_by_the_clock(bed: Bed) -> None:
    bed.begin("m-1")
    asked = QuestionAsked(question="a-1/ask", tree="t", reasons=(), text="which?", attempt="a-1")
    bed.journal("m-1").record(asked, MissionFinished(status="waiting"))
    bed.clock.advance(10 * 3600)
    assert bed.app.mission_reader.sleepers() == {}
    assert not bed.wake(bed.app, "m-1")
    assert bed.state("m-1").status == "waiting"


def test_the_user_comes_from_the_environment_or_the_account(bed: Bed) -> None:
    assert bed.app.user == bed.app.identity()
    bed.environ["CHARGEHAND_USER"] = " ann "
    other = bed.process()
    assert other.user == "ann"
    assert other.user_configuration().config.limits.user_usd is None, "it is no key of the configuration"
    other.close()


def test_a_mission_waits_for_disk_space_with_increasing_delays(bed: Bed) -> None:
    """It continues by the clock if there is room, or when a person resumes it."""
    bed.begin("m-1")
    waits = []
    for _ in range(3):
        bed.app.steering.give_up("m-1", Reason(code="store_full", message="no space left"), now=bed.clock.now())
        state = bed.state("m-1")
        asked = state.waits_for_quota
        assert (state.status, [reason.code for reason in state.reasons]) == ("waiting", ["no_space"] * 2)
        assert asked is not None
        assert "resumes once there is space" in asked.reason.message
        assert state.reasons[1].message == "no space left"
        assert not bed.wake(bed.app, "m-1"), "too early"
        waits.append((datetime.fromisoformat(asked.until) - bed.clock.now()).total_seconds())
        bed.clock.advance(waits[-1] + 10)
        assert bed.wake(bed.app, "m-1")
        assert bed.state("m-1").status == "planned"
    assert waits == sorted(waits)
    assert waits[-1] > 3 * 60
    bed.app.steering.give_up("m-1", Reason(code="no_space", message="no space left"), now=bed.clock.now())
    assert bed.app.steering.resume("m-1").status == "planned"
