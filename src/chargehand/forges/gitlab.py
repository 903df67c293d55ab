"""GitLab, by its REST interface (version 4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from chargehand.core.text import printable
from chargehand.forges._gitlab_wire import (
    GitlabApprovals,
    GitlabBranch,
    GitlabDiscussion,
    GitlabHook,
    GitlabIssue,
    GitlabMember,
    GitlabMerge,
    GitlabNote,
    GitlabProject,
    GitlabStatus,
    GitlabToken,
    GitlabUpload,
    GitlabUser,
    GitlabVersion,
    login_of,
    to_comment,
    to_issue,
    to_line,
)
from chargehand.forges._rest import RestClient, multipart, segment
from chargehand.forges.addresses import parse_gitlab
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
    ReviewState,
    Right,
    StatusState,
)
from chargehand.network.http_client import WebReply

_PAGE = 100
_SCOPES = ("api",)
_DRAFT = re.compile(r"(?:\[draft\]|\(draft\)|draft:|draft\b -?)\s*", re.IGNORECASE)
_UNCHECKED = ("unchecked", "checking", "preparing", "")
# The texts of notes that only GitLab itself writes.
_REVIEWS: Mapping[str, ReviewState] = {
    "approved this merge request": "approved",
    "requested changes": "changes",
    "left review comments": "commented",
}
_STATES: Mapping[str, StatusState] = {
    **dict.fromkeys(("success", "skipped"), "success"),
    "failed": "failure",
    "canceled": "error",
}
_GITLAB_STATES: Mapping[StatusState, str] = {
    "pending": "pending",
    "success": "success",
    "failure": "failed",
    "error": "canceled",
}


class GitlabForge:
    """One account at a GitLab server.

    Reviews are known from the notes that GitLab writes about them, and have no text: that is an ordinary comment.
    An issue that moved to another project is seen as closed: only administrators can look up its new place.
    """

    kind = "gitlab"

    def __init__(self, setup: ForgeSetup, *, page: int = _PAGE) -> None:
        self.url = setup.url.rstrip("/")
        self._setup, self._page = setup, page
        self._ids: dict[str, int] = {}  # of people who wrote something
        headers = {"authorization": f"Bearer {setup.token}"} if setup.token else {}
        base = setup.api.rstrip("/") or f"{self.url}/api/v4"
        self._rest = RestClient(setup, base, headers, refine=_refine)

    def close(self) -> None:
        """Close all connections."""
        self._rest.close()

    def start_visit(self) -> None:
        """Read afresh, and answer repeated reads of this visit from memory."""
        self._rest.start_visit()

    def account(self) -> ForgeAccount:
        """Return the account of the token."""
        login = self._rest.read("/user", GitlabUser, fresh=True).username
        try:
            scopes = self._rest.read("/personal_access_tokens/self", GitlabToken, fresh=True).scopes
        except ForgeError as error:
            if error.is_transient:
                raise
            return ForgeAccount(login=login)  # a token of another kind
        return ForgeAccount(login=login, lacks=tuple(each for each in _SCOPES if each not in scopes))

    def git_login(self) -> GitLogin | None:
        """Return the login for git."""
        return self._setup.git_login("oauth2")

    def repository(self, repository: str) -> ForgeRepository:
        """Return a repository."""
        wire = self._rest.read(_place(repository), GitlabProject)
        given = wire.permissions
        roles = (given.project_access, given.group_access) if given else ()
        levels = [each.access_level for each in roles if each]
        merge: MergeMethod = "rebase" if wire.merge_method == "ff" else "merge"
        return ForgeRepository(
            name=wire.path_with_namespace,
            url=wire.web_url,
            clone_url=wire.http_url_to_repo,
            ssh_url=wire.ssh_url_to_repo,
            default_branch=None if wire.empty_repo else wire.default_branch,
            archived=wire.archived,
            right=_right(max(levels, default=10)),  # whoever sees it can read it
            merge_methods=(merge,) if wire.squash_option == "never" else (merge, "squash"),
        )

    def right(self, repository: str, login: str) -> Right:
        """Return the present right of a member; `none` for others, who may read a public repository."""
        place = _place(repository)
        known = self._ids.get(login)
        right = None if known is None else self._member_right(place, known, login)
        if right is None:
            number = self._user_id(login)
            # A person without an account, or the account that was just found not to be a member.
            right = None if number in (None, known) else self._member_right(place, number, login)
        if right is None:
            self._rest.read(place, GitlabProject)  # raises if the repository is missing, not the person
        return right or "none"

    def _member_right(self, place: str, number: int, login: str) -> Right | None:
        """Return the right of the account with a number, `None` if it is no member or has another name by now."""
        self._ids.pop(login, None)
        try:
            found = self._rest.read(f"{place}/members/all/{number}", GitlabMember, fresh=True)
        except ForgeError as error:
            if error.problem != "missing":
                raise
            return None
        if found.username.lower() != login.lower():
            return None
        self._ids[login] = number
        return _right(found.access_level)

    # Issues

    def issues(
        self, repository: str, *, label: str = "", assignee: str = "", since: datetime | None = None
    ) -> Iterator[ForgeIssue]:
        """Yield the open issues, the least recently updated first."""
        query: dict[str, object] = {"state": "opened", "order_by": "updated_at", "sort": "asc"}
        query |= {"labels": label, "updated_after": since.isoformat() if since else "", "per_page": self._page}
        if assignee:
            query["assignee_id"] = self._user_id(assignee)
            if query["assignee_id"] is None:
                return
        for wire in self._rest.pages(f"{_place(repository)}/issues", GitlabIssue, **query):
            if not label or label in wire.labels:
                self._know(wire.author)
                yield to_issue(wire, repository)

    def issue(self, repository: str, number: int) -> ForgeIssue:
        """Return an issue."""
        wire = self._rest.read(_item(repository, number), GitlabIssue)
        self._know(wire.author)
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
        """Change labels, assignees or state of an issue or request; GitLab creates missing labels."""
        path = _item(repository, number, is_request)
        kind: type[GitlabIssue | GitlabMerge] = GitlabMerge if is_request else GitlabIssue
        before = self._rest.read(path, kind, fresh=True)
        if any("," in label for label in add_labels):
            raise ForgeError("invalid", "a label of GitLab cannot contain a comma")
        change: dict[str, object] = {}
        if new := [label for label in add_labels if label not in before.labels]:
            change["add_labels"] = ",".join(new)
        if old := [label for label in remove_labels if label in before.labels]:
            change["remove_labels"] = ",".join(old)
        people = {user.username: user.id for user in before.assignees}
        wanted = {each: people.get(each) or self._require_user(each) for each in (*people, *assign)}
        ids = [number for login, number in wanted.items() if login not in unassign]
        if set(ids) != set(people.values()):
            change["assignee_ids"] = ids or [0]  # 0 removes all
        if is_open is not None and is_open != (before.state == "opened"):
            change["state_event"] = "reopen" if is_open else "close"
        if change:
            self._change(repository, "PUT", path, change)

    # Comments

    def comments(self, repository: str, number: int, *, is_request: bool = False) -> Sequence[ForgeComment]:
        """Return all comments of an issue or request, by id; without GitLab's own notes and those on lines."""
        if is_request:
            notes = [note for _, note in self._talk(repository, number)]
        else:
            query = {"sort": "asc", "order_by": "created_at", "per_page": self._page}
            notes = list(self._rest.pages(f"{_item(repository, number)}/notes", GitlabNote, **query))
        for note in notes:
            self._know(note.author)
        found = [to_comment(note) for note in notes if not note.system and note.type != "DiffNote"]
        return sorted(found, key=lambda each: each.id)

    def _talk(self, repository: str, number: int) -> list[tuple[str, GitlabNote]]:
        """Return all notes of a request with their threads: comments, those on lines, and GitLab's own."""
        path = f"{_item(repository, number, True)}/discussions"
        threads = self._rest.pages(path, GitlabDiscussion, per_page=self._page)
        found = [(thread.id, note) for thread in threads for note in thread.notes]
        for _, note in found:
            self._know(note.author)
        return found

    def _know(self, user: GitlabUser | None) -> None:
        """Keep the number of an account, by which its right is read; the name is compared then."""
        if user is not None and user.id:
            self._ids[user.username] = user.id

    def add_comment(self, repository: str, number: int, body: str, *, is_request: bool = False) -> ForgeComment:
        """Add a comment."""
        path = _item(repository, number, is_request)
        try:
            return to_comment(self._change(repository, "POST", f"{path}/notes", {"body": body}, kind=GitlabNote))
        except ForgeError as error:
            if error.problem == "forbidden" and not is_request and self.issue(repository, number).locked:
                raise ForgeError("refused", f"issue {number} of {repository} is locked") from error
            raise

    def edit_comment(
        self, repository: str, number: int, comment: int, body: str, *, is_request: bool = False
    ) -> ForgeComment:
        """Replace the text of a comment of the account."""
        path = f"{_item(repository, number, is_request)}/notes/{comment}"
        return to_comment(self._change(repository, "PUT", path, {"body": body}, kind=GitlabNote))

    def delete_comment(self, repository: str, number: int, comment: int, *, is_request: bool = False) -> None:
        """Delete a comment of the account."""
        self._repeatable(repository, "DELETE", f"{_item(repository, number, is_request)}/notes/{comment}")

    # Branches and requests

    def branch(self, repository: str, name: str) -> str | None:
        """Return the commit of a branch."""
        path = f"{_place(repository)}/repository/branches/{segment(name)}"
        try:
            return self._rest.read(path, GitlabBranch, fresh=True).commit.id
        except ForgeError as error:
            if error.problem not in ("missing", "invalid"):
                raise
            self._rest.read(_place(repository), GitlabProject)  # raises if the repository is missing
            return None

    def find_requests(self, repository: str, head: str) -> Sequence[ForgeRequest]:
        """Return the requests from a branch, the newest first."""
        path, query = f"{_place(repository)}/merge_requests", {"state": "all", "source_branch": head}
        wires = self._rest.pages(path, GitlabMerge, **query, per_page=self._page)
        found = [_request(wire, repository) for wire in wires if wire.source_project_id == wire.target_project_id]
        return sorted(found, key=lambda each: -each.number)

    def request(self, repository: str, number: int) -> ForgeRequest:
        """Return a request."""
        return _request(self._rest.read(_item(repository, number, True), GitlabMerge), repository)

    def open_request(self, repository: str, new: NewRequest) -> ForgeRequest:
        """Open a request."""
        body = {
            "title": f"Draft: {new.title}" if new.draft else new.title,
            "description": new.body,
            "source_branch": new.head,
            "target_branch": new.base,
        }
        path = f"{_place(repository)}/merge_requests"
        return _request(self._change(repository, "POST", path, body, kind=GitlabMerge), repository)

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
        """Change a request; GitLab keeps "draft" in the title."""
        path = _item(repository, number, True)
        if body is not None and title is None and draft is None and is_open is None and base is None:
            change: dict[str, object] = {"description": body}
            return _request(self._change(repository, "PUT", path, change, kind=GitlabMerge), repository)
        wire = self._rest.read(path, GitlabMerge, fresh=True)
        is_draft = wire.draft if draft is None else draft
        plain = _plain_title(wire) if title is None else title
        change = {}
        if title is not None or is_draft != wire.draft:
            change["title"] = f"Draft: {plain}" if is_draft else plain
        if body is not None:
            change["description"] = body
        if is_open is not None and is_open != (wire.state == "opened"):
            change["state_event"] = "reopen" if is_open else "close"
        if base is not None:
            change["target_branch"] = base
        if change:
            wire = self._change(repository, "PUT", path, change, kind=GitlabMerge)
        return _request(wire, repository)

    def ask_reviews(self, repository: str, number: int, logins: Sequence[str]) -> None:
        """Ask people for their reviews."""
        path = _item(repository, number, True)
        known = {user.username: user.id for user in self._rest.read(path, GitlabMerge, fresh=True).reviewers}
        wanted = {login: known.get(login) or self._require_user(login) for login in (*known, *logins)}
        if wanted != known:
            self._change(repository, "PUT", path, {"reviewer_ids": list(wanted.values())})

    # Reviews

    def reviews(self, repository: str, number: int) -> Sequence[ForgeReview]:
        """Return the reviews, by the id of GitLab's note; an approval that was withdrawn is `dismissed`."""
        path = _item(repository, number, True)
        notes = [note for _, note in self._talk(repository, number) if note.system and note.body in _REVIEWS]
        approving, versions = set[str](), list[GitlabVersion]()
        if any(_REVIEWS[note.body] == "approved" for note in notes):
            approvals = self._rest.read(f"{path}/approvals", GitlabApprovals, fresh=True)
            approving = {each.user.username for each in approvals.approved_by}
            read = self._rest.pages(f"{path}/versions", GitlabVersion, per_page=self._page)
            versions = sorted(read, key=lambda version: version.created_at)
        found = []
        for note in sorted(notes, key=lambda each: each.id):
            state, author = _REVIEWS[note.body], login_of(note.author)
            seen = [version.head_commit_sha for version in versions if version.created_at <= note.created_at]
            found.append(
                ForgeReview(
                    id=note.id,
                    author=author,
                    state="dismissed" if state == "approved" and author not in approving else state,
                    body="",
                    commit=seen[-1] if seen else "",
                    submitted=note.created_at,
                )
            )
        return found

    def review_comments(self, repository: str, number: int) -> Sequence[ReviewComment]:
        """Return all comments on lines, by id."""
        talk = self._talk(repository, number)
        found = [to_line(note, thread) for thread, note in talk if note.type == "DiffNote"]
        return sorted(found, key=lambda each: each.id)

    def reply(self, repository: str, number: int, answers: Mapping[str, str], text: str = "") -> None:
        """Answer comments on lines, each in its thread."""
        for thread, body in answers.items():
            path = f"{_item(repository, number, True)}/discussions/{segment(thread)}/notes"
            self._change(repository, "POST", path, {"body": body})
        if text:
            self.add_comment(repository, number, text, is_request=True)

    def merge(self, repository: str, number: int, *, commit: str, method: MergeMethod) -> None:
        """Merge a request; the project's settings choose between a merge commit and a fast-forward."""
        allowed = self.repository(repository).merge_methods
        if method not in allowed:
            raise ForgeError(
                "refused", f"{repository} does not allow {method}", hint=f"use {' or '.join(allowed)}"
            )
        body = {"sha": commit, "squash": method == "squash", "should_remove_source_branch": False}
        self._change(repository, "PUT", f"{_item(repository, number, True)}/merge", body)

    # Statuses, files and hooks

    def statuses(self, repository: str, commit: str) -> Sequence[CommitStatus]:
        """Return the latest state of each check of a commit: jobs of pipelines, and checks from outside."""
        path = f"{_place(repository)}/repository/commits/{segment(commit)}/statuses"
        found: dict[str, GitlabStatus] = {}
        for wire in self._rest.pages(path, GitlabStatus, per_page=self._page):
            if wire.name not in found or found[wire.name].id < wire.id:
                found[wire.name] = wire
        return [_status(found[name]) for name in sorted(found)]

    def set_status(self, repository: str, commit: str, status: CommitStatus) -> None:
        """Set the state of a check."""
        body = {"state": _GITLAB_STATES[status.state], "name": status.context, "description": status.description}
        body |= {"target_url": status.url} if status.url else {}
        try:
            self._change(repository, "POST", f"{_place(repository)}/statuses/{segment(commit)}", body)
        except ForgeError as error:
            if error.problem != "invalid":
                raise
            # GitLab refuses to set a state that the check already has.
            now = {each.context: each.state for each in self.statuses(repository, commit)}
            if now.get(status.context) != status.state:
                raise

    def read_log(self, repository: str, status: CommitStatus, *, most: int = 65_536) -> str:
        """Return the end of the log of a job."""
        if not status.log.isdecimal():
            return ""
        try:
            return self._rest.tail(f"{_place(repository)}/jobs/{status.log}/trace", most)
        except ForgeError as error:
            if error.problem == "missing":  # erased, or a check from outside
                return ""
            raise

    def attach(self, repository: str, number: int, name: str, content: bytes, *, is_request: bool = False) -> str:
        """Upload a file to the project and return its address; a repetition uploads it again, unseen by people."""
        reply = self._rest.send_change("POST", f"{_place(repository)}/uploads", *multipart("file", name, content))
        found: GitlabUpload = self._rest.decode(reply, GitlabUpload, change=True)
        return f"{self.url}{found.full_path or f'/{repository}{found.url}'}"

    def ensure_hook(self, repository: str, address: str, secret: str) -> None:
        """Have the forge post its events to an address."""
        path = f"{_place(repository)}/hooks"
        events = ("push", "issues", "note", "merge_requests", "pipeline", "job")
        body: dict[str, object] = {"url": address, "token": secret, **{f"{each}_events": True for each in events}}
        known = [hook for hook in self._rest.pages(path, GitlabHook) if hook.url == address]
        if known:
            self._change(repository, "PUT", f"{path}/{known[0].id}", body)
        else:
            self._change(repository, "POST", path, body)

    def remove_hook(self, repository: str, address: str) -> None:
        """Remove the hook of an address."""
        path = f"{_place(repository)}/hooks"
        for hook in [hook for hook in self._rest.pages(path, GitlabHook) if hook.url == address]:
            self._repeatable(repository, "DELETE", f"{path}/{hook.id}")

    def _change(self, repository: str, method: str, path: str, body: object = None, *, kind: Any = None) -> Any:
        try:
            return self._rest.change(method, path, body, kind=kind)
        except ForgeError as error:
            # GitLab's answer does not distinguish an archived project from a missing right.
            if error.problem == "forbidden" and self._rest.read(_place(repository), GitlabProject).archived:
                raise ForgeError("refused", f"{repository} is archived") from error
            raise

    def _repeatable(self, repository: str, method: str, path: str) -> None:
        try:
            self._change(repository, method, path)
        except ForgeError as error:
            if error.problem != "missing":
                raise

    def _user_id(self, login: str) -> int | None:
        found = self._rest.read("/users", list[GitlabUser], username=login)
        return next((user.id for user in found if user.username.lower() == login.lower()), None)

    def _require_user(self, login: str) -> int:
        found = self._user_id(login)
        if found is None:
            raise ForgeError("refused", f"there is no account {printable(login)!r}")
        return found


def _place(repository: str) -> str:
    parts = repository.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..", "-") for part in parts):
        raise ForgeError("invalid", f"not the name of a project: {printable(repository)!r}", hint="use GROUP/NAME")
    return f"/projects/{segment(repository)}"


def _item(repository: str, number: int, is_request: bool = False) -> str:
    return f"{_place(repository)}/{'merge_requests' if is_request else 'issues'}/{number}"


def _right(level: int) -> Right:
    return "admin" if level >= 40 else "write" if level >= 30 else "read" if level >= 10 else "none"


def _plain_title(wire: GitlabMerge) -> str:
    return _DRAFT.sub("", wire.title, count=1) if wire.draft and _DRAFT.match(wire.title) else wire.title


def _request(wire: GitlabMerge, repository: str) -> ForgeRequest:
    merged = wire.merge_commit_sha or wire.squash_commit_sha or wire.sha
    is_own = wire.source_project_id == wire.target_project_id
    return ForgeRequest(
        number=wire.iid,
        url=wire.web_url,
        title=_plain_title(wire),
        body=wire.description or "",
        author=login_of(wire.author),
        head=wire.source_branch,
        # A fork is known by its number only.
        head_repository=repository if is_own else str(wire.source_project_id or ""),
        head_commit=wire.sha or "",
        base=wire.target_branch,
        is_open=wire.state == "opened",
        draft=wire.draft,
        merged=merged if wire.state == "merged" else None,
        updated=wire.updated_at,
        mergeable=None if wire.detailed_merge_status in _UNCHECKED else not wire.has_conflicts,
    )


def _status(wire: GitlabStatus) -> CommitStatus:
    url = wire.target_url or ""
    return CommitStatus(
        context=wire.name,
        state=_STATES.get(wire.status, "pending"),
        description=wire.description or "",
        url=url,
        log=str(wire.id) if re.split(r"[?#]", url)[0].endswith(f"/-/jobs/{wire.id}") else "",
    )


def _refine(reply: WebReply, text: str, problem: ForgeProblem) -> ForgeProblem:
    if reply.status == 406:  # a request that cannot be merged, before GitLab 16
        return "refused"
    # GitLab answers 403 also for its rules; only its words distinguish them from a missing right.
    return "refused" if problem == "forbidden" and "protected branch" in text.lower() else problem


KIND = ForgeKind(
    open=GitlabForge,
    parse=parse_gitlab,
    url="https://gitlab.com",
    token="GITLAB_TOKEN",
    scopes=_SCOPES,
    prefixes=("glpat-", "glft-", "gloas-", "glagent-"),
    device=DeviceEndpoints(start="/oauth/authorize_device", token="/oauth/token", scopes=_SCOPES),
    token_page="/-/user_settings/personal_access_tokens",
)
