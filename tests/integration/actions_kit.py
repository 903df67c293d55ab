"""A repository with a remote, and a person's actions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import git, write_files
from tests.integration.mission_kit import MissionKit

from chargehand.app.actions import Actions
from chargehand.app.composition import App
from chargehand.core.actions import ActionKind, ActionState
from chargehand.core.state import MissionState
from chargehand.durable.actions import ActionLock, OutputLine

FILES = {"f.txt": "one\ntwo\nthree\n", "g.txt": "g\n"}


class ActionsKit(MissionKit):
    """A repository whose remote `origin` is a bare repository in the same directory."""

    def __init__(self, place: Path, files: Mapping[str, str] = FILES) -> None:
        super().__init__(place, files)
        self.origin = place / "origin.git"
        git(place, "clone", "-q", "--bare", str(self.repository), str(self.origin))
        git(self.repository, "remote", "add", "origin", f"file://{self.origin}")

    def promoted(self, script: str = "sed -i s/two/mine/ f.txt") -> MissionState:
        """Run a mission that is promoted."""
        state = self.run(script, checks=("true",))
        assert state.status == "promoted", state.reasons
        return state

    def left(self, script: str = "sed -i s/two/mine/ f.txt") -> MissionState:
        """Run a mission whose check refuses its change; the change is kept."""
        state = self.run(script, checks=("! grep -q mine f.txt",))
        assert state.status == "refused", state.status
        return state

    def elsewhere(self, files: Mapping[str, str], branch: str = "main") -> str:
        """Push a commit to a branch of the remote from another clone; return the commit."""
        clone = self.place / f"clone-{len(list(self.place.glob('clone-*')))}"
        git(self.place, "clone", "-q", str(self.origin), str(clone))
        git(clone, "checkout", "-q", branch)
        write_files(clone, files)
        git(clone, "add", "-A")
        git(clone, "commit", "-q", "-m", "theirs")
        git(clone, "push", "-q", "origin", branch)
        return git(clone, "rev-parse", "HEAD")

    def tip(self, branch: str) -> str | None:
        """Return the commit of a branch of the remote."""
        found = git(self.origin, "for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")
        return found or None

    def act(
        self,
        kind: ActionKind,
        mission: str | None = None,
        *,
        seconds: float = 60.0,
        on_line: Callable[[OutputLine], None] = lambda line: None,
        **arguments: Any,
    ) -> ActionState:
        """Run an action to its end or question."""
        with self.opened() as app:
            actions = Actions(app)
            held = self.made(app, kind, mission, seconds=seconds, **arguments)
            return asyncio.run(actions.run(held, on_line=on_line))

    def made(
        self, app: App, kind: ActionKind, mission: str | None = None, *, seconds: float = 60.0, **arguments: Any
    ) -> ActionLock:
        """Create an action without starting it."""
        project = app.preparation.register_project(self.repository).id
        return Actions(app).create(
            kind, arguments, project=project, mission=mission, seconds=seconds, detached=False
        )

    def answered(self, action: str, *, yes: bool) -> ActionState:
        """Answer an action's question, and resume the action."""
        with self.opened() as app:
            actions = Actions(app)
            held = actions.answer(action, yes=yes)
            return actions.state(action) if held is None else asyncio.run(actions.run(held))

    def opened(self) -> Any:
        """Open the app."""
        return App.open(environ=self.environ, cwd=self.repository)

    def mission(self, mission: str) -> MissionState:
        """Return the state of a mission."""
        with self.opened() as app:
            state: MissionState = app.mission_reader.state(mission)
            return state

    def types(self, log: str) -> list[str]:
        """Return the types of the lines of a log."""
        with self.opened() as app:
            return [line.type for line in app.store.log.read(log)]
