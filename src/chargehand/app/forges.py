"""Use cases of issues at forges: taking one, tending the taken ones, watching, and receiving webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chargehand.app.composition import App
from chargehand.app.forge.accounts import ForgeAccounts, require_writable
from chargehand.app.forge.claims import Claim, WriteRights, claim_issue, find_claim, read_mark
from chargehand.app.forge.clones import seen_branches, update_clone
from chargehand.app.forge.entries import ForgeEntry
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forge.settings import (
    assign_account,
    branch_name,
    recorded_settings,
    request_settings,
    user_repository,
)
from chargehand.app.forge.texts import issue_request, progress_text, read_command
from chargehand.app.issues.deeds import MissionDeeds
from chargehand.app.issues.tending import QUIET, Tender
from chargehand.app.requests import prepare_issue, record_mission
from chargehand.app.runs import branch_slug
from chargehand.app.worker import ensure_worker
from chargehand.configuration.run_options import RunRequest
from chargehand.core.config import RequestsConfig
from chargehand.core.errors import ChargehandError, RefusedError, UsageError
from chargehand.core.ids import new_id
from chargehand.core.records import IssueLink
from chargehand.durable.admission import ConcurrencyLimit
from chargehand.forges.contract import Forge, ForgeComment, ForgeError, ForgeIssue, ForgeRepository, IssueAddress
from chargehand.reports.documents import Document
from chargehand.reports.reading import StateReader

if TYPE_CHECKING:
    from chargehand.configuration.trust import ConfirmTrust

_LOG = logging.getLogger("chargehand.forges")
# Between two looks at a repository, and between two visits of the issues that are worked on.
LOOK_SECONDS, VISIT_SECONDS = 60.0, 15.0
_STEP_SECONDS = 2.0
_NEWS = timedelta(minutes=10)
# The beginnings of the names of events that concern no issue.
_OF_REQUESTS = ("pull_request", "status", "check_", "push", "Merge Request", "Pipeline", "Job", "Push")
# After a failure, so that a forge that is down, or an issue that cannot be taken, is not tried all the time.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 30.0, 900.0


# --- taking an issue


def take_issue(app: App, address: str, request: RunRequest, *, confirm_trust: ConfirmTrust | None = None) -> str:
    """Claim an issue, and record a mission that resolves it; return the mission's id.

    A person asks for it, so that an issue whose earlier mission has ended is taken again.

    It starts from the target branch as it is at the forge. Nothing is claimed for a request that could not begin.
    Raises `UsageError`, `ForgeError`, `RefusedError` (`issue_closed`, `issue_taken`, `issue_request`) and the
    errors of `record_mission`.
    """
    if request.text is not None or request.file is not None or request.repo or request.base:
        raise UsageError(
            "--issue comes with its own text, repository and base",
            hint="leave out TEXT, --file, --repo and --base; write more into the issue",
        )
    accounts = ForgeAccounts(app)
    entry, found = accounts.find(address)
    with accounts.open(entry.name, found.repository) as forge:
        issue = _require_open(forge, found)
        return _take(app, entry, forge, issue, request, confirm_trust=confirm_trust, again=True)


def _require_open(forge: Forge, address: IssueAddress) -> ForgeIssue:
    if address.is_request:
        raise RefusedError(
            f"{address.repository}#{address.number} is a request to merge, not an issue",
            code="issue_request",
            hint="name the issue; remarks on a request of Chargehand's start its next round by themselves,"
            " and a request of another person, of a fork or not, is left to its author",
        )
    issue = forge.issue(address.repository, address.number)
    if not issue.is_open:
        raise RefusedError(f"{issue.url} is closed", code="issue_closed", hint="reopen it at the forge")
    return issue


def _take(
    app: App,
    entry: ForgeEntry,
    forge: Forge,
    issue: ForgeIssue,
    request: RunRequest,
    *,
    confirm_trust: ConfirmTrust | None,
    again: bool,
    comments: Sequence[ForgeComment] | None = None,
) -> str:
    repository = forge.repository(issue.repository)
    target = entry.config.target or require_writable(repository)
    require_writable(repository)
    if comments is None:
        comments = _read_comments(forge, issue)
    seen = f"chargehand/issue-{issue.number}-"
    clone = update_clone(app.home, entry.name, forge, repository, target, seen=seen)
    request = dataclasses.replace(
        request, issue=None, text=issue_request(issue, comments), repo=clone, base=target
    )
    # Before the claim, which people see: whatever can fail without it takes no issue.
    config = app.user_configuration().config
    read = partial(request_settings, config, app.preparation, entry, repository.name, clone, target)
    request, plan, settings = prepare_issue(app, request, read, confirm_trust=confirm_trust)
    name = branch_name(settings, issue, branch_slug(issue.title), target)
    branch = _free_branch(forge, issue, name, seen_branches(clone, seen) if name.startswith(seen) else None)
    mission = new_id("mission")
    own = _claim(app, forge, issue, mission, comments=comments, again=again)
    if entry.config.assign:
        assign_account(forge, issue.repository, issue.number, own.comment.author, assigned=True)
    link = _link_to(issue, entry, own, repository, branch=branch, target=target, settings=settings)
    story = Story(
        mission=mission,
        account=entry.name,
        repository=issue.repository,
        number=issue.number,
        login=own.comment.author,
    )
    memos = ForgeMemos(app.store.followers)
    try:
        # First the note: a mission that no visit knows would never be shown at the forge.
        memos.put(story)
        record_mission(app, request, plan=plan, mission=mission, issue=link)
    except BaseException:
        memos.remove(story)
        with contextlib.suppress(ForgeError):
            forge.delete_comment(issue.repository, issue.number, own.comment.id)
        raise
    return mission


def _claim(
    app: App, forge: Forge, issue: ForgeIssue, mission: str, *, comments: Sequence[ForgeComment], again: bool
) -> Claim:
    own, holds = claim_issue(
        forge,
        issue.repository,
        issue.number,
        mission=mission,
        text=progress_text(None, None),
        now=app.clock.now(),
        again=again,
        comments=comments,
    )
    if own is None:
        assert holds is not None
        raise RefusedError(
            f"{issue.url} is taken by mission {holds.mark.mission} of {holds.comment.author}",
            code="issue_taken",
            hint="wait until it ends; a person with write right can end it with a comment /stop there",
        )
    return own


def _link_to(
    issue: ForgeIssue,
    entry: ForgeEntry,
    own: Claim,
    repository: ForgeRepository,
    *,
    branch: str,
    target: str,
    settings: RequestsConfig,
) -> IssueLink:
    return IssueLink(
        account=entry.name,
        repository=issue.repository,
        number=issue.number,
        url=issue.url,
        title=issue.title,
        author=issue.author,
        claim=own.comment.id,
        after=own.mark.after,
        branch=branch,
        target=target,
        clone_url=repository.clone_url,
        ssh_url=repository.ssh_url,
        settings=recorded_settings(settings),
    )


def _read_comments(forge: Forge, issue: ForgeIssue) -> Sequence[ForgeComment]:
    # A comment that was written meanwhile is seen once the issue is claimed.
    return () if issue.comments == 0 else forge.comments(issue.repository, issue.number)


def _free_branch(forge: Forge, issue: ForgeIssue, name: str, seen: Container[str] | None) -> str:
    """Return a branch that no earlier mission of the issue has used; `seen` are those that git has listed."""
    for number in range(1, 100):
        branch = name if number == 1 else f"{name}-{number}"
        if seen is not None:
            is_taken = branch in seen
        else:  # a name that people chose may be that of a branch of theirs
            is_taken = bool(
                forge.find_requests(issue.repository, branch) or forge.branch(issue.repository, branch)
            )
        if not is_taken:
            return branch
    raise ForgeError("refused", f"the branches {name}… are all taken", hint="delete some of them")


# --- watching


class ForgeWatch:
    """Visits the issues that are worked on, and takes new ones of the watched repositories.

    One process of a state directory does so at a time. A failure is logged once and tried again after a pause.
    """

    def __init__(self, app: App, *, takes: bool = True, quiet: timedelta = QUIET) -> None:
        self._app = app
        self._memos = ForgeMemos(app.store.followers)
        self._accounts = ForgeAccounts(app, keep=True)
        self._tender = Tender(
            reader=app, accounts=self._accounts, memos=self._memos, deeds=MissionDeeds(app), quiet=quiet
        )
        self._takes = takes
        self._looked: dict[str, float] = {}
        self._paused: dict[str, tuple[float, float]] = {}
        self._said: dict[str, str] = {}

    def close(self) -> None:
        """Close the connections to forges."""
        self._accounts.close()

    def step(self, *, hurry: bool = False) -> int:
        """Make the due visits and looks; return the number of new missions. `hurry`: everything is due."""
        place = ConcurrencyLimit(self._app.home / "slots" / "forges", places=1).new_place()
        try:
            return self._step(hurry) if place.take_now() else 0
        finally:
            place.leave()

    def _step(self, hurry: bool) -> int:
        hints = self._memos.take_hints() if self._takes else ()
        for story in tuple(self._memos.load().stories.values()):
            # A worker that ends hurries only for missions that changed lately.
            named = f"{story.account}:{story.repository}"
            soon = named in hints or f"{named}!" in hints or (hurry and self._has_news(story))
            if self._is_due(story.key, self._visit_seconds(story), soon):
                self._try(story.key, partial(self._visit, story), hurry=soon)
        taken = 0
        for entry in self._accounts.entries().values() if self._takes else ():
            for repository in entry.config.repositories:
                key = f"{entry.name}:{repository}"
                soon = hurry or key in hints
                if self._is_due(key, LOOK_SECONDS, soon):
                    taken += self._try(key, partial(self._look, entry, repository), hurry=soon)
        return taken

    def _visit_seconds(self, story: Story) -> float:
        """Return how often an issue is visited: less often once its request waits for people."""
        return LOOK_SECONDS if story.request and not self._has_changed(story) else VISIT_SECONDS

    def _has_news(self, story: Story) -> bool:
        return self._takes or self._has_changed(story)

    def _has_changed(self, story: Story) -> bool:
        """Return whether the mission has changed lately, or cannot be read."""
        with contextlib.suppress(ChargehandError):
            updated = datetime.fromisoformat(self._app.store.log.summary(story.mission).summary.updated)
            return self._app.clock.now() - updated < _NEWS
        return True

    def _is_due(self, key: str, seconds: float, soon: bool) -> bool:
        due = soon or time.monotonic() - self._looked.get(key, -seconds) >= seconds
        if due:
            self._looked[key] = time.monotonic()
        return due

    def _visit(self, story: Story) -> int:
        self._tender.visit(story)
        return 0

    def _try(self, key: str, act: Callable[[], int], *, hurry: bool) -> int:
        until, pause = self._paused.get(key, (0.0, 0.0))
        if not hurry and time.monotonic() < until:
            return 0
        try:
            done = act()
        except (ChargehandError, OSError) as error:
            wait = min(max(_PAUSE_SECONDS, pause * 2), _LONGEST_PAUSE_SECONDS)
            if isinstance(error, ForgeError) and error.retry_seconds:
                wait = max(wait, error.retry_seconds)
            self._paused[key] = (time.monotonic() + wait, wait)
            if self._said.get(key) != str(error):
                _LOG.warning("%s: %s", key, error)
            self._said[key] = str(error)
            return 0
        self._paused.pop(key, None)
        self._said.pop(key, None)
        return done

    def _look(self, entry: ForgeEntry, repository: str) -> int:
        """Take the issues of a repository that changed since the last look and fit the rule of the account."""
        config, key = entry.config, f"{entry.name}:{repository}"
        memo = self._memos.load()
        since = datetime.fromisoformat(memo.looked[key]) if key in memo.looked else None
        taken, latest, failed = 0, since, False
        own = user_repository(self._app.user_configuration().config, entry, repository)
        label = config.label if own.label is None else own.label
        with self._accounts.open(entry.name, repository) as forge:
            for issue in forge.issues(repository, label=label, assignee=config.assignee, since=since):
                latest = max(latest or issue.updated, issue.updated)
                story = f"{entry.name}:{issue.repository}#{issue.number}"
                if story not in self._memos.load().stories:
                    taken += self._try(f"{story} new", partial(self._take, entry, forge, issue), hurry=False)
                    failed |= f"{story} new" in self._paused
        # An issue that could not be taken is listed again.
        if latest is not None and latest != since and not failed:
            moment = latest.astimezone(UTC).isoformat()
            self._memos.change(lambda memo: replace(memo, looked={**memo.looked, key: moment}))
        return taken

    def _take(self, entry: ForgeEntry, forge: Forge, issue: ForgeIssue) -> int:
        may = WriteRights(forge, issue.repository)
        forge.repository(issue.repository)  # read anyway to take it; Gitea can then say rights with one request
        if issue.locked or (entry.config.authors == "write" and not may(issue.author)):
            return 0
        comments = _read_comments(forge, issue)
        holds, again = find_claim(comments, may_claim=may), _is_retried(comments, may)
        if holds is not None and not (
            again or (holds.mark.state == "held" and holds.is_over(self._app.clock.now()))
        ):
            return 0
        try:
            request = RunRequest(yes=True, detach=True)
            _take(self._app, entry, forge, issue, request, confirm_trust=None, again=again, comments=comments)
        except RefusedError as error:
            if error.code != "issue_taken":
                raise
            return 0
        ensure_worker(self._app)
        return 1

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.to_thread(self.step)
            await asyncio.sleep(_STEP_SECONDS)


def _is_retried(comments: Sequence[ForgeComment], may: Callable[[str], bool]) -> bool:
    """Return whether a person with write right asked for another try since the last claim."""
    asked = False
    for comment in comments:
        command = read_command(comment.body)
        if read_mark(comment.body) is not None:
            asked = asked and not may(comment.author)
        elif command is not None and command.name == "retry":
            asked = may(comment.author)
    return asked


# --- webhooks


class WebhookDocument(Document, frozen=True):
    """The answer to a webhook: whether it was new, and the repository that is looked at soon."""

    new: bool
    repository: str


def receive_hook(reader: StateReader, name: str, headers: Mapping[str, str], body: bytes) -> WebhookDocument:
    """Verify a webhook of a forge, and have its repository looked at with the next step of the watch.

    Nothing in it is believed but the address. Raises `NotFoundError`, `ForgeError` (`denied`, `invalid`).
    """
    from chargehand.forges.webhooks import read_delivery

    entry = ForgeAccounts(reader).entry(name)
    secret = reader.credentials.get(entry.config.webhook_secret) if entry.config.webhook_secret else None
    if not secret:
        raise ForgeError("denied", f"forges.{name} accepts no webhooks", hint="set webhook_secret")
    delivery = read_delivery(entry.config.kind, headers, body, secret, now=reader.clock.now().timestamp())
    # A look for new issues is needless after an event of requests alone.
    hint = f"{name}:{delivery.repository}{'!' if delivery.event.startswith(_OF_REQUESTS) else ''}"
    # By its content, which is signed; the id is a header, which is not.
    digest = hashlib.sha256(body).hexdigest()[:32]
    new = ForgeMemos(reader.store.followers).is_new(f"{name}:{digest}", hint)
    return WebhookDocument(new=new, repository=delivery.repository)
