"""The story of an issue at a real Gitea: claim, question, request, red checks, review, merge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from forge_kit import PEOPLE, ForgeKit
from tests.gitea_kit import PAGE, GiteaHost, gitea

from chargehand.forges.contract import CommitStatus, Forge, ForgeSetup, ReviewState
from chargehand.forges.gitea import GiteaForge
from chargehand.testing.forges.case import run_git, with_login
from mission_kit import GOLD

pytestmark = [pytest.mark.needs_gitea, pytest.mark.needs_bwrap, pytest.mark.timeout(3_600)]
REVISED = (
    f"case \"$CHARGEHAND_REQUEST\" in *'Answer the review'*) echo '# revised' >> calc/core.py ;; *) {GOLD} ;; esac"
)


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

    def token(self, login: str) -> str:
        return self._host.tokens[self._names[login]]

    def login(self, name: str) -> str:
        return self._names[name]

    def open(self, login: str) -> Forge:
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
    kit = ForgeKit(tmp_path, REVISED, host=host)
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
    clone = tmp_path / "seen"
    address = with_login(kit.ada.repository(kit.name).clone_url, kit.ada.git_login())
    run_git(tmp_path, "clone", "-q", "-b", request.head, address, str(clone))
    assert run_git(clone, "rev-parse", "HEAD^{tree}") == state.tree
    assert [(each.context, each.state) for each in kit.ada.statuses(kit.name, request.head_commit)] == [
        ("chargehand", "success")
    ]
    assert "chargehand-" in request.body  # the attached report
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
    host.review("bob", request.number, "changes", "please revise", lines)
    kit.step()  # shows the new result
    kit.step()
    third = next(iter(kit.stories().values())).mission
    assert third != second
    kit.work()
    state = kit.state(third)
    assert state.deliveries["request"].state == "done", state.deliveries
    request = kit.request(first)
    assert request.head_commit == state.commit
    replies = [
        each for each in kit.ada.review_comments(kit.name, request.number) if each.author == host.login("robot")
    ]
    assert len(replies) == 3
    # A person merges, and the issue is closed.
    host.review("bob", request.number, "approved", "fine")
    kit.ada.merge(kit.name, request.number, commit=request.head_commit, method="squash")
    kit.step()
    kit.step()
    assert kit.stories() == {}
    assert not kit.ada.issue(kit.name, number).is_open
    assert "the request was merged" in kit.comments(number)[0]
    # No second comment, request or branch was made on the way.
    assert len(kit.comments(number)) == 1
    assert len(kit.ada.find_requests(kit.name, request.head)) == 1
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
