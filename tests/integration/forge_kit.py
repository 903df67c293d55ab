"""A repository at a forge with an issue, and a user whose configuration has an account there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forges import ForgeWatch, take_issue
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.mission_events import ForgeActed
from chargehand.core.records import IssueLink, RedBase
from chargehand.core.state import MissionState
from chargehand.forges.contract import Forge, ForgeRequest
from chargehand.forges.local import LocalForge, create_repository
from chargehand.testing.forges.case import run_git
from mission_kit import CHECK, FILES, GOLD

NAME = "ada/calc"
PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'


class ForgeKit:
    """A local forge where `ada` owns `ada/calc`, `bob` may write and `eve` only reads, and a state directory.

    The account of the state directory is that of `robot`, which may write.
    """

    def __init__(self, place: Path, script: str = GOLD, **settings: str) -> None:
        self.place, self.root = place, place / "forge"
        rights = {"ada": "admin", "bob": "write", "robot": "write", "eve": "read"}
        create_repository(self.root, NAME, rights)  # type: ignore[arg-type]
        self.ada, self.bob = LocalForge(self.root, "ada"), LocalForge(self.root, "bob")
        self.eve = LocalForge(self.root, "eve")
        self.push("main", {**FILES, "chargehand.toml": PROJECT}, first=True)
        self.home = used_state(place / "state")
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(place), "CHARGEHAND_HOME": str(self.home)}
        self.environ["HOME_TOKEN"] = "robot"
        self.configure(script, **settings)

    def configure(self, script: str, **settings: str) -> None:
        """Write the user's configuration: the agent's script, and settings of the account."""
        own = {"kind": '"local"', "url": f'"{self.root.as_uri()}"', "repositories": f'["{NAME}"]', **settings}
        text = "".join(f"{key} = {value}\n" for key, value in own.items())
        file = self.place / ".config" / "chargehand" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        script = script.replace("\\", "\\\\").replace('"', '\\"')
        file.write_text(
            f'[forges.home]\n{text}[agents.fixer]\ncommand = ["sh", "-c", "{script}"]\n'
            '[roles.default]\nagent = "fixer"\n'
        )

    def push(self, branch: str, files: dict[str, str], *, first: bool = False) -> str:
        """Push a commit as a person does, and return its id."""
        clone = self.place / "clone"
        bare = str(self.root / f"{NAME}.git")
        if first:
            run_git(self.place, "init", "-q", "-b", branch, str(clone))
        else:
            run_git(clone, "fetch", "-q", bare, f"+refs/heads/{branch}:refs/heads/fetched")
            run_git(clone, "checkout", "-q", "-B", branch, "fetched")
        for path, text in files.items():
            (clone / path).parent.mkdir(parents=True, exist_ok=True)
            (clone / path).write_text(text)
        run_git(clone, "add", "-A")
        run_git(clone, "commit", "-q", "-m", "by a person")
        run_git(clone, "push", "-q", bare, f"HEAD:refs/heads/{branch}")
        return run_git(clone, "rev-parse", "HEAD")

    def issue(
        self, title: str = "add() subtracts", body: str = "add(2, 3) should be 5", *, label: bool = True
    ) -> int:
        """Open an issue as its owner."""
        number = self.ada.create_issue(NAME, title, body)
        if label:
            self.ada.change_issue(NAME, number, add_labels=["chargehand"])
        return number

    @contextmanager
    def app(self) -> Iterator[App]:
        """Open the state directory; no worker is started by itself."""
        app = App(environ=self.environ, cwd=self.place, starts_workers=False)
        try:
            yield app
        finally:
            app.close()

    def take(self, number: int, red_base: RedBase | None = None) -> str:
        """Take an issue by its address."""
        with self.app() as app:
            return take_issue(app, f"home:{NAME}#{number}", RunRequest(yes=True, red_base=red_base))

    def work(self) -> None:
        """Run what can run, as a worker."""
        with self.app() as app:
            asyncio.run(Worker(app, slots=2).work(until_idle=True))

    def step(self, *, takes: bool = True, wrap: Callable[[Forge], Forge] | None = None) -> int:
        """Watch for one step; comments on lines are not collected first."""
        with self.app() as app:
            watch = ForgeWatch(app, takes=takes, quiet=timedelta(0))
            return watch.step(hurry=True)

    def stories(self) -> dict[str, Story]:
        """Return the issues that are worked on."""
        with self.app() as app:
            return ForgeMemos(app.store.followers).load().stories

    def state(self, mission: str) -> MissionState:
        """Return the state of a mission."""
        with self.app() as app:
            return app.mission_state(mission)

    def acts(self, mission: str) -> list[str]:
        """Return what was done at the forge for a mission."""
        with self.app() as app:
            found = app.store.log.read(mission, types=(ForgeActed.type,))
            return [each.payload.decode().split('"key":"')[1].split('"')[0] for each in found if each.payload]

    def link(self, mission: str) -> IssueLink:
        """Return the issue of a mission."""
        asked = self.state(mission).request
        assert asked is not None
        assert asked.issue is not None
        return asked.issue

    def request(self, mission: str) -> ForgeRequest:
        """Return the only request of a mission's branch."""
        (found,) = self.ada.find_requests(NAME, self.link(mission).branch)
        return found

    def comments(self, number: int) -> list[str]:
        """Return the texts of the comments of an issue or request."""
        return [each.body for each in self.ada.comments(NAME, number)]
