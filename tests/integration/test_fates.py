"""The fates of real promotions on real branches, people's feedback, and that choices learn from both."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.conftest import git

from chargehand.app.composition import App
from chargehand.app.runs import prepare_run
from chargehand.app.truths import (
    FeedbackDocument,
    LookedPromotion,
    give_feedback,
    look_at_promotions,
    look_quietly,
)
from chargehand.configuration.run_options import RunRequest
from chargehand.core.clock import SystemClock
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.core.mission_events import PromotionFollowed
from chargehand.reports.outcomes import OutcomeHistory
from chargehand.reports.showing import show_mission
from mission_kit import FILES, GOLD, MissionKit

pytestmark = pytest.mark.needs_bwrap


class OtherTime(SystemClock):
    """The machine's clock, some days off."""

    def __init__(self, days: float) -> None:
        self._shift = timedelta(days=days)

    def now(self) -> datetime:
        return datetime.now(UTC) + self._shift


class Followed:
    """A project with a promoted mission, whose state directory each test gets as a copy."""

    def __init__(self, kit: MissionKit, mission: str) -> None:
        self.kit, self.mission, self.repo = kit, mission, kit.repository
        self.environ = kit.environ

    def app(self, days: float = 0.0, actor: str = "") -> App:
        return App(environ=self.environ, cwd=self.repo, clock=OtherTime(days), actor=actor)

    def look(self, days: float = 0.0) -> LookedPromotion:
        app = self.app(days)
        try:
            (entry,) = look_at_promotions(app, self.mission, project=None).promotions
            return entry
        finally:
            app.close()

    def say(self, word: Literal["good", "bad"] | None, actor: str = "ann", **more: Any) -> FeedbackDocument:
        app = self.app(actor=actor)
        try:
            return give_feedback(app, self.mission, word=word, **more)
        finally:
            app.close()

    def words(self) -> list[bool | None]:
        """Return the truth about each attempt in the history of choices."""
        app = self.app()
        try:
            return [each.proved_right for each in OutcomeHistory(lambda: app.store)().outcomes]
        finally:
            app.close()

    def followed(self) -> list[str]:
        """Return the recorded fates."""
        app = self.app()
        try:
            return [line.type for line in app.store.log.read(self.mission, types=(PromotionFollowed.type,))]
        finally:
            app.close()

    def git(self, *words: str) -> str:
        return git(self.repo, *words).strip()


def promoted(place: Path, *, apply: bool) -> Followed:
    kit = MissionKit(place)
    state = kit.run(GOLD, apply=apply)
    assert state.status == "promoted"
    return Followed(kit, state.id)


@pytest.fixture
def applied(tmp_path: Path) -> Followed:
    return promoted(tmp_path, apply=True)


def test_an_applied_change_survives_after_the_days_and_not_before(applied: Followed) -> None:
    entry = applied.look()
    assert (entry.promotion.branch, entry.promotion.fate, entry.note) == ("main", None, "it is on main")
    assert applied.look(days=-30).promotion.fate is None  # a clock that went back
    assert applied.look(days=6.9).promotion.fate is None
    assert (applied.words(), applied.followed()) == ([None], [])
    assert applied.look(days=7.1).promotion.fate == "survived"
    assert applied.words() == [True]
    # It is final: a later revert is another person's work on the file.
    applied.git("revert", "--no-edit", "HEAD")
    assert applied.look(days=9).promotion.fate == "survived"
    assert len(applied.followed()) == 1
    # A person's word wins over the fate, and only while it is not retracted.
    applied.say("bad")
    assert applied.words() == [False]
    applied.say(None, retract=True)
    assert applied.words() == [True]
    app = applied.app()
    (shown,) = show_mission(app, applied.mission)[1].promotions
    app.close()
    assert shown.fate == "survived"


def test_a_revert_and_a_force_push_are_found_and_recorded_once(tmp_path: Path) -> None:
    for name, undo, fate in (
        ("reverted", ("revert", "--no-edit", "HEAD"), "reverted"),
        ("rewritten", ("reset", "-q", "--hard", "HEAD^"), "rewritten"),
    ):
        mission = promoted(tmp_path / name, apply=True)
        mission.git(*undo)
        # Two processes look at the same time: one records it, and both tell it.
        with ThreadPoolExecutor(2) as pool:
            found = [each.result() for each in [pool.submit(mission.look) for _ in range(2)]]
        # One of them may have met the other's claim.
        assert fate in {each.promotion.fate for each in found}, found
        again = mission.look(days=30)
        assert (again.promotion.fate, mission.words(), len(mission.followed())) == (fate, [False], 1)
        assert again.promotion.by == (mission.git("rev-parse", "HEAD") if fate == "reverted" else "")


def test_a_change_that_a_person_merges_is_followed_from_the_first_look_on(tmp_path: Path) -> None:
    mission = promoted(tmp_path, apply=False)
    entry = mission.look(days=20)
    assert (entry.promotion.branch, entry.promotion.fate, entry.note) == ("", None, "it is not on main yet")
    branch = mission.git("for-each-ref", "--format=%(refname:short)", "refs/heads/chargehand")
    mission.git("merge", "-q", "--squash", branch)
    mission.git("commit", "-qm", "by a person")
    mission.git("branch", "-qD", branch)
    merged = mission.look(days=20)
    assert (merged.promotion.branch, merged.promotion.fate) == ("main", None)
    assert merged.note == "it survives if it is still there after 7 days"
    mission.git("commit", "--amend", "-qm", "by a person, in better words")
    assert mission.look(days=26.9).promotion.fate is None
    assert mission.words() == [None]
    assert mission.look(days=27.1).promotion.fate == "survived"
    assert mission.words() == [True]


def test_a_missing_branch_or_repository_is_told_and_decides_nothing(applied: Followed) -> None:
    applied.git("checkout", "-q", "--detach")
    applied.git("branch", "-qM", "main", "trunk")
    entry = applied.look(days=30)
    assert (entry.promotion.fate, entry.note) == (None, "there is no branch 'main'")
    applied.git("branch", "-qM", "trunk", "main")
    kept = applied.repo.rename(applied.repo.with_name("elsewhere"))
    app = App(environ=applied.environ, cwd=applied.repo.parent, clock=OtherTime(30))
    try:
        (entry,) = look_at_promotions(app, applied.mission, project=None).promotions
        assert entry.promotion.fate is None
        assert "elsewhere" not in entry.note
        assert entry.note
        look_quietly(app)  # raises nothing
    finally:
        app.close()
    assert applied.followed() == []
    kept.rename(applied.repo)
    assert applied.look(days=30).promotion.fate == "survived"


def test_a_look_that_nobody_asked_for_needs_learned_decisions(applied: Followed) -> None:
    config = applied.kit.place / ".config/chargehand/config.toml"
    config.parent.mkdir(parents=True)
    for learned, fates in ((False, 0), (True, 1)):
        config.write_text(f"[decisions]\nlearned = {str(learned).lower()}\nsurvival_days = 3\n")
        app = applied.app(days=4)
        try:
            look_quietly(app, app.projects.find().id)
        finally:
            app.close()
        assert len(applied.followed()) == fates


def test_a_run_looks_before_it_chooses(applied: Followed) -> None:
    applied.git("revert", "--no-edit", "HEAD")
    config = applied.kit.place / ".config/chargehand/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[decisions]\nlearned = true\n")
    app = applied.app()
    try:
        prepare_run(app, RunRequest(text="more", agent="command:true", only_checks=("true",)))
    finally:
        app.close()
    assert applied.words() == [False]


def test_feedback_counts_for_green_attempts_and_can_be_retracted(applied: Followed) -> None:
    told = applied.say("good", note="as I wanted", hunk="calc/core.py:2")
    assert told.warning is None
    (entry,) = told.feedback
    assert (entry.good, entry.place, entry.identity, entry.note) == (True, "calc/core.py:2", "ann", "as I wanted")
    assert applied.words() == [True]
    applied.say("bad", actor="ben")
    assert applied.words() == [False]
    with pytest.raises(RefusedError, match="cleo has no feedback"):
        applied.say(None, actor="cleo", retract=True)
    assert [each.identity for each in applied.say(None, actor="ben", retract=True).feedback] == ["ann"]
    assert applied.words() == [True]
    assert applied.say(None, retract=True, attempt=1).feedback == ()
    assert applied.words() == [None]
    for wrong in ({"hunk": "core.py"}, {"hunk": "f:0"}, {"hunk": ":3"}, {"retract": True}, {"note": "x" * 3000}):
        with pytest.raises(UsageError):
            applied.say("good", **wrong)
    with pytest.raises(NotFoundError, match="no attempt 2"):
        applied.say("good", attempt=2)


def test_a_place_that_is_not_in_the_change_is_refused_with_those_that_are(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path, {**FILES, "notes.txt": "".join(f"{each}\n" for each in range(1, 41))})
    work = f"{GOLD}; sed -i -e '5,6s/$/ more/' -e 20d notes.txt; printf 'a\\0b' > logo.bin; chmod +x calc/core.py"
    mission = Followed(kit, kit.run(work, allow=("**",)).id)
    refused = {
        "notes.txt:7": "its hunks are notes.txt:5-6, notes.txt:19-20, calc/core.py:2, logo.bin:1",
        "notes.txt:21": "its hunks are notes.txt:5-6",
        "calc/core.py:1": "its hunks are calc/core.py:2, ",
        "calc/__init__.py:1": "its hunks are calc/core.py:2, ",
        "core.py:2": "its hunks are calc/core.py:2, ",
    }
    for place, hint in refused.items():
        with pytest.raises(NotFoundError, match=f"'{place}' is not in the change of attempt 1") as caught:
            mission.say("bad", hunk=place)
        assert caught.value.hint.startswith(hint)
    with pytest.raises(RefusedError, match="has no feedback"):  # nothing of it was recorded
        mission.say(None, retract=True)
    for place in ("notes.txt:5", "notes.txt:6", "notes.txt:19", "notes.txt:20", "logo.bin:3", "calc/core.py:2"):
        assert mission.say("bad", hunk=place).feedback[-1].place == place


def test_a_place_in_an_attempt_without_a_change_or_with_many_hunks(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    idle = Followed(kit, kit.run("true").id)
    with pytest.raises(NotFoundError) as caught:
        idle.say("bad", hunk="calc/core.py:2")
    assert caught.value.hint == "it changed no file: leave the place out"
    many = Followed(kit, kit.run("for each in $(seq 30); do echo x > calc/made_$each.py; done").id)
    with pytest.raises(NotFoundError) as caught:
        many.say("bad", hunk="calc/core.py:2")
    assert (caught.value.hint.count("made_"), caught.value.hint.endswith(", ...")) == (12, True)


def test_feedback_on_a_red_attempt_is_recorded_and_does_not_count(tmp_path: Path) -> None:
    kit = MissionKit(tmp_path)
    state = kit.run("echo '# nothing' >> calc/core.py")
    assert state.status == "refused"
    mission = Followed(kit, state.id)
    told = mission.say("good")
    assert told.warning == "attempt 1 is refused with a red verdict: choices learn from that, not from this word"
    assert [each.good for each in told.feedback] == [True]
    assert mission.words() == [None]


def test_a_roll_back_is_a_fate_without_a_look(applied: Followed) -> None:
    async def roll_back() -> None:
        app = applied.app()
        try:
            async with app.mission_session(applied.mission) as (found, session):
                await session.missions.roll_back(found)
        finally:
            app.close()

    asyncio.run(roll_back())
    assert applied.words() == [False]
    assert (applied.look(days=30).promotion.fate, applied.followed()) == ("rolled_back", [])
