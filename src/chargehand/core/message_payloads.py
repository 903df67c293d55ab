"""What each type of message holds, one strict record per type; see `_messages`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from chargehand.core.conflicts import Conflict
from chargehand.core.records import CheckStatus, Finding, Reverted, VerdictScope, VerdictStatus

LONGEST_TEXT = 50_000
"""Characters of one text that an agent gives."""
MOST_ENTRIES = 500
"""Entries of one list that an agent gives."""
Text = Annotated[str, Meta(max_length=LONGEST_TEXT)]
Said = Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=MOST_ENTRIES)]


class Completion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was done, in the words of who did it.

    `evidence` is what was run and seen, `files` the paths that matter, `open_points` what is left to do.
    """

    summary: Said
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()


class Information(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something to know that asks for nothing."""

    text: Said


class Problem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something could not be done; `code` is stable, "" where the sender has none."""

    summary: Said
    code: Annotated[str, Meta(max_length=100)] = ""
    evidence: Texts = ()
    files: Texts = ()
    open_points: Texts = ()


class Clarification(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question that a person has to answer; `options` are proposals, never the only answers."""

    question: Said
    options: Texts = ()


class Progress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far work has come that goes on."""

    summary: Said
    open_points: Texts = ()


class Receipt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages were taken into the work, by their ids."""

    messages: Annotated[tuple[Said, ...], Meta(min_length=1, max_length=MOST_ENTRIES)]


class Instruction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the recipient is to do or to keep in mind."""

    text: Annotated[str, Meta(min_length=1, max_length=200_000)]


class FailedTest(Struct, frozen=True, kw_only=True):
    """A test that did not pass, as its runner named it."""

    name: str
    message: str = ""
    file: str | None = None
    line: int | None = None


class FailedCheck(Struct, frozen=True, kw_only=True):
    """A check that did not pass, with the end of its output."""

    name: str
    status: CheckStatus
    reason: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    tests: int | None = None
    output: str = ""
    failing_tests: tuple[FailedTest, ...] = ()


class MergeTrouble(Struct, frozen=True, kw_only=True):
    """A tree that could not be merged with where a branch is now; `count` paths are in conflict."""

    told: str
    commit: str
    count: int
    branch: str | None = None
    conflicts: tuple[Conflict, ...] = ()


class Denied(Struct, frozen=True, kw_only=True):
    """An act that a rule denied before it happened."""

    action: str
    rule: str
    reason: str


class Violation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is not accepted: checks that failed, findings, paths set back, a merge in conflict, acts denied.

    `tree` is what was judged, "" where an act was denied; `scope` and `verdict` are those of a verdict.
    """

    tree: str = ""
    scope: VerdictScope = "attempt"
    verdict: VerdictStatus = "red"
    passed: tuple[str, ...] = ()
    failing: tuple[FailedCheck, ...] = ()
    findings: tuple[Finding, ...] = ()
    reverted: tuple[Reverted, ...] = ()
    merge: MergeTrouble | None = None
    denied: tuple[Denied, ...] = ()
