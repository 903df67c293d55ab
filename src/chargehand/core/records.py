"""The frozen records that pass between packages; paths in trees are `str` as `os.fsdecode` gives them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["info", "warning", "error", "critical"]
ChangeKind = Literal["added", "modified", "deleted", "type_changed"]
MissionStatus = Literal[
    "planned",
    "running",
    "waiting",
    "paused",
    "promoted",
    "refused",
    "failed",
    "exhausted",
    "cancelled",
    "discarded",
]
AttemptStatus = Literal["running", "succeeded", "refused", "failed", "timed_out", "cancelled", "lost"]
VerdictStatus = Literal["green", "red", "degraded", "missing"]
ExportState = Literal["done", "pending", "blocked"]
CheckStatus = Literal["passed", "failed", "timed_out", "missing", "error"]
VerdictScope = Literal["base", "attempt", "merged"]


class Reason(Struct, frozen=True, kw_only=True):
    """Why something is as it is: a stable code and one sentence."""

    code: str
    message: str


class Change(Struct, frozen=True, kw_only=True):
    """One path that differs between two trees; modes are git's (0o100644 …), ids hex, `None` where absent."""

    path: str
    kind: ChangeKind
    old_mode: int | None = None
    new_mode: int | None = None
    old_id: str | None = None
    new_id: str | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """What inspection says of one path.

    `severity` acts as designed: critical discards the attempt's changes, error reverts the path, warning and
    info keep it. `needs_person` marks what only a person may let in, whatever the severity.
    """

    rule: str
    severity: Severity
    path: str
    message: str
    line: int | None = None
    needs_person: bool = False


class CheckResult(Struct, frozen=True, kw_only=True):
    """How one check ended; `tests` is how many ran where the runner tells, `artifact` its kept output.

    `base_tests` marks a run with the base's own tests and check surface put back into the tree.
    """

    name: str
    status: CheckStatus
    seconds: float
    exit_code: int | None = None
    tests: int | None = None
    reason: str = ""
    artifact: str | None = None
    base_tests: bool = False


class Verdict(Struct, frozen=True, kw_only=True):
    """Inspection and check results for one exact tree."""

    tree: str
    scope: VerdictScope
    status: VerdictStatus
    checks: tuple[CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def needs_person(self) -> tuple[Finding, ...]:
        """The findings that only a person may let in."""
        return tuple(found for found in self.findings if found.needs_person)


class Reverted(Struct, frozen=True, kw_only=True):
    """A path that inspection set back, and the rule it broke."""

    path: str
    rule: str


class Base(Struct, frozen=True, kw_only=True):
    """The commit a mission starts from, as resolved in the user's repository."""

    commit: str
    tree: str
    revision: str
    branch: str | None = None
    upstream: str | None = None
    behind: int | None = None
    dirty: bool = False


class Checkpoint(Struct, frozen=True, kw_only=True):
    """A tree kept as a commit in the depot, chained to the one before it."""

    commit: str
    tree: str
    parent: str
    trigger: str
    changed: int


class Export(Struct, frozen=True, kw_only=True):
    """The state of writing the mission branch into the user's repository."""

    ref: str
    state: ExportState
    reason: str = ""


class MissionRequest(Struct, frozen=True, kw_only=True):
    """What a person asks for, with the choices made on the command line; seconds and counts.

    `role` is "" for missions of before there were any; `role_text` is the artifact with its file as it was,
    `role_from` where that was read, `role_why` in words how agent and model follow from it.
    """

    text: str
    agent: str
    command: tuple[str, ...]
    slug: str
    only_checks: tuple[str, ...] | None = None
    extra_checks: tuple[str, ...] = ()
    check_files: tuple[tuple[str, str], ...] = ()
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    attempts: int = 1
    seconds: float = 1800.0
    tier: str = "process"
    partial: bool = False
    apply: bool = False
    model: str | None = None
    fallback: tuple[str, ...] = ()
    why: str = ""
    role: str = ""
    role_text: str | None = None
    role_from: str = ""
    role_why: str = ""
