"""Delivery of a promoted commit to a forge: push the branch, open or update the request, answer remarks.

Each act is looked for before it is done, so that a lost reply or a killed worker makes nothing twice. The first
try has nothing to look for if its push moved the branch: nothing of the commit was at the forge before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.claims import WriteRights, find_claim
from chargehand.app.forge.clones import clone_path, linked_repository, push_branch
from chargehand.app.forge.memo import ForgeMemos
from chargehand.app.forge.settings import apply_settings, read_template, request_text
from chargehand.app.forge.stack import StackPart, lower_parts, opened_parts, order_lines, part_body, part_title
from chargehand.app.forge.texts import (
    answered_remarks,
    remark_reply,
    remarks_comment,
    request_body,
    request_title,
)
from chargehand.core.events import read_payload
from chargehand.core.mission_events import ForgeActed
from chargehand.core.records import IssueLink
from chargehand.forges.contract import CommitStatus, Forge, ForgeError, ForgeRepository, ForgeRequest, NewRequest
from chargehand.missions.journal import Journal
from chargehand.missions.reading import is_rolled_back
from chargehand.missions.services import Services
from chargehand.reports.markdown import render_report
from chargehand.reports.reading import StateReader
from chargehand.reports.report import MissionReport, UndoAdvice
from chargehand.reports.showing import report_mission
from chargehand.workspace.errors import Fault

STATUS = "chargehand"
_MOST_ROUNDS = 50
# More characters of reports and provenance are attached as files, if the forge has attachments.
_LONGEST_EVIDENCE = 40_000


class RequestDelivery:
    """Delivers the commits of one mission; may block."""

    def __init__(self, reader: StateReader, services: Services, journal: Journal, fault: Fault) -> None:
        self._reader, self._services, self._journal, self._fault = reader, services, journal, fault

    def deliver(self, link: IssueLink, commit: str) -> str:
        """Deliver a commit and return the address of its request. Raises `ForgeError`, `ChargehandError`."""
        accounts = ForgeAccounts(self._reader)
        # Before any act, so that the acts of a killed worker are looked for.
        is_first = ForgeMemos(self._reader.store.followers).begin_delivery(self._journal.mission, commit)
        is_first = is_first and not self._journal.state.deliveries  # an earlier commit has the request
        with accounts.open(link.account, link.repository) as forge:
            linked = linked_repository(link) if link.request else None
            repository = linked or _require_active(forge.repository(link.repository))
            self._check_claim(forge, link)
            parts = lower_parts(self._reader, self._journal.state, link, commit)
            base = self._deliver_parts(forge, repository, link, parts)
            is_new = self._push(forge, repository, link, link.branch, commit) and is_first
            self._fault("request_pushed")
            request = self._open(forge, link, commit, base, parts, is_new=is_new)
            self._fault("request_opened")
            forge.set_status(link.repository, commit, self._status(request.url))
            apply_settings(forge, link, request.number, accounts.entry(link.account).config)
            answer_remarks(forge, link, request.number, commit, is_new=is_new)
            return request.url

    def _deliver_parts(
        self, forge: Forge, repository: ForgeRepository, link: IssueLink, parts: Sequence[StackPart]
    ) -> str:
        """Open the requests of a stack below the last one; return the branch that the last one is made on."""
        base, state = link.target, self._journal.state
        log = self._reader.store.log.read(state.id, types=(ForgeActed.type,)) if parts else ()
        done = opened_parts(each for each in map(read_payload, log) if isinstance(each, ForgeActed))
        for part in parts:
            self._push(forge, repository, link, part.branch, part.commit)
            known = forge.find_requests(link.repository, part.branch)
            request = known[0] if known else None
            verdict = next((each for each in reversed(state.verdicts) if each.tree == part.tree), None)
            if request is None:
                new = NewRequest(
                    title=part_title(link, parts, part),
                    body=part_body(state.id, link, parts, part, verdict),
                    head=part.branch,
                    base=base,
                    draft=verdict is None or verdict.status != "green",
                )
                request = forge.open_request(link.repository, new)
            if part.key not in done:
                if verdict is not None and verdict.status == "green":
                    about = CommitStatus(
                        context=STATUS, state="success", description="all checks passed", url=request.url
                    )
                    forge.set_status(link.repository, part.commit, about)
                opened = ForgeActed(key=part.key, number=request.number, url=request.url, commit=part.commit)
                self._journal.record(opened, durable=True)
            self._fault("part_opened")
            base = link.target if request.merged is not None else part.branch
        return base

    def _is_green(self) -> bool:
        state = self._journal.state
        judged = [each.status for each in state.verdicts if each.tree == state.tree]
        return judged[-1:] == ["green"]

    def _status(self, url: str) -> CommitStatus:
        if is_rolled_back(self._journal.state):
            return CommitStatus(context=STATUS, state="failure", description="the result was rolled back", url=url)
        if self._is_green():
            return CommitStatus(context=STATUS, state="success", description="all checks passed", url=url)
        return CommitStatus(context=STATUS, state="failure", description="not green: a person decided", url=url)

    def _check_claim(self, forge: Forge, link: IssueLink) -> None:
        rights, comments = WriteRights(forge, link.repository), forge.comments(link.repository, link.number)
        for own in comments:
            if own.id == link.claim:
                rights.add(own.author)
        holds = find_claim(comments, may_claim=rights)
        if holds is not None and holds.comment.id != link.claim:
            raise ForgeError(
                "refused",
                f"the issue was taken over by mission {holds.mark.mission}",
                hint="discard this mission; its result stays in its checkpoints",
            )

    def _push(self, forge: Forge, repository: ForgeRepository, link: IssueLink, branch: str, commit: str) -> bool:
        """Push a commit as a fast-forward; return whether that moved the branch."""
        depot = self._services.depot
        try:
            return push_branch(depot, forge, repository, branch, commit=commit)
        except ForgeError as error:
            if error.is_transient:
                raise
            _require_active(forge.repository(link.repository))  # raises if it moved, too
            there = forge.branch(link.repository, branch)
            if there == commit:
                return False
            if there is None or depot.contains(commit, there):
                raise
            raise ForgeError(
                "refused",
                f"the branch {branch} of {link.repository} has commits that this result does not contain",
                hint="merge or remove them, then promote again; nothing was overwritten",
            ) from error

    def _open(
        self, forge: Forge, link: IssueLink, commit: str, base: str, parts: Sequence[StackPart], *, is_new: bool
    ) -> ForgeRequest:
        """Return the request of the branch, opened or updated; a merged one is left as it is."""
        known: list[ForgeRequest] = []
        if link.request:
            known = [forge.request(link.repository, link.request)]
        elif not is_new:
            found = forge.find_requests(link.repository, link.branch)
            # An earlier branch may have had the same name.
            known = [each for each in found if each.is_open or self._is_own(each.head_commit, commit)]
        request = next((each for each in known if each.is_open), None)
        if request is None and known and known[0].merged is not None:
            return known[0]
        # A draft unless its tree was judged green, or the result was rolled back since.
        draft = is_rolled_back(self._journal.state) or not self._is_green()
        order = "\n".join(order_lines(link, parts, len(parts) + 1)) if parts else ""
        text = "\n\n".join(filter(None, (order, self._describe(forge, link, commit, request))))
        if request is None:
            new = NewRequest(title=request_title(link), body=text, head=link.branch, base=base, draft=draft)
            try:
                request = forge.open_request(link.repository, new)
            except ForgeError as error:
                if error.problem != "refused" or not is_new:
                    raise
                # Another person may have opened it meanwhile.
                return self._open(forge, link, commit, base, parts, is_new=False)
        elif request.body != text or request.draft != draft:
            request = forge.change_request(
                link.repository,
                request.number,
                body=text if request.body != text else None,
                draft=draft if request.draft != draft else None,
            )
        # Some forges take a moment to see a push.
        if request.head_commit != commit and forge.branch(link.repository, link.branch) != commit:
            raise ForgeError("broken", f"the branch {link.branch} was moved while its request was opened")
        return request

    def _is_own(self, head: str, commit: str) -> bool:
        """Return whether a head is a commit of this mission: in the history of its result, not of its base."""
        depot, base = self._services.depot, self._journal.state.base
        return depot.contains(commit, head) and not (base is not None and depot.contains(base.commit, head))

    def _describe(self, forge: Forge, link: IssueLink, commit: str, request: ForgeRequest | None) -> str:
        reports = [(report, render_report(report)) for report in self._reports(link)]
        provenance = self._services.depot.provenance(commit) or ""
        files = {
            f"chargehand-{commit[:12]}.md": reports[-1][1],
            f"chargehand-{commit[:12]}.provenance.json": provenance,
        }
        before = "" if request is None else request.body
        attached = []
        is_long = len(provenance) + sum(len(text) for _, text in reports) > _LONGEST_EVIDENCE
        for name, content in files.items() if is_long else ():
            known = [line.removeprefix("- ") for line in before.splitlines() if line.startswith(f"- {name}: ")]
            if not known and content:
                url = self._attach(forge, link, name, content.encode())
                known = [f"{name}: {url}"] if url else []
            attached += known
        shown = "" if any(".provenance." in each for each in attached) else provenance
        template = read_template(
            clone_path(self._reader.home, link.account, link.repository), forge.kind, link.target
        )
        return request_text(request_body(link, reports, attached, shown), link, template)

    def _attach(self, forge: Forge, link: IssueLink, name: str, content: bytes) -> str:
        try:
            return forge.attach(link.repository, link.number, name, content)
        except ForgeError as error:
            # A forge may forbid files, or some kinds of them: the description has the same.
            if error.problem not in ("refused", "forbidden", "invalid"):
                raise
            return ""

    def _reports(self, link: IssueLink) -> list[MissionReport]:
        """Return the reports of the issue's mission and of its further rounds, for readers at the forge."""
        missions = [self._journal.mission]
        before = self._journal.state.forked_from
        # Round 0 may be a fork of a mission of something else.
        while before is not None and link.request and len(missions) < _MOST_ROUNDS:
            missions.append(before)
            before = self._reader.mission_state(before).forked_from
        found = []
        for mission in reversed(missions):
            report, _ = report_mission(self._reader, mission)
            # Without what describes this machine: the request is read by others.
            details = replace(report.details, repository=link.repository)
            undo = UndoAdvice(
                text="Close this request, or revert its merge at the forge; or where it was made:",
                commands=(f"chargehand mission rollback {mission}",),
            )
            # The promotion is valid, and only its delivery is unfinished.
            found.append(
                replace(report, status="promoted", final=True, user=link.account, details=details, undo=undo)
            )
        return found


def _require_active(repository: ForgeRepository) -> ForgeRepository:
    if repository.archived:
        raise ForgeError("refused", f"{repository.name} is archived", hint="unarchive it, then promote again")
    return repository


def answer_remarks(forge: Forge, link: IssueLink, number: int, commit: str, *, is_new: bool) -> None:
    """Answer the remarks that a round worked on: those on lines in their threads, the others with one text.

    `is_new`: nothing of the round was at the forge before, so that no answer has to be looked for.
    """
    others = tuple(key for key in link.remarks if not key.startswith("line/"))
    if others and not is_new:
        written = [each.body for each in forge.comments(link.repository, number, is_request=True)]
        written += [each.body for each in forge.reviews(link.repository, number)]
        said = answered_remarks("\n".join(written))
        others = tuple(key for key in others if key not in said)
    for place in (*link.stack, number):
        line = re.compile(f"line/{re.escape(remark_prefix(place, number))}[0-9]+")
        wanted = [key for key in link.remarks if line.fullmatch(key)]
        threads, done = link.threads, set[str]()
        if wanted and not (is_new and threads.keys() >= set(wanted)):
            lines = forge.review_comments(link.repository, place)
            threads = {f"line/{remark_prefix(place, number)}{each.id}": each.thread for each in lines}
            done = answered_remarks("\n".join(each.body for each in lines))
        answers: dict[str, list[str]] = {}
        for key in wanted:
            if key in threads and key not in done:
                answers.setdefault(threads[key], []).append(key)
        text = remarks_comment(commit, others) if others and place == number else ""
        if answers:
            texts = {thread: remark_reply(commit, keys) for thread, keys in answers.items()}
            forge.reply(link.repository, place, texts, text)
        elif text:
            forge.add_comment(link.repository, number, text, is_request=True)


def remark_prefix(number: int, main: int) -> str:
    """Return what the keys of remarks on a request begin with; forges count them for each request, or for all."""
    return "" if number == main else f"{number}."
