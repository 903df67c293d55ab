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
