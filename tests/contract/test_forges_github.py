"""GitHub keeps the contract of forges, against a stand-in that is checked by GitHub's own description."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forge_stand_in import Answer, Asked, StandIn
from tests.github_stand_in import PAGE, GithubHost, openapi
from tests.npm_kit import npm_package

from chargehand.forges._rest import RestClient
from chargehand.forges.contract import CommitStatus, ForgeSetup, NewRequest
from chargehand.forges.github import GithubForge
from chargehand.forges.local_directory import create_repository
from chargehand.testing.forges.case import ForgeCase
from chargehand.testing.forges.suite import ForgeContract, fails

pytestmark = pytest.mark.real


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GithubHost]:
    openapi()
    create_repository(tmp_path / "forge", "ada/demo", {"ada": "admin", "bob": "read"})
    found = GithubHost(tmp_path / "forge")
    yield found
    found.close()


@pytest.fixture
def case(host: GithubHost, tmp_path: Path) -> ForgeCase:
    found = ForgeCase(
        forge=host.open_forge("token-ada"),
        other=host.open_forge("token-bob"),
        host=host,
        repository="ada/demo",
        scratch=tmp_path,
        page=PAGE,
        many=35,
    )
    found.commit("main", {"readme.txt": "hello\n"})
    return found


class TestGithub(ForgeContract):
    """The contract."""

    @pytest.fixture
    def case(self, case: ForgeCase) -> ForgeCase:
        return case


def test_a_request_that_github_does_not_know_is_reported(host: GithubHost, case: ForgeCase) -> None:
    rest = RestClient(
        ForgeSetup(url=host.server.url, sleep=lambda _: None),
        host.server.url,
        {"authorization": "Bearer token-ada"},
    )
    number = case.host.create_issue(case.repository, "bug")
    rest.change("PATCH", f"/repos/ada/demo/issues/{number}", {"state": "closed", "colour": "red"})
    rest.change("PATCH", f"/repos/ada/demo/issues/{number}", {"state": "ajar"})
    rest.read("/repos/ada/demo/issues", list, order="up")
    rest.close()
    found = " ".join(host.server.errors)
    host.server.errors.clear()
    assert "colour" in found
    assert "ajar" in found
    assert "unknown parameters {'order'}" in found


def test_checks_of_actions_are_statuses_with_logs_that_are_fetched_without_the_token(
    host: GithubHost, case: ForgeCase
) -> None:
    head = case.commit("checked", {"new.txt": "x\n"})
    run = {"id": 77, "name": "test (3.12)", "status": "completed", "conclusion": "timed_out"}
    app = {"app": {"slug": "github-actions"}, "html_url": "https://example.org/77", "output": {"title": "late"}}
    host.check_runs[:] = [
        {**run, **app},
        {"id": 78, "name": "lint", "status": "in_progress", "conclusion": None},
        {"id": 79, "name": "docs", "status": "completed", "conclusion": "skipped"},
    ]
    found = {each.context: each for each in case.forge.statuses(case.repository, head)}
    assert {context: each.state for context, each in found.items()} == {
        "test (3.12)": "failure",
        "lint": "pending",
        "docs": "success",
    }
    status = found["test (3.12)"]
    assert status == CommitStatus(
        context="test (3.12)", state="failure", description="late", url="https://example.org/77", log="77"
    )
    elsewhere = host.server.url.replace("127.0.0.1", "localhost")
    host.server.fail(
        Answer(302, headers={"location": f"{elsewhere}/blob/77"}),
        Answer(200, content=b"x" * 200_000 + b"\nthe end"),
    )
    assert case.forge.read_log(case.repository, status, most=10).endswith("the end")
    logs, blob = host.server.requests[-2:]
    assert (logs.path, logs.token) == ("/repos/ada/demo/actions/jobs/77/logs", "token-ada")
    assert (blob.path, blob.token) == ("/blob/77", "")
    host.server.fail(Answer(410, {"message": "gone"}))
    assert case.forge.read_log(case.repository, status) == ""


def test_resolved_threads_are_known_over_several_pages(host: GithubHost, case: ForgeCase) -> None:
    many = 2 * PAGE + 3
    case.commit("reviewed", {"new.txt": "line\n" * many})
    request = TestGithub().open_request(case, "reviewed")
    lines = [("new.txt", line, f"about {line}") for line in range(1, many + 1)]
    case.host.submit_review(case.repository, request.number, "commented", "", lines)
    for count in range(PAGE + 1):
        case.forge.add_comment(case.repository, request.number, f"comment {count}", is_request=True)
    found = case.forge.review_comments(case.repository, request.number)
    assert [each.body for each in found] == [text for _, _, text in lines]
    assert len({each.thread for each in found}) == many
    host.resolved = {found[-1].id}
    again = case.forge.review_comments(case.repository, request.number)
    assert [each.id for each in again if each.resolved] == [found[-1].id]
    talk = case.forge.comments(case.repository, request.number, is_request=True)
    assert [each.body for each in talk] == [f"comment {count}" for count in range(PAGE + 1)]
    assert len(case.forge.reviews(case.repository, request.number)) == 1


_VALIDATE = """
const [graphql, schema] = process.argv.slice(1)
const { buildSchema, parse, validate } = require(graphql)
const known = buildSchema(require("fs").readFileSync(schema, "utf8"), { assumeValidSDL: true })
const queries = JSON.parse(require("fs").readFileSync(0, "utf8"))
console.log(queries.map((each) => validate(known, parse(each)).map(String).join("; ")).join("\\n").trim())
"""


def _problems(queries: list[str]) -> str:
    """Return how queries differ from GitHub's published GraphQL schema, of npm `@octokit/graphql-schema`."""
    program = npm_package("graphql", "16.11.0", r".*\.js") / "index.js"
    schema = npm_package("@octokit/graphql-schema", "15.26.1", r"schema\.graphql") / "schema.graphql"
    words = ["node", "-e", _VALIDATE, str(program), str(schema)]
    done = subprocess.run(words, input=json.dumps(queries), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_every_query_fits_githubs_published_schema(host: GithubHost, case: ForgeCase) -> None:
    case.commit("asked", {"new.txt": "one\ntwo\n"})
    new = NewRequest(title="t", body="", head="asked", base="main", draft=False)
    request = case.forge.open_request(case.repository, new)
    for draft in (True, False):
        case.forge.change_request(case.repository, request.number, draft=draft)
    lines = [("new.txt", line, f"point {line}") for line in (1, 2)]
    case.host.submit_review(case.repository, request.number, "commented", "", lines)
    found = case.forge.review_comments(case.repository, request.number)
    case.forge.reply(case.repository, request.number, {each.thread: f"about {each.body}" for each in found})
    answers = case.forge.review_comments(case.repository, request.number)
    assert [each.body for each in answers] == ["point 1", "point 2", "about point 1", "about point 2"]
    queries = sorted({each.body["query"] for each in host.server.requests if each.path == "/graphql"})
    assert len(queries) == 4
    assert _problems(queries) == ""
    assert "isSolved" in _problems([queries[-1].replace("isResolved", "isSolved")])


def test_apps_and_deleted_accounts_have_their_usual_names(host: GithubHost, case: ForgeCase) -> None:
    case.commit("asked", {"new.txt": "one\n"})
    new = NewRequest(title="t", body="", head="asked", base="main", draft=False)
    number = case.forge.open_request(case.repository, new).number
    # Numbers of 64 bits are texts.
    text = {"fullDatabaseId": "4294967297", "body": "b", "createdAt": "2026-01-01T00:00:00Z"}
    authors = ({"login": "build", "kind": "Bot"}, None, {"login": "bob", "kind": "User"})
    comments = {"nodes": [{**text, "author": each} for each in authors]}
    empty: dict[str, list[object]] = {"nodes": []}
    request = {"comments": comments, "reviews": empty, "reviewThreads": empty}
    host.server.fail(Answer(200, {"data": {"repository": {"pullRequest": request}}}))
    found = case.forge.comments(case.repository, number, is_request=True)
    assert [(each.author, each.id) for each in found] == [
        (name, 4_294_967_297) for name in ("build[bot]", "ghost", "bob")
    ]


def recorded(scenario: str) -> list[dict[str, Any]]:
    """Return recorded calls of GitHub's interface, from npm `@octokit/fixtures`."""
    package = npm_package("@octokit/fixtures", "23.1.2", r"scenarios/.*/normalized-fixture\.json")
    path = package / "scenarios/api.github.com" / scenario / "normalized-fixture.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


@pytest.fixture
def replayed() -> Iterator[tuple[StandIn, GithubForge]]:
    """A server that answers as it was recorded, at its own address, and the forge of it."""
    scenarios = ("rename-repository", "create-status", "paginate-issues", "errors", "get-repository")
    calls = [call for scenario in scenarios for call in recorded(scenario)]
    # The path that follows a redirect or a link is the one of the recording, which has no name.
    known = {(call["method"].upper(), call["path"]): call for call in reversed(calls)}

    def respond(asked: Asked) -> Answer:
        query = "&".join(f"{name}={asked.query[name]}" for name in ("per_page", "page") if name in asked.query)
        path = f"{asked.path}?{query}" if "per_page" in asked.query and "issues" in asked.path else asked.path
        if "page=" in path.partition("&")[2]:
            path = path.replace("/repos/octokit-fixture-org/paginate-issues", "/repositories/1000")
        if path.endswith("/check-runs"):  # they are younger than the recordings
            return Answer(200, {"total_count": 0, "check_runs": []})
        call = known[asked.method, path]
        wanted = ("link", "location", "x-oauth-scopes", "etag")
        local = {name: value for name, value in call["headers"].items() if name in wanted}
        given = {name: str(value).replace("https://api.github.com", server.url) for name, value in local.items()}
        return Answer(call["status"], call["response"], given)

    server = StandIn(respond)
    forge = GithubForge(ForgeSetup(url=server.url, api=server.url, token="t", sleep=lambda _: None), page=3)
    yield server, forge
    forge.close()
    server.close()


def test_recorded_answers_of_github_are_read(replayed: tuple[StandIn, GithubForge]) -> None:
    server, forge = replayed
    issues = list(forge.issues("octokit-fixture-org/paginate-issues"))
    assert len({each.number for each in issues}) == len(issues) == 13
    assert len(server.requests) == 5
    name = "octokit-fixture-org/create-status"
    found = forge.statuses(name, "0000000000000000000000000000000000000001")
    assert [(each.context, each.state) for each in found] == [("example/1", "failure"), ("example/2", "success")]
    moved = fails("moved", lambda: forge.repository("octokit-fixture-org/rename-repository"))
    assert moved.hint == "use octokit-fixture-org/rename-repository-newname"
