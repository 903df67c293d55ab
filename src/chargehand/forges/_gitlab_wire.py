"""The documents of GitLab's interface."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from chargehand.forges.contract import ForgeComment, ForgeIssue, ReviewComment


class GitlabUser(Struct, frozen=True):
    """An account."""

    username: str = ""
    id: int = 0


class GitlabToken(Struct, frozen=True):
    """The token of the account."""

    scopes: list[str] = []


class GitlabAccess(Struct, frozen=True):
    """A role: 10 guest, 20 reporter, 30 developer, 40 maintainer, 50 owner."""

    access_level: int = 0


class GitlabMember(Struct, frozen=True):
    """A member of a project, with the role as in `GitlabAccess`."""

    username: str
    access_level: int = 0


class GitlabPermissions(Struct, frozen=True):
    """The roles of the token's account."""

    project_access: GitlabAccess | None = None
    group_access: GitlabAccess | None = None


class GitlabProject(Struct, frozen=True):
    """A repository."""

    path_with_namespace: str
    web_url: str = ""
    http_url_to_repo: str = ""
    ssh_url_to_repo: str = ""
    default_branch: str | None = None
    empty_repo: bool = False
    archived: bool = False
    permissions: GitlabPermissions | None = None
    merge_method: str = "merge"
    squash_option: str = "default_off"


class GitlabIssue(Struct, frozen=True):
    """An issue."""

    iid: int
    title: str
    state: str
    updated_at: datetime
    description: str | None = None
    web_url: str = ""
    author: GitlabUser | None = None
    labels: list[str] = []
    assignees: list[GitlabUser] = []
    discussion_locked: bool | None = None
    user_notes_count: int | None = None


class GitlabPosition(Struct, frozen=True):
    """The place of a comment on a line."""

    new_path: str | None = None
    old_path: str | None = None
    new_line: int | None = None


class GitlabNote(Struct, frozen=True):
    """A comment; `system` marks those that GitLab wrote about an act of the author."""

    id: int
    created_at: datetime
    updated_at: datetime
    body: str = ""
    author: GitlabUser | None = None
    system: bool = False
    type: str | None = None
    resolved: bool = False
    position: GitlabPosition | None = None


class GitlabDiscussion(Struct, frozen=True):
    """A thread of comments."""

    id: str
    notes: list[GitlabNote] = []


class GitlabMerge(Struct, frozen=True):
    """A merge request."""

    iid: int
    title: str
    state: str
    source_branch: str
    target_branch: str
    description: str | None = None
    web_url: str = ""
    author: GitlabUser | None = None
    source_project_id: int | None = None
    target_project_id: int | None = None
    sha: str | None = None
    updated_at: datetime | None = None
    draft: bool = False
    merge_commit_sha: str | None = None
    squash_commit_sha: str | None = None
    detailed_merge_status: str = ""
    has_conflicts: bool = False
    reviewers: list[GitlabUser] = []
    labels: list[str] = []
    assignees: list[GitlabUser] = []


class GitlabVersion(Struct, frozen=True):
    """A state of a merge request's branch."""

    created_at: datetime
    head_commit_sha: str = ""


class GitlabApprover(Struct, frozen=True):
    """An approval."""

    user: GitlabUser


class GitlabApprovals(Struct, frozen=True):
    """The present approvals of a merge request."""

    approved_by: list[GitlabApprover] = []


class GitlabCommit(Struct, frozen=True):
    """A commit."""

    id: str


class GitlabBranch(Struct, frozen=True):
    """A branch."""

    commit: GitlabCommit


class GitlabStatus(Struct, frozen=True):
    """The state of a job or of a check from outside."""

    id: int
    name: str
    status: str
    description: str | None = None
    target_url: str | None = None


class GitlabUpload(Struct, frozen=True):
    """An uploaded file."""

    full_path: str = ""
    url: str = ""


class GitlabHook(Struct, frozen=True):
    """A hook."""

    id: int
    url: str


def login_of(user: GitlabUser | None) -> str:
    """Return the name of an account, "" for a deleted one."""
    return user.username if user else "ghost"


def to_issue(wire: GitlabIssue, repository: str) -> ForgeIssue:
    """Return an issue of the contract."""
    return ForgeIssue(
        repository=repository,
        number=wire.iid,
        url=wire.web_url,
        title=wire.title,
        body=wire.description or "",
        author=login_of(wire.author),
        is_open=wire.state == "opened",
        updated=wire.updated_at,
        labels=tuple(wire.labels),
        assignees=tuple(user.username for user in wire.assignees),
        locked=bool(wire.discussion_locked),
        comments=wire.user_notes_count,
    )


def to_comment(note: GitlabNote) -> ForgeComment:
    """Return a comment of the contract."""
    return ForgeComment(
        id=note.id,
        author=login_of(note.author),
        body=note.body,
        created=note.created_at,
        updated=note.updated_at,
    )


def to_line(note: GitlabNote, thread: str) -> ReviewComment:
    """Return a comment on a line, of the discussion `thread`."""
    position = note.position
    return ReviewComment(
        id=note.id,
        thread=thread,
        author=login_of(note.author),
        body=note.body,
        path=(position and (position.new_path or position.old_path)) or "",
        line=position.new_line if position else None,
        created=note.created_at,
        resolved=note.resolved,
    )
