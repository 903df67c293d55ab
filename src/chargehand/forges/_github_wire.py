"""The documents that only GitHub's interface has."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from chargehand.forges._wire import WireUser
from chargehand.forges.contract import StatusState


class GithubRef(Struct, frozen=True):
    """A branch."""

    object: GithubSha


class GithubSha(Struct, frozen=True):
    """The commit of a branch."""

    sha: str


class GithubLine(Struct, frozen=True):
    """A comment on a line; `line` is `None` if the line is no longer part of the request."""

    id: int
    created_at: datetime
    path: str = ""
    line: int | None = None
    side: str = "RIGHT"
    body: str | None = None
    user: WireUser | None = None
    in_reply_to_id: int | None = None


class GithubStatus(Struct, frozen=True):
    """A commit status."""

    context: str
    state: StatusState
    description: str | None = None
    target_url: str | None = None


class GithubStatuses(Struct, frozen=True):
    """The latest commit statuses."""

    statuses: list[GithubStatus] = []


class GithubApp(Struct, frozen=True):
    """The application of a check run."""

    slug: str = ""


class GithubOutput(Struct, frozen=True):
    """The text of a check run."""

    title: str | None = None


class GithubRun(Struct, frozen=True):
    """A check run; that of a job of Actions has the id of the job."""

    id: int
    name: str
    status: str
    conclusion: str | None = None
    html_url: str | None = None
    app: GithubApp | None = None
    output: GithubOutput | None = None


class GithubRuns(Struct, frozen=True):
    """The latest check runs."""

    check_runs: list[GithubRun] = []


class GraphAnswer(Struct, frozen=True):
    """An answer of GraphQL, which reports errors with status 200."""

    data: Any = None
    errors: list[GraphProblem] = []


class GraphProblem(Struct, frozen=True):
    """An error of GraphQL."""

    message: str = ""
    type: str = ""


class GithubThreads(Struct, frozen=True, rename="camel"):
    """One page of the threads of a request."""

    page_info: GithubPage
    nodes: list[GithubThread] = []


class GithubPage(Struct, frozen=True, rename="camel"):
    """The position in a list of GraphQL."""

    has_next_page: bool = False
    end_cursor: str | None = None


class GithubThread(Struct, frozen=True, rename="camel"):
    """A thread of comments on a line."""

    is_resolved: bool
    comments: Any = None
