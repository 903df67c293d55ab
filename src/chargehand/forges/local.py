"""The local forge: a directory of this machine, for trials without a network and for tests.

It has no passwords: the token is the login of the acting person, and everyone with a right to a repository is an
account. So it protects nothing from the people who can write to its directory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from chargehand.forges._local_merge import closed_issues, find_branch, merge_heads, merged_tree, require_branch
from chargehand.forges.addresses import parse_issues_and_pulls
from chargehand.forges.contract import (
    CommitStatus,
    ForgeAccount,
    ForgeComment,
    ForgeError,
    ForgeIssue,
    ForgeKind,
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
)
from chargehand.forges.local_directory import LocalDirectory, LocalItem, LocalSettings, changed, now

_RANK: Mapping[str, int] = {"none": 0, "read": 1, "write": 2, "admin": 3}
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class LocalForge:
    """One person at a local forge; also what only people do at other forges, such as opening issues."""

    kind = "local"

    def __init__(self, root: Path, login: str = "") -> None:
        self.url = root.as_uri()
        self.directory = LocalDirectory(root)
        self._login = login

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def start_visit(self) -> None:
        """Do nothing: every read is a read of files."""

    def account(self) -> ForgeAccount:
        """Return the acting person: the token, or the first person with the right `admin`."""
        login = self._acting()
        self._require_person(login)
        return ForgeAccount(login=login, lacks=())

    def git_login(self) -> GitLogin | None:
        """Return `None`: git reads and writes the directory."""
        return None

    def repository(self, repository: str) -> ForgeRepository:
        """Return a repository."""
        settings = self._require(repository, "read")
        head = find_branch(self.directory, repository, settings.default_branch)
        return ForgeRepository(
            name=repository,
            url=f"{self.url}/{repository}",
            clone_url=self.directory.git_directory(repository).as_uri(),
            default_branch=settings.default_branch if head else None,
            archived=settings.archived,
            right=settings.rights.get(self._acting(), "none"),
            merge_methods=settings.merge_methods,
        )

    def right(self, repository: str, login: str) -> Right:
        """Return the present right of a person."""
        return self._require(repository, "read").rights.get(login, "none")

    # Issues

    def issues(
        self, repository: str, *, label: str = "", assignee: str = "", since: datetime | None = None
    ) -> Iterator[ForgeIssue]:
        """Yield the open issues, the least recently updated first."""
        self._require(repository, "read")
        found = [item for item in self.directory.items(repository) if not item.head and item.is_open]
        for item in sorted(found, key=lambda each: (each.updated, each.number)):
            wanted = (not label or label in item.labels) and (not assignee or assignee in item.assignees)
            if wanted and not item.moved_to and (since is None or item.updated >= since):
                yield self._issue(repository, item)

    def issue(self, repository: str, number: int) -> ForgeIssue:
        """Return an issue."""
        self._require(repository, "read")
        item = self.directory.item(repository, number)
        if item.moved_to:
            new, _, moved = item.moved_to.partition("#")
            return self.issue(new, int(moved))
        if item.head:
            raise ForgeError("missing", f"{number} of {repository} is a request")
        return self._issue(repository, item)

    def create_issue(self, repository: str, title: str, body: str = "", *, labels: Sequence[str] = ()) -> int:
        """Open an issue and return its number."""
        with self._change(repository, "read"):
            number = self.directory.new_number(repository)
            item = LocalItem(
                number=number, title=title, body=body, author=self._acting(), updated=now(), labels=tuple(labels)
            )
            self._save(repository, item)
        return number

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
        with self._change(repository, "write") as settings:
            unknown = [login for login in assign if login not in settings.rights]
            if unknown:
                raise ForgeError("refused", f"{unknown[0]!r} has no right to {repository}")
            item = self.directory.item(repository, number)
            labels = [each for each in dict.fromkeys((*item.labels, *add_labels)) if each not in remove_labels]
            people = [each for each in dict.fromkeys((*item.assignees, *assign)) if each not in unassign]
            opened = item.is_open if is_open is None else is_open
            self._save(
                repository, changed(item, labels=tuple(labels), assignees=tuple(people), is_open=opened), item
            )

    def lock_issue(self, repository: str, number: int, *, locked: bool = True) -> None:
        """Let only people with the right `write` comment."""
        with self._change(repository, "write"):
            item = self.directory.item(repository, number)
            self._save(repository, changed(item, locked=locked), item)

    # Comments

    def comments(self, repository: str, number: int, *, is_request: bool = False) -> Sequence[ForgeComment]:
        """Return all comments of an issue or request, by id."""
        self._require(repository, "read")
        self.directory.item(repository, number)
        return self.directory.read_all(repository, f"comments/{number}", ForgeComment)

    def add_comment(self, repository: str, number: int, body: str, *, is_request: bool = False) -> ForgeComment:
        """Add a comment."""
        with self._change(repository, "read") as settings:
            item = self.directory.item(repository, number)
            if item.locked and settings.rights.get(self._acting()) not in ("write", "admin"):
                raise ForgeError("refused", f"issue {number} of {repository} is locked")
            when, comment = now(), self.directory.new_id()
            url = f"{self._page(repository, item)}#comment-{comment}"
            new = ForgeComment(id=comment, author=self._acting(), body=body, created=when, updated=when, url=url)
            self.directory.save(repository, f"comments/{number}/{comment:012d}.json", new)
            self._save(repository, msgspec.structs.replace(item, updated=when))
        return new

    def edit_comment(
        self, repository: str, number: int, comment: int, body: str, *, is_request: bool = False
    ) -> ForgeComment:
        """Replace the text of a comment of the account."""
        with self._change(repository, "read"):
            name, found = self._own_comment(repository, number, comment)
            if found is None:
                raise ForgeError("missing", f"issue {number} of {repository} has no comment {comment}")
            new = msgspec.structs.replace(found, body=body, updated=now())
            self.directory.save(repository, name, new)
        return new

    def delete_comment(self, repository: str, number: int, comment: int, *, is_request: bool = False) -> None:
        """Delete a comment of the account."""
        with self._change(repository, "read"):
            name, _ = self._own_comment(repository, number, comment)
            self.directory.place(repository, name).unlink(missing_ok=True)

    def _own_comment(self, repository: str, number: int, comment: int) -> tuple[str, ForgeComment | None]:
        name = f"comments/{number}/{comment:012d}.json"
        found = self.directory.find(repository, name, ForgeComment)
        if found is not None and found.author != self._acting():
            raise ForgeError("forbidden", f"comment {comment} of {repository} is by {found.author}")
        return name, found

    def branch(self, repository: str, name: str) -> str | None:
        """Return the commit of a branch."""
        self._require(repository, "read")
        return find_branch(self.directory, repository, name)

    def find_requests(self, repository: str, head: str) -> Sequence[ForgeRequest]:
        """Return the requests from a branch, the newest first."""
        self._require(repository, "read")
        found = [item for item in self.directory.items(repository) if item.head and item.head == head]
        return [self._request(repository, item) for item in reversed(found)]

    def request(self, repository: str, number: int) -> ForgeRequest:
        """Return a request."""
        self._require(repository, "read")
        item = self._require_request(repository, number)
        return msgspec.structs.replace(
            self._request(repository, item), mergeable=self._mergeable(repository, item)
        )

    def open_request(self, repository: str, new: NewRequest) -> ForgeRequest:
        """Open a request."""
        with self._change(repository, "write"):
            base = require_branch(self.directory, repository, new.base)
            head = require_branch(self.directory, repository, new.head)
            code, _ = self.directory.git(repository, "merge-base", "--is-ancestor", head, base, ok=(0, 1))
            if code == 0:
                raise ForgeError("refused", f"{new.head!r} has no commit that {new.base!r} lacks")
            same = [item for item in self.directory.items(repository) if item.is_open and item.head == new.head]
            if any(item.base == new.base for item in same):
                raise ForgeError("refused", f"there is already a request from {new.head!r} in {repository}")
            item = LocalItem(
                number=self.directory.new_number(repository),
                author=self._acting(),
                updated=now(),
                head_commit=head,
                **msgspec.structs.asdict(new),
            )
            self._save(repository, item)
        return self.request(repository, item.number)

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
        with self._change(repository, "write"):
            item = self._require_request(repository, number)
            if item.merged and is_open:
                raise ForgeError("refused", f"request {number} of {repository} is merged")
            given = {"title": title, "body": body, "draft": draft, "is_open": is_open, "base": base}
            if base is not None and find_branch(self.directory, repository, base) is None:
                raise ForgeError("refused", f"{repository} has no branch {base}")
            new = {name: value for name, value in given.items() if value is not None}
            self._save(repository, changed(item, head_commit=self._head(repository, item), **new), item)
        return self.request(repository, number)

    def ask_reviews(self, repository: str, number: int, logins: Sequence[str]) -> None:
        """Ask people for their reviews."""
        with self._change(repository, "write") as settings:
            item = self._require_request(repository, number)
            refused = [login for login in logins if login == item.author or login not in settings.rights]
            if refused:
                raise ForgeError("refused", f"{refused[0]!r} cannot review request {number} of {repository}")
            asked = tuple(dict.fromkeys((*item.asked, *logins)))
            self._save(repository, changed(item, asked=asked), item)

    # Reviews

    def reviews(self, repository: str, number: int) -> Sequence[ForgeReview]:
        """Return the submitted reviews, by id."""
        self._require(repository, "read")
        self._require_request(repository, number)
        return self.directory.read_all(repository, f"reviews/{number}", ForgeReview)

    def submit_review(
        self,
        repository: str,
        number: int,
        state: ReviewState,
        body: str = "",
        *,
        lines: Sequence[tuple[str, int, str]] = (),
    ) -> None:
        """Review the head of a request, with comments on lines: path, line, text."""
        with self._change(repository, "read"):
            item = self._require_request(repository, number)
            if item.author == self._acting() and state != "commented":
                raise ForgeError("refused", "the author of a request cannot approve or reject it")
            review, commit, when = self.directory.new_id(), self._head(repository, item), now()
            new = ForgeReview(
                id=review, author=self._acting(), state=state, body=body, commit=commit, submitted=when
            )
            self.directory.save(repository, f"reviews/{number}/{review:012d}.json", new)
            for path, line, text in lines:
                self._save_line(repository, number, text, path=path, line=line)
            self._save(repository, msgspec.structs.replace(item, updated=when))

    def review_comments(self, repository: str, number: int) -> Sequence[ReviewComment]:
        """Return all comments on lines, by id."""
        self._require(repository, "read")
        self._require_request(repository, number)
        return self.directory.read_all(repository, f"lines/{number}", ReviewComment)

    def reply(self, repository: str, number: int, answers: Mapping[str, str], text: str = "") -> None:
        """Answer comments on lines, each in its thread."""
        with self._change(repository, "read"):
            item = self._require_request(repository, number)
            known = {each.thread: each for each in self.review_comments(repository, number)}
            if unknown := answers.keys() - known.keys():
                raise ForgeError("missing", f"request {number} of {repository} has no thread {min(unknown)}")
            for thread, body in answers.items():
                at = known[thread]
                self._save_line(repository, number, body, path=at.path, line=at.line, thread=thread)
            self._save(repository, msgspec.structs.replace(item, updated=now()))
        if text:
            self.add_comment(repository, number, text, is_request=True)

    def merge(self, repository: str, number: int, *, commit: str, method: MergeMethod) -> None:
        """Merge a request and close the issues that its text names."""
        with self._change(repository, "write") as settings:
            item = self._require_request(repository, number)
            head = self._head(repository, item)
            problem = self._why_not(repository, item, settings, head) if head == commit else "its head is another"
            if method not in settings.merge_methods:
                problem = f"{method} is not allowed"
            if problem:
                raise ForgeError("refused", f"request {number} of {repository} cannot be merged: {problem}")
            item = msgspec.structs.replace(item, head_commit=head)
            new = merge_heads(self.directory, repository, item, method=method, person=self._acting())
            self._save(repository, changed(item, merged=new, is_open=False))
            for closed in closed_issues(item.body) if item.base == settings.default_branch else ():
                found = self.directory.find(repository, f"items/{closed}.json", LocalItem)
                if found and not found.head:
                    self._save(repository, changed(found, is_open=False), found)

    # Statuses, files and hooks

    def statuses(self, repository: str, commit: str) -> Sequence[CommitStatus]:
        """Return the latest state of each check of a commit."""
        self._require(repository, "read")
        found = self.directory.read_all(repository, f"statuses/{_require_commit(commit)}", CommitStatus)
        return sorted(found, key=lambda status: status.context)

    def set_status(self, repository: str, commit: str, status: CommitStatus) -> None:
        """Set the state of a check."""
        with self._change(repository, "write"):
            code, _ = self.directory.git(repository, "cat-file", "-e", _require_commit(commit), ok=(0, 1, 128))
            if code:
                raise ForgeError("missing", f"{repository} has no commit {commit}")
            name = f"statuses/{commit}/{_digest(status.context)}.json"
            self.directory.save(repository, name, msgspec.structs.replace(status, log=""))

    def set_log(self, repository: str, commit: str, status: CommitStatus, log: str) -> None:
        """Set the state of a check and its log."""
        self.set_status(repository, commit, status)
        with self._change(repository, "write"):
            handle = _digest(f"{commit} {status.context}")
            self.directory.save(repository, f"logs/{handle}", log.encode())
            name = f"statuses/{commit}/{_digest(status.context)}.json"
            self.directory.save(repository, name, msgspec.structs.replace(status, log=handle))

    def read_log(self, repository: str, status: CommitStatus, *, most: int = 65_536) -> str:
        """Return the end of the log of a check."""
        self._require(repository, "read")
        if not re.fullmatch("[0-9a-f]+", status.log):
            return ""
        path = self.directory.place(repository, f"logs/{status.log}")
        return path.read_text(errors="replace")[-most:] if path.is_file() else ""

    def attach(self, repository: str, number: int, name: str, content: bytes, *, is_request: bool = False) -> str:
        """Attach a file to an issue or request and return its address."""
        with self._change(repository, "read"):
            self.directory.item(repository, number)
            safe = name if re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,99}", name, re.ASCII) else _digest(name)
            place = f"files/{number}/{safe}"
            if not self.directory.place(repository, place).exists():
                self.directory.save(repository, place, content)
        return self.directory.place(repository, place).as_uri()

    def ensure_hook(self, repository: str, address: str, secret: str) -> None:
        """Write the hook down; a local forge posts nothing."""
        with self._change(repository, "admin"):
            self.directory.save(repository, f"hooks/{_digest(address)}.json", {"url": address, "secret": secret})

    def remove_hook(self, repository: str, address: str) -> None:
        """Remove the hook of an address."""
        with self._change(repository, "admin"):
            self.directory.place(repository, f"hooks/{_digest(address)}.json").unlink(missing_ok=True)

    def _acting(self) -> str:
        for repository in () if self._login else self.directory.repositories():
            rights = self.directory.settings(repository).rights
            self._login = next((login for login, right in rights.items() if right == "admin"), "")
            if self._login:
                break
        if not self._login:
            raise ForgeError("denied", "the local forge has no person with the right 'admin'", hint="give a token")
        return self._login

    def _require(self, repository: str, right: Right) -> LocalSettings:
        settings, login = self.directory.settings(repository), self._acting()
        own = settings.rights.get(login, "none")
        if own == "none":
            self._require_person(login)
            raise ForgeError("missing", f"there is no repository {repository}", hint=f"or {login} may not see it")
        if _RANK[own] < _RANK[right]:
            raise ForgeError(
                "forbidden", f"{login} has the right {own!r} to {repository}", hint=f"{right!r} is needed"
            )
        return settings

    def _require_person(self, login: str) -> None:
        everywhere = (self.directory.settings(each).rights for each in self.directory.repositories())
        if not any(login in rights for rights in everywhere):
            raise ForgeError("denied", "the token is no person of the local forge", hint="check the token")

    @contextmanager
    def _change(self, repository: str, right: Right) -> Iterator[LocalSettings]:
        with self.directory.lock():
            settings = self._require(repository, right)
            if settings.archived:
                raise ForgeError("refused", f"{repository} is archived")
            yield settings

    def _save(self, repository: str, item: LocalItem, before: LocalItem | None = None) -> None:
        if item is not before:
            self.directory.save(repository, f"items/{item.number}.json", item)

    def _save_line(
        self, repository: str, number: int, body: str, *, path: str, line: int | None, thread: str = ""
    ) -> None:
        new = self.directory.new_id()
        comment = ReviewComment(
            id=new,
            thread=thread or str(new),
            author=self._acting(),
            body=body,
            path=path,
            line=line,
            created=now(),
        )
        self.directory.save(repository, f"lines/{number}/{new:012d}.json", comment)

    def _require_request(self, repository: str, number: int) -> LocalItem:
        item = self.directory.item(repository, number)
        if not item.head:
            raise ForgeError("missing", f"{number} of {repository} is an issue")
        return item

    def _head(self, repository: str, item: LocalItem) -> str:
        found = find_branch(self.directory, repository, item.head) if item.is_open else None
        return found or item.head_commit

    def _mergeable(self, repository: str, item: LocalItem) -> bool:
        base = find_branch(self.directory, repository, item.base)
        if not item.is_open or base is None:
            return False
        try:
            merged_tree(self.directory, repository, base, self._head(repository, item))
        except ForgeError:
            return False
        return True

    def _why_not(self, repository: str, item: LocalItem, settings: LocalSettings, head: str) -> str:
        if not item.is_open or item.draft:
            return "it is a draft" if item.is_open else "it is closed"
        rules = settings.protected.get(item.base)
        if rules is None:
            return ""
        states = {status.context: status.state for status in self.statuses(repository, head)}
        missing = [each for each in rules.checks if states.get(each) != "success"]
        if missing:
            return f"the check {missing[0]!r} has not passed"
        latest = {each.author: each.state for each in self.reviews(repository, item.number)}
        if "changes" in latest.values():
            return "a review asks for changes"
        approved = [each for each in latest.values() if each == "approved"]
        return "approvals are missing" if len(approved) < rules.approvals else ""

    def _page(self, repository: str, item: LocalItem) -> str:
        return f"{self.url}/{repository}/{'pulls' if item.head else 'issues'}/{item.number}"

    def _issue(self, repository: str, item: LocalItem) -> ForgeIssue:
        return ForgeIssue(
            repository=repository,
            number=item.number,
            url=self._page(repository, item),
            title=item.title,
            body=item.body,
            author=item.author,
            is_open=item.is_open,
            updated=item.updated,
            labels=item.labels,
            assignees=item.assignees,
            locked=item.locked,
        )

    def _request(self, repository: str, item: LocalItem) -> ForgeRequest:
        return ForgeRequest(
            number=item.number,
            url=self._page(repository, item),
            title=item.title,
            body=item.body,
            author=item.author,
            head=item.head,
            head_repository=repository,
            head_commit=self._head(repository, item),
            base=item.base,
            is_open=item.is_open,
            draft=item.draft,
            merged=item.merged,
            updated=item.updated,
        )


def _open(setup: ForgeSetup) -> LocalForge:
    parts = urlsplit(setup.url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        message = f"not the address of a local forge: {setup.url!r}"
        raise ForgeError("invalid", message, hint="use file:///DIRECTORY")
    return LocalForge(Path(unquote(parts.path)), setup.token)


def _require_commit(commit: str) -> str:
    if not _COMMIT.fullmatch(commit):
        raise ForgeError("invalid", f"not the full id of a commit: {commit!r}")
    return commit


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


KIND = ForgeKind(open=_open, parse=parse_issues_and_pulls)
