"""A repository at a forge with an issue, and a user whose configuration has an account there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forges import ForgeWatch, take_issue
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.mission_events import ForgeActed
from chargehand.core.records import IssueLink, RedBase
from chargehand.core.state import MissionState
from chargehand.forges.contract import CommitStatus, Forge, ForgeRequest, ReviewState, Right
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import create_repository
from chargehand.testing.forges.case import run_git, with_login
from mission_kit import CHECK, FILES, GOLD

PROJECT = f'[project]\nchecks = ["{CHECK}"]\n'
PEOPLE: Mapping[str, Right] = {"bob": "write", "robot": "write", "eve": "read"}


class StoryHost(Protocol):
    """A forge with a repository of `ada`; `bob` and `robot` may write to it, `eve` only reads."""

    kind: str
    url: str
    repository: str

    def token(self, login: str) -> str:
        """Return a person's token."""
        ...

    def login(self, name: str) -> str:
        """Return the name of a person's account."""
        ...

    def open_forge(self, login: str) -> Forge:
        """Open the forge as a person."""
        ...

    def create_issue(self, login: str, title: str, body: str) -> int:
        """Open an issue as a person and return its number."""
        ...

    def lock_issue(self, number: int) -> None:
        """Let only people with write right comment."""
        ...

    def review(
        self, login: str, number: int, state: ReviewState, body: str, lines: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        """Review a request as a person, with comments on lines: path, line, text."""
        ...


class LocalStoryHost:
    """A directory of this machine."""

    kind = "local"

    def __init__(self, root: Path, repository: str = "ada/calc") -> None:
        self.repository = repository
        create_repository(root, self.repository, {"ada": "admin", **PEOPLE})
        self._root, self.url = root, root.as_uri()

    def token(self, login: str) -> str:
        return login

    def login(self, name: str) -> str:
        return name

    def open_forge(self, login: str) -> Forge:
        return self._person(login)

    def _person(self, login: str) -> LocalForge:
        return LocalForge(self._root, login)

    def create_issue(self, login: str, title: str, body: str) -> int:
        return self._person(login).create_issue(self.repository, title, body)

    def lock_issue(self, number: int) -> None:
        self._person("ada").lock_issue(self.repository, number)

    def review(
        self, login: str, number: int, state: ReviewState, body: str, lines: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        self._person(login).submit_review(self.repository, number, state, body, lines=lines)


class ForgeKit:
    """A forge, and a state directory with the account of `robot` there, named `home`."""

    def __init__(self, place: Path, script: str = GOLD, host: StoryHost | None = None, **settings: str) -> None:
        self.place = place
        self.host = host or LocalStoryHost(place / "forge")
        self.name = self.host.repository
        self.ada, self.bob, self.eve = (self.host.open_forge(each) for each in ("ada", "bob", "eve"))
        self.push("main", {**FILES, "chargehand.toml": PROJECT}, first=True)
        self.home = used_state(place / "state")
        self.environ = {"PATH": os.environ["PATH"], "HOME": str(place), "CHARGEHAND_HOME": str(self.home)}
        self.environ["HOME_TOKEN"] = self.host.token("robot")
        self.configure(script, **settings)

    def configure(self, script: str, **settings: str) -> None:
        """Write the user's configuration: the agent's script, and settings of the account."""
        own = {
            "kind": f'"{self.host.kind}"',
            "url": f'"{self.host.url}"',
            "repositories": f'["{self.name}"]',
            **settings,
        }
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
        found = self.ada.repository(self.name)
        bare = with_login(found.clone_url, self.ada.git_login())
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
        # A forge may need a moment to see a push.
        commit = run_git(clone, "rev-parse", "HEAD")
        while (
            self.ada.repository(self.name).default_branch is None or self.ada.branch(self.name, branch) != commit
        ):
            time.sleep(0.05)
        return commit

    def issue(
        self, title: str = "add() subtracts", body: str = "add(2, 3) should be 5", *, label: bool = True
    ) -> int:
        """Open an issue as its owner."""
        number = self.host.create_issue("ada", title, body)
        if label:
            self.ada.change_issue(self.name, number, add_labels=["chargehand"])
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
            return take_issue(app, f"home:{self.name}#{number}", RunRequest(yes=True, red_base=red_base))

    def work(self) -> None:
        """Run what can run, as a worker."""
        with self.app() as app:
            asyncio.run(Worker(app, slots=2).work(until_idle=True))

    def step(self, *, takes: bool = True) -> int:
        """Watch for one step; comments on lines are not collected first."""
        with self.app() as app, contextlib.closing(ForgeWatch(app, takes=takes, quiet=timedelta(0))) as watch:
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
        (found,) = self.ada.find_requests(self.name, self.link(mission).branch)
        return found

    def comments(self, number: int) -> list[str]:
        """Return the texts of the comments of an issue or request."""
        return [each.body for each in self.ada.comments(self.name, number)]


REVISED = (
    f"case \"$CHARGEHAND_REQUEST\" in *'Answer the review'*) echo '# revised' >> calc/core.py ;; *) {GOLD} ;; esac"
)


def play_story(kit: ForgeKit) -> None:
    """Take an issue, deliver it, work on red checks and on a review, and see the request merged.

    The kit's script is `REVISED`.
    """
    number = kit.issue()
    # Taken by the watch, which finds it by its label.
    assert kit.step() == 1
    (story,) = kit.stories().values()
    first = story.mission
    kit.work()
    state = kit.state(first)
    assert state.status == "promoted", state.reasons
    assert state.deliveries["request"].state == "done", state.deliveries
    request = kit.request(first)
    assert (request.is_open, request.draft, request.base) == (True, False, "main")
    clone = kit.place / "seen"
    address = with_login(kit.ada.repository(kit.name).clone_url, kit.ada.git_login())
    run_git(kit.place, "clone", "-q", "-b", request.head, address, str(clone))
    assert run_git(clone, "rev-parse", "HEAD^{tree}") == state.tree
    assert [(each.context, each.state) for each in kit.ada.statuses(kit.name, request.head_commit)] == [
        ("chargehand", "success")
    ]
    assert "What was asked, what changed" in request.body  # the report
    kit.step()
    (progress,) = kit.comments(number)
    assert request.url in progress
    # Red checks start a round.
    red = CommitStatus(context="ci/build", state="failure", description="it does not build")
    kit.ada.set_status(kit.name, request.head_commit, red)
    kit.step()
    second = next(iter(kit.stories().values())).mission
    assert second != first
    kit.work()
    request = kit.request(first)
    assert request.head_commit == kit.state(second).commit
    # So does a review, whose comments are answered one by one.
    lines = [("calc/core.py", line, f"point {line}") for line in (1, 2, 6)]
    kit.host.review("bob", request.number, "changes", "please revise", lines)
    kit.step()  # shows the new result
    kit.step()
    third = next(iter(kit.stories().values())).mission
    assert third != second
    kit.work()
    state = kit.state(third)
    assert state.deliveries["request"].state == "done", state.deliveries
    request = kit.request(first)
    assert request.head_commit == state.commit
    # Its description has the request of the issue, each round, and the signed provenance.
    assert "add(2, 3) should be 5" in request.body
    assert request.body.count("What was done then") == 2
    assert "The signed provenance" in request.body
    replies = [
        each
        for each in kit.ada.review_comments(kit.name, request.number)
        if each.author == kit.host.login("robot")
    ]
    assert len(replies) == 3
    # A person merges, and the issue is closed.
    kit.host.review("bob", request.number, "approved", "fine")
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="squash")
    kit.step()
    kit.step()
    assert kit.stories() == {}
    assert not kit.ada.issue(kit.name, number).is_open
    assert "the request was merged" in kit.comments(number)[0]
    # No second comment, request or branch was made on the way.
    assert len(kit.comments(number)) == 1
    assert len(kit.ada.find_requests(kit.name, request.head)) == 1
