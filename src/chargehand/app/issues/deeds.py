"""The effects of a forge's issue on its missions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

from chargehand.app.checkpoints import mission_difference
from chargehand.app.composition import App
from chargehand.app.issues.updates import update_mission
from chargehand.app.missions import (
    addressed_mission,
    answer_mission,
    cancel_mission,
    discard_mission,
    promote_mission,
)
from chargehand.app.requests import FollowUp, follow_up_mission, is_recorded
from chargehand.app.worker import ensure_worker
from chargehand.core.errors import NotFoundError, RefusedError
from chargehand.core.ids import keyed_id
from chargehand.core.mission_events import PROMOTE
from chargehand.core.records import IssueLink
from chargehand.core.state import ENDED, Question
from chargehand.missions.reading import result_tree


class MissionDeeds:
    """Changes missions as people at a forge ask; `identity` is that of the person whose word causes it."""

    def __init__(self, app: App) -> None:
        self._app = app

    @contextlib.contextmanager
    def _acting(self, identity: str) -> Iterator[App]:
        acting = App(
            environ=self._app.environ, cwd=Path("/"), actor=identity, starts_workers=self._app.starts_workers
        )
        try:
            yield acting
        finally:
            acting.close()

    def open_question(self, mission: str) -> tuple[str, Question] | None:
        """Return the question that a person may answer now, with the mission that asks it."""
        with contextlib.suppress(RefusedError, NotFoundError):
            asked = addressed_mission(self._app, mission, "answer")
            return (asked.mission, asked.question) if asked.question is not None else None
        return None

    def answer(self, mission: str, question: str, text: str, *, identity: str) -> None:
        """Answer a question. Raises `ChargehandError`."""
        with self._acting(identity) as app:
            answer_mission(app, addressed_mission(app, mission, "answer"), text, question=question)

    def change_to_decide(self, mission: str) -> tuple[str, str] | None:
        """Return the tree that waits for a person's approval, with its patch; `None` without such a tree."""
        state = self._app.mission_state(mission)
        asked = state.questions.get(PROMOTE)
        if state.status != "waiting" or asked is None or asked.answer is not None:
            return None
        patch = mission_difference(self._app, mission, checkpoint=None).patch()
        return result_tree(state), patch.decode(errors="replace")

    def decide(self, mission: str, tree: str, *, promote: bool, identity: str) -> None:
        """Promote exactly a tree, or discard the result. Raises `ChargehandError`."""
        with self._acting(identity) as app:
            if promote:
                asyncio.run(promote_mission(app, mission, tree=tree))
            else:
                discard_mission(app, mission)

    def cancel(self, mission: str, *, identity: str) -> None:
        """Cancel a mission; an ended mission stays as it is."""
        if self._app.mission_reader.state(mission).status not in ENDED:
            with contextlib.suppress(RefusedError), self._acting(identity) as app:
                cancel_mission(app, mission)

    def deliver(self, mission: str) -> None:
        """Repeat the unfinished deliveries of a promoted mission. Raises `ChargehandError`."""
        # Another application: this one may be at work on missions in another thread.
        with self._acting(self._app.identity()) as app:
            asyncio.run(promote_mission(app, mission))

    def follow_up(self, mission: str, text: str, link: IssueLink, *, identity: str) -> str:
        """Continue a promoted mission with a further round, once; return its id. Raises `ChargehandError`."""
        # With the remarks: a round that failed may be followed by one of the same number.
        made = keyed_id("mission", f"round {link.round} {mission} {' '.join(link.remarks)}")
        if not is_recorded(self._app, made):
            with self._acting(identity) as app:
                follow_up_mission(app, FollowUp(mission=mission, text=text), issue=link, made=made)
        ensure_worker(self._app)
        return made

    def contains(self, mission: str, commit: str) -> bool:
        """Return whether a promoted result has a commit of the target branch in its history."""
        state = self._app.mission_state(mission)
        return state.commit is not None and self._app.projects.mission_depot(state).contains(state.commit, commit)

    def update(self, mission: str, tip: str, link: IssueLink, *, works: bool) -> tuple[str, str] | None:
        """Merge the target branch, now at `tip`, with a promoted result, once: see `update_mission`."""
        made = keyed_id("mission", f"update {tip} {mission}")
        with self._acting(self._app.identity()) as app:
            found = update_mission(app, mission, link, made=made, works=works)
        ensure_worker(self._app)
        return found

    def mend(self, mission: str, text: str, *, identity: str) -> None:
        """Continue a mission that ended without a promotion. Raises `ChargehandError`."""
        with self._acting(identity) as app:
            follow_up_mission(app, FollowUp(mission=mission, text=text))
        ensure_worker(self._app)
