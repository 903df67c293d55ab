"""A stand-in of GitHub: its interface over a local forge; each request and answer is checked against OpenAPI.

The description is GitHub's own, of npm `@octokit/openapi`. A stand-in cannot show that GitHub behaves like it.
"""

from __future__ import annotations

import base64
import email.utils
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from chargehand.forges.contract import (
    CommitStatus,
    Forge,
    ForgeError,
    ForgeIssue,
    ForgeRequest,
    ForgeReview,
    ForgeSetup,
    NewRequest,
    ReviewComment,
)
from chargehand.forges.github import GithubForge
from chargehand.forges.github_app import NEEDED
from chargehand.forges.local import LocalForge
from tests.forge_stand_in import Answer, Asked, StandIn, paged
from tests.local_forge_kit import LocalHost
from tests.npm_kit import npm_package

PAGE = 10
TOKENS = {f"token-{login}": login for login in ("ada", "bob", "robot", "eve")} | {"token-weak": "ada"}
_FAILURES = {"denied": 401, "forbidden": 403, "missing": 404, "refused": 422, "invalid": 422}


class OpenApi:
    """GitHub's description of its interface."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._paths = document["paths"]
        resource = Resource.from_contents(document, default_specification=DRAFT202012)
        self._registry: Registry[Any] = Registry().with_resource("urn:github", resource)
        self._document = document
        # Literal paths first: /issues/comments/{id} before /issues/{number}/{what}.
        self._patterns = sorted(
            self._paths, key=lambda path: (path.endswith(("{ref}", "{branch}")), path.count("{"))
        )

    @functools.cached_property
    def _compiled(self) -> list[tuple[re.Pattern[str], str]]:
        found = []
        for path in self._patterns:
            # A ref and a branch may contain slashes.
            pattern = re.sub(r"\\\{(ref|branch)\\\}$", "(.+)", re.escape(path))
            found.append((re.compile(re.sub(r"\\\{\w+\\\}", "([^/]+)", pattern)), path))
        return found

    def problems(self, asked: Asked, answer: Answer) -> Iterator[str]:
        """Yield how a request and its answer differ from the description."""
        template = next((path for pattern, path in self._compiled if pattern.fullmatch(asked.path)), "")
        operation = self._paths.get(template, {}).get(asked.method.lower())
        where = f"{asked.method} {asked.path}"
        if operation is None:
            yield f"{where}: there is no such operation"
            return
        names = {self._resolve(each)["name"] for each in operation.get("parameters", ())}
        if unknown := set(asked.query) - names:
            yield f"{where}: unknown parameters {unknown}"
        if asked.content:
            place = self._place(template, asked.method, "requestBody")
            yield from self._check(asked.body, place, _REQUEST, f"{where}: request")
        responses = operation["responses"]
        if str(answer.status) not in responses and answer.status < 300:
            yield f"{where}: it never answers with {answer.status}"
        if answer.document is not None and answer.status < 300:
            place = self._place(template, asked.method, "responses", str(answer.status))
            yield from self._check(answer.document, place, _RESPONSE, f"{where}: answer")

    def _place(self, template: str, method: str, *parts: str) -> str:
        steps = (template, method.lower(), *parts, "content", "application/json", "schema")
        node: Any = self._paths
        for step in steps:
            if "$ref" in (node := node[step]):
                return str(node["$ref"]) + "".join(f"/{_escape(each)}" for each in steps[steps.index(step) + 1 :])
        return "#/paths/" + "/".join(map(_escape, steps))

    def _resolve(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = node
        if "$ref" in node:
            found = self._document
            for part in node["$ref"][2:].split("/"):
                found = found[part]
        return found

    def _check(self, document: object, place: str, validator: Any, where: str) -> Iterator[str]:
        schema = {"$ref": f"urn:github{place}"}
        for error in validator(schema, registry=self._registry).iter_errors(document):
            yield f"{where} {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}"


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")


def _known_properties(
    validator: Any, properties: Mapping[str, Any], instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        if "additionalProperties" not in schema and (unknown := set(instance) - set(properties)):
            yield ValidationError(f"unknown fields {unknown}")
        yield from Draft202012Validator.VALIDATORS["properties"](validator, properties, instance, schema)


def _nullable(keyword: str) -> Any:
    def check(validator: Any, value: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[ValidationError]:
        if not (instance is None and schema.get("nullable")):
            yield from Draft202012Validator.VALIDATORS[keyword](validator, value, instance, schema)

    return check


def _ignore(*_: object) -> Iterator[ValidationError]:
    yield from ()


_REQUEST = extend(
    Draft202012Validator, {"properties": _known_properties, "type": _nullable("type"), "enum": _nullable("enum")}
)
_PART = extend(_REQUEST, {"properties": Draft202012Validator.VALIDATORS["properties"], "required": _ignore})


def _all_of(validator: Any, parts: Any, instance: Any, _: Mapping[str, Any]) -> Iterator[ValidationError]:
    # Each part has some of the fields, so no part knows them all.
    lenient = _PART(validator.schema, registry=validator._registry, _resolver=validator._resolver)
    for part in parts:
        yield from lenient.descend(instance, part)


# The stand-in's answers are parts of GitHub's: each field of theirs must be one of GitHub's, of the same type.
_RESPONSE = extend(
    _REQUEST,
    {"required": _ignore, "format": _ignore, "allOf": _all_of, "oneOf": Draft202012Validator.VALIDATORS["anyOf"]},
)


@functools.cache
def openapi() -> OpenApi:
    """Return GitHub's description of its interface."""
    file = "generated/api.github.com.json"
    package = npm_package("@octokit/openapi", "23.0.2", file.replace(".", r"\."))
    return OpenApi(msgspec.json.decode((package / file).read_bytes()))


class AppHost:
    """The App `build` with one installation: it verifies the App's claims, and issues tokens for an hour.

    `skew` is how far GitHub's clock is ahead, in seconds.
    """

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self.repositories = {"ada/demo", "ada/calc"}
        self.permissions = dict(NEEDED)
        self.suspended: str | None = None
        self.skew = 0.0
        self.issued: dict[str, str] = {}  # tokens with their repositories, "" for all

    def write_key(self, folder: Path) -> Path:
        """Write the App's private key as GitHub offers it."""
        file = folder / "app.pem"
        file.touch(mode=0o600)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        file.write_bytes(self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        return file

    def now(self) -> datetime:
        """Return the time by GitHub's clock."""
        return datetime.now(UTC) + timedelta(seconds=self.skew)

    def headers(self) -> dict[str, str]:
        """Return the header with GitHub's time."""
        return {"date": email.utils.format_datetime(self.now(), usegmt=True)}

    def login(self, asked: Asked) -> str:
        """Return the account of an installation's token for what it is used for, else ""."""
        name = self.issued.get(asked.token)
        is_allowed = name == "" or asked.path == "/graphql" or asked.path.startswith(f"/repos/{name}")
        return "robot" if name is not None and is_allowed else ""

    def answer(self, asked: Asked) -> Answer:
        """Answer a request that the App makes as itself."""
        problem = self._claim_problem(asked.token)
        if problem:
            return Answer(401, {"message": problem}, self.headers())
        parts = asked.path.strip("/").split("/")
        shown = {"id": 77, "app_slug": "build", "app_id": 12, "suspended_at": self.suspended}
        if parts[0] == "repos":
            found = "/".join(parts[1:3]) in self.repositories
            return Answer(200, shown) if found else Answer(404, {"message": "Not Found"})
        if parts == ["app", "installations"]:
            return Answer(200, [shown] if self.repositories else [])
        if parts[2] != "77" or not self.repositories:
            return Answer(404, {"message": "Not Found"})
        if asked.method == "GET":
            return Answer(200, shown)
        if self.suspended:
            return Answer(403, {"message": "This installation has been suspended"})
        wanted = [f"ada/{each}" for each in (asked.body or {}).get("repositories", [])]
        if not set(wanted) <= self.repositories:
            return Answer(422, {"message": "There is at least one repository that does not exist"})
        token = f"ghs_{len(self.issued)}"
        self.issued[token] = wanted[0] if wanted else ""
        expires = (self.now() + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = {"token": token, "expires_at": expires, "permissions": self.permissions}
        return Answer(201, made, self.headers())

    def _claim_problem(self, claim: str) -> str:
        signed, _, signature = claim.rpartition(".")
        head, _, body = signed.partition(".")
        try:
            self.key.public_key().verify(_unpad(signature), signed.encode(), PKCS1v15(), SHA256())
        except (InvalidSignature, ValueError):
            return "A JSON web token could not be decoded"
        given = msgspec.json.decode(_unpad(body))
        now = self.now().timestamp()
        assert msgspec.json.decode(_unpad(head)) == {"alg": "RS256", "typ": "JWT"}
        if given["iss"] != "12":
            return "Integration not found"
        if given["iat"] > now:
            return (
                "'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued"
            )
        if not now < given["exp"] <= now + 600:
            return "'Expiration time' claim ('exp') is too far in the future"
        return ""


def _unpad(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class GithubHost(LocalHost):
    """The people of the stand-in, whose requests are checked."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._opened: list[Forge] = []
        self._ids = itertools.count(1_000)
        self._moved: dict[int, str] = {}
        self.check_runs: list[dict[str, Any]] = []
        self.resolved: set[int] = set()
        self.app = AppHost()
        self.server = StandIn(self.answer)

    def close(self) -> None:
        """End the server and report what differs from GitHub's description."""
        for forge in self._opened:
            forge.close()
        self.server.close()
        assert not self.server.errors, "\n".join(self.server.errors)

    def open_forge(self, token: str) -> Forge:
        setup = ForgeSetup(url=self.server.url, api=self.server.url, token=token, sleep=time.sleep)
        forge = GithubForge(setup, page=PAGE)
        self._opened.append(forge)
        return forge

    def weak_forge(self) -> Forge | None:
        return self.open_forge("token-weak")

    def answer(self, asked: Asked) -> Answer:
        """Answer a request, and compare both with the description."""
        try:
            is_app = asked.path.startswith("/app") or asked.path.endswith("/installation")
            answer = self.app.answer(asked) if is_app else self._route(asked)
        except ForgeError as error:
            answer = self._failure(asked, error)
        if not asked.path.startswith(("/graphql", "/repositories/")):  # both exist, and are not described
            self.server.errors += openapi().problems(asked, answer)
        return answer

    def _failure(self, asked: Asked, error: ForgeError) -> Answer:
        if error.problem == "moved":
            number = next(self._ids)
            self._moved[number] = error.hint.removeprefix("use ")
            return Answer(301, {"message": "Moved Permanently"}, {"location": f"/repositories/{number}"})
        status = _FAILURES[error.problem]
        if "archived" in error.message or "is locked" in error.message:
            status = 403
        if asked.path.endswith("/merge"):
            status = 409 if "head" in error.message else 405
        if "has no commit 0" in error.message:
            status, error.message = 422, f"No commit found for SHA: {asked.path[-40:]}"
        return Answer(status, {"message": error.message, "documentation_url": "https://docs.github.com"})

    def _route(self, asked: Asked) -> Answer:
        login = self.app.login(asked) or TOKENS.get(asked.token)
        if login is None:
            return Answer(401, {"message": "Bad credentials"})
        forge = LocalForge(self.directory.root, login)
        parts = asked.path.strip("/").split("/")
        if parts == ["user"]:
            return Answer(200, {"login": login}, {"x-oauth-scopes": "repo, gist"})
        if parts == ["graphql"]:
            return self._graph(forge, asked)
        if parts[0] == "repositories":
            return Answer(200, self._repository(forge, self._moved[int(parts[1])]))
        if asked.method != "GET" and asked.token == "token-weak":
            text = "Resource not accessible by personal access token"
            return Answer(403, {"message": text}, {"x-accepted-github-permissions": "issues=write"})
        name, rest = f"{parts[1]}/{parts[2]}", parts[3:]
        if not rest:
            return Answer(200, self._repository(forge, name))
        group: Mapping[str, Callable[..., Answer]] = {
            "issues": self._issues,
            "pulls": self._pulls,
            "git": self._git,
            "commits": self._commits,
            "hooks": self._hooks,
        }
        if rest[0] == "collaborators":
            right = forge.right(name, rest[1])
            if right == "none":
                return Answer(404, {"message": "is not a user"})
            return Answer(200, {"permission": right, "role_name": right, "user": {"login": rest[1]}})
        if rest[0] == "statuses":
            body = asked.body
            status = CommitStatus(
                context=body["context"],
                state=body["state"],
                description=body["description"],
                url=body["target_url"] or "",
            )
            forge.set_status(name, rest[1], status)
            return Answer(201, {"state": body["state"], "context": body["context"]})
        return group[rest[0]](forge, name, rest[1:], asked)

    def _issues(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        match asked.method, *rest:
            case ("GET",):
                since = asked.query.get("since")
                found = forge.issues(
                    name,
                    label=asked.query.get("labels", ""),
                    assignee=asked.query.get("assignee", ""),
                    since=datetime.fromisoformat(since) if since else None,
                )
                pulls = [self._pull_as_issue(pull) for pull in self._open_pulls(forge, name)]
                return self._page(asked, [*(self._issue(issue) for issue in found), *pulls])
            case ("GET", number):
                return Answer(200, self._issue(forge.issue(name, int(number))))
            case ("PATCH" | "DELETE", "comments", comment):
                for item in self.directory.items(name):
                    for each in forge.comments(name, item.number):
                        if each.id == int(comment):
                            if asked.method == "DELETE":
                                forge.delete_comment(name, item.number, each.id)
                                return Answer(204, None)
                            edited = forge.edit_comment(name, item.number, each.id, asked.body["body"])
                            return Answer(200, self._comment(edited))
                return Answer(404, {"message": "Not Found"})
            case ("PATCH", number):
                forge.change_issue(name, int(number), is_open=asked.body["state"] == "open")
            case (_, number, *_):
                return self._issue_parts(forge, name, int(number), rest[1:], asked)
        return Answer(200, self._issue(forge.issue(name, int(rest[0]))))

    def _issue_parts(self, forge: LocalForge, name: str, number: int, rest: list[str], asked: Asked) -> Answer:
        match asked.method, *rest:
            case ("GET", "comments"):
                return self._page(asked, [self._comment(each) for each in forge.comments(name, number)])
            case ("POST", "comments"):
                return Answer(201, self._comment(forge.add_comment(name, number, asked.body["body"])))
            case ("POST", "labels"):
                forge.change_issue(name, number, add_labels=asked.body["labels"])
                return Answer(200, [{"name": label} for label in forge.issue(name, number).labels])
            case ("DELETE", "labels", label):
                label = label.replace("%20", " ").replace("%3A", ":").replace("%2F", "/")
                if label not in forge.issue(name, number).labels:
                    return Answer(404, {"message": "Label does not exist"})
                forge.change_issue(name, number, remove_labels=[label])
                return Answer(200, [])
            case ("POST", "assignees"):
                known = [login for login in asked.body["assignees"] if forge.right(name, login) != "none"]
                forge.change_issue(name, number, assign=known)
                return Answer(201, self._issue(forge.issue(name, number)))
            case ("DELETE", "assignees"):
                forge.change_issue(name, number, unassign=asked.body["assignees"])
                return Answer(200, self._issue(forge.issue(name, number)))
        return Answer(404, {"message": "Not Found"})

    def _pulls(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        number = int(rest[0]) if rest else 0
        match asked.method, *rest[1:]:
            case ("GET",) if not rest:
                found = forge.find_requests(name, asked.query["head"].partition(":")[2])
                return self._page(asked, [self._pull(each, is_listed=True) for each in found])
            case ("GET",):
                return Answer(200, self._pull(forge.request(name, number)))
            case ("POST",):
                return Answer(201, self._pull(forge.open_request(name, NewRequest(**asked.body))))
            case ("PATCH",):
                state = asked.body.get("state")
                new = {each: asked.body[each] for each in ("title", "body", "base") if each in asked.body}
                opened = None if state is None else state == "open"
                return Answer(200, self._pull(forge.change_request(name, number, **new, is_open=opened)))
            case ("POST", "requested_reviewers"):
                forge.ask_reviews(name, number, asked.body["reviewers"])
                return Answer(201, self._pull(forge.request(name, number), is_listed=True))
            case ("PUT", "merge"):
                method = asked.body["merge_method"]
                forge.merge(name, number, commit=asked.body["sha"], method=method)
                return Answer(
                    200, {"sha": forge.request(name, number).merged, "merged": True, "message": "merged"}
                )
        return Answer(404, {"message": "Not Found"})

    def _git(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        branch = "/".join(rest[2:])
        commit = forge.branch(name, branch)
        if forge.repository(name).default_branch is None:
            return Answer(409, {"message": "Git Repository is empty."})
        if commit is None:
            return Answer(404, {"message": "Not Found"})
        return Answer(200, {"ref": f"refs/heads/{branch}", "object": {"type": "commit", "sha": commit}})

    def _commits(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        if rest[1] == "check-runs":
            return Answer(200, {"total_count": len(self.check_runs), "check_runs": self.check_runs})
        found = forge.statuses(name, rest[0])
        size, page = int(asked.query["per_page"]), int(asked.query["page"])
        shown = [
            {
                "context": each.context,
                "state": each.state,
                "description": each.description,
                "target_url": each.url or None,
            }
            for each in found[(page - 1) * size : page * size]
        ]
        return Answer(200, {"state": "pending", "statuses": shown, "sha": rest[0], "total_count": len(found)})

    def _hooks(self, forge: LocalForge, name: str, rest: list[str], asked: Asked) -> Answer:
        folder = self.directory.place(name, "hooks")
        paths = sorted(folder.glob("*.json"))
        known = [msgspec.json.decode(path.read_bytes()) for path in paths]
        if asked.method in ("POST", "PATCH"):
            forge.ensure_hook(name, asked.body["config"]["url"], asked.body["config"]["secret"])
            return Answer(201 if asked.method == "POST" else 200, {"id": 1, "active": True})
        forge.remove_hook(name, "")  # only to check the right
        if asked.method == "DELETE":
            forge.remove_hook(name, known[int(rest[0]) - 1]["url"])
            return Answer(204)
        found = [{"id": number, "config": {"url": each["url"]}} for number, each in enumerate(known, 1)]
        return self._page(asked, found)

    def _graph(self, forge: LocalForge, asked: Asked) -> Answer:
        query, given = asked.body["query"], asked.body["variables"]
        if "addPullRequestReviewThreadReply(" in query:
            return self._answer_threads(forge, given)
        if query.startswith("mutation"):
            name, _, number = given["id"].partition("#")
            draft = "convertPullRequestToDraft(" in query
            assert draft or "markPullRequestReadyForReview(" in query
            forge.change_request(name, int(number), draft=draft)
            return Answer(200, {"data": {"x": {"pullRequest": {"isDraft": draft}}}})
        name, number, page = f"{given['owner']}/{given['name']}", given["number"], given["page"]
        threads: dict[str, list[ReviewComment]] = {}
        for line in forge.review_comments(name, number):
            threads.setdefault(line.thread, []).append(line)
        shown = {
            "comments": [_text(each, url=each.url) for each in forge.comments(name, number)],
            "reviews": [self._review(each) for each in forge.reviews(name, number)],
            "threads": [self._thread(each) for each in threads.values()],
        }
        found = {}
        for kind, items in shown.items():
            start = int(given.get(kind) or 0)
            end = min(start + page, len(items))
            info = {"hasNextPage": end < len(items), "endCursor": str(end) if end > start else None}
            found[{"threads": "reviewThreads"}.get(kind, kind)] = {"pageInfo": info, "nodes": items[start:end]}
        return Answer(200, {"data": {"repository": {"pullRequest": found}}})

    def _answer_threads(self, forge: LocalForge, given: Mapping[str, str]) -> Answer:
        answers = {given[f"t{each}"].removeprefix("PRRT_"): given[f"b{each}"] for each in range(len(given) // 2)}
        for name in self.directory.repositories():
            for item in self.directory.items(name):
                known = {line.thread for line in forge.review_comments(name, item.number)} if item.head else set()
                if known & answers.keys():
                    forge.reply(name, item.number, answers)
        return Answer(200, {"data": {f"a{each}": {"clientMutationId": None} for each in range(len(answers))}})

    def _open_pulls(self, forge: LocalForge, name: str) -> list[ForgeRequest]:
        return [
            forge.request(name, item.number) for item in self.directory.items(name) if item.head and item.is_open
        ]

    def _page(self, asked: Asked, items: list[Any]) -> Answer:
        shown, headers = paged(asked, self.server.url, items)
        return Answer(200, shown, headers)

    def _repository(self, forge: LocalForge, name: str) -> dict[str, Any]:
        found = forge.repository(name)
        right = found.right
        return {
            "full_name": name,
            "html_url": f"{self.server.url}/{name}",
            "clone_url": found.clone_url,
            "default_branch": "main",
            "size": 0 if found.default_branch is None else 1,
            "archived": found.archived,
            "permissions": {"admin": right == "admin", "push": right in ("admin", "write"), "pull": True},
            "allow_merge_commit": True,
        }

    def _issue(self, issue: ForgeIssue) -> dict[str, Any]:
        return {
            "number": issue.number,
            "title": issue.title,
            "body": issue.body,
            "state": "open" if issue.is_open else "closed",
            "user": {"login": issue.author},
            "labels": [{"name": label} for label in issue.labels],
            "assignees": [{"login": login} for login in issue.assignees],
            "locked": issue.locked,
            "comments": len(self.ada.comments(issue.repository, issue.number)),
            "updated_at": _time(issue.updated),
            "html_url": issue.url,
            "repository_url": f"{self.server.url}/repos/{issue.repository}",
        }

    def _pull_as_issue(self, pull: ForgeRequest) -> dict[str, Any]:
        return {
            "number": pull.number,
            "title": pull.title,
            "state": "open",
            "updated_at": _time(datetime.now(UTC)),
            "pull_request": {"url": pull.url, "html_url": pull.url},
        }

    def _comment(self, each: Any) -> dict[str, Any]:
        return {
            "id": each.id,
            "body": each.body,
            "user": {"login": each.author},
            "created_at": _time(each.created),
            "updated_at": _time(each.updated),
            "html_url": each.url,
        }

    def _pull(self, pull: ForgeRequest, *, is_listed: bool = False) -> dict[str, Any]:
        repository = {"full_name": pull.head_repository}
        base = self.directory.items(pull.head_repository)
        found = next(item for item in base if item.number == pull.number)
        shown = {
            "number": pull.number,
            "node_id": f"{pull.head_repository}#{pull.number}",
            "title": pull.title,
            "body": pull.body,
            "state": "open" if pull.is_open else "closed",
            "user": {"login": pull.author},
            "draft": pull.draft,
            "head": {"ref": pull.head, "sha": pull.head_commit, "label": f"ada:{pull.head}", "repo": repository},
            "base": {"ref": pull.base, "sha": pull.head_commit, "repo": repository},
            "merged_at": _time(found.updated) if pull.merged else None,
            "merge_commit_sha": pull.merged,
            "html_url": pull.url,
        }
        return shown if is_listed else {**shown, "mergeable": pull.mergeable}

    def _review(self, review: ForgeReview) -> dict[str, Any]:
        states = {"approved": "APPROVED", "changes": "CHANGES_REQUESTED", "commented": "COMMENTED"}
        more = {"state": states[review.state], "submittedAt": _time(review.submitted)}
        return {**_text(review), **more, "commit": {"oid": review.commit}}

    def _thread(self, lines: list[ReviewComment]) -> dict[str, Any]:
        first = lines[0]
        return {
            "id": f"PRRT_{first.thread}",
            "isResolved": first.id in self.resolved,
            "path": first.path,
            "line": first.line,
            "diffSide": "RIGHT",
            "comments": {"nodes": [_text(each) for each in lines]},
        }


def _text(each: Any, **more: str) -> dict[str, Any]:
    login, is_app = each.author.removesuffix("[bot]"), each.author.endswith("[bot]")
    times = {
        f"{name}At": _time(when)
        for name in ("created", "updated")
        if (when := getattr(each, name, None)) is not None
    }
    author = {"login": login, "kind": "Bot" if is_app else "User"}
    # GitHub's type BigInt is a text.
    return {"fullDatabaseId": str(each.id), "body": each.body, "author": author, **times, **more}


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"
