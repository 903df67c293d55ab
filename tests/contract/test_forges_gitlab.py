"""GitLab keeps the contract of forges, against a stand-in; GitLab's own samples are read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forge_stand_in import Answer
from tests.gitlab_stand_in import PAGE, GitlabHost

from chargehand.core.codec import decode_as
from chargehand.forges._gitlab_wire import GitlabBranch, GitlabIssue, GitlabMerge, GitlabUser
from chargehand.forges.contract import CommitStatus, NewRequest
from chargehand.forges.local_directory import create_repository
from chargehand.forges.webhooks import read_delivery
from chargehand.testing.forges.case import ForgeCase
from chargehand.testing.forges.suite import ForgeContract, fails


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitlabHost]:
    create_repository(tmp_path / "forge", "group/sub/demo", {"ada": "admin", "bob": "read"})
    found = GitlabHost(tmp_path / "forge")
    yield found
    found.close()


@pytest.fixture
def case(host: GitlabHost, tmp_path: Path) -> ForgeCase:
    found = ForgeCase(
        forge=host.open_forge("token-ada"),
        other=host.open_forge("token-bob"),
        host=host,
        repository="group/sub/demo",
        scratch=tmp_path,
        page=PAGE,
        many=35,
        reviews_have_text=False,
    )
    found.commit("main", {"readme.txt": "hello\n"})
    return found


class TestGitlab(ForgeContract):
    """The contract."""

    @pytest.fixture
    def case(self, case: ForgeCase) -> ForgeCase:
        return case


def test_a_token_that_lacks_a_scope_says_so(host: GitlabHost, case: ForgeCase) -> None:
    assert case.forge.account().lacks == ()
    assert host.open_forge("token-weak").account().lacks == ("api",)
    host.server.fail(Answer(404), when=lambda asked: asked.path.endswith("/self"))
    assert case.forge.account().lacks is None


def test_a_name_that_went_to_another_account_has_none_of_its_rights(host: GitlabHost, case: ForgeCase) -> None:
    host.set_right(case.repository, "bob", "write")
    assert case.forge.right(case.repository, "bob") == "write"
    # Bob has another name by now, and somebody else has his.
    former = Answer(200, {"username": "robert", "access_level": 30})
    host.server.fail(former, when=lambda asked: "/members/all/" in asked.path)
    host.server.fail(
        Answer(200, [{"id": 44, "username": "bob"}]), when=lambda asked: asked.path.endswith("/users")
    )
    assert case.forge.right(case.repository, "bob") == "none"


def test_an_issue_and_a_request_of_the_same_number_differ(host: GitlabHost, case: ForgeCase) -> None:
    case.commit("fix", {"new.txt": "x\n"})
    new = NewRequest(title="x", body="", head="fix", base="main")
    request = case.forge.open_request(case.repository, new)
    fails("missing", lambda: case.forge.comments(case.repository, request.number))
    case.forge.add_comment(case.repository, request.number, "of the request", is_request=True)
    assert len(case.forge.comments(case.repository, request.number, is_request=True)) == 1
    case.forge.change_issue(case.repository, request.number, add_labels=["agent"], is_request=True)
    assert host.directory.item(case.repository, request.number).labels == ("agent",)


def test_a_withdrawn_approval_is_dismissed(host: GitlabHost, case: ForgeCase) -> None:
    case.commit("fix", {"new.txt": "x\n"})
    number = case.forge.open_request(
        case.repository, NewRequest(title="x", body="", head="fix", base="main")
    ).number
    case.host.submit_review(case.repository, number, "approved", "")
    # A person can write the same words.
    case.other.add_comment(case.repository, number, "approved this merge request", is_request=True)
    (review,) = case.forge.reviews(case.repository, number)
    assert (review.state, review.author) == ("approved", "bob")
    host.server.fail(Answer(200, {"approved_by": []}), when=lambda asked: asked.path.endswith("/approvals"))
    assert [each.state for each in case.forge.reviews(case.repository, number)] == ["dismissed"]


def test_jobs_of_pipelines_have_logs(host: GitlabHost, case: ForgeCase) -> None:
    head = case.commit("checked", {"new.txt": "x\n"})
    address = f"{host.server.url}/group/sub/demo/-/jobs"
    host.jobs[:] = [
        {"id": 77, "name": "test", "status": "failed", "target_url": f"{address}/77"},
        {"id": 76, "name": "test", "status": "success", "target_url": f"{address}/76"},
        {"id": 78, "name": "deploy", "status": "manual", "target_url": "https://["},
    ]
    found = {each.context: each for each in case.forge.statuses(case.repository, head)}
    assert found["test"] == CommitStatus(context="test", state="failure", url=f"{address}/77", log="77")
    assert (found["deploy"].state, found["deploy"].log) == ("pending", "")
    host.server.fail(Answer(200, content=b"first\nlast"), when=lambda asked: asked.path.endswith("/jobs/77/trace"))
    assert case.forge.read_log(case.repository, found["test"], most=4) == "last"


@pytest.mark.parametrize("name", ["demo", "group//demo", "../demo", "group/-/demo", "", "/"])
def test_the_name_of_a_project_is_checked(case: ForgeCase, name: str) -> None:
    fails("invalid", lambda: case.forge.repository(name))


@pytest.mark.real
def test_gitlabs_samples_are_read() -> None:
    """The samples are those of the client library that GitLab maintains."""
    if shutil.which("go") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("Go is not installed")
    command = ["go", "mod", "download", "-json", "gitlab.com/gitlab-org/api/client-go@v1.46.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250, cwd="/")
    samples = Path(json.loads(done.stdout)["Dir"], "testdata")

    def read(name: str) -> bytes:
        return (samples / name).read_bytes()

    merge = decode_as(read("get_merge_request.json"), GitlabMerge)
    assert (merge.iid, merge.source_branch, merge.detailed_merge_status) == (
        14656,
        "delete-designs-v2",
        "mergeable",
    )
    assert len(decode_as(read("get_merge_requests.json"), list[GitlabMerge])) == 3
    issue = decode_as(read("issue_move.json"), GitlabIssue)
    assert (issue.iid, issue.state, issue.assignees[0].username) == (11, "opened", "axel.block")
    assert decode_as(read("get_user.json"), GitlabUser).username == "john_smith"
    assert decode_as(read("get_branch.json"), GitlabBranch).commit.id
    numbers = {"issue.json": 23, "note_issue.json": 17, "note_merge_request.json": 1, "merge_request.json": 1}
    for name, number in numbers.items():
        headers = {"X-Gitlab-Event": "Hook", "X-Gitlab-Token": "s"}
        found = read_delivery("gitlab", headers, read(f"webhooks/{name}"), "s")
        assert found.number == number, name
        assert found.repository.count("/") == 1
        assert found.sender
