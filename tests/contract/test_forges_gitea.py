"""Gitea keeps the contract of forges: run against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gitea_kit import PAGE, GiteaHost, gitea

from chargehand.testing.forges.case import ForgeCase
from chargehand.testing.forges.suite import ForgeContract

pytestmark = [pytest.mark.needs_gitea, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def host() -> GiteaHost:
    return GiteaHost(gitea())


@pytest.fixture
def case(host: GiteaHost, tmp_path: Path) -> Iterator[ForgeCase]:
    found = ForgeCase(
        forge=host.open_forge(host.tokens[host.ada]),
        other=host.open_forge(host.tokens[host.bob]),
        host=host,
        repository=host.create_repository(),
        scratch=tmp_path,
        page=PAGE,
        many=60,
    )
    found.commit("main", {"readme.txt": "hello\n"})
    yield found
    host.close()


class TestGitea(ForgeContract):
    """The contract."""

    @pytest.fixture
    def case(self, case: ForgeCase) -> ForgeCase:
        return case
