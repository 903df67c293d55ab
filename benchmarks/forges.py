"""From an issue to its request, beside the same mission without a forge; requests sent; a watch of 1,000 issues.

The forge is a directory of this machine, so that only our own time is measured. Requests are counted at the tests'
stand-ins of GitHub and GitLab, and at a real Gitea, if it is built.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

from tests.forge_stand_in import Answer, Asked, StandIn
from tests.gitea_kit import GiteaHost, gitea, missing
from tests.github_stand_in import GithubHost
from tests.gitlab_stand_in import GitlabHost

from benchmarks.measure import Result, Side, Taken, compare, settle
from benchmarks.mission_kit import MissionKit
from benchmarks.repositories import ENVIRONMENT
from chargehand.app.composition import App
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forges import ForgeWatch, take_issue
from chargehand.app.requests import record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.state import MissionState
from chargehand.forges.contract import Forge
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import create_repository
from chargehand.testing.forges.case import run_git, wait_until, with_login

AIM, AIM_REQUESTS, ISSUES = 2.0, 25, 1_000
_NAME = "group/demo"
_HOSTS = {"github": "a stand-in of GitHub", "gitlab": "a stand-in of GitLab", "gitea": "a real Gitea"}
_numbers = count(1)


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare with a mission of a checkout, then count requests and watch many issues."""
    work = _ForgeWork(kit.place / "forge-work")
    sides = [
        Side(name="issue to request", sample=partial(asyncio.to_thread, work.issue)),
        Side(name="the same mission in a checkout", sample=partial(asyncio.to_thread, work.checkout)),
    ]
    found = await compare("forges", "issue to request", sides, rounds=rounds, aim=AIM)
    sent = {
        kind: len(await asyncio.to_thread(list_requests, kind, kit.place / f"forge-requests-{kind}"))
        for kind in ("github", "gitlab", "gitea")
        if kind != "gitea" or not missing()
    }
    note = (
        f"requests for a mission with one review, aim {AIM_REQUESTS}:"
        f" {', '.join(f'{count} at {_HOSTS[kind]}' for kind, count in sent.items())}"
    )
    return [replace(found, note=note), await asyncio.to_thread(_watch, kit.place / "forge-watch", rounds)]


class _ForgeWork:
    """A repository at a forge, `token` of whose robot is its name, and a state directory with its account."""

    def __init__(self, place: Path, *, kind: str = "local", url: str = "", token: str = "robot") -> None:
        self.place, self.root = place, place / "forge"
        create_repository(self.root, _NAME, {"ada": "admin", "bob": "write", "robot": "write"})
        self.ada, self.bob = LocalForge(self.root, "ada"), LocalForge(self.root, "bob")
        self.checkout_place = place / "checkout"
        self.checkout_place.mkdir()
        (self.checkout_place / "NOTES.md").write_text("notes\n")
        for words in (
            ("init", "--quiet", "--initial-branch=main"),
            ("add", "--all"),
            ("commit", "--quiet", "--message=first"),
            ("push", "--quiet", str(self.root / f"{_NAME}.git"), "main"),
        ):
            subprocess.run(["git", *words], cwd=self.checkout_place, env=dict(ENVIRONMENT), check=True)
        self.configure(kind, url or self.root.as_uri())
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "CHARGEHAND_HOME": str(place / "state"),
            "HOME_TOKEN": token,
        }

    def configure(self, kind: str, url: str, *, name: str = _NAME, more: str = "") -> None:
        """Write the user's configuration, with a further line for the account."""
        file = self.place / ".config" / "chargehand" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f'[forges.home]\nkind = "{kind}"\nurl = "{url}"\nrepositories = ["{name}"]\n'
            f"{more}\n"
            '[agents.writer]\ncommand = ["sh", "-c", "date +%N >> NOTES.md"]\n[roles.default]\nagent = "writer"\n'
            '[project]\nchecks = ["true"]\n'
        )

    def open(self, cwd: Path) -> contextlib.closing[App]:
        """Open the product; no worker is started by itself."""
        return contextlib.closing(App(environ=self.environ, cwd=cwd, starts_workers=False))

    def new_issue(self) -> int:
        """Open an issue that a watch takes."""
        number = self.ada.create_issue(_NAME, f"note {next(_numbers)}", "add a line")
        self.ada.change_issue(_NAME, number, add_labels=["chargehand"])
        return number

    def issue(self) -> float:
        """Take an issue and work until its request is open."""
        number = self.new_issue()
        settle()
        start = time.perf_counter()
        with self.open(self.place) as app:
            mission = take_issue(app, f"home:{_NAME}#{number}", RunRequest(yes=True))
            state = _work(app, mission)
        taken = time.perf_counter() - start
        if state.deliveries["request"].state != "done":
            raise RuntimeError(f"{mission} was not delivered: {state.deliveries}")
        return taken

    def checkout(self) -> float:
        """Do the same work in a checkout."""
        settle()
        start = time.perf_counter()
        with self.open(self.checkout_place) as app:
            asked = RunRequest(text=f"note {next(_numbers)}", yes=True)
            state = _work(app, record_mission(app, asked, plan=None))
        taken = time.perf_counter() - start
        if state.status != "promoted":
            raise RuntimeError(f"{state.id} was not promoted: {state.reasons}")
        return taken


def _work(app: App, mission: str) -> MissionState:
    asyncio.run(Worker(app, slots=1).work(until_idle=True))
    return app.mission_state(mission)


class _CountedWork(_ForgeWork):
    """A repository at a stand-in of GitHub or GitLab, or at a real Gitea behind a server that counts."""

    def __init__(self, place: Path, kind: str) -> None:
        super().__init__(place, kind=kind, token="token-robot")
        self.host: GithubHost | GitlabHost | GiteaHost
        self.name, path = _NAME, "/api/v4" if kind == "gitlab" else ""
        self.person: Forge
        if kind == "gitea":
            self.host = GiteaHost(gitea())
            self.server = StandIn(partial(_forward, self.host.server.url))
            robot = f"robot-{self.host.ada}"
            self.environ["HOME_TOKEN"] = self.host.server.create_account(robot)
            self.name, url, path = self.host.create_repository(), self.host.server.url, "/api/v1"
            for login in (robot, self.host.bob):
                self.host.set_right(self.name, login, "write")
            self.person = self.host.open_forge(self.host.tokens[self.host.ada])
            self._push_first()
        else:
            self.host = GithubHost(self.root) if kind == "github" else GitlabHost(self.root)
            self.server, url = self.host.server, self.host.server.url
            self.person = self.ada  # not counted
        self.configure(kind, url, name=self.name, more=f'api = "{self.server.url}{path}"')

    def _push_first(self) -> None:
        address = with_login(self.person.repository(self.name).clone_url, self.person.git_login())
        run_git(self.checkout_place, "push", "--quiet", address, "main")
        wait_until(lambda: self.person.repository(self.name).default_branch, "main")

    def close(self) -> None:
        """End the servers."""
        if isinstance(self.host, GiteaHost):
            self.server.close()
        self.host.close()

    def start(self, forge: Forge) -> int:
        """Open an issue that a watch takes."""
        number = self.host.create_issue(self.name, "note", "add a line")
        forge.change_issue(self.name, number, add_labels=["chargehand"])
        return number


def _forward(url: str, asked: Asked) -> Answer:
    headers = {name: asked.headers[name] for name in ("authorization", "content-type") if name in asked.headers}
    call = urllib.request.Request(
        f"{url}{asked.path}?{urlencode(asked.query)}", asked.content or None, headers, method=asked.method
    )
    try:
        with urllib.request.urlopen(call, timeout=60) as answer:
            content, status, link = answer.read(), answer.status, answer.headers.get("link", "")
    except urllib.error.HTTPError as error:
        content, status, link = error.read(), error.code, ""
    return Answer(status, content=content, headers={"link": link} if link else {})


def list_requests(kind: str, place: Path) -> list[str]:
    """Return the requests for an issue that is found, delivered, reviewed once on three lines, and merged.

    The later looks for new issues are not among them: there is one a minute, whatever is worked on.
    """
    place.mkdir(parents=True)
    with contextlib.closing(_CountedWork(place, kind)) as work:
        number, person, name = work.start(work.person), work.person, work.name
        sent = work.server.requests
        del sent[:]
        with work.open(place) as app, contextlib.closing(ForgeWatch(app, quiet=timedelta(0))) as watch:
            memos = ForgeMemos(app.store.followers)

            def step() -> Story | None:
                watch.step(hurry=True)
                return next(iter(memos.load().stories.values()), None)

            story = step()
            assert story is not None
            _work(app, story.mission)
            step()  # shows the result
            (request,) = person.find_requests(name, f"chargehand/issue-{number}-note")
            lines = [("NOTES.md", 1, "point 1"), ("NOTES.md", 2, "point 2"), ("NOTES.md", 2, "point 3")]
            work.host.submit_review(name, request.number, "changes", "please revise", lines=lines)
            wait_until(lambda: person.request(name, request.number).mergeable, True)
            story = step()
            assert story is not None
            state = _work(app, story.mission)
            step()
            wait_until(lambda: person.request(name, request.number).mergeable, True)
            person.merge(name, request.number, commit=state.commit or "", method="merge")
            if step() is not None:
                raise RuntimeError("the story has not ended")
        looks = [each for each in sent if each.method == "GET" and each.path.endswith("/issues")]
        return [f"{each.method} {each.path}" for each in sent if each not in looks[1:]]


def _watch(place: Path, rounds: int) -> Result:
    """Measure a look at a repository with many open issues that are not to be taken, and count its requests."""
    work = _ForgeWork(place, kind="gitlab", token="token-robot")
    host = GitlabHost(work.root)
    try:
        work.configure("gitlab", host.server.url)
        for number in range(ISSUES):
            work.ada.create_issue(_NAME, f"issue {number}", "not for us")
        taken = Taken(name=f"a look at {ISSUES:,} open issues")
        with work.open(place) as app, contextlib.closing(ForgeWatch(app)) as watch:
            watch.step(hurry=True)
            before = len(host.server.requests)
            for _ in range(rounds):
                start = time.perf_counter()
                watch.step(hurry=True)
                taken.rounds.append([time.perf_counter() - start])
        each = (len(host.server.requests) - before) / rounds
        note = f"{each:g} requests for each look, and a look every minute"
        return Result(benchmark="forges", case="watch", sides=(taken,), load=os.getloadavg(), note=note)
    finally:
        host.close()
