"""The common client of REST interfaces: limits, retries, conditions, redirects, and what messages contain."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate

import pytest
from tests.forge_stand_in import Answer, StandIn

from chargehand.forges.contract import CommitStatus, Forge, ForgeError, ForgeProblem, ForgeSetup
from chargehand.forges.gitea import GiteaForge
from chargehand.forges.github import GithubForge
from chargehand.testing.forges.suite import fails

TOKEN = "s3cret-token-of-ada"
NAME = "ada/demo"
COMMENT = {"id": 1, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "body": "x"}
GOOD = Answer(201, COMMENT)


class Client:
    """A forge of a stand-in; `sleeps` are the pauses that it made."""

    def __init__(self, server: StandIn) -> None:
        self.server = server
        self.sleeps: list[float] = []
        setup = ForgeSetup(url=server.url, api=server.url, token=TOKEN, sleep=self.sleeps.append)
        self.gitea, self.github = GiteaForge(setup), GithubForge(setup)

    def comment(self) -> object:
        return self.github.add_comment(NAME, 1, "x")

    def read(self) -> object:
        return self.github.comments(NAME, 1)


@pytest.fixture
def client() -> Iterator[Client]:
    server = StandIn(lambda asked: GOOD if asked.method != "GET" else Answer(200, [COMMENT]))
    found = Client(server)
    yield found
    found.gitea.close()
    found.github.close()
    server.close()


LIMITS = {
    "retry after": Answer(429, headers={"retry-after": "7"}),
    "secondary": Answer(403, {"message": "You have exceeded a secondary rate limit."}, {"retry-after": "7"}),
    "busy": Answer(503, headers={"retry-after": "7"}),
}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_short_limit_is_waited_for_and_the_call_repeated(client: Client, limit: Answer) -> None:
    for act in (client.comment, client.read):
        client.server.requests.clear()
        client.sleeps.clear()
        client.server.fail(limit)
        act()
        assert len(client.server.requests) == 2
        assert client.sleeps == [7.0]


def test_a_long_limit_is_an_error_with_the_seconds_by_the_clock_of_the_forge(client: Client) -> None:
    skewed = time.time() - 86_400
    spent = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(skewed) + 600)}
    client.server.fail(Answer(403, {"message": "limit"}, {**spent, "date": formatdate(skewed, usegmt=True)}))
    error = fails("rate_limited", client.comment)
    assert error.retry_seconds == pytest.approx(600, abs=1)
    assert error.is_transient
    assert not error.may_have_acted
    assert client.sleeps == []
    client.server.fail(Answer(429, headers={"ratelimit-remaining": "0", "ratelimit-reset": "45"}))
    assert fails("rate_limited", client.read).retry_seconds == 45


def test_a_limit_that_does_not_end_is_an_error(client: Client) -> None:
    client.server.fail(*[Answer(429)] * 4)
    fails("rate_limited", client.comment)
    assert len(client.server.requests) == 4


def test_reads_are_repeated_with_growing_pauses(client: Client) -> None:
    client.server.fail(Answer(500), Answer(-1), Answer(502))
    assert client.read()
    assert client.sleeps == sorted(client.sleeps)
    assert len(client.sleeps) == 3
    client.server.fail(*[Answer(504)] * 4)
    error = fails("broken", client.read)
    assert not error.may_have_acted


@pytest.mark.parametrize("answer", [Answer(500), Answer(502), Answer(503), Answer(504), Answer(-1)])
def test_a_change_that_may_have_acted_is_not_repeated(client: Client, answer: Answer) -> None:
    client.server.fail(answer)
    with pytest.raises(ForgeError) as caught:
        client.comment()
    assert caught.value.may_have_acted
    assert caught.value.is_transient
    assert len(client.server.requests) == 1


def test_a_change_that_was_never_sent_is_repeated_and_has_not_acted() -> None:
    server = StandIn(lambda _: GOOD)
    client = Client(server)
    server.close()
    error = fails("unreachable", client.comment)
    assert not error.may_have_acted
    assert len(client.sleeps) == 3


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, content=b"<html>sign in</html>", headers={"content-type": "text/html"}),
        Answer(200, content=b'[{"id": 1, "body": "x'),
        Answer(200, content=b""),
        Answer(200, {"message": "not a list"}),
        Answer(200, [{"id": "not a number"}]),
        Answer(200, content=b'[{"id": 1, "body": "\xff"}]'),
    ],
)
def test_a_document_that_is_none_is_broken(client: Client, answer: Answer) -> None:
    client.server.fail(answer)
    fails("broken", client.read)
    client.server.fail(answer)
    assert fails("broken", client.comment).may_have_acted


STATUSES: dict[int, ForgeProblem] = {
    400: "invalid",
    401: "denied",
    403: "forbidden",
    404: "missing",
    405: "refused",
    409: "refused",
    410: "missing",
    418: "refused",
    422: "refused",
    423: "refused",
}


@pytest.mark.parametrize(("status", "problem"), STATUSES.items())
def test_the_problem_of_a_status(client: Client, status: int, problem: ForgeProblem) -> None:
    for act in (client.comment, client.read):
        client.server.fail(Answer(status, {"message": f"no \x1b[31m{TOKEN}\u202e"}))
        error = fails(problem, act)
        for text in (str(error), error.hint, repr(error), repr(error.__cause__)):
            assert TOKEN not in text
            assert "\x1b" not in text
            assert "\u202e" not in text
        assert str(status) in error.message


@pytest.mark.parametrize(
    ("answer", "scope"),
    [
        (Answer(403, {"message": "no"}, {"x-accepted-github-permissions": "issues=write"}), "issues=write"),
        (Answer(403, {"message": "no"}, {"x-accepted-oauth-scopes": "repo"}), "repo"),
        (Answer(403, {"error": "insufficient_scope", "scope": "api"}), "api"),
        (Answer(403, {"message": "required scope(s), required=[write:issue], token scope=x"}), "write:issue"),
    ],
)
def test_a_missing_scope_is_in_the_hint(client: Client, answer: Answer, scope: str) -> None:
    client.server.fail(answer)
    assert scope in fails("forbidden", client.comment).hint


def test_a_repeated_read_sends_a_condition_and_a_right_does_not(client: Client) -> None:
    first = client.read()
    assert client.read() == first
    assert [each.headers.get("if-none-match") is not None for each in client.server.requests] == [False, True]
    permission = Answer(200, {"permission": "write"}, {"etag": '"1"'})
    client.server.requests.clear()
    client.server.fail(permission, permission)
    assert client.github.right(NAME, "bob") == client.github.right(NAME, "bob") == "write"
    assert [each.headers.get("if-none-match") for each in client.server.requests] == [None, None]


def test_a_visit_reads_once_until_the_next_change_and_rights_always(client: Client) -> None:
    def asked(act: Callable[[], object]) -> int:
        before = len(client.server.requests)
        act()
        return len(client.server.requests) - before

    assert [asked(client.read) for _ in range(2)] == [1, 1]  # outside of a visit
    client.github.start_visit()
    assert [asked(client.read) for _ in range(3)] == [1, 0, 0]
    assert [asked(client.comment), asked(client.read), asked(client.read)] == [1, 1, 0]
    client.github.start_visit()
    assert asked(client.read) == 1
    client.server.fail(*[Answer(200, {"permission": "write"})] * 2, when=lambda each: "collaborators" in each.path)
    assert [asked(lambda: client.github.right(NAME, "bob")) for _ in range(2)] == [1, 1]
    # A change that failed may have acted all the same.
    client.server.fail(Answer(502), when=lambda each: each.method == "POST")
    fails("broken", client.comment)
    assert asked(client.read) == 1


def test_a_redirect_to_another_host_is_not_followed(client: Client) -> None:
    other = StandIn(lambda _: Answer(200, {"full_name": "eve/trap"}))
    try:
        for act in (client.comment, client.read, lambda: client.github.issue(NAME, 1)):
            client.server.fail(
                Answer(302, headers={"location": f"{other.url}/repositories/1"}), *[Answer(302)] * 2
            )
            error = fails("moved", act)
            assert "eve" not in error.hint
            client.server.faults.clear()
        assert other.requests == []
    finally:
        other.close()


def test_malformed_addresses_of_a_forge_are_not_followed(client: Client) -> None:
    client.server.fail(*[Answer(302, headers={"location": "https://["})] * 4)
    fails("moved", client.comment)
    client.server.faults.clear()
    client.server.fail(Answer(200, [COMMENT], {"link": '<https://[?page=2>; rel="next"'}))
    assert len(client.github.comments(NAME, 1)) == 2
    log = CommitStatus(context="x", state="failure", log="7")
    client.server.fail(Answer(302, headers={"location": "https://["}))
    fails("invalid", lambda: client.github.read_log(NAME, log, most=10))


def test_an_issue_that_was_transferred_is_read_at_its_new_place(client: Client) -> None:
    moved = Answer(301, headers={"location": "/repositories/5/issues/3"})
    issue = {"number": 3, "title": "t", "state": "open", "updated_at": "2026-01-01T00:00:00Z"}
    new = Answer(200, {**issue, "repository_url": "https://api.example.org/repos/ada/other"})
    client.server.fail(moved, Answer(200, {"full_name": "ada/other"}), moved, new)
    found = client.github.issue(NAME, 1)
    assert (found.repository, found.number) == ("ada/other", 3)


def test_pages_stay_on_the_host_and_end(client: Client) -> None:
    away = {
        "link": '<https://elsewhere.example/repos/x?page=2>; rel="next", <https://e.example?page=9>; rel="last"'
    }
    client.server.fail(Answer(200, [COMMENT], away))
    assert len(client.github.comments(NAME, 1)) == 2
    assert [each.query.get("page") for each in client.server.requests] == [None, "2"]
    client.server.faults.append(lambda _: Answer(200, [COMMENT, COMMENT], away))
    fails("broken", client.read)


def test_a_page_that_follows_a_full_one_is_seen(client: Client) -> None:
    full = [{**COMMENT, "id": number} for number in range(100)]
    client.server.fail(Answer(200, full))
    assert len(client.github.comments(NAME, 1)) == 100
    client.server.fail(
        Answer(200, full, {"link": '<x?page=2>; rel="next"'}), Answer(200, [{**COMMENT, "id": 100}])
    )
    assert len(client.github.comments(NAME, 1)) == 101


@pytest.mark.parametrize("name", ["demo", "a/b/c", "../x", "a/..", "", "/"])
def test_the_name_of_a_repository_is_checked(client: Client, name: str) -> None:
    for forge in (client.gitea, client.github):
        fails("invalid", lambda forge=forge: forge.repository(name))
    assert client.server.requests == []


HOSTILE = "../../user?x=1#y z%2e/é"
CALLS: dict[str, Callable[[Forge], object]] = {
    "login": lambda forge: forge.right(NAME, HOSTILE),
    "branch": lambda forge: forge.branch(NAME, HOSTILE),
    "commit": lambda forge: forge.statuses(NAME, HOSTILE),
    "owner": lambda forge: forge.repository(HOSTILE.replace("/", "") + "/x"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_hostile_names_stay_in_their_segment(client: Client, call: Callable[[Forge], object]) -> None:
    client.server.faults.append(lambda _: Answer(404))
    for forge in (client.gitea, client.github):
        with contextlib.suppress(ForgeError):  # those that treat a missing thing as done return
            call(forge)
    assert client.server.requests
    for asked in client.server.requests:
        assert asked.path.startswith("/repos/")
        assert "x" not in asked.query
        assert ".." not in asked.path.split("/")
