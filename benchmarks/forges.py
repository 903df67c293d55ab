"""From an issue to its request, beside the same mission without a forge; requests sent; a watch of 1,000 issues.

The forge is a directory of this machine, so that only our own time is measured. Requests are counted at the tests'
stand-in of GitLab, which needs more of them than the other forges.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

from tests.gitlab_stand_in import GitlabHost

from benchmarks.measure import Result, Side, Taken, compare, settle
from benchmarks.mission_kit import MissionKit
from benchmarks.repositories import ENVIRONMENT
from chargehand.app.composition import App
from chargehand.app.forge.memo import ForgeMemos
from chargehand.app.forges import ForgeWatch, take_issue
from chargehand.app.requests import record_mission
from chargehand.app.worker import Worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.state import MissionState
from chargehand.forges.local import LocalForge
from chargehand.forges.local_directory import create_repository

AIM, AIM_REQUESTS, ISSUES = 2.0, 25, 1_000
_NAME = "group/demo"
_numbers = count(1)


async def run(kit: MissionKit, *, rounds: int) -> list[Result]:
    """Compare with a mission of a checkout, then count requests and watch many issues."""
    work = _ForgeWork(kit.place / "forge-work")
    sides = [
        Side(name="issue to request", sample=partial(asyncio.to_thread, work.issue)),
        Side(name="the same mission in a checkout", sample=partial(asyncio.to_thread, work.checkout)),
    ]
    found = await compare("forges", "issue to request", sides, rounds=rounds, aim=AIM)
    sent = await asyncio.to_thread(_count_requests, kit.place / "forge-requests")
    note = f"{sent} requests for a mission with one review at a stand-in of GitLab (aim {AIM_REQUESTS})"
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

    def configure(self, kind: str, url: str) -> None:
        """Write the user's configuration."""
        file = self.place / ".config" / "chargehand" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f'[forges.home]\nkind = "{kind}"\nurl = "{url}"\nrepositories = ["{_NAME}"]\n'
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


def _count_requests(place: Path) -> int:
    """Return the number of requests for an issue that is found, delivered, reviewed once, and merged."""
    work = _ForgeWork(place, kind="gitlab", token="token-robot")
    host = GitlabHost(work.root)
    try:
        work.configure("gitlab", host.server.url)
        work.new_issue()
        with work.open(place) as app, contextlib.closing(ForgeWatch(app, quiet=timedelta(0))) as watch:
            watch.step(hurry=True)
            (story,) = ForgeMemos(app.store.followers).load().stories.values()
            _work(app, story.mission)
            watch.step(hurry=True)  # shows the result
            (request,) = work.ada.find_requests(_NAME, "chargehand/issue-1-note-" + str(next(_numbers) - 1))
            lines = [("NOTES.md", 1, "point 1"), ("NOTES.md", 2, "point 2"), ("NOTES.md", 2, "point 3")]
            host.submit_review(_NAME, request.number, "changes", "please revise", lines=lines)
            watch.step(hurry=True)
            (story,) = ForgeMemos(app.store.followers).load().stories.values()
            _work(app, story.mission)
            watch.step(hurry=True)
            request = work.ada.request(_NAME, request.number)
            work.ada.merge(_NAME, request.number, commit=request.head_commit, method="merge")
            watch.step(hurry=True)
            if ForgeMemos(app.store.followers).load().stories:
                raise RuntimeError("the story has not ended")
        return len(host.server.requests)
    finally:
        host.close()


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
