"""The story of an issue at stand-ins of GitHub and GitLab."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from forge_kit import REVISED, ForgeKit, LocalStoryHost, play_story
from tests.github_stand_in import GithubHost, openapi
from tests.gitlab_stand_in import GitlabHost

from chargehand.forges.contract import Forge, ReviewState

pytestmark = pytest.mark.needs_bwrap


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


def test_the_whole_story(host: StandInStoryHost, tmp_path: Path) -> None:
    # The stand-in of GitHub answers at the paths of api.github.com.
    settings = {"api": f'"{host.url}"'} if host.kind == "github" else {}
    play_story(ForgeKit(tmp_path, REVISED, host=host, **settings), attaches=host.kind != "github")
