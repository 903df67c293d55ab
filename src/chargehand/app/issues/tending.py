"""Tending the issues that are worked on: progress, questions, answers, reviews, red checks, and the end.

One visit reads the facts at the forge and the mission's state, and carries out all acts that are due. Each act is
looked for first or recorded in the mission's log, so that a visit may be repeated after any interruption. Only
people with write right decide anything, and their right is read at each visit.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.claims import ClaimMark, WriteRights, find_claim, with_mark
from chargehand.app.forge.clones import clone_path, delete_branch, linked_repository, update_clone
from chargehand.app.forge.entries import ForgeEntry
from chargehand.app.forge.memo import ForgeMemos, Story
from chargehand.app.forge.request_target import NAME
from chargehand.app.forge.settings import assign_account
from chargehand.app.forge.stack import opened_parts
from chargehand.app.forge.texts import (
    IssueCommand,
    approval_text,
    conflict_comment,
    failed_round_comment,
    mark,
    mend_request,
    progress_text,
    question_text,
    read_command,
    round_request,
)
from chargehand.app.issues.deeds import MissionDeeds
from chargehand.app.issues.remarks import RemarkReader
from chargehand.core.errors import ChargehandError, RefusedError
from chargehand.core.mission_events import ForgeActed
from chargehand.core.records import IssueLink
from chargehand.core.state import ENDED, MissionState, Question
from chargehand.forges.contract import (
    CommitStatus,
    Forge,
    ForgeComment,
    ForgeError,
    ForgeRequest,
)
from chargehand.reports.reading import StateReader

# The text of an open issue's progress names the time in steps of this: each edit renews the claim.
_STEP = timedelta(minutes=20)
# Comments on lines that are not part of a review are collected for so long.
QUIET = timedelta(seconds=20)
_MOST_UPDATES = 50
# A target branch that moves changes nothing at its requests, so it is looked at.
_TARGET_SECONDS = 300.0


class Tender(Struct, frozen=True, kw_only=True):
    """Visits issues; `quiet` is how long comments on lines are collected.

    `seen` has the facts of the last visit of each issue: if two visits in a row found the same, comments and
    reviews are not read again. `targets` has when the target branch was read, by the monotonic clock.
    """

    reader: StateReader
    accounts: ForgeAccounts
    memos: ForgeMemos
    deeds: MissionDeeds
    quiet: timedelta = QUIET
    seen: dict[str, tuple[object, int]] = {}
    targets: dict[str, float] = {}

    def visit(self, story: Story) -> None:
        """Carry out all acts that are due for one issue. Raises `ForgeError`, `ChargehandError`."""
        accounts = self.accounts
        state = self.reader.mission_state(story.mission)
        if state.request is None or state.request.issue is None:
            self.memos.remove(story)
            return
        with accounts.open(story.account, story.repository) as forge:
            visit = _Visit(self, accounts.entry(story.account), forge, story, state, state.request.issue)
            try:
                if state.status not in ENDED:
                    visit.tend_open()
                elif state.status == "promoted" and state.commit is not None:
                    visit.tend_promoted()
                elif state.request.issue.request and state.status not in ("cancelled", "discarded"):
                    visit.tend_failed_round()
                else:
                    visit.end()
            except ForgeError as error:
                self.seen.pop(story.key, None)  # the visit was not finished
                if error.problem != "missing":
                    raise
                # Deleted, or invisible by now.
                self.deeds.cancel(story.mission, identity=f"forge:{story.account}")
                visit.record("gone")
                self.memos.remove(story)


class _Visit:
    def __init__(
        self, tender: Tender, entry: ForgeEntry, forge: Forge, story: Story, state: MissionState, link: IssueLink
    ) -> None:
        self._tender, self._entry, self._forge = tender, entry, forge
        self._story, self._state, self._link = story, state, link
        self._may = WriteRights(forge, link.repository)
        if story.login:  # it may write, or it could not push
            self._may.add(story.login)
        log = tender.reader.store.log.read(state.id, types=(ForgeActed.type,))
        from chargehand.core.events import read_payload

        acts = [each for each in map(read_payload, log) if isinstance(each, ForgeActed)]
        self._acted = {each.key for each in acts}
        self._parts = opened_parts(acts)

    # --- while the mission is not over

    def tend_open(self) -> None:
        """Cancel the mission if its issue is closed, pass answers on, ask, and show progress."""
        link, forge = self._link, self._forge
        issue = forge.issue(link.repository, link.number)
        if (issue.repository.lower(), issue.number) != (link.repository.lower(), link.number):
            # What people say there is not heard here, and its claim is a comment of another repository.
            self._tender.deeds.cancel(self._state.id, identity=f"forge:{self._story.account}")
            self.record("transferred", url=issue.url)
            self._tender.memos.remove(self._story)
            return
        if self._is_known((issue.updated, issue.is_open, self._state.updated, self._step())):
            return
        comments = forge.comments(link.repository, link.number)
        holds = find_claim(comments, may_claim=self._may)
        if holds is None or holds.comment.id != link.claim:
            self._tender.deeds.cancel(self._state.id, identity=f"forge:{self._story.account}")
            self.record("lost")
            self._tender.memos.remove(self._story)
            return
        if not issue.is_open and not link.request:
            self._tender.deeds.cancel(self._state.id, identity=f"forge:{self._story.account}")
            self.record("closed")
            self.end(comments)
            return
        for comment, command in self._commands(comments):
            self._obey(comment, command, comments)
        asked = self._tender.deeds.open_question(self._state.id)
        if asked is not None and not asked[1].until:
            text = question_text(asked[0], asked[1])
            self._ask(f"asked/{asked[0]}/{asked[1].id}", text, self._find_ours(_question_mark(*asked), comments))
        change = self._tender.deeds.change_to_decide(self._state.id)
        if change is not None:
            tree, patch = change
            reasons = [each.message for each in self._state.reasons]
            text = approval_text(self._state.id, tree, reasons, patch)
            self._ask(
                f"asked/{tree}", text, self._find_ours(mark("approval", f"{self._state.id}/{tree}"), comments)
            )
        self._show(comments)

    def _is_known(self, facts: object) -> bool:
        """Return whether the last two visits found these facts; with times in seconds, one is not enough."""
        before, times = self._tender.seen.get(self._story.key, (None, 0))
        times = times + 1 if before == facts else 0
        self._tender.seen[self._story.key] = (facts, times)
        return times > 1

    def _step(self) -> datetime:
        now = self._tender.reader.clock.now()
        return now - (now - datetime.min.replace(tzinfo=now.tzinfo)) % _STEP

    def _commands(self, comments: Sequence[ForgeComment]) -> list[tuple[ForgeComment, IssueCommand]]:
        found = []
        for comment in comments:
            command = read_command(comment.body) if comment.id > self._link.claim else None
            if command is not None and f"{command.name}/{comment.id}" not in self._acted:
                found.append((comment, command))
        # The right as it is now, not as it was when the comment was written.
        return [(comment, command) for comment, command in found if self._may(comment.author)]

    def _obey(self, comment: ForgeComment, command: IssueCommand, comments: Sequence[ForgeComment]) -> None:
        identity = self._identity(comment.author)
        problem = ""
        if command.name == "stop":
            self._tender.deeds.cancel(self._state.id, identity=identity)
        elif command.name in ("answer", "promote", "discard"):
            try:
                act = self._answer if command.name == "answer" else self._decide
                if not act(comment, command, comments, identity):
                    problem = "Nothing is asked that this could answer."
            except ChargehandError as error:
                if isinstance(error, ForgeError):
                    raise
                problem = error.message
        else:
            return
        if problem:
            text = (
                f"This was not taken as an answer.\n\n{_as_words(problem)}\n\n{mark('refused', str(comment.id))}"
            )
            if not any(mark("refused", str(comment.id)) in each.body for each in comments):
                self._forge.add_comment(self._link.repository, self._link.number, text)
        self.record(f"{command.name}/{comment.id}", comment=comment.id, url=comment.url, identity=identity)

    def _answer(
        self, comment: ForgeComment, command: IssueCommand, comments: Sequence[ForgeComment], identity: str
    ) -> bool:
        asked = self._tender.deeds.open_question(self._state.id)
        where = self._find_ours(_question_mark(*asked), comments) if asked is not None else None
        # An answer is for the question above it, not for a later one.
        if asked is None or where is None or comment.id < where.id:
            return False
        self._tender.deeds.answer(asked[0], asked[1].id, command.text, identity=identity)
        return True

    def _decide(
        self, comment: ForgeComment, command: IssueCommand, comments: Sequence[ForgeComment], identity: str
    ) -> bool:
        change = self._tender.deeds.change_to_decide(self._state.id)
        if change is None:
            return False
        where = self._find_ours(mark("approval", f"{self._state.id}/{change[0]}"), comments)
        if where is None or comment.id < where.id:
            return False
        promote = command.name == "promote"
        self._tender.deeds.decide(self._state.id, change[0], promote=promote, identity=identity)
        return True

    def _find_ours(self, wanted: str, comments: Sequence[ForgeComment]) -> ForgeComment | None:
        return next((each for each in comments if wanted in each.body and self._may(each.author)), None)

    def _ask(self, key: str, text: str, found: ForgeComment | None) -> None:
        if found is None:
            found = self._forge.add_comment(self._link.repository, self._link.number, text)
        if key not in self._acted:
            self.record(key, comment=found.id, url=found.url)

    # --- once the result is promoted

    def tend_promoted(self) -> None:
        """Finish the delivery; then follow the request: rounds, merge, end."""
        state, link, forge = self._state, self._link, self._forge
        delivery = state.deliveries.get(NAME)
        if delivery is None or delivery.commit != state.commit or delivery.state != "done":
            # A refusal seldom ends by itself: it is tried again with the next step of the progress comment.
            refused = delivery is not None and delivery.state == "blocked"
            if not refused or not self._is_known((delivery, self._step())):
                self._tender.deeds.deliver(state.id)
                self._show(None)
            return
        if f"shown/{state.commit}" not in self._acted:
            # A first look at the request would find nothing new.
            self._show(None, delivery.ref)
            self.record(f"shown/{state.commit}", url=delivery.ref)
            return
        request = self._find_request()
        if request is None:
            return
        if request.merged is not None:
            self._finish(request, "merged", request.merged)
            return
        if not request.is_open:
            self._finish(request, "closed", "")
            return
        statuses = forge.statuses(link.repository, request.head_commit)
        known = self._is_known((request.updated, request.mergeable, statuses)) and request.updated is not None
        if request.head_commit == state.commit and not known:
            self._follow(request, statuses)
        elif request.head_commit == state.commit and self._is_target_due():
            self._move_up(request)
            self._update_if_moved(request)

    def _find_request(self) -> ForgeRequest | None:
        link = self._link
        if self._story.request:
            return self._forge.request(link.repository, self._story.request)
        opened = self._entry.find(self._state.deliveries[NAME].ref)
        if opened is not None and opened.is_request and opened.repository == link.repository:
            found = self._forge.request(link.repository, opened.number)
        else:
            known = self._forge.find_requests(link.repository, link.branch)
            if not known:
                return None
            found = known[0]
        self._story = replace(self._story, request=found.number)
        self._tender.memos.put(self._story)
        return found

    def _finish(self, request: ForgeRequest, how: str, commit: str) -> None:
        link, forge = self._link, self._forge
        if how == "merged":
            issue = forge.issue(link.repository, link.number)
            if issue.is_open and issue.repository.lower() == link.repository.lower():
                forge.change_issue(link.repository, link.number, is_open=False)
            # The clone then shows whether the change survives on its branch.
            self._fetch_target()
            if self._entry.config.delete_branch:
                self._delete_branches(request)
        self.record(how, number=request.number, url=request.url, commit=commit)
        self._show(None, request.url, more=f"the request was {how}", over=True)
        self._tender.memos.remove(self._story)

    def _fetch_target(self) -> None:
        home, link, forge = self._tender.reader.home, self._link, self._forge
        linked = linked_repository(link)
        try:
            if linked is not None:
                update_clone(home, self._story.account, forge, linked, link.target)
                return
        except ForgeError as error:
            if error.is_transient:
                raise
        update_clone(home, self._story.account, forge, forge.repository(link.repository), link.target)

    def _delete_branches(self, request: ForgeRequest) -> None:
        """Delete the branches of merged requests, unless they have other commits than ours."""
        link, forge = self._link, self._forge
        clone = clone_path(self._tender.reader.home, self._story.account, link.repository)
        repository = linked_repository(link) or forge.repository(link.repository)
        lower = [forge.request(link.repository, number) for number in self._stack()]
        merged = [each for each in lower if each.merged is not None]
        if request.head_commit == self._state.commit:
            merged.append(request)
        for each in merged:
            # It has new commits since, is protected, or is gone.
            with contextlib.suppress(ForgeError):
                delete_branch(clone, forge, repository, each.head, commit=each.head_commit)

    def _follow(self, request: ForgeRequest, statuses: Sequence[CommitStatus]) -> None:
        link, forge = self._link, self._forge
        self._move_up(request)
        reader = RemarkReader(forge=forge, link=link, may=self._may, stack=self._stack())
        quiet_since = self._tender.reader.clock.now() - self._tender.quiet
        remarks = reader.read(request, statuses, quiet_since)
        if remarks is None:  # people are writing
            self._tender.seen.pop(self._story.key, None)
            remarks = []
        if remarks:
            if link.round >= self._entry.config.rounds:
                if "rounds" not in self._acted:
                    text = (
                        f"**Chargehand** has worked on {link.round} rounds of remarks and stops here;"
                        f" a person has to continue.\n\n{mark('rounds', self._state.id)}"
                    )
                    forge.add_comment(link.repository, request.number, text, is_request=True)
                    self.record("rounds", number=request.number)
                return
            keys = tuple(each.key for each in remarks)
            threads = {each.key: each.thread for each in remarks if each.thread}
            further = replace(link, request=request.number, round=link.round + 1, remarks=keys, threads=threads)
            further = replace(further, stack=self._stack())
            author = next((each.author for each in remarks if not each.key.startswith("check/")), "")
            identity = self._identity(author) if author else f"forge:{self._story.account}"
            mission = self._tender.deeds.follow_up(
                self._state.id, round_request(further, remarks), further, identity=identity
            )
            self._tender.memos.put(replace(self._story, mission=mission))
            self.record(f"round/{further.round}", number=request.number, url=request.url, identity=identity)
        elif self._update_if_moved(request):
            return
        elif self._entry.config.merge == "approved" and self._may_merge(request, statuses):
            method = link.settings.merge_method or self._entry.config.merge_method
            forge.merge(link.repository, request.number, commit=request.head_commit, method=method)
            self.record("merge", number=request.number, commit=request.head_commit)

    def _is_target_due(self) -> bool:
        """Return whether to look at the target branch though nothing else has changed."""
        return time.monotonic() - self._tender.targets.get(self._story.key, 0.0) >= _TARGET_SECONDS

    def _update_if_moved(self, request: ForgeRequest) -> bool:
        """Merge the request with its target branch, unless that was done for its present tip; return whether."""
        link, base, when = self._link, self._state.base, self._entry.config.update
        if when == "never" or (when == "conflict" and request.mergeable is not False):
            return False
        if request.base != link.target:  # the request of a task that is not merged yet
            return False
        tip = self._forge.branch(link.repository, link.target)
        self._tender.targets[self._story.key] = time.monotonic()
        if tip is None or f"target/{tip}" in self._acted or (base is not None and base.commit == tip):
            return False
        self._update(request, tip)
        return True

    def _update(self, request: ForgeRequest, tip: str) -> None:
        """Have the request merged with its target branch and judged again; conflicts are a round of work."""
        link, forge, deeds = self._link, self._forge, self._tender.deeds
        made = problem = ""
        if not deeds.contains(self._state.id, tip):
            self._fetch_target()
            further = replace(link, request=request.number, remarks=(), stack=self._stack())
            works = link.round < self._entry.config.rounds
            try:
                made, problem = deeds.update(self._state.id, tip, further, works=works) or ("", "")
            except RefusedError as error:
                problem = error.message
        if problem:
            text = conflict_comment(link.target, tip, problem, ours=bool(made))
            talk = forge.comments(link.repository, request.number, is_request=True)
            if self._find_ours(mark("target", tip), talk) is None:
                forge.add_comment(link.repository, request.number, text, is_request=True)
        if made:
            self._tender.memos.put(replace(self._story, mission=made))
        self.record(f"target/{tip}", number=request.number, url=request.url, commit=tip)

    def tend_failed_round(self) -> None:
        """Have a red merge with the target mended; otherwise say so on the request, and follow it as before."""
        state, link = self._state, self._link
        worked = len(state.attempts) > (state.restored[-1].attempt if state.restored else 0)
        may_mend = bool(link.onto) and not worked and state.status == "refused"
        if may_mend and "mend" not in self._acted and link.round < self._entry.config.rounds:
            identity = f"forge:{self._story.account}"
            self._tender.deeds.mend(state.id, mend_request(state), identity=identity)
            self.record("mend", identity=identity)
            return
        talk = self._forge.comments(link.repository, link.request, is_request=True)
        if self._find_ours(mark("failed", state.id), talk) is None:
            text = failed_round_comment(state, link.remarks)
            self._forge.add_comment(link.repository, link.request, text, is_request=True)
        self.record("failed", number=link.request)
        before = state.forked_from
        if before is None:
            self.end()
        else:
            self._tender.memos.put(replace(self._story, mission=before))

    def _stack(self) -> tuple[int, ...]:
        """Return the requests of earlier tasks, below the one of the issue, in their order."""
        return self._link.stack or tuple(self._parts.values())

    def _move_up(self, request: ForgeRequest) -> None:
        """Have each request of a stack merged into the target branch once the one below it is merged."""
        link, forge = self._link, self._forge
        stack = self._stack()
        requests = [*(forge.request(link.repository, number) for number in stack), request] if stack else []
        for lower, upper in itertools.pairwise(requests):
            if lower.merged is not None and upper.is_open and upper.base == lower.head:
                forge.change_request(link.repository, upper.number, base=link.target)

    def _may_merge(self, request: ForgeRequest, statuses: Sequence[CommitStatus]) -> bool:
        link = self._link
        latest = {
            each.author: each
            for each in self._forge.reviews(link.repository, request.number)
            if each.state != "commented" and each.author != request.author and self._may(each.author)
        }
        heads = self._approvable(request.head_commit)
        approved = any(each.state == "approved" and each.commit in heads for each in latest.values())
        objected = any(each.state == "changes" for each in latest.values())
        green = bool(statuses) and all(each.state == "success" for each in statuses)
        ready = request.mergeable is not False and not request.draft and request.base == link.target
        return approved and not objected and green and ready

    def _approvable(self, head: str) -> set[str]:
        """Return the commits whose approval admits the head: merges with the target alone are between them."""
        heads, state = {head}, self._state
        while len(heads) < _MOST_UPDATES and state.request is not None and state.request.issue is not None:
            onto, merged = state.request.issue.onto, state.restored[-1].checkpoint.tree if state.restored else None
            if not onto or state.tree != merged or state.forked_from is None:
                break
            heads.add(onto)
            state = self._tender.reader.mission_state(state.forked_from)
        return heads

    # --- the progress comment, and the end

    def end(self, comments: Sequence[ForgeComment] | None = None) -> None:
        """Show how the mission ended, release the claim, and look no more."""
        self._show(comments, over=True)
        self._tender.memos.remove(self._story)

    def _show(
        self, comments: Sequence[ForgeComment] | None, url: str = "", *, more: str = "", over: bool = False
    ) -> None:
        """Edit the progress comment, unless it is known to say the same."""
        link = self._link
        state = self._tender.reader.mission_state(self._state.id)
        if not more and state.status not in ENDED:
            more = f"last seen {self._step():%Y-%m-%d %H:%M} UTC"
        blocked = state.deliveries.get(NAME)
        if blocked is not None and blocked.state != "done" and blocked.commit == state.commit:
            more = f"the request is {blocked.state}: {blocked.reason}"
        made = ClaimMark(mission=state.id, after=link.after, state="released" if over else "held")
        # A comment `/retry` is only seen in repositories that are watched.
        watched = link.repository in self._entry.config.repositories
        text = with_mark(progress_text(state, link, url, more, watched=watched), made)
        if not any(each.id == link.claim and text == each.body.replace("\r\n", "\n") for each in comments or ()):
            self._forge.edit_comment(link.repository, link.number, link.claim, text)
        if over and self._entry.config.assign:
            login = self._forge.account().login
            assign_account(self._forge, link.repository, link.number, login, assigned=False)

    def record(
        self, key: str, *, number: int = 0, comment: int = 0, url: str = "", commit: str = "", identity: str = ""
    ) -> None:
        """Record an act in the mission's log."""
        event = ForgeActed(key=key, number=number, comment=comment, url=url, commit=commit, identity=identity)
        self._tender.reader.store.log.append(self._state.id, event, durable=True)
        self._acted.add(key)

    def _identity(self, login: str) -> str:
        return f"forge:{self._story.account}/{login}"


def _question_mark(mission: str, asked: Question) -> str:
    return mark("question", f"{mission}/{asked.id}")


def _as_words(text: str) -> str:
    from chargehand.reports.markdown import words

    return words(text)
