"""GitHub and GitHub Enterprise, by the REST interface, and by GraphQL for drafts and for the talk on requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.core.codec import convert_to
from chargehand.forges._github_wire import (
    DRAFT,
    READY,
    TALK,
    GithubRef,
    GithubRun,
    GithubRuns,
    GithubStatus,
    GithubStatuses,
    GithubTalk,
    GraphAnswer,
    reply_mutation,
)
from chargehand.forges._rest import RestClient, repository_path, segment
from chargehand.forges._wire import (
    WireComment,
    WireHook,
    WireIssue,
    WirePermission,
    WirePull,
    WireRepository,
    WireUser,
    to_comment,
    to_issue,
    to_repository,
    to_request,
)
from chargehand.forges.addresses import github_api, parse_issues_and_pulls
from chargehand.forges.contract import (
    CommitStatus,
    DeviceEndpoints,
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

_PAGE, _MOST_PAGES = 100, 1_000
_VERSION = "2022-11-28"
_SCOPES = ("repo",)
_LONGEST_DESCRIPTION = 140
_CONCLUSIONS: Mapping[str, StatusState] = {
    **dict.fromkeys(("success", "neutral", "skipped"), "success"),
    **dict.fromkeys(("failure", "timed_out", "action_required", "startup_failure"), "failure"),
    **dict.fromkeys(("cancelled", "stale"), "error"),
}
_HOOK_EVENTS = (
    *("push", "issues", "issue_comment", "pull_request", "pull_request_review", "pull_request_review_comment"),
    *("status", "check_run"),
)


class GithubForge:
    """One account at GitHub or a GitHub Enterprise server."""

    kind = "github"

    def __init__(self, setup: ForgeSetup, *, page: int = _PAGE) -> None:
        self.url = setup.url.rstrip("/")
        self._setup, self._page = setup, page
        base = github_api(self.url, setup.api)
        # Enterprise servers have REST at /api/v3 and GraphQL at /api/graphql.
        self._graph_base = base.removesuffix("/v3")
        headers = {"accept": "application/vnd.github+json", "x-github-api-version": _VERSION}
        if setup.token:
            headers["authorization"] = f"Bearer {setup.token}"
        self._rest = RestClient(setup, base, headers, refine=_refine)
        self._graph = RestClient(setup, self._graph_base, headers)

    def close(self) -> None:
        """Close all connections."""
        self._rest.close()
        self._graph.close()

    def start_visit(self) -> None:
        """Read afresh, and answer repeated reads of this visit from memory."""
        self._rest.start_visit()

    def account(self) -> ForgeAccount:
        """Return the account of the token; fine-grained tokens do not say what they lack."""
        if self._setup.account is not None:
            return self._setup.account
        reply = self._rest.get(f"{self._rest.base}/user", fresh=True)
        user: WireUser = self._rest.decode(reply, WireUser)
        given = reply.headers.get("x-oauth-scopes")
        scopes = {each.strip() for each in (given or "").split(",")}
        # Tokens that a GitHub App got for a person have permissions in place of scopes.
        is_unknown = given is None or self._setup.token.startswith("ghu_")
        lacks = None if is_unknown else tuple(each for each in _SCOPES if each not in scopes)
        return ForgeAccount(login=user.login, lacks=lacks)

    def git_login(self) -> GitLogin | None:
        """Return the login for git."""
        return self._setup.git_login("x-access-token")

    def repository(self, repository: str) -> ForgeRepository:
        """Return a repository."""
        wire = self._rest.read(_place(repository), WireRepository)
        found = to_repository(wire)
        if self._setup.account is not None:
            found = msgspec.structs.replace(found, right=self._own_right())
        # GitHub names a default branch also for a repository without commits, whose size is 0.
        if not wire.size and wire.default_branch and self._commit(wire.full_name, wire.default_branch) is None:
            return msgspec.structs.replace(found, default_branch=None)
        return found

    def right(self, repository: str, login: str) -> Right:
        """Return the present right of a person."""
        if self._setup.account is not None and login.lower() == self._setup.account.login.lower():
            return self._own_right()
        path = f"{_place(repository)}/collaborators/{segment(login)}/permission"
        try:
            found = self._rest.read(path, WirePermission, fresh=True).permission
        except ForgeError as error:
            if error.problem != "missing":
                raise
            self._rest.read(_place(repository), WireRepository)  # raises if the repository is missing
            return "none"
        rights: dict[str, Right] = {"admin": "admin", "write": "write", "read": "read"}
        return rights.get(found, "none")

    # Issues

    def issues(
        self, repository: str, *, label: str = "", assignee: str = "", since: datetime | None = None
    ) -> Iterator[ForgeIssue]:
        """Yield the open issues, the least recently updated first."""
        query = {"state": "open", "sort": "updated", "direction": "asc", "per_page": self._page}
        query |= {"assignee": assignee, "labels": "" if "," in label else label}
        query |= {"since": since.isoformat().replace("+00:00", "Z") if since else ""}
        for wire in self._rest.pages(f"{_place(repository)}/issues", WireIssue, **query):
            issue = to_issue(wire, repository)
            if wire.pull_request is None and (not label or label in issue.labels):
                yield issue

    def issue(self, repository: str, number: int) -> ForgeIssue:
        """Return an issue, also if it was transferred to a repository that the token can read."""
        wire = self._rest.read_moved(f"{_place(repository)}/issues/{number}", WireIssue)
        if wire.pull_request is not None:
            raise ForgeError("missing", f"{number} of {repository} is a request")
        return to_issue(wire, "/".join(wire.repository_url.split("/")[-2:]) or repository)

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
        """Change labels, assignees or state of an issue or request; GitHub creates missing labels."""
        path = f"{_place(repository)}/issues/{number}"
        if add_labels:
            self._rest.change("POST", f"{path}/labels", {"labels": list(add_labels)})
        for label in dict.fromkeys(remove_labels):
            self._repeatable("DELETE", f"{path}/labels/{segment(label)}")
        if assign:
            body = {"assignees": list(assign)}
            now = to_issue(self._rest.change("POST", f"{path}/assignees", body, kind=WireIssue), repository)
            # GitHub ignores people who cannot be assigned, without an error.
            ignored = {each.lower() for each in assign} - {each.lower() for each in now.assignees}
            if ignored:
                raise ForgeError("refused", f"{min(ignored)!r} cannot be assigned in {repository}")
        if unassign:
            self._rest.change("DELETE", f"{path}/assignees", {"assignees": list(unassign)})
        if is_open is not None:
            self._rest.change("PATCH", path, {"state": "open" if is_open else "closed"})

    # Comments

    def comments(self, repository: str, number: int, *, is_request: bool = False) -> Sequence[ForgeComment]:
        """Return all comments of an issue or request, by id."""
        if is_request:
            return self._talk(repository, number).to_comments()
        path = f"{_place(repository)}/issues/{number}/comments"
        found = self._rest.pages(path, WireComment, per_page=self._page)
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

    def branch(self, repository: str, name: str) -> str | None:
        """Return the commit of a branch."""
        found = self._commit(repository, name)
        if found is None:
            self._rest.read(_place(repository), WireRepository)  # raises if the repository is missing
        return found

    def find_requests(self, repository: str, head: str) -> Sequence[ForgeRequest]:
        """Return the requests from a branch, the newest first."""
        owner = repository.partition("/")[0]
        query = {"state": "all", "head": f"{owner}:{head}", "per_page": self._page}
        found = [to_request(wire) for wire in self._rest.pages(f"{_place(repository)}/pulls", WirePull, **query)]
        same = [each for each in found if each.head == head and each.head_repository in ("", repository)]
        return sorted(same, key=lambda each: -each.number)

    def request(self, repository: str, number: int) -> ForgeRequest:
        """Return a request."""
        wire = self._rest.read(f"{_place(repository)}/pulls/{number}", WirePull)
        return to_request(wire, mergeable=wire.mergeable)

    def open_request(self, repository: str, new: NewRequest) -> ForgeRequest:
        """Open a request."""
        body = msgspec.structs.asdict(new)
        return to_request(self._rest.change("POST", f"{_place(repository)}/pulls", body, kind=WirePull))

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
        """Change a request."""
        path = f"{_place(repository)}/pulls/{number}"
        state = None if is_open is None else "open" if is_open else "closed"
        given = {"title": title, "body": body, "state": state, "base": base}
        change = {name: value for name, value in given.items() if value is not None}
        if change:
            wire: WirePull = self._rest.change("PATCH", path, change, kind=WirePull)
        else:
            wire = self._rest.read(path, WirePull, fresh=True)
        if draft is not None and draft != wire.draft:
            self._ask_graph(DRAFT if draft else READY, {"id": wire.node_id}, is_change=True)
            wire = msgspec.structs.replace(wire, draft=draft)
        return to_request(wire, mergeable=wire.mergeable)

    def ask_reviews(self, repository: str, number: int, logins: Sequence[str]) -> None:
        """Ask people for their reviews."""
        path = f"{_place(repository)}/pulls/{number}/requested_reviewers"
        self._rest.change("POST", path, {"reviewers": list(logins)})

    # Reviews

    def reviews(self, repository: str, number: int) -> Sequence[ForgeReview]:
        """Return the submitted reviews, by id."""
        return self._talk(repository, number).to_reviews()

    def review_comments(self, repository: str, number: int) -> Sequence[ReviewComment]:
        """Return all comments on lines, by id."""
        return self._talk(repository, number).to_lines()

    def reply(self, repository: str, number: int, answers: Mapping[str, str], text: str = "") -> None:
        """Answer comments on lines, each in its thread, with one request."""
        threads = {f"t{place}": thread for place, thread in enumerate(answers)}
        texts = {f"b{place}": text for place, text in enumerate(answers.values())}
        self._ask_graph(reply_mutation(len(answers)), threads | texts, is_change=True)
        if text:
            self.add_comment(repository, number, text, is_request=True)

    def merge(self, repository: str, number: int, *, commit: str, method: MergeMethod) -> None:
        """Merge a request."""
        body = {"sha": commit, "merge_method": method}
        self._rest.change("PUT", f"{_place(repository)}/pulls/{number}/merge", body)

    # Statuses, files and hooks

    def statuses(self, repository: str, commit: str) -> Sequence[CommitStatus]:
        """Return the latest state of each check of a commit: commit statuses and check runs."""
        path = f"{_place(repository)}/commits/{segment(commit)}"
        found: dict[str, CommitStatus] = {}
        for page in self._rest.numbered(f"{path}/status", GithubStatuses, per_page=self._page):
            found |= {each.context: _status(each) for each in page.statuses}
            if len(page.statuses) < self._page:
                break
        for runs in self._rest.numbered(f"{path}/check-runs", GithubRuns, per_page=self._page):
            found |= {each.name: _run(each) for each in runs.check_runs}
            if len(runs.check_runs) < self._page:
                break
        return sorted(found.values(), key=lambda each: each.context)

    def set_status(self, repository: str, commit: str, status: CommitStatus) -> None:
        """Set the state of a check, with at most 140 characters of its description."""
        body = {
            "context": status.context,
            "state": status.state,
            "description": status.description[:_LONGEST_DESCRIPTION],
            "target_url": status.url or None,
        }
        self._rest.change("POST", f"{_place(repository)}/statuses/{segment(commit)}", body)

    def read_log(self, repository: str, status: CommitStatus, *, most: int = 65_536) -> str:
        """Return the end of the log of a job of Actions."""
        if not status.log.isdecimal():
            return ""
        try:
            return self._rest.tail(f"{_place(repository)}/actions/jobs/{status.log}/logs", most)
        except ForgeError as error:
            if error.problem == "missing":  # GitHub removes logs after some weeks
                return ""
            raise

    def attach(self, repository: str, number: int, name: str, content: bytes, *, is_request: bool = False) -> str:
        """Return "": GitHub's interface has no attachments."""
        return ""

    def ensure_hook(self, repository: str, address: str, secret: str) -> None:
        """Have the forge post its events to an address."""
        path = f"{_place(repository)}/hooks"
        config = {"url": address, "content_type": "json", "secret": secret}
        body = {"active": True, "events": _HOOK_EVENTS, "config": config}
        known = [hook for hook in self._rest.pages(path, WireHook) if hook.config.get("url") == address]
        if known:
            self._rest.change("PATCH", f"{path}/{known[0].id}", body)
        else:
            self._rest.change("POST", path, {"name": "web", **body})

    def remove_hook(self, repository: str, address: str) -> None:
        """Remove the hook of an address."""
        path = f"{_place(repository)}/hooks"
        for hook in [hook for hook in self._rest.pages(path, WireHook) if hook.config.get("url") == address]:
            self._repeatable("DELETE", f"{path}/{hook.id}")

    def _own_right(self) -> Right:
        # An App is no collaborator: its installation's permissions count, and its token is for one repository.
        lacks = self._setup.account.lacks if self._setup.account else ()
        return "read" if "contents: write" in (lacks or ()) else "write"

    def _commit(self, repository: str, name: str) -> str | None:
        try:
            path = f"{_place(repository)}/git/ref/heads/{quote(name)}"
            return self._rest.read(path, GithubRef, fresh=True).object.sha
        except ForgeError as error:
            # An empty repository answers 409.
            if error.problem in ("missing", "refused", "invalid"):
                return None
            raise

    def _repeatable(self, method: str, path: str) -> None:
        try:
            self._rest.change(method, path)
        except ForgeError as error:
            if error.problem != "missing":
                raise

    def _talk(self, repository: str, number: int) -> GithubTalk:
        """Return all that people wrote on a request, which GraphQL has in one answer, with resolved threads."""
        return self._rest.once(f"talk {repository} {number}", lambda: self._read_talk(repository, number))

    def _read_talk(self, repository: str, number: int) -> GithubTalk:
        owner, _, name = repository.partition("/")
        variables: dict[str, object] = {"owner": owner, "name": name, "number": number, "page": self._page}
        found: GithubTalk | None = None
        for _ in range(_MOST_PAGES):
            data = self._ask_graph(TALK, variables)
            try:
                page = convert_to(data["repository"]["pullRequest"], GithubTalk, strict=False)
            except (KeyError, TypeError, msgspec.ValidationError) as error:
                raise ForgeError("broken", "GitHub's answer about a request cannot be read") from error
            found = page if found is None else found.followed_by(page)
            if not any(each.has_next_page for each in page.pages().values()):
                return found
            # A list that has ended has nothing after its last position.
            variables |= {each: at.end_cursor for each, at in page.pages().items() if at.end_cursor}
        raise ForgeError("broken", f"the talk on a request has more than {_MOST_PAGES} pages")

    def _ask_graph(self, query: str, variables: Mapping[str, object], *, is_change: bool = False) -> Any:
        body = {"query": query, "variables": variables}
        answer: GraphAnswer = self._graph.change("POST", "/graphql", body, kind=GraphAnswer)
        if is_change:
            self._rest.forget()
        if not answer.errors:
            return answer.data
        problems: dict[str, ForgeProblem] = {
            "RATE_LIMITED": "rate_limited",
            "NOT_FOUND": "missing",
            "FORBIDDEN": "forbidden",
            "INSUFFICIENT_SCOPES": "forbidden",
        }
        first = answer.errors[0]
        problem = problems.get(first.type, "refused" if is_change else "broken")
        # One of several acts may be done.
        raise ForgeError(
            problem, f"GitHub's GraphQL: {self._graph.clean(first.message)}", may_have_acted=is_change
        )


def _place(repository: str) -> str:
    return f"/repos/{repository_path(repository)}"


def _status(wire: GithubStatus) -> CommitStatus:
    return CommitStatus(
        context=wire.context, state=wire.state, description=wire.description or "", url=wire.target_url or ""
    )


def _run(wire: GithubRun) -> CommitStatus:
    done = wire.status == "completed"
    return CommitStatus(
        context=wire.name,
        state=_CONCLUSIONS.get(wire.conclusion or "", "error") if done else "pending",
        description=(wire.output.title if wire.output else None) or "",
        url=wire.html_url or "",
        log=str(wire.id) if done and wire.app and wire.app.slug == "github-actions" else "",
    )


def _refine(reply: WebReply, text: str, problem: ForgeProblem) -> ForgeProblem:
    # GitHub answers 403 as well for its rules; only its words distinguish them from a missing right.
    if problem == "forbidden" and any(rule in text for rule in ("archived", "is locked")):
        return "refused"
    return "missing" if reply.status == 422 and "No commit found" in text else problem


KIND = ForgeKind(
    open=GithubForge,
    parse=parse_issues_and_pulls,
    url="https://github.com",
    token="GITHUB_TOKEN",
    scopes=_SCOPES,
    prefixes=("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    device=DeviceEndpoints(start="/login/device/code", token="/login/oauth/access_token", scopes=_SCOPES),
    token_page="/settings/tokens",
    has_apps=True,
)
