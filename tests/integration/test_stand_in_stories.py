"""The story of an issue at stand-ins of GitHub and GitLab."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from forge_kit import REVISED, ForgeKit, LocalStoryHost, play_story
from tests.forge_stand_in import Answer
from tests.github_stand_in import GithubHost, openapi
from tests.gitlab_stand_in import GitlabHost

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forges import ForgeWatch
from chargehand.forges.contract import Forge, ReviewState
from chargehand.testing.forges.case import run_git
from mission_kit import GOLD

pytestmark = pytest.mark.needs_bwrap
LONG = "add(2, 3) should be 5\n" * 2_500


class StandInStoryHost(LocalStoryHost):
    """A stand-in whose state is a local forge."""

    def __init__(self, root: Path, kind: str, host: GithubHost | GitlabHost) -> None:
        super().__init__(root, "group/sub/calc" if kind == "gitlab" else "ada/calc")
        self.kind, self.stand_in, self.url = kind, host, host.server.url

    def token(self, login: str) -> str:
        return f"token-{login}"

    def review(
        self, login: str, number: int, state: ReviewState, body: str, lines: Sequence[tuple[str, int, str]] = ()
    ) -> None:
        assert login == "bob"
        self.stand_in.submit_review(self.repository, number, state, body, lines=lines)

    def open_forge(self, login: str) -> Forge:
        return self.stand_in.open_forge(self.token(login))


@pytest.fixture(params=[pytest.param("github", marks=pytest.mark.real), "gitlab"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StandInStoryHost]:
    root = tmp_path / "forge"
    root.mkdir()
    if request.param == "github":
        openapi()
    made = GithubHost(root) if request.param == "github" else GitlabHost(root)
    yield StandInStoryHost(root, request.param, made)
    made.close()


def test_the_token_reaches_neither_the_agent_nor_a_file(tmp_path: Path) -> None:
    root = tmp_path / "forge"
    root.mkdir()
    stand_in = GitlabHost(root)
    host = StandInStoryHost(root, "gitlab", stand_in)
    look = "env > seen.txt; cat /proc/*/environ >> seen.txt; find / -name '*token*' >> seen.txt 2> /dev/null"
    kit = ForgeKit(tmp_path, f"{GOLD}; ({look}); true", host=host)
    mission = kit.take(kit.issue())
    kit.work()
    state = kit.state(mission)
    assert state.deliveries["request"].state == "done", state
    token = host.token("robot").encode()
    bare = root / f"{host.repository}.git"
    seen = run_git(bare, "show", f"{state.commit}:seen.txt").encode()
    assert b"CHARGEHAND_REQUEST" in seen
    assert token not in seen
    files = [each for each in kit.home.rglob("*") if each.is_file()]
    assert [each for each in files if token in each.read_bytes()] == []
    stand_in.close()


def test_the_whole_story(host: StandInStoryHost, tmp_path: Path) -> None:
    # The stand-in of GitHub answers at the paths of api.github.com.
    settings = {"api": f'"{host.url}"'} if host.kind == "github" else {}
    play_story(ForgeKit(tmp_path, REVISED, host=host, **settings))


def test_long_evidence_is_attached(tmp_path: Path) -> None:
    root = tmp_path / "forge"
    root.mkdir()
    stand_in = GitlabHost(root)
    kit = ForgeKit(tmp_path, host=StandInStoryHost(root, "gitlab", stand_in))
    mission = kit.take(kit.issue(body=LONG))
    kit.work()
    assert sum(each.path.endswith("/uploads") for each in stand_in.server.requests) == 2
    body = kit.request(mission).body
    assert f"- chargehand-{kit.state(mission).commit[:12]}.md: {stand_in.server.url}" in body
    assert ".provenance.json: " in body
    assert "The signed provenance" not in body
    stand_in.close()


def test_a_forge_that_takes_no_files_gets_the_evidence_in_the_description(tmp_path: Path) -> None:
    root = tmp_path / "forge"
    root.mkdir()
    stand_in = GitlabHost(root)
    kit = ForgeKit(tmp_path, host=StandInStoryHost(root, "gitlab", stand_in))
    refusal = Answer(413, {"message": "file is too large"})
    stand_in.server.faults.append(lambda asked: refusal if asked.path.endswith("/uploads") else None)
    mission = kit.take(kit.issue(body=LONG))
    kit.work()
    assert kit.state(mission).deliveries["request"].state == "done", kit.state(mission)
    body = kit.request(mission).body
    assert "The signed provenance" in body
    assert "chargehand-" not in body.partition("<details>")[0]
    stand_in.close()


def test_an_unchanged_issue_costs_one_request(tmp_path: Path) -> None:
    root = tmp_path / "forge"
    root.mkdir()
    stand_in = GitlabHost(root)
    kit = ForgeKit(tmp_path, host=StandInStoryHost(root, "gitlab", stand_in))
    kit.take(kit.issue())
    with kit.app() as app, contextlib.closing(ForgeWatch(app, takes=False)) as watch:
        for _ in range(4):
            watch.step(hurry=True)
        before = len(stand_in.server.requests)
        watch.step(hurry=True)
    (asked,) = stand_in.server.requests[before:]
    assert asked.path.endswith("/issues/1")
    stand_in.close()


def test_an_account_stays_open_until_it_is_configured_anew(tmp_path: Path) -> None:
    root = tmp_path / "forge"
    root.mkdir()
    stand_in = GitlabHost(root)
    kit = ForgeKit(tmp_path, host=StandInStoryHost(root, "gitlab", stand_in))
    with kit.app() as app, contextlib.closing(ForgeAccounts(app, keep=True)) as accounts:
        opened = []
        for login in ("robot", "robot", "bob"):
            app.credentials.set("OTHER_TOKEN", kit.host.token(login))
            kit.configure("true", token='"OTHER_TOKEN"')
            with accounts.open("home") as forge:
                assert forge.account().login == login
                opened.append(forge)
        assert opened[0] is opened[1]
        assert opened[1] is not opened[2]
    stand_in.close()
