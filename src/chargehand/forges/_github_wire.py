"""The documents that only GitHub's interface has."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from chargehand.forges._wire import REVIEW_STATES
from chargehand.forges.contract import ForgeComment, ForgeReview, ReviewComment, StatusState


class GithubRef(Struct, frozen=True):
    """A branch."""

    object: GithubSha


class GithubSha(Struct, frozen=True):
    """The commit of a branch."""

    sha: str


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


class GithubActor(Struct, frozen=True):
    """The author of a text; the login of an App lacks its suffix here."""

    login: str
    kind: str = ""

    @property
    def name(self) -> str:
        """The login as REST and the pages have it."""
        return f"{self.login}[bot]" if self.kind == "Bot" else self.login


class GithubText(Struct, frozen=True, rename="camel"):
    """A comment, a comment on a line, or a review; their numbers do not fit into 32 bits."""

    full_database_id: int
    body: str
    author: GithubActor | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    submitted_at: datetime | None = None
    url: str = ""
    state: str = ""
    commit: GithubOid | None = None

    @property
    def login(self) -> str:
        """The author's login; GitHub calls that of deleted accounts `ghost`."""
        return self.author.name if self.author else "ghost"


class GithubOid(Struct, frozen=True):
    """A commit."""

    oid: str = ""


class GithubPage(Struct, frozen=True, rename="camel"):
    """The position in a list."""

    has_next_page: bool = False
    end_cursor: str | None = None


class GithubTexts(Struct, frozen=True, rename="camel"):
    """One page of comments or reviews."""

    nodes: list[GithubText]
    page_info: GithubPage = GithubPage()


class GithubThread(Struct, frozen=True, rename="camel"):
    """A thread of comments on a line, on the side `LEFT` or `RIGHT`; `line` is `None` if it is outdated."""

    id: str
    is_resolved: bool
    path: str
    diff_side: str
    comments: GithubTexts
    line: int | None = None


class GithubThreads(Struct, frozen=True, rename="camel"):
    """One page of threads."""

    nodes: list[GithubThread]
    page_info: GithubPage = GithubPage()


class GithubTalk(Struct, frozen=True, rename="camel"):
    """All that people wrote on a request: its comments, reviews, and threads on lines."""

    comments: GithubTexts
    reviews: GithubTexts
    review_threads: GithubThreads

    def followed_by(self, other: GithubTalk) -> GithubTalk:
        """Return this page and a later one as one."""
        first, second = self.review_threads, other.review_threads
        return GithubTalk(
            comments=GithubTexts([*self.comments.nodes, *other.comments.nodes], other.comments.page_info),
            reviews=GithubTexts([*self.reviews.nodes, *other.reviews.nodes], other.reviews.page_info),
            review_threads=GithubThreads([*first.nodes, *second.nodes], second.page_info),
        )

    def pages(self) -> dict[str, GithubPage]:
        """Return the positions in the three lists, by the variables of `TALK`."""
        pages = (self.comments.page_info, self.reviews.page_info, self.review_threads.page_info)
        return dict(zip(("comments", "reviews", "threads"), pages, strict=True))

    def to_comments(self) -> list[ForgeComment]:
        """Return the comments of the contract, by id."""
        found = [
            ForgeComment(
                id=each.full_database_id,
                author=each.login,
                body=each.body,
                created=each.created_at,
                updated=each.updated_at or each.created_at,
                url=each.url,
            )
            for each in self.comments.nodes
            if each.created_at
        ]
        return sorted(found, key=lambda each: each.id)

    def to_reviews(self) -> list[ForgeReview]:
        """Return the submitted reviews of the contract, by id."""
        found = [
            ForgeReview(
                id=each.full_database_id,
                author=each.login,
                state=REVIEW_STATES[each.state],
                body=each.body,
                commit=each.commit.oid if each.commit else "",
                submitted=each.submitted_at,
            )
            for each in self.reviews.nodes
            if each.state in REVIEW_STATES and each.submitted_at
        ]
        return sorted(found, key=lambda each: each.id)

    def to_lines(self) -> list[ReviewComment]:
        """Return the comments on lines of the contract, by id."""
        found = [
            ReviewComment(
                id=each.full_database_id,
                thread=thread.id,
                author=each.login,
                body=each.body,
                path=thread.path,
                line=thread.line if thread.diff_side == "RIGHT" else None,
                created=each.created_at,
                resolved=thread.is_resolved,
            )
            for thread in self.review_threads.nodes
            for each in thread.comments.nodes
            if each.created_at
        ]
        return sorted(found, key=lambda each: each.id)


_TEXT = "fullDatabaseId body author{login kind:__typename}"
_PAGE = "pageInfo{hasNextPage endCursor}"
TALK = f"""query($owner:String!,$name:String!,$number:Int!,$page:Int!,
$comments:String,$reviews:String,$threads:String){{
repository(owner:$owner,name:$name){{pullRequest(number:$number){{
comments(first:$page,after:$comments){{{_PAGE} nodes{{{_TEXT} createdAt updatedAt url}}}}
reviews(first:$page,after:$reviews){{{_PAGE} nodes{{{_TEXT} state submittedAt commit{{oid}}}}}}
reviewThreads(first:$page,after:$threads){{{_PAGE} nodes{{id isResolved path line diffSide
comments(last:100){{nodes{{{_TEXT} createdAt}}}}}}}}}}}}}}"""
"""All texts of a request; of a thread the newest 100 comments, since earlier ones have been answered."""
DRAFT = """mutation($id:ID!){convertPullRequestToDraft(input:{pullRequestId:$id}){pullRequest{isDraft}}}"""
READY = """mutation($id:ID!){markPullRequestReadyForReview(input:{pullRequestId:$id}){pullRequest{isDraft}}}"""


def reply_mutation(count: int) -> str:
    """Return the mutation that answers in `count` threads: the threads are $t0…, the texts $b0…."""
    given = ",".join(f"$t{each}:ID!,$b{each}:String!" for each in range(count))
    acts = " ".join(
        f"a{each}:addPullRequestReviewThreadReply(input:{{pullRequestReviewThreadId:$t{each},body:$b{each}}})"
        "{clientMutationId}"
        for each in range(count)
    )
    return f"mutation({given}){{{acts}}}"
