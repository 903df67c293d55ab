"""Gitea keeps the contract of forges: run against a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forge_stand_in import Answer, Asked, StandIn
from tests.gitea_kit import PAGE, GiteaHost, gitea
from tests.local_forge_kit import naughty_texts

from chargehand.forges.contract import CommitStatus, ForgeSetup
from chargehand.forges.gitea import GiteaForge
from chargehand.testing.forges.case import ForgeCase, run_git, wait_until, with_login
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


def test_many_comments_are_read_in_order(case: ForgeCase) -> None:
    number = case.host.create_issue(case.repository, "long")
    for count in range(400):
        case.forge.add_comment(case.repository, number, f"comment {count}")
    found = case.forge.comments(case.repository, number)
    assert [each.body for each in found] == [f"comment {count}" for count in range(400)]
    assert [each.id for each in found] == sorted(each.id for each in found)


def test_a_request_from_the_fork_of_another_person_is_not_found_by_its_branch(
    host: GiteaHost, case: ForgeCase
) -> None:
    name, bob = case.repository, case.other.account().login
    token = host.tokens[bob]
    fork = host.server.call("POST", f"/repos/{name}/forks", {"name": "fork-of-it"}, token=token)["full_name"]
    clone = case.scratch / "fork"
    address = with_login(case.other.repository(fork).clone_url, case.other.git_login())
    wait_until(lambda: case.other.branch(fork, "main") is not None, True)
    run_git(case.scratch, "clone", "-q", address, str(clone))
    (clone / "new.txt").write_text("by bob\n")
    run_git(clone, "add", "-A")
    run_git(clone, "commit", "-q", "-m", "by bob")
    run_git(clone, "push", "-q", address, "HEAD:refs/heads/same")
    body = {"title": "from a fork", "head": f"{bob}:same", "base": "main"}
    number = host.server.call("POST", f"/repos/{name}/pulls", body, token=token)["number"]
    assert case.forge.request(name, number).head_repository == fork
    assert case.forge.find_requests(name, "same") == []


def test_naughty_texts_come_back(case: ForgeCase) -> None:
    number = case.host.create_issue(case.repository, "naughty")
    texts = naughty_texts()
    for start in range(0, len(texts), 50):
        # Between two words, since a forge may remove spaces at the ends.
        text = "\n".join(["first", *texts[start : start + 50], "last"])
        assert case.forge.add_comment(case.repository, number, text).body == text
    assert len(case.forge.comments(case.repository, number)) == -(-len(texts) // 50)


def test_a_log_of_actions_is_found_by_commit_and_name() -> None:
    """No runner of jobs is part of the test: the answers are those of the published description."""
    answers = {
        "/api/v1/repos/ada/demo/actions/runs": {"workflow_runs": [{"id": 5}, {"id": 6}]},
        "/api/v1/repos/ada/demo/actions/runs/5/jobs": {"jobs": [{"id": 50, "name": "lint"}]},
        "/api/v1/repos/ada/demo/actions/runs/6/jobs": {"jobs": [{"id": 60, "name": "test"}]},
    }

    def respond(asked: Asked) -> Answer:
        if asked.path.endswith("/jobs/60/logs"):
            return Answer(200, content=b"first\nlast")
        if asked.path.endswith("/status"):
            status = {"context": "ci.yml / test (push)", "status": "failure"}
            return Answer(200, {"statuses": [{**status, "target_url": "/ada/demo/actions/runs/6/jobs/0"}]})
        return Answer(200, answers[asked.path])

    server = StandIn(respond)
    forge = GiteaForge(ForgeSetup(url=server.url, token="t", sleep=time.sleep))
    try:
        (status,) = forge.statuses("ada/demo", "0" * 40)
        assert forge.read_log("ada/demo", status, most=4) == "last"
        asked = next(each for each in server.requests if each.path.endswith("/runs"))
        assert asked.query["head_sha"] == "0" * 40
        assert forge.read_log("ada/demo", CommitStatus(context="x", state="failure")) == ""
    finally:
        forge.close()
        server.close()
