"""A stand-in of GitLab, over a local forge, written from GitLab's published description of its interface.

It is no GitLab: it cannot show that GitLab behaves like it. Requests with fields that the description lacks fail.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from chargehand.forges.contract import (
    CommitStatus,
    Forge,
    ForgeError,
    ForgeIssue,
    ForgeRequest,
    ForgeSetup,
    MergeMethod,
    NewRequest,
    ReviewState,
    Right,
    StatusState,
)
from chargehand.forges.gitlab import GitlabForge
from chargehand.forges.local import LocalForge
from tests.forge_stand_in import Answer, Asked, StandIn, paged
from tests.local_forge_kit import LocalHost

PAGE = 10
TOKENS = {f"token-{login}": login for login in ("ada", "bob", "robot", "eve")} | {"token-weak": "ada"}
IDS = {"ada": 11, "bob": 22, "robot": 33, "eve": 44}
LOGINS = {number: login for login, number in IDS.items()}
LEVELS: Mapping[Right, int] = {"none": 0, "read": 20, "write": 30, "admin": 40}
_FAILURES = {"denied": 401, "forbidden": 403, "missing": 404, "refused": 409, "invalid": 400}
_NOTES = {"approved": "approved this merge request", "changes": "requested changes"}
_STATES: Mapping[str, StatusState] = {
    "pending": "pending",
    "success": "success",
    "failed": "failure",
    "canceled": "error",
}
_FIELDS = {
    "issues": {"add_labels", "remove_labels", "assignee_ids", "state_event"},
    "merge_requests": {
        *("title", "description", "source_branch", "target_branch", "state_event", "reviewer_ids", "assignee_ids"),
        *("add_labels", "remove_labels"),
    },
    "merge": {"sha", "squash", "should_remove_source_branch"},
    "notes": {"body"},
    "statuses": {"state", "name", "description", "target_url"},
    "hooks": {
        *(
            "url",
            "token",
            "push_events",
            "issues_events",
            "note_events",
            "merge_requests_events",
            "pipeline_events",
        ),
        "job_events",
    },
}


class GitlabHost(LocalHost):
    """The people of the stand-in."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._opened: list[Forge] = []
        self._ids = itertools.count(5_000)
        self._moved: dict[str, str] = {}
        self.hooks: dict[int, dict[str, Any]] = {}
        self.reviews: dict[int, list[dict[str, Any]]] = {}
        self.jobs: list[dict[str, Any]] = []
        self.server = StandIn(self.answer)

    def close(self) -> None:
        """End the server."""
        for forge in self._opened:
            forge.close()
        self.server.close()
        assert not self.server.errors, "\n".join(self.server.errors)

    def open_forge(self, token: str) -> Forge:
        forge = GitlabForge(ForgeSetup(url=self.server.url, token=token, sleep=time.sleep), page=PAGE)
        self._opened.append(forge)
        return forge

    def weak_forge(self) -> Forge | None:
        return self.open_forge("token-weak")

    def submit_review(
        self,
        repository: str,
        number: int,
        state: ReviewState,
        body: str,
        lines: Sequence[tuple[str, int, str]] = (),
    ) -> None:
        self.bob.submit_review(repository, number, state, body, lines=lines)
        review = self.ada.reviews(repository, number)[-1]
        author = {"username": "bob", "id": IDS["bob"]}
        note = {"id": review.id, "system": True, "body": _NOTES[state], "author": author}
        note |= {"created_at": _time(review.submitted), "updated_at": _time(review.submitted)}
        self.reviews.setdefault(number, []).append(note)

    def answer(self, asked: Asked) -> Answer:
        """Answer a request."""
        last = [part for part in asked.path.split("/") if part in _FIELDS]
        given = asked.headers.get("content-type") == "application/json" and asked.content
        if given and (unknown := set(asked.body) - _FIELDS[last[-1]]):
            self.server.errors.append(f"{asked.method} {asked.path}: unknown fields {unknown}")
        login = TOKENS.get(asked.token)
        if login is None:
            return Answer(401, {"message": "401 Unauthorized"})
        if asked.method != "GET" and asked.token == "token-weak":
            text = "The request requires higher privileges than provided by the access token."
            return Answer(403, {"error": "insufficient_scope", "error_description": text, "scope": "api"})
        try:
            return self._route(LocalForge(self.directory.root, login), asked)
        except ForgeError as error:
            if error.problem == "moved":
                number = str(next(self._ids))
                self._moved[number] = error.hint.removeprefix("use ")
                return Answer(301, {"message": "moved"}, {"location": f"/api/v4/projects/{number}"})
            is_rule = "archived" in error.message or "is locked" in error.message
            status = 403 if is_rule else _FAILURES[error.problem]
            if asked.path.endswith("/merge") and "head" not in error.message:
                status = 405
            return Answer(status, {"message": "403 Forbidden" if is_rule else error.message})

    def _route(self, forge: LocalForge, asked: Asked) -> Answer:
        parts = asked.path.removeprefix("/api/v4/").split("/")
        if parts == ["user"]:
            login = forge.account().login
            return Answer(200, {"id": IDS[login], "username": login})
        if parts == ["personal_access_tokens", "self"]:
            scopes = ["read_api"] if asked.token == "token-weak" else ["api"]
            return Answer(200, {"id": 1, "active": True, "scopes": scopes})
        if parts == ["users"]:
            found = IDS.get(asked.query["username"])
            return Answer(200, [{"id": found, "username": asked.query["username"]}] if found else [])
        name, rest = self._moved.get(parts[1], unquote(parts[1])), parts[2:]
        if not rest:
            return Answer(200, self._project(forge, name))
        if rest[0] in ("issues", "merge_requests"):
            return self._items(forge, name, rest, asked)
        if rest[:2] == ["members", "all"]:
            right = forge.right(name, LOGINS[int(rest[2])])
            if right == "none":
                return Answer(404, {"message": "404 Not found"})
            return Answer(
                200, {"id": int(rest[2]), "username": LOGINS[int(rest[2])], "access_level": LEVELS[right]}
            )
        if rest[0] == "hooks":
            return self._hook(forge, name, rest[1:], asked)
        if rest[0] == "uploads":
            forge.repository(name)
            return Answer(201, {"url": "/uploads/0a/x.txt", "full_path": "/-/project/1/uploads/0a/x.txt"})
        return self._repository(forge, name, rest, asked)

    def _repository(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        match asked.method, *rest:
            case ("GET", "repository", "branches", branch):
                commit = forge.branch(name, unquote(branch))
                if commit is None:
                    return Answer(404, {"message": "404 Branch Not Found"})
                return Answer(200, {"name": unquote(branch), "commit": {"id": commit}})
            case ("GET", "repository", "commits", commit, "statuses"):
                states = {ours: theirs for theirs, ours in _STATES.items()}
                found = [
                    {
                        "id": number,
                        "name": each.context,
                        "status": states[each.state],
                        "description": each.description,
                        "target_url": each.url or None,
                    }
                    for number, each in enumerate(forge.statuses(name, commit), 1)
                ]
                return self._page(asked, [*found, *self.jobs])
            case ("POST", "statuses", commit):
                body = asked.body
                now = {each.context: each.state for each in forge.statuses(name, commit)}
                if now.get(body["name"]) == _STATES[body["state"]]:
                    return Answer(400, {"message": "Cannot transition status via :succeed from :success"})
                status = CommitStatus(
                    context=body["name"],
                    state=_STATES[body["state"]],
                    description=body["description"],
                    url=body.get("target_url", ""),
                )
                forge.set_status(name, commit, status)
                return Answer(201, {"id": 1, "name": body["name"], "status": body["state"]})
            case _:
                return Answer(404, {"error": "404 Not Found"})

    def _items(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        is_request = rest[0] == "merge_requests"
        if len(rest) == 1:
            return self._list(forge, name, is_request, asked)
        number = int(rest[1])
        if bool(self.directory.item(name, number).head) != is_request:
            return Answer(404, {"message": "404 Not found"})
        match asked.method, *rest[2:]:
            case ("PUT",):
                self._change(forge, name, number, asked.body)
            case ("PUT", "merge"):
                method: MergeMethod = "squash" if asked.body["squash"] else "merge"
                forge.merge(name, number, commit=asked.body["sha"], method=method)
            case ("GET", "approvals"):
                latest = {each.author: each.state for each in forge.reviews(name, number)}
                approving = [{"user": {"username": who}} for who, state in latest.items() if state == "approved"]
                return Answer(200, {"approved_by": approving})
            case ("GET", "versions"):
                head = forge.request(name, number).head_commit
                return self._page(asked, [{"created_at": "2020-01-01T00:00:00.000Z", "head_commit_sha": head}])
            case (_, "notes" | "discussions", *parts):
                return self._notes(forge, name, number, [rest[2], *map(str, parts)], asked)
        return Answer(200, self._item(forge, name, number, is_request=is_request))

    def _list(self, forge: LocalForge, name: str, is_request: bool, asked: Asked) -> Answer:
        if not is_request:
            since = asked.query.get("updated_after")
            found = forge.issues(
                name,
                label=asked.query.get("labels", ""),
                assignee=LOGINS.get(int(asked.query.get("assignee_id", 0)), ""),
                since=datetime.fromisoformat(since) if since else None,
            )
            assert (asked.query["order_by"], asked.query["sort"]) == ("updated_at", "asc")
            return self._page(asked, [self._issue(each) for each in found])
        if asked.method == "POST":
            body = asked.body
            draft = body["title"].startswith("Draft: ")
            new = NewRequest(
                title=body["title"].removeprefix("Draft: "),
                body=body["description"],
                head=body["source_branch"],
                base=body["target_branch"],
                draft=draft,
            )
            return Answer(201, self._merge(forge.open_request(name, new)))
        requests = forge.find_requests(name, asked.query["source_branch"])
        return self._page(asked, [self._merge(each) for each in requests])

    def _change(self, forge: LocalForge, name: str, number: int, body: Mapping[str, Any]) -> None:
        if "title" in body or "description" in body or "target_branch" in body:
            title = body.get("title")
            forge.change_request(
                name,
                number,
                title=title and title.removeprefix("Draft: "),
                body=body.get("description"),
                draft=None if title is None else title.startswith("Draft: "),
                base=body.get("target_branch"),
            )
        if body.get("reviewer_ids"):
            forge.ask_reviews(name, number, [LOGINS[each] for each in body["reviewer_ids"]])
        people = [LOGINS[each] for each in body.get("assignee_ids", ()) if each]
        others = [login for login in IDS if login not in people] if "assignee_ids" in body else []
        labels = {
            each: body[each].split(",") if body.get(each) else [] for each in ("add_labels", "remove_labels")
        }
        event = body.get("state_event")
        opened = None if event is None else event == "reopen"
        forge.change_issue(name, number, **labels, assign=people, unassign=others, is_open=opened)

    def _notes(self, forge: LocalForge, name: str, number: int, rest: list[str], asked: Asked) -> Answer:
        match asked.method, *rest:
            case ("GET", "notes"):
                return self._page(asked, self._plain_notes(forge, name, number))
            case ("POST", "notes"):
                return Answer(201, _note(forge.add_comment(name, number, asked.body["body"])))
            case ("DELETE", "notes", comment):
                if int(comment) not in [each.id for each in forge.comments(name, number)]:
                    return Answer(404, {"message": "404 Not found"})
                forge.delete_comment(name, number, int(comment))
                return Answer(204)
            case ("PUT", "notes", comment):
                return Answer(200, _note(forge.edit_comment(name, number, int(comment), asked.body["body"])))
            case ("POST", "discussions", thread, "notes"):
                forge.reply(name, number, {thread: asked.body["body"]})
                return Answer(201, {"id": 1, "body": asked.body["body"]})
        threads: dict[str, list[dict[str, Any]]] = {}
        for line in forge.review_comments(name, number):
            position = {"new_path": line.path, "old_path": line.path, "new_line": line.line}
            extra = {"type": "DiffNote", "position": position, "resolvable": True, "resolved": False}
            threads.setdefault(line.thread, []).append({**_note(line), **extra})
        shown = [{"id": thread, "individual_note": False, "notes": notes} for thread, notes in threads.items()]
        # Each note that is in no thread is a discussion of its own, also those of GitLab itself.
        for note in self._plain_notes(forge, name, number):
            shown.append({"id": f"note-{note['id']}", "individual_note": True, "notes": [note]})
        return self._page(asked, shown)

    def _plain_notes(self, forge: LocalForge, name: str, number: int) -> list[dict[str, Any]]:
        return [*(_note(each) for each in forge.comments(name, number)), *self.reviews.get(number, ())]

    def _hook(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        forge.remove_hook(name, "")  # only to check the right
        if asked.method == "POST":
            self.hooks[next(self._ids)] = asked.body
        elif asked.method == "DELETE":
            del self.hooks[int(rest[0])]
            return Answer(204)
        found = [{"id": number, "url": each["url"]} for number, each in self.hooks.items()]
        return self._page(asked, found) if asked.method == "GET" else Answer(201, found[-1])

    def _page(self, asked: Asked, items: list[Any]) -> Answer:
        shown, headers = paged(asked, self.server.url, items)
        return Answer(200, shown, {"x-next-page": headers["x-next-page"]})

    def _project(self, forge: LocalForge, name: str) -> dict[str, Any]:
        found = forge.repository(name)
        return {
            "id": 1,
            "path_with_namespace": name,
            "web_url": f"{self.server.url}/{name}",
            "http_url_to_repo": found.clone_url,
            "default_branch": found.default_branch,
            "empty_repo": found.default_branch is None,
            "archived": found.archived,
            "permissions": {"project_access": {"access_level": LEVELS[found.right]}, "group_access": None},
            "merge_method": "merge",
            "squash_option": "default_off",
        }

    def _item(self, forge: LocalForge, name: str, number: int, *, is_request: bool) -> dict[str, Any]:
        return self._merge(forge.request(name, number)) if is_request else self._issue(forge.issue(name, number))

    def _issue(self, issue: ForgeIssue) -> dict[str, Any]:
        return {
            "iid": issue.number,
            "title": issue.title,
            "description": issue.body,
            "state": "opened" if issue.is_open else "closed",
            "author": {"username": issue.author, "id": IDS.get(issue.author, 0)},
            "labels": list(issue.labels),
            "assignees": [{"id": IDS[login], "username": login} for login in issue.assignees],
            "discussion_locked": issue.locked or None,
            "user_notes_count": len(self.ada.comments(issue.repository, issue.number)),
            "updated_at": _time(issue.updated),
            "web_url": issue.url,
        }

    def _merge(self, request: ForgeRequest) -> dict[str, Any]:
        item = self.directory.item(request.head_repository, request.number)
        state = "merged" if request.merged else "opened" if request.is_open else "closed"
        checked = {None: "unchecked", True: "mergeable", False: "conflict"}[request.mergeable]
        return {
            "iid": request.number,
            "title": f"Draft: {request.title}" if request.draft else request.title,
            "description": request.body,
            "state": state,
            "author": {"username": request.author},
            "source_branch": request.head,
            "target_branch": request.base,
            "source_project_id": 1,
            "target_project_id": 1,
            "sha": request.head_commit,
            "updated_at": _time(item.updated),
            "draft": request.draft,
            "merge_commit_sha": request.merged,
            "detailed_merge_status": checked,
            "has_conflicts": checked == "conflict" and request.is_open,
            "reviewers": [{"id": IDS[login], "username": login} for login in item.asked],
            "web_url": request.url,
        }


def _note(each: Any) -> dict[str, Any]:
    updated = getattr(each, "updated", each.created)
    return {
        "id": each.id,
        "body": each.body,
        "author": {"username": each.author, "id": IDS.get(each.author, 0)},
        "created_at": _time(each.created),
        "updated_at": _time(updated),
        "system": False,
        "type": None,
    }


def _time(when: datetime) -> str:
    return str(msgspec.to_builtins(when))
