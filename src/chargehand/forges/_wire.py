"""The documents of GitHub's and Gitea's interfaces, which share most fields, and their conversion."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from chargehand.forges.contract import (
    ForgeComment,
    ForgeIssue,
    ForgeRepository,
    ForgeRequest,
    ForgeReview,
    MergeMethod,
    ReviewState,
    Right,
)

REVIEW_STATES: Mapping[str, ReviewState] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "changes",
    "REQUEST_CHANGES": "changes",
    "COMMENTED": "commented",
    "COMMENT": "commented",
    "DISMISSED": "dismissed",
}


class WireUser(Struct, frozen=True):
    """An account."""

    login: str = ""


class WireLabel(Struct, frozen=True):
    """A label."""

    name: str = ""
    id: int = 0


class WireRights(Struct, frozen=True):
    """The rights of the token's account."""

    admin: bool = False
    push: bool = False
    pull: bool = False


class WireRepository(Struct, frozen=True):
    """A repository; GitHub and Gitea name the kinds of merges differently."""

    full_name: str = ""
    html_url: str = ""
    clone_url: str = ""
    ssh_url: str = ""
    default_branch: str | None = None
    archived: bool = False
    empty: bool = False
    size: int = 0
    permissions: WireRights | None = None
    allow_merge_commit: bool | None = None
    allow_merge_commits: bool | None = None
    allow_squash_merge: bool | None = None
    allow_rebase_merge: bool | None = None
    allow_rebase: bool | None = None


class WireIssue(Struct, frozen=True):
    """An issue, or a request seen as one."""

    number: int
    title: str
    state: str
    updated_at: datetime
    html_url: str = ""
    body: str | None = None
    user: WireUser | None = None
    labels: list[WireLabel] | None = None
    assignees: list[WireUser] | None = None
    locked: bool = False
    is_locked: bool = False
    pull_request: Any = None
    repository_url: str = ""
    comments: int | None = None


class WireComment(Struct, frozen=True):
    """A comment of an issue."""

    id: int
    created_at: datetime
    updated_at: datetime
    body: str | None = None
    user: WireUser | None = None
    html_url: str = ""


class WireEnd(Struct, frozen=True):
    """A branch of a request; Gitea replaces `ref` once the branch is deleted, and keeps its name in `label`."""

    ref: str
    sha: str
    label: str = ""
    repo: WireRepository | None = None


class WirePull(Struct, frozen=True):
    """A request."""

    number: int
    title: str
    state: str
    head: WireEnd
    base: WireEnd
    html_url: str = ""
    body: str | None = None
    user: WireUser | None = None
    draft: bool = False
    merged_at: datetime | None = None
    merge_commit_sha: str | None = None
    mergeable: bool | None = None
    updated_at: datetime | None = None
    node_id: str = ""


class WireReview(Struct, frozen=True):
    """A review."""

    id: int
    state: str
    user: WireUser | None = None
    body: str | None = None
    commit_id: str | None = None
    submitted_at: datetime | None = None
    dismissed: bool = False
    comments_count: int | None = None


class WireHook(Struct, frozen=True):
    """A hook."""

    id: int
    config: Mapping[str, Any] = {}


class WirePermission(Struct, frozen=True):
    """The right of a person to a repository."""

    permission: str = "none"
    role_name: str = ""


class WireAsset(Struct, frozen=True):
    """An attached file."""

    name: str = ""
    browser_download_url: str = ""


def login_of(user: WireUser | None) -> str:
    """Return the login of an account; GitHub calls that of deleted ones `ghost`."""
    return user.login if user else "ghost"


def to_repository(wire: WireRepository) -> ForgeRepository:
    """Return a repository as the contract has it."""
    given = wire.permissions or WireRights()
    right: Right = "admin" if given.admin else "write" if given.push else "read" if given.pull else "none"
    allowed: dict[MergeMethod, bool] = {
        # An account without the right `write` is not shown the settings.
        "merge": wire.allow_merge_commit is not False and wire.allow_merge_commits is not False,
        "squash": wire.allow_squash_merge is not False,
        "rebase": wire.allow_rebase_merge is not False and wire.allow_rebase is not False,
    }
    return ForgeRepository(
        name=wire.full_name,
        url=wire.html_url,
        clone_url=wire.clone_url,
        ssh_url=wire.ssh_url,
        default_branch=None if wire.empty else wire.default_branch,
        archived=wire.archived,
        right=right,
        merge_methods=tuple(method for method, is_allowed in allowed.items() if is_allowed),
    )


def to_issue(wire: WireIssue, repository: str) -> ForgeIssue:
    """Return an issue as the contract has it."""
    return ForgeIssue(
        repository=repository,
        number=wire.number,
        url=wire.html_url,
        title=wire.title,
        body=wire.body or "",
        author=login_of(wire.user),
        is_open=wire.state == "open",
        updated=wire.updated_at,
        labels=tuple(label.name for label in wire.labels or ()),
        assignees=tuple(user.login for user in wire.assignees or ()),
        locked=wire.locked or wire.is_locked,
        comments=wire.comments,
    )


def to_comment(wire: WireComment) -> ForgeComment:
    """Return a comment as the contract has it."""
    return ForgeComment(
        id=wire.id,
        author=login_of(wire.user),
        body=wire.body or "",
        created=wire.created_at,
        updated=wire.updated_at,
        url=wire.html_url,
    )


def to_request(wire: WirePull, *, title: str = "", mergeable: bool | None = None) -> ForgeRequest:
    """Return a request as the contract has it; `title` replaces one with a prefix."""
    return ForgeRequest(
        number=wire.number,
        url=wire.html_url,
        title=title or wire.title,
        body=wire.body or "",
        author=login_of(wire.user),
        head=wire.head.label.rpartition(":")[2] or wire.head.ref,
        head_repository=wire.head.repo.full_name if wire.head.repo else "",
        head_commit=wire.head.sha,
        base=wire.base.ref,
        is_open=wire.state == "open",
        draft=wire.draft,
        merged=wire.merge_commit_sha if wire.merged_at else None,
        mergeable=mergeable,
        updated=wire.updated_at,
    )


def to_reviews(wires: list[WireReview]) -> list[ForgeReview]:
    """Return the submitted reviews as the contract has them, by id."""
    found = [
        ForgeReview(
            id=wire.id,
            author=login_of(wire.user),
            state="dismissed" if wire.dismissed else REVIEW_STATES[wire.state],
            body=wire.body or "",
            commit=wire.commit_id or "",
            submitted=wire.submitted_at,
        )
        for wire in wires
        if wire.state in REVIEW_STATES and wire.submitted_at
    ]
    return sorted(found, key=lambda review: review.id)
