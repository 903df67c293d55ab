"""The contract of forges: repositories, issues, comments, requests, reviews and commit statuses of one host.

Every text that a forge returns was written by other people: it is data, and grants nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from chargehand.core.errors import ChargehandError

Right = Literal["none", "read", "write", "admin"]
StatusState = Literal["pending", "success", "failure", "error"]
ReviewState = Literal["approved", "changes", "commented", "dismissed"]
MergeMethod = Literal["merge", "squash", "rebase"]
ForgeProblem = Literal[
    "unreachable",  # no connection, or no answer in time
    "broken",  # 5xx, HTML, or a document that was cut
    "rate_limited",
    "denied",  # the token is invalid, revoked or expired
    "forbidden",  # the token lacks a scope, or its account a right
    "missing",  # deleted, or invisible to the account
    "moved",  # renamed or transferred: the hint names the new address
    "refused",  # the forge's rules do not allow it now: archived, protected, conflicting, locked
    "invalid",  # the address or the arguments are wrong
]
_TRANSIENT = ("unreachable", "broken", "rate_limited")


class ForgeError(ChargehandError):
    """A forge did not carry out a call; message and hint contain no token.

    The code is `forge_` and the problem. `is_transient`: the same call may succeed later, `retry_seconds` from now
    if the forge said so. `may_have_acted`: the answer was lost, so look before repeating.
    """

    default_code = "forge_broken"

    def __init__(
        self,
        problem: ForgeProblem,
        message: str,
        *,
        hint: str = "",
        retry_seconds: float | None = None,
        may_have_acted: bool = False,
    ) -> None:
        super().__init__(message, code=f"forge_{problem}", hint=hint)
        self.problem: ForgeProblem = problem
        self.retry_seconds = retry_seconds
        self.may_have_acted = may_have_acted

    @property
    def is_transient(self) -> bool:
        """Return whether the same call may succeed later."""
        return self.problem in _TRANSIENT


class ForgeAccount(Struct, frozen=True, kw_only=True):
    """The account of the token. `lacks` names the scopes it needs and lacks; `None` if the forge does not say."""

    login: str
    lacks: tuple[str, ...] | None = None


class GitKey(Struct, frozen=True):
    """The private key for git over ssh, and a file of known host keys; `None`: ssh's usual ones."""

    file: Path
    known_hosts: Path | None = None


class GitLogin(Struct, frozen=True):
    """How git logs in: by user and password over https, or by `key` over ssh; never given to a sandbox."""

    user: str
    password: str
    key: GitKey | None = None

    def __repr__(self) -> str:
        return f"GitLogin({self.user!r}, …)"


class ForgeRepository(Struct, frozen=True, kw_only=True):
    """A repository; `name` is OWNER/NAME as it is now. `default_branch` is `None` if it has no commit.

    `clone_url` is for https, `ssh_url` for ssh, "" if the forge has no ssh.
    """

    name: str
    url: str
    clone_url: str
    ssh_url: str = ""
    default_branch: str | None
    archived: bool = False
    right: Right = "none"  # of the token's account
    merge_methods: tuple[MergeMethod, ...] = ("merge", "squash", "rebase")


class ForgeIssue(Struct, frozen=True, kw_only=True):
    """An issue; `repository` and `number` are its present ones, after a transfer as well.

    `comments` is their number, `None` if the forge does not say.
    """

    repository: str
    number: int
    url: str
    title: str
    body: str
    author: str
    is_open: bool
    updated: datetime
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()
    locked: bool = False
    comments: int | None = None


class ForgeComment(Struct, frozen=True, kw_only=True):
    """A comment of an issue or request; ids grow in the order in which the forge accepted them."""

    id: int
    author: str
    body: str
    created: datetime
    updated: datetime
    url: str = ""


class ForgeRequest(Struct, frozen=True, kw_only=True):
    """A pull or merge request; `title` has no draft prefix, and `merged` its commit on `base`.

    `mergeable` is `None` while the forge has not computed it. `head_repository` differs for forks, "" if deleted.
    `updated` is the time of the last change or word, `None` if the forge does not say.
    """

    number: int
    url: str
    title: str
    body: str
    author: str
    head: str
    head_repository: str
    head_commit: str
    base: str
    is_open: bool
    draft: bool = False
    merged: str | None = None
    mergeable: bool | None = None
    updated: datetime | None = None


class ForgeReview(Struct, frozen=True, kw_only=True):
    """A review of a request at a commit; its line comments are in `review_comments`.

    `commit` may be "" without any approval of the request, which alone needs it.
    """

    id: int
    author: str
    state: ReviewState
    body: str
    commit: str
    submitted: datetime


class ReviewComment(Struct, frozen=True, kw_only=True):
    """A comment on a line of a request. `thread` is what `reply` answers to; `line` is on the new side, if any."""

    id: int
    thread: str
    author: str
    body: str
    path: str
    line: int | None
    created: datetime
    resolved: bool = False


class CommitStatus(Struct, frozen=True, kw_only=True):
    """The state of one check of a commit; `log` is the handle of its log for `read_log`, "" without one."""

    context: str
    state: StatusState
    description: str = ""
    url: str = ""
    log: str = ""


class NewRequest(Struct, frozen=True, kw_only=True):
    """A request to open from branch `head` of the same repository."""

    title: str
    body: str
    head: str
    base: str
    draft: bool = True


class Forge(Protocol):
    """One account at one forge; used by one thread at a time.

    Every method raises `ForgeError`. Reads are repeated after transient failures. A change is sent again only if
    it was not carried out: otherwise the error has `may_have_acted`, and the caller looks before it acts again.
    `repository` arguments are OWNER/NAME (GitLab: with all groups). `is_request` says that `number` is that of a
    request, which GitLab alone counts separately from issues.
    """

    kind: str
    url: str

    def close(self) -> None:
        """Close all connections."""
        ...

    def start_visit(self) -> None:
        """Read afresh; from now on a repeated read may be answered from memory until the next visit or change.

        Rights and branches are always read.
        """
        ...

    def account(self) -> ForgeAccount:
        """Return the account of the token."""
        ...

    def git_login(self) -> GitLogin | None:
        """Return the login for git, `None` if git needs no login."""
        ...

    def repository(self, repository: str) -> ForgeRepository:
        """Return a repository. Raises `ForgeError` (`moved`) with the new name in the hint, if it was renamed."""
        ...

    def right(self, repository: str, login: str) -> Right:
        """Return the present right of a person, never from a cache; `none` for an unknown one."""
        ...

    def issues(
        self, repository: str, *, label: str = "", assignee: str = "", since: datetime | None = None
    ) -> Iterator[ForgeIssue]:
        """Yield the open issues, without requests, the least recently updated first; one request per page."""
        ...

    def issue(self, repository: str, number: int) -> ForgeIssue:
        """Return an issue, also if it was closed."""
        ...

    def change_issue(
        self,
        repository: str,
        number: int,
        *,
        add_labels: Sequence[str] = (),
        remove_labels: Sequence[str] = (),
        assign: Sequence[str] = (),
        unassign: Sequence[str] = (),
        is_open: bool | None = None,
        is_request: bool = False,
    ) -> None:
        """Change labels, assignees or state; may be repeated. A missing label is created."""
        ...

    def comments(self, repository: str, number: int, *, is_request: bool = False) -> Sequence[ForgeComment]:
        """Return all comments of an issue or request, by id; without those on lines."""
        ...

    def add_comment(self, repository: str, number: int, body: str, *, is_request: bool = False) -> ForgeComment:
        """Add a comment."""
        ...

    def edit_comment(
        self, repository: str, number: int, comment: int, body: str, *, is_request: bool = False
    ) -> ForgeComment:
        """Replace the text of a comment of the account."""
        ...

    def delete_comment(self, repository: str, number: int, comment: int, *, is_request: bool = False) -> None:
        """Delete a comment of the account; may be repeated."""
        ...

    def branch(self, repository: str, name: str) -> str | None:
        """Return the commit of a branch, `None` if it does not exist."""
        ...

    def find_requests(self, repository: str, head: str) -> Sequence[ForgeRequest]:
        """Return the requests from a branch of the repository itself, open, closed or merged, the newest first."""
        ...

    def request(self, repository: str, number: int) -> ForgeRequest:
        """Return a request."""
        ...

    def open_request(self, repository: str, new: NewRequest) -> ForgeRequest:
        """Open a request; look with `find_requests` before."""
        ...

    def change_request(
        self,
        repository: str,
        number: int,
        *,
        title: str | None = None,
        body: str | None = None,
        draft: bool | None = None,
        is_open: bool | None = None,
        base: str | None = None,
    ) -> ForgeRequest:
        """Change a request; may be repeated. `base` is the branch that it is to be merged into."""
        ...

    def ask_reviews(self, repository: str, number: int, logins: Sequence[str]) -> None:
        """Ask people for their reviews; may be repeated."""
        ...

    def reviews(self, repository: str, number: int) -> Sequence[ForgeReview]:
        """Return the submitted reviews, by id."""
        ...

    def review_comments(self, repository: str, number: int) -> Sequence[ReviewComment]:
        """Return all comments on lines, by id."""
        ...

    def reply(self, repository: str, number: int, answers: Mapping[str, str], text: str = "") -> None:
        """Answer comments on lines, each in its thread: `answers` has the texts by thread.

        `text` is added as a comment of the request, or as the text of the review that has the answers.
        """
        ...

    def merge(self, repository: str, number: int, *, commit: str, method: MergeMethod) -> None:
        """Merge a request. Raises `ForgeError` (`refused`) if its head is another commit, or by rules."""
        ...

    def statuses(self, repository: str, commit: str) -> Sequence[CommitStatus]:
        """Return the latest state of each check of a commit: statuses, check runs, jobs of pipelines."""
        ...

    def set_status(self, repository: str, commit: str, status: CommitStatus) -> None:
        """Set the state of a check; may be repeated."""
        ...

    def read_log(self, repository: str, status: CommitStatus, *, most: int = 65_536) -> str:
        """Return the end of the log of a check, of at most `most` characters; "" without a log."""
        ...

    def attach(self, repository: str, number: int, name: str, content: bytes, *, is_request: bool = False) -> str:
        """Attach a file to an issue or request, once by its name, and return its address.

        That is "" if the forge has no attachments.
        """
        ...

    def ensure_hook(self, repository: str, address: str, secret: str) -> None:
        """Have the forge post its events to an address, signed with the secret; may be repeated."""
        ...

    def remove_hook(self, repository: str, address: str) -> None:
        """Remove the hook of an address; may be repeated."""
        ...


class ForgeSetup(Struct, frozen=True, kw_only=True):
    """The parameters of opening a forge: `url` is the address of its pages, `api` of its API, "" for the usual.

    `authority` is a file of certificates to trust in addition. `sleep` waits between retries. `account` is that of
    the token if its sign-in says so: a token of a GitHub App cannot ask. `git_key` is used by git instead of the
    token.
    """

    url: str
    api: str = ""
    token: str = ""
    authority: Path | None = None
    account: ForgeAccount | None = None
    git_key: GitKey | None = None
    sleep: Callable[[float], None]

    def __repr__(self) -> str:
        return f"ForgeSetup({self.url!r}, …)"

    def git_login(self, user: str) -> GitLogin:
        """Return the login for git: the token is the password, unless a key is given."""
        return GitLogin("", "", self.git_key) if self.git_key else GitLogin(user, self.token)


class IssueAddress(Struct, frozen=True):
    """The address of an issue or request: repository, number, and whether it is a request."""

    repository: str
    number: int
    is_request: bool = False


class DeviceEndpoints(Struct, frozen=True, kw_only=True):
    """The paths of the OAuth device flow (RFC 8628) below the forge's address, and the scopes to ask for."""

    start: str
    token: str
    scopes: tuple[str, ...]


class ForgeKind(Struct, frozen=True, kw_only=True):
    """A kind of forge: its usual address, the usual name of its token's secret, and how to open one.

    `parse` reads the path of a page below the forge's address, `None` for another page. `scopes` are the least
    that a token needs, in the forge's words. `prefixes` begin tokens that no other kind of forge accepts. `device`
    is `None` without the device flow; `token_page` is where people create a token, below the forge's address.
    `has_apps`: the forge knows GitHub Apps.
    """

    open: Callable[[ForgeSetup], Forge]
    parse: Callable[[str], IssueAddress | None]
    url: str = ""
    token: str = ""
    scopes: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    device: DeviceEndpoints | None = None
    token_page: str = ""
    has_apps: bool = False
