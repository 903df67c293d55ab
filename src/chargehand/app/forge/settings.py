"""Settings of one repository's missions and requests: the user's for it, else those of [requests].

The [requests] of the repository's file count only once a person trusts that file. They name branches and requests,
and choose roles. They grant no right, area, network or money, and select neither issues nor people who may merge.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from chargehand.app.forge.entries import ForgeEntry
from chargehand.app.wiring.preparation import Preparation
from chargehand.core.config import Config, ForgeConfig, RepositoryConfig, RequestsConfig
from chargehand.core.errors import UsageError
from chargehand.core.records import IssueLink, RequestSettings
from chargehand.core.text import late_pattern, printable
from chargehand.forges.contract import Forge, ForgeError, ForgeIssue
from chargehand.reports.markdown import code, words

USUAL_BRANCH = "chargehand/issue-{number}-{slug}"
_USUAL_TITLE = "{title} (#{number})"
_FIELD = late_pattern(r"\{(number|title|author|url|repository|slug)\}")
_OURS = late_pattern(r"<!--\s*chargehand:")
# Forges refuse texts of more than 65,536 characters.
_LARGEST_BODY, _LARGEST_TEMPLATE = 65_000, 100_000
# Where a forge looks for the text of a new request, in small letters.
_GITHUB = (".github/", "", "docs/")
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "gitlab": (".gitlab/merge_request_templates/default.md",),
    "github": tuple(f"{place}pull_request_template.md" for place in _GITHUB),
    "gitea": tuple(f"{place}pull_request_template.md" for place in (".gitea/", ".forgejo/", *_GITHUB)),
}


def user_repository(config: Config, entry: ForgeEntry, repository: str) -> RepositoryConfig:
    """Return the user's own settings of a repository, of [repositories]; an entry for the account comes first."""
    wanted = repository.lower()
    found = [each for each in config.repositories.values() if (each.repository or "").lower() == wanted]
    for account in (entry.name, None):
        for each in found:
            if each.forge == account:
                return each
    return RepositoryConfig()


def request_settings(
    config: Config, preparation: Preparation, entry: ForgeEntry, repository: str, clone: Path, target: str
) -> RequestsConfig:
    """Return the settings in force for a repository, whose clone has its target branch; `config` is the user's.

    Raises `ConfigError`.
    """
    own = user_repository(config, entry, repository)
    shared = preparation.configured(clone, revision=target, only_reads=True).resolved.config.requests
    return replace(shared, **_present(own, RequestsConfig.__struct_fields__))


def recorded_settings(settings: RequestsConfig) -> RequestSettings:
    """Return the settings that a mission's link keeps."""
    return RequestSettings(**_present(settings, RequestSettings.__struct_fields__))


def _present(settings: RequestsConfig, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def branch_name(settings: RequestsConfig, issue: ForgeIssue, slug: str, target: str) -> str:
    """Return the name of the branch of an issue. Raises `UsageError` (`forge_branch`) if git does not allow it."""
    name = _fill(settings.branch or USUAL_BRANCH, {"number": str(issue.number), "slug": slug})
    checked = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=False, cwd="/")
    if checked.returncode or name == target:
        problem = "is the branch of requests itself" if name == target else "is not a name that git allows"
        raise UsageError(
            f"requests.branch: {name!r} {problem}",
            code="forge_branch",
            hint=f"choose another template, such as {USUAL_BRANCH!r}",
        )
    return name


def request_title(link: IssueLink, title: str) -> str:
    """Return the title of a request on one line; `title` is that of the issue, fit for it."""
    author = printable(link.author).replace("@", "")
    fields = {"number": str(link.number), "title": title, "author": author, "url": link.url}
    text = _fill(link.settings.title or _USUAL_TITLE, {**fields, "repository": link.repository})
    return " ".join(text.split())[:250]


def request_text(evidence: str, link: IssueLink, template: str) -> str:
    """Return the description of a request: the configured text, the evidence, the repository's own template.

    The evidence is never shortened: the other two are.
    """
    room = _LARGEST_BODY - len(evidence)
    before = ""
    if link.settings.body is not None:
        fields = {"number": str(link.number), "title": words(link.title), "author": code(link.author)}
        before = _fill(link.settings.body, {**fields, "url": link.url, "repository": link.repository})[:room]
    # A template that contains a mark would pass for a comment of ours.
    after = _OURS.sub("<!-- ", printable(template.replace("\r\n", "\n"))).strip()[: max(0, room - len(before))]
    return "\n\n".join(part for part in (_OURS.sub("<!-- ", before), evidence, after) if part)


def read_template(clone: Path, kind: str, target: str) -> str:
    """Return the repository's own template of requests on its target branch, "" if it has none."""
    wanted = _TEMPLATES.get(kind, _TEMPLATES["github"])
    places = sorted({path.rpartition("/")[0] for path in wanted})
    found: dict[str, str] = {}
    for place in places:
        command = (
            "ls-tree",
            "-l",
            "-z",
            "--full-tree",
            f"refs/heads/{target}",
            *((f"{place}/",) if place else ()),
        )
        for line in _git(clone, *command).split("\0"):
            about, _, path = line.partition("\t")
            mode, _, blob, size = (about.split() + [""] * 4)[:4]
            # No links: they could lead anywhere.
            if mode.startswith("100") and path.lower() in wanted and int(size) <= _LARGEST_TEMPLATE:
                found.setdefault(path.lower(), blob)
    for path in wanted:
        if path in found:
            return _git(clone, "cat-file", "blob", found[path])
    return ""


def apply_settings(forge: Forge, link: IssueLink, number: int, config: ForgeConfig) -> None:
    """Set the labels of a new request, and ask for its reviews; may be repeated."""
    if link.request:
        return
    if link.settings.labels:
        forge.change_issue(link.repository, number, add_labels=link.settings.labels, is_request=True)
    reviewers = config.reviewers if link.settings.reviewers is None else link.settings.reviewers
    if reviewers:
        forge.ask_reviews(link.repository, number, reviewers)


def assign_account(forge: Forge, repository: str, number: int, login: str, *, assigned: bool) -> None:
    """Show by the issue's assignees whether the account works on it; an account that cannot be assigned is not."""
    people = (login,)
    with contextlib.suppress(ForgeError):
        if assigned:
            forge.change_issue(repository, number, assign=people)
        else:
            forge.change_issue(repository, number, unassign=people)


def _fill(template: str, fields: Mapping[str, str]) -> str:
    # In one pass, so that a field in an issue's title stays text.
    return _FIELD.sub(lambda found: fields.get(found[1], found[0]), template)


def _git(clone: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", f"--git-dir={clone}", *words], capture_output=True, check=False, cwd="/", timeout=60
    )
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
