"""The story of an issue at a real Gitea: claim, question, request, red checks, review, merge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from forge_kit import PEOPLE, REVISED, ForgeKit, play_story
from tests.gitea_kit import PAGE, GiteaHost, gitea

from chargehand.forges.contract import Forge, ForgeSetup, ReviewState
from chargehand.forges.gitea import GiteaForge
from mission_kit import FILES, GOLD

pytestmark = [pytest.mark.needs_gitea, pytest.mark.needs_bwrap, pytest.mark.timeout(3_600)]


class GiteaStoryHost:
    """A new repository at the server of this process."""

    kind = "gitea"

    def __init__(self) -> None:
        self._host = GiteaHost(gitea())
        server = self._host.server
        self.url = server.url
        self._names = {"ada": self._host.ada, "bob": self._host.bob}
        for login in ("robot", "eve"):
            self._names[login] = f"{login}-{self._host.ada}"
            self._host.tokens[self._names[login]] = server.create_account(self._names[login])
        self.repository = self._host.create_repository()
        for login, right in PEOPLE.items():
            self._host.set_right(self.repository, self._names[login], right)
        self._opened: list[Forge] = []

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the interface as the owner."""
        return self._host.call(method, path, body)

    def token(self, login: str) -> str:
        return self._host.tokens[self._names[login]]

    def login(self, name: str) -> str:
        return self._names[name]

    def open_forge(self, login: str) -> Forge:
        forge = GiteaForge(ForgeSetup(url=self.url, token=self.token(login), sleep=time.sleep), page=PAGE)
        self._opened.append(forge)
        return forge

    def close(self) -> None:
        """Close all connections."""
        for forge in self._opened:
            forge.close()
        self._host.close()

    def create_issue(self, login: str, title: str, body: str) -> int:
        issue = {"title": title, "body": body}
        made = self._host.server.call("POST", f"/repos/{self.repository}/issues", issue, token=self.token(login))
        return int(made["number"])

    def lock_issue(self, number: int) -> None:
        self._host.lock_issue(self.repository, number)

    def review(
        self, login: str, number: int, state: ReviewState, body: str, lines: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        assert login == "bob"
        self._host.submit_review(self.repository, number, state, body, lines)


def test_the_whole_story(tmp_path: Path) -> None:
    host = GiteaStoryHost()
    play_story(ForgeKit(tmp_path, REVISED, host=host))
    host.close()


def test_a_question_is_answered_by_a_comment(tmp_path: Path) -> None:
    host = GiteaStoryHost()
    kit = ForgeKit(tmp_path, "echo more >> README.md", host=host)
    number = kit.issue()
    mission = kit.take(number)
    kit.work()
    kit.step()
    assert kit.state(mission).status == "waiting"
    kit.eve.add_comment(kit.name, number, "/promote")
    kit.step()
    assert kit.state(mission).status == "waiting"
    kit.bob.add_comment(kit.name, number, "/promote")
    kit.step()
    assert kit.state(mission).status == "promoted"
    assert kit.request(mission).is_open
    host.close()


def test_a_target_that_conflicts_is_merged_by_the_agent(tmp_path: Path) -> None:
    host = GiteaStoryHost()
    kit = ForgeKit(tmp_path, GOLD, host=host, update='"conflict"')
    mission = kit.take(kit.issue())
    kit.work()
    kit.step()
    before = kit.request(mission)
    core = FILES["calc/core.py"].replace("a - b", "a - b  # sums two numbers")
    tip = kit.push("main", {"calc/core.py": core})
    while kit.ada.request(kit.name, before.number).mergeable is not False:  # Gitea finds it in the background
        time.sleep(0.05)
    kit.step()  # finds the request
    kit.step()
    (shown,) = kit.comments(before.number)
    assert "sums two numbers" in shown
    kit.work()
    request = kit.request(mission)
    assert request.head_commit != before.head_commit
    while kit.ada.request(kit.name, before.number).mergeable is not True:
        time.sleep(0.05)
    assert kit.ada.branch(kit.name, "main") == tip
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="merge")
    kit.step()  # shows the result
    kit.step()
    assert kit.stories() == {}
    host.close()
