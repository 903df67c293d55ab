"""Lessons of real missions: learned from a red attempt, shown to the next mission, and measured."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chargehand.app.composition import App
from chargehand.core.events import read_payload
from chargehand.core.mission_events import LessonsRecalled
from chargehand.knowledge.lessons import read_lessons
from mission_kit import GOLD, MissionKit

pytestmark = pytest.mark.needs_bwrap

WRONG = "sed -i 's/a - b/a * b/' calc/core.py"
# It finds the fix in its second attempt, after the checks' report; in the first one only if a lesson names it.
LEARNER = (
    f'case "$CHARGEHAND_LESSONS" in *"+    return a + b"*) {GOLD}; exit;; esac; '
    f'if [ "$CHARGEHAND_ATTEMPT" = 2 ]; then sed -i "s/a [*] b/a + b/" calc/core.py; else {WRONG}; fi'
)


class LessonKit(MissionKit):
    """A repository, and the configuration of lessons."""

    def configure(self, mode: str) -> LessonKit:
        """Set `knowledge.lessons`."""
        path = self.place / ".config/chargehand/config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[knowledge]\nlessons = "{mode}"\n')
        return self

    def recalled(self, mission: str) -> list[LessonsRecalled]:
        """Return the recorded recalls of a mission."""
        with self.opened() as app:
            lines = app.store.log.read(mission, types=(LessonsRecalled.type,))
        return [event for line in lines if isinstance(event := read_payload(line), LessonsRecalled)]

    def opened(self) -> AbstractContextManager[App]:
        """Return the app as a context."""
        return App.open(environ=self.environ, cwd=self.repository)


@pytest.fixture
def kit(tmp_path: Path) -> LessonKit:
    return LessonKit(tmp_path).configure("on")


def test_an_agent_that_needs_a_lesson_succeeds_the_second_time(kit: LessonKit) -> None:
    alone = kit.run(LEARNER, attempts=1)
    assert (alone.status, kit.recalled(alone.id)) == ("refused", [])

    taught = kit.run(LEARNER, attempts=2)
    assert (taught.status, len(taught.attempts)) == ("promoted", 2)
    with kit.opened() as app:
        (lesson,) = read_lessons(app.store.lessons.list(app.user))
    content = lesson.content
    assert (content.kind, content.paths) == ("fix", ("calc/core.py",))
    assert "a + b" in content.change
    assert "a * b" in content.change
    assert any("test_add" in test for test in content.tests) or "test_add" in content.error
    assert (lesson.row.mission, lesson.row.shared) == (taught.id, False)

    again = kit.run(LEARNER, attempts=1)
    assert again.status == "promoted"
    (recall,) = kit.recalled(again.id)
    assert [(each.lesson, each.shown) for each in recall.lessons] == [(lesson.row.id, True)]
    with kit.opened() as app:
        (use,) = app.store.lessons.uses([lesson.row.id])[lesson.row.id]
    assert (use.mission, use.shown, use.green, use.attempts) == (again.id, True, True, 1)
