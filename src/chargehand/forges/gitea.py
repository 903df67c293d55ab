"""Gitea and Forgejo, by their REST interface (version 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from chargehand.forges._rest import RestClient, multipart, repository_path, segment
from chargehand.forges._wire import (
    WireAsset,
    WireComment,
    WireHook,
    WireIssue,
    WireLabel,
    WirePermission,
    WirePull,
    WireRepository,
    WireReview,
    WireUser,
    login_of,
    to_comment,
    to_issue,
    to_repository,
    to_request,
    to_reviews,
)
from chargehand.forges.addresses import parse_issues_and_pulls
from chargehand.forges.contract import (
    CommitStatus,
    ForgeAccount,
    ForgeComment,
    ForgeError,
    ForgeIssue,
    ForgeKind,
    ForgeProblem,
    ForgeRepository,
    ForgeRequest,
    ForgeReview,
    ForgeSetup,
    GitLogin,
    MergeMethod,
    NewRequest,
    ReviewComment,
    Right,
    StatusState,
)
from chargehand.network.http_client import WebReply

_PAGE = 50
_LABEL_COLOR = "#8a8f98"
_DRAFT = re.compile(r"(?:\[(?:WIP|Draft)\]|(?:WIP|Draft):)\s*", re.IGNORECASE)
_MERGE_CHECKS, _MERGE_CHECK_SECONDS = 6, 0.5
_STATES: dict[str, StatusState] = {
    "success": "success",
    "failure": "failure",
    "error": "error",
    "warning": "failure",
}
_JOB = re.compile(r".*?/actions/runs/\d+/jobs/\d+")
_HOOK_EVENTS = (
    *("push", "issues", "issue_assign", "issue_label", "issue_comment", "pull_request", "pull_request_comment"),
    *("pull_request_review", "pull_request_sync", "status"),
)


class GiteaBranch(Struct, frozen=True):
    """A branch."""

    commit: GiteaCommit


class GiteaCommit(Struct, frozen=True):
    """The commit of a branch."""

    id: str


class GiteaSha(Struct, frozen=True):
    """A commit as git has it."""

    sha: str


class GiteaLine(Struct, frozen=True):
    """A comment on a line; `position` is its line on the new side, 0 if it is on the old one."""

    id: int
    created_at: datetime
    path: str = ""
    position: int = 0
    original_position: int = 0
    body: str | None = None
    user: WireUser | None = None
    resolver: WireUser | None = None


class GiteaStatus(Struct, frozen=True):
    """The state of one check."""

    context: str
    status: str
    description: str = ""
    target_url: str = ""


class GiteaStatuses(Struct, frozen=True):
    """The latest states of a commit."""

    statuses: list[GiteaStatus] | None = None


class GiteaRuns(Struct, frozen=True):
    """Runs of workflows, or their jobs."""

    workflow_runs: list[GiteaRun] = []
    jobs: list[GiteaRun] = []


class GiteaRun(Struct, frozen=True):
    """A run of a workflow, or a job of it."""

    id: int
    name: str = ""


class GiteaForge:
    """One account at a Gitea or Forgejo server.

    The right of another person is shown only to administrators of a repository. Times have whole seconds. A thread
    is the line of a file, as on the pages of the forge.
    """

    kind = "gitea"

    def __init__(self, setup: ForgeSetup, *, page: int = _PAGE) -> None:
        self.url = setup.url.rstrip("/")
        self._setup, self._page = setup, page
        base = setup.api.rstrip("/") or f"{self.url}/api/v1"
        headers = {"authorization": f"token {setup.token}"} if setup.token else {}
        self._rest = RestClient(setup, base, headers, refine=_refine)
        self._administered: dict[str, bool] = {}

    def close(self) -> None:
        """Close all connections."""
        self._rest.close()

    def start_visit(self) -> None:
        """Read afresh, and answer repeated reads of this visit from memory."""
        self._rest.start_visit()

    def account(self) -> ForgeAccount:
        """Return the account of the token; Gitea does not say which scopes the token has."""
        return ForgeAccount(login=self._rest.read("/user", WireUser).login)

    def git_login(self) -> GitLogin | None:
        """Return the login for git."""
        return self._setup.git_login("chargehand")  # a token alone says whose it is

    def repository(self, repository: str) -> ForgeRepository:
        """Return a repository."""
        found = to_repository(self._rest.read(_place(repository), WireRepository))
        self._administered[repository] = found.right == "admin"
        return found

    def right(self, repository: str, login: str) -> Right:
        """Return the present right of a person."""
        if not self._administered.get(repository, True):
            return self._right_of_assignable(repository, login)
        path = f"{_place(repository)}/collaborators/{segment(login)}/permission"
        try:
            found = self._rest.read(path, WirePermission, fresh=True).permission
        except ForgeError as error:
            if error.problem == "forbidden":  # only administrators of a repository may ask
                self._administered[repository] = False
                return self._right_of_assignable(repository, login)
            if error.problem != "missing":
                raise
            self.repository(repository)  # raises if the repository is missing, not the person
            return "none"
        rights: dict[str, Right] = {"owner": "admin", "admin": "admin", "write": "write", "read": "read"}
        return rights.get(found, "none")

    def _right_of_assignable(self, repository: str, login: str) -> Right:
        # Everyone may list those who can be assigned, which are the people with write right.
        able = self._rest.read(f"{_place(repository)}/assignees", list[WireUser], fresh=True)
        return "write" if login in {each.login for each in able} else "read"

    # Issues

    def issues(
        self, repository: str, *, label: str = "", assignee: str = "", since: datetime | None = None
    ) -> Iterator[ForgeIssue]:
        """Yield the open issues; Gitea cannot sort them by update, so all pages are read first."""
        query = {"state": "open", "type": "issues", "assigned_by": assignee, "limit": self._page}
        query |= {"since": since.isoformat() if since else ""}
        found = {
            wire.number: wire
            for wire in self._rest.pages(f"{_place(repository)}/issues", WireIssue, **query)
            if wire.pull_request is None
        }
        for wire in sorted(found.values(), key=lambda each: (each.updated_at, each.number)):
            issue = to_issue(wire, repository)
            # Filtered here: Gitea ignores a label that does not exist.
            if not label or label in issue.labels:
                yield issue

    def issue(self, repository: str, number: int) -> ForgeIssue:
        """Return an issue."""
        wire = self._rest.read(f"{_place(repository)}/issues/{number}", WireIssue)
        if wire.pull_request is not None:
            raise ForgeError("missing", f"{number} of {repository} is a request")
        return to_issue(wire, repository)

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
        """Change labels, assignees or state of an issue or request."""
        path = f"{_place(repository)}/issues/{number}"
        before = self._rest.read(path, WireIssue)
        now = {label.name: label.id for label in before.labels or ()}
        if missing := [label for label in add_labels if label not in now]:
            ids = self._label_ids(repository, missing)
            self._rest.change("POST", f"{path}/labels", {"labels": ids})
        for label in {each for each in remove_labels if each in now}:
            self._repeatable("DELETE", f"{path}/labels/{now[label]}")
        people = [user.login for user in before.assignees or ()]
        wanted = [each for each in dict.fromkeys((*people, *assign)) if each not in unassign]
        body: dict[str, object] = {"assignees": wanted} if wanted != people else {}
        if is_open is not None and is_open != (before.state == "open"):
            body["state"] = "open" if is_open else "closed"
        if body:
            self._rest.change("PATCH", path, body)

    # Comments

    def comments(self, repository: str, number: int, *, is_request: bool = False) -> Sequence[ForgeComment]:
        """Return all comments of an issue or request, by id."""
        path = f"{_place(repository)}/issues/{number}"
        try:
            found = list(self._rest.pages(f"{path}/comments", WireComment))
        except ForgeError as error:
            if error.problem == "broken":  # Gitea 1.26 answers 500 for an issue that does not exist
                self._rest.read(path, WireIssue)
            raise
        return sorted(map(to_comment, found), key=lambda each: each.id)

    def add_comment(self, repository: str, number: int, body: str, *, is_request: bool = False) -> ForgeComment:
        """Add a comment."""
        path = f"{_place(repository)}/issues/{number}/comments"
        return to_comment(self._rest.change("POST", path, {"body": body}, kind=WireComment))

    def edit_comment(
        self, repository: str, number: int, comment: int, body: str, *, is_request: bool = False
    ) -> ForgeComment:
        """Replace the text of a comment of the account."""
        path = f"{_place(repository)}/issues/comments/{comment}"
        return to_comment(self._rest.change("PATCH", path, {"body": body}, kind=WireComment))

    def delete_comment(self, repository: str, number: int, comment: int, *, is_request: bool = False) -> None:
        """Delete a comment of the account."""
        self._repeatable("DELETE", f"{_place(repository)}/issues/comments/{comment}")

    # Branches and requests

    def branch(self, repository: str, name: str) -> str | None:
        """Return the commit of a branch."""
        try:
            path = f"{_place(repository)}/branches/{segment(name)}"
            return self._rest.read(path, GiteaBranch, fresh=True).commit.id
        except ForgeError as error:
            if error.problem != "missing":
                raise
            self.repository(repository)
            return None

    def find_requests(self, repository: str, head: str) -> Sequence[ForgeRequest]:
        """Return the requests from a branch, the newest first; all requests are read, since none can be sought."""
        path = f"{_place(repository)}/pulls"
        pages = self._rest.pages(path, WirePull, state="all", limit=self._page)
        found = {wire.number: _request(wire) for wire in pages}
        same = [each for each in found.values() if each.head == head and each.head_repository in ("", repository)]
        return sorted(same, key=lambda each: -each.number)

    def request(self, repository: str, number: int) -> ForgeRequest:
        """Return a request; a conflict is reported only if it lasts, since Gitea reports one while it checks."""
        path = f"{_place(repository)}/pulls/{number}"
        for attempt in range(_MERGE_CHECKS):
            wire = self._rest.read(path, WirePull, fresh=True)
            if wire.mergeable or wire.draft or wire.state != "open" or attempt == _MERGE_CHECKS - 1:
                break
            self._setup.sleep(_MERGE_CHECK_SECONDS)
        return _request(wire, mergeable=None if wire.draft else bool(wire.mergeable))

    def open_request(self, repository: str, new: NewRequest) -> ForgeRequest:
        """Open a request."""
        title = f"WIP: {new.title}" if new.draft else new.title
        body = {"title": title, "body": new.body, "head": new.head, "base": new.base}
        return _request(self._rest.change("POST", f"{_place(repository)}/pulls", body, kind=WirePull))

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
        """Change a request; Gitea keeps "draft" in the title."""
        path = f"{_place(repository)}/pulls/{number}"
        if body is not None and title is None and draft is None and is_open is None and base is None:
            return _request(self._rest.change("PATCH", path, {"body": body}, kind=WirePull))
        wire = self._rest.read(path, WirePull, fresh=True)
        is_draft = wire.draft if draft is None else draft
        plain = _plain_title(wire) if title is None else title
        wanted = f"WIP: {plain}" if is_draft else plain
        change: dict[str, object] = {}
        if title is not None or is_draft != wire.draft:
            change["title"] = wanted
        if body is not None:
            change["body"] = body
        if is_open is not None and is_open != (wire.state == "open"):
            change["state"] = "open" if is_open else "closed"
        if base is not None and base != wire.base.ref:
            change["base"] = base
        return _request(self._rest.change("PATCH", path, change, kind=WirePull) if change else wire)

    def ask_reviews(self, repository: str, number: int, logins: Sequence[str]) -> None:
        """Ask people for their reviews."""
        path = f"{_place(repository)}/pulls/{number}/requested_reviewers"
        self._rest.change("POST", path, {"reviewers": list(logins)})

    # Reviews

    def reviews(self, repository: str, number: int) -> Sequence[ForgeReview]:
        """Return the submitted reviews, by id."""
        return to_reviews(self._reviews(repository, number))

    def review_comments(self, repository: str, number: int) -> Sequence[ReviewComment]:
        """Return all comments on lines, by id."""
        found: list[ReviewComment] = []
        for review in self._reviews(repository, number):
            path = f"{_place(repository)}/pulls/{number}/reviews/{review.id}/comments"
            found += [_line(wire) for wire in self._rest.pages(path, GiteaLine)] if review.comments_count else []
        return sorted(found, key=lambda each: each.id)

    def reply(self, repository: str, number: int, answers: Mapping[str, str], text: str = "") -> None:
        """Answer comments on lines: with one review, which has a comment on each of those lines."""
        comments = []
        for thread, body in answers.items():
            path, _, line = thread.rpartition(":")
            place = {"old_position": int(line[1:])} if line.startswith("-") else {"new_position": int(line)}
            comments.append({"path": path, "body": body, **place})
        review = {"event": "COMMENT", "body": text, "comments": comments}
        self._rest.change("POST", f"{_place(repository)}/pulls/{number}/reviews", review)

    def merge(self, repository: str, number: int, *, commit: str, method: MergeMethod) -> None:
        """Merge a request; waits while Gitea computes whether it can be merged."""
        path = f"{_place(repository)}/pulls/{number}/merge"
        for attempt in range(_MERGE_CHECKS):
            try:
                self._rest.change("POST", path, {"Do": method, "head_commit_id": commit})
                return
            except ForgeError as error:
                if "try again later" not in error.message or attempt == _MERGE_CHECKS - 1:
                    raise
            self._setup.sleep(_MERGE_CHECK_SECONDS)

    # Statuses, files and hooks

    def statuses(self, repository: str, commit: str) -> Sequence[CommitStatus]:
        """Return the latest state of each check of a commit; jobs of Gitea's actions are among them."""
        path = f"{_place(repository)}/commits/{segment(commit)}/status"
        found: dict[str, CommitStatus] = {}
        for page in self._rest.numbered(path, GiteaStatuses, limit=self._page):
            found |= {wire.context: _status(wire, commit) for wire in page.statuses or ()}
            if len(page.statuses or ()) < self._page:
                break
        return sorted(found.values(), key=lambda each: each.context)

    def set_status(self, repository: str, commit: str, status: CommitStatus) -> None:
        """Set the state of a check."""
        body = {
            "context": status.context,
            "state": status.state,
            "description": status.description,
            "target_url": status.url,
        }
        try:
            self._rest.change("POST", f"{_place(repository)}/statuses/{segment(commit)}", body)
        except ForgeError as error:
            if error.problem == "broken":  # Gitea 1.26 answers 500 for a commit that does not exist
                self._rest.read(f"{_place(repository)}/git/commits/{segment(commit)}", GiteaSha, stat="false")
            raise

    def read_log(self, repository: str, status: CommitStatus, *, most: int = 65_536) -> str:
        """Return the end of the log of a job of Gitea's actions, found by its commit and name."""
        commit, _, context = status.log.partition(" ")
        if not commit:
            return ""
        place = f"{_place(repository)}/actions"
        for run in self._rest.read(f"{place}/runs", GiteaRuns, head_sha=commit).workflow_runs:
            for job in self._rest.read(f"{place}/runs/{run.id}/jobs", GiteaRuns).jobs:
                if f"/ {job.name} (" in f"{context} (":
                    return self._rest.tail(f"{place}/jobs/{job.id}/logs", most)
        return ""

    def attach(self, repository: str, number: int, name: str, content: bytes, *, is_request: bool = False) -> str:
        """Attach a file to an issue or request and return its address."""
        path = f"{_place(repository)}/issues/{number}/assets"
        for known in self._rest.read(path, list[WireAsset], fresh=True):
            if known.name == name:
                return known.browser_download_url
        reply = self._rest.send_change("POST", path, *multipart("attachment", name, content))
        found: WireAsset = self._rest.decode(reply, WireAsset, change=True)
        return found.browser_download_url

    def ensure_hook(self, repository: str, address: str, secret: str) -> None:
        """Have the forge post its events to an address."""
        self.remove_hook(repository, address)  # Gitea cannot change a secret
        config = {"url": address, "content_type": "json", "secret": secret}
        body = {"type": "gitea", "active": True, "events": _HOOK_EVENTS, "config": config}
        self._rest.change("POST", f"{_place(repository)}/hooks", body)

    def remove_hook(self, repository: str, address: str) -> None:
        """Remove the hook of an address."""
        path = f"{_place(repository)}/hooks"
        for hook in [hook for hook in self._rest.pages(path, WireHook) if hook.config.get("url") == address]:
            self._repeatable("DELETE", f"{path}/{hook.id}")

    def _repeatable(self, method: str, path: str) -> None:
        try:
            self._rest.change(method, path)
        except ForgeError as error:
            if error.problem != "missing":
                raise

    def _label_ids(self, repository: str, names: Sequence[str]) -> list[int]:
        path = f"{_place(repository)}/labels"
        known = {label.name: label.id for label in self._rest.pages(path, WireLabel, limit=self._page)}
        for name in names:
            if name not in known:
                body = {"name": name, "color": _LABEL_COLOR}
                known[name] = self._rest.change("POST", path, body, kind=WireLabel).id
        return [known[name] for name in names]

    def _reviews(self, repository: str, number: int) -> list[WireReview]:
        path = f"{_place(repository)}/pulls/{number}/reviews"
        return list(self._rest.pages(path, WireReview, limit=self._page))


def _place(repository: str) -> str:
    return f"/repos/{repository_path(repository)}"


def _plain_title(wire: WirePull) -> str:
    return _DRAFT.sub("", wire.title, count=1) if wire.draft and _DRAFT.match(wire.title) else wire.title


def _request(wire: WirePull, *, mergeable: bool | None = None) -> ForgeRequest:
    return to_request(wire, title=_plain_title(wire), mergeable=mergeable)


def _line(wire: GiteaLine) -> ReviewComment:
    place = str(wire.position) if wire.position else f"-{wire.original_position}"
    return ReviewComment(
        id=wire.id,
        thread=f"{wire.path}:{place}",
        author=login_of(wire.user),
        body=wire.body or "",
        path=wire.path,
        line=wire.position or None,
        created=wire.created_at,
        resolved=wire.resolver is not None,
    )


def _status(wire: GiteaStatus, commit: str) -> CommitStatus:
    return CommitStatus(
        context=wire.context,
        state=_STATES.get(wire.status, "pending"),
        description=wire.description,
        url=wire.target_url,
        log=f"{commit} {wire.context}" if _JOB.fullmatch(wire.target_url) else "",
    )


def _refine(reply: WebReply, text: str, problem: ForgeProblem) -> ForgeProblem:
    # Gitea answers 403 as well for its rules; only its words distinguish them from a missing right.
    rules: tuple[str, ...] = ("locked issue", "default branch", "protected", "archived")
    return "refused" if problem == "forbidden" and any(rule in text for rule in rules) else problem


KIND = ForgeKind(
    open=GiteaForge,
    parse=parse_issues_and_pulls,
    token="GITEA_TOKEN",
    scopes=("write:repository", "write:issue", "read:user"),
    token_page="/user/settings/applications",
)
