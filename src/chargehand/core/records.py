"""Frozen records that pass between packages; paths in trees are `str` as returned by `os.fsdecode`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from chargehand.core.text import shown_path

ConflictKind = Literal[
    "content", "both_added", "modify_delete", "rename", "mode", "binary", "file_directory", "submodule"
]


class Side(Struct, frozen=True, kw_only=True):
    """The entry of one side of a merge at a path: git's mode and the hex id."""

    mode: int
    id: str


class Excerpt(Struct, frozen=True, kw_only=True):
    """Lines of one side, counted from 1 (if empty: after line `start`); `cut` marks that `text` is incomplete."""

    start: int
    lines: int
    text: str
    cut: bool = False


class ConflictHunk(Struct, frozen=True, kw_only=True):
    """Conflicting lines: the common ancestor and each side; `None` if a side has no such file."""

    base: Excerpt | None
    ours: Excerpt | None
    theirs: Excerpt | None


class Conflict(Struct, frozen=True, kw_only=True):
    """One path in conflict; `others` are further paths of a rename, `left_out` counts omitted hunks.

    Text is UTF-8, other bytes are written as `\\xNN`.
    """

    path: str
    kind: ConflictKind
    base: Side | None
    ours: Side | None
    theirs: Side | None
    others: tuple[str, ...] = ()
    hunks: tuple[ConflictHunk, ...] = ()
    left_out: int = 0


# A registered name, or `none`.
TierName = str


class TierFacts(Struct, frozen=True, kw_only=True):
    """The facts known before anything runs.

    `wish` is the requested tier, `auto` if the facts decide. `trusted`: a person trusts the repository's file in
    its exact content (`project trust`), so never a new file. `network`: the sandboxes may reach hosts.
    `documentation`: the mission may change documentation only. `origin` is the source of the wish, as in `config
    show --origin`, "" if only the mission's configuration is known.
    """

    wish: str
    trusted: bool
    network: bool
    documentation: bool
    origin: str = ""


class TierCandidate(Struct, frozen=True, kw_only=True):
    """A considered tier: `offered` is `None` if it was not tried; `detail` gives the reason."""

    tier: TierName
    offered: bool | None
    detail: str
    mend: str = ""


class TierChoice(Struct, frozen=True, kw_only=True):
    """The chosen tier, the weakest tier that the facts require, the reason in words, and all candidates."""

    tier: TierName
    needed: TierName
    reason: str
    facts: TierFacts
    candidates: tuple[TierCandidate, ...] = ()


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
# `degraded`: inspection could not read the whole tree in time. Such a tree is refused, never promoted.
VerdictStatus = Literal["green", "no_worse", "red", "degraded", "missing"]
ExportState = Literal["done", "pending", "blocked"]
# The fate of a promoted change on its branch. After `merged`, by a person, another one follows.
Fate = Literal["merged", "survived", "reverted", "rewritten", "rolled_back"]
# Whether a branch contains a change: `undone` by a later commit, or `absent`: never seen on the branch.
Presence = Literal["present", "undone", "absent"]
CheckStatus = Literal["passed", "failed", "timed_out", "missing", "error"]
VerdictScope = Literal["base", "attempt", "merged"]


class Reason(Struct, frozen=True, kw_only=True):
    """The reason for a state or decision: a stable code and one sentence."""

    code: str
    message: str


# Why an agent or model is chosen, or not: `core.choices.SENTENCES` has the meaning of each code.
# fmt: off
ReasonCode = Literal[
    "option", "role_setting", "role_file", "plan", "recorded", "person_again", "person_named",
    "needs", "only_agent", "only_model", "first_with_key", "first_model", "key_set", "served_locally",
    "probe", "patch", "retry", "learned", "not_worth_it", "rollout", "rollout_outside", "rollout_shadow",
    "breaker_open", "unable", "tried", "no_money", "other_cause", "no_advice", "no_other_model", "no_models",
    "provider_fault", "no_agent", "several_agents", "no_model",
]
# fmt: on


class ChoiceReason(Struct, frozen=True):
    """One reason of a choice as data: the agent or model that it is about (`subject`), and where it comes from.

    `evidence` is the JSON of a computed choice, from which it can be computed again.
    """

    code: ReasonCode
    subject: str = ""
    source: str = ""
    evidence: str | UnsetType = UNSET


# Before so many outcomes of a project a forecast is a guess.
FEW_OUTCOMES = 20


class Band(Struct, frozen=True, kw_only=True):
    """The median of a quantity, and the bounds of its 80 % band."""

    middle: float
    low: float
    high: float


class MissionForecast(Struct, frozen=True, kw_only=True):
    """The chance that an attempt passes its checks within the limits; total cost (USD) and time (seconds).

    A quantity is `None` if no earlier attempt has a known one: of this agent and model in the project for the
    cost, of any for the time. `person_seconds` is the median time until it stops without a result, in the cases in
    which it does. `unlimited` is the chance if the mission's budget had no bound, and `enough_usd` the budget that
    four in five of those successes need. `outcomes` counts the attempts of the project that it was made from.
    `evidence` has the beliefs that it was sampled from, as JSON: with `seed` and the number of `samples` they give
    the same forecast again. Forecasts of earlier versions have none of the three. Of a plan, `tasks` counts those
    that had not ended, and the chance is that all of them get done.
    """

    chance: float
    cost_usd: Band | None
    seconds: Band | None
    person_seconds: float | None
    unlimited: float
    enough_usd: float | None
    outcomes: int
    seed: int | None = None
    samples: int = 0
    evidence: str = ""
    tasks: int = 0

    @property
    def is_guess(self) -> bool:
        """Whether too few outcomes are known for more than a guess."""
        return self.outcomes < FEW_OUTCOMES


class Change(Struct, frozen=True, kw_only=True):
    """One path that differs between two trees; modes are git's (0o100644 …), ids hex, `None` where absent."""

    path: str
    kind: ChangeKind
    old_mode: int | None = None
    new_mode: int | None = None
    old_id: str | None = None
    new_id: str | None = None


class Finding(Struct, frozen=True, kw_only=True):
    """A finding of inspection about one path.

    `severity` decides: critical discards the attempt's changes, error reverts the path, warning and info keep it.
    `needs_person` marks a finding that only a person may accept, whatever the severity.
    """

    rule: str
    severity: Severity
    path: str
    message: str
    line: int | None = None
    needs_person: bool = False

    @property
    def text(self) -> str:
        """The message, with the path before it if it concerns one file and does not begin with it."""
        path = shown_path(self.path)
        said = self.path in ("", ".") or self.message.startswith((f"{path} ", f"{path}:"))
        return self.message if said else f"{path}: {self.message}"


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result of one check; `tests` is the number of tests run, if reported, `artifact` the kept output.

    `base_tests` marks a run with the base's own tests and check surface put back into the tree. `ran` is an
    artifact with the names of the tests run, as a JSON list, if the runner reports them. `failed` is an artifact
    with the failures (`checks.failures.CheckFailures`), `None` for a check that passed. `outside` marks a check
    that ran in another sandbox than the tree, `warm` a check that began with compiler caches from the base.
    """

    name: str
    status: CheckStatus
    seconds: float
    exit_code: int | None = None
    tests: int | None = None
    reason: str = ""
    artifact: str | None = None
    base_tests: bool = False
    ran: str | None = None
    outside: bool = False
    warm: bool = False
    failed: str | None = None


class KnownFailures(Struct, frozen=True, kw_only=True):
    """Failures of one check that the base has too: their number, and the first of them by name.

    `tests` is empty if the runner names no tests; `count` is then the number of error lines in its output.
    """

    check: str
    count: int
    tests: tuple[str, ...] = ()


class FlakyTest(Struct, frozen=True, kw_only=True):
    """A test that both passed and failed on one tree; an empty `test` means the whole check.

    It failed in `failures` of `runs`. `on_base` says that it was also flaky on the base or an earlier tree.
    `evidence` are artifacts with the outputs of its runs.
    """

    check: str
    test: str
    runs: int
    failures: int
    on_base: bool = False
    evidence: tuple[str, ...] = ()


class Verdict(Struct, frozen=True, kw_only=True):
    """Inspection and check results for one exact tree.

    With the status `no_worse` checks fail, but only with failures that the base has too; `known` lists them.
    `flaky` are tests with two results on this tree. `unread` names changed code that no check opened, `None` if
    reads were not observed; `elsewhere` names files outside the tree that checks loaded in place of changed ones.
    """

    tree: str
    scope: VerdictScope
    status: VerdictStatus
    checks: tuple[CheckResult, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: tuple[str, ...] | None = None
    elsewhere: tuple[str, ...] = ()
    known: tuple[KnownFailures, ...] = ()
    flaky: tuple[FlakyTest, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether nothing failed except what failed on the base; findings may still need a person."""
        return self.status in ("green", "no_worse")

    @property
    def tolerated(self) -> tuple[str, ...]:
        """Messages about failures that do not count: accepted ones of the base, and tests that are flaky there."""
        rules = ("known_failures", "flaky_test")
        return tuple(found.message for found in self.findings if found.rule in rules and found.severity == "info")

    @property
    def needs_person(self) -> tuple[Finding, ...]:
        """The findings that only a person may accept."""
        return tuple(found for found in self.findings if found.needs_person)


class Reverted(Struct, frozen=True, kw_only=True):
    """A path that inspection reverted, and the rule it broke."""

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


class TargetDelivery(Struct, frozen=True, kw_only=True):
    """The state of delivering a promoted commit to one target; unless it is done, a reason and the remedy.

    `ref` is the place that holds it: a branch, or an address.
    """

    target: str
    commit: str
    state: ExportState
    reason: str = ""
    remedy: str = ""
    ref: str = ""


RedBase = Literal["go", "later", "ask", "accept_known", "stop"]
FlakyPolicy = Literal["ask", "accept", "refuse"]
# The subject of a question: a gap in the request, an action that needs permission, a choice between options, or
# whether to continue despite a problem.
QuestionKind = Literal["clarification", "permission", "decision", "risk"]


class RequestSettings(Struct, frozen=True, kw_only=True):
    """How the request of an issue looks; `None` leaves it to the account's settings at the time."""

    title: str | None = None
    body: str | None = None
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] | None = None
    merge_method: Literal["merge", "squash", "rebase"] | None = None
    stack: bool = False


class IssueLink(Struct, frozen=True, kw_only=True):
    """The issue of a forge that a mission resolves, as it was when the mission was recorded.

    `account` is the entry of [forges], `claim` the id of the comment that claims the issue for the mission and
    shows its progress, `after` the claim that it replaces. `branch` is pushed for a request to merge it into
    `target`. In a further round `request` is the number of that request, `round` counts from 0, and `remarks` are
    the keys of the review remarks that the mission answers. `onto` is the commit of the request's branch that the
    result has to contain, if its base is not made from that: `target` has moved, and the mission merges both.
    `settings` are those that held when it was taken, `stack` the requests of earlier tasks, below `request`.
    `threads` has the threads of the remarks on lines, by their keys; `clone_url` and `ssh_url` are the addresses
    for git, "" for missions from before they were recorded.
    """

    account: str
    repository: str
    number: int
    url: str
    title: str
    author: str
    claim: int
    branch: str
    target: str
    request: int = 0
    round: int = 0
    remarks: tuple[str, ...] = ()
    after: int = 0
    onto: str = ""
    stack: tuple[int, ...] = ()
    threads: dict[str, str] = {}
    clone_url: str = ""
    ssh_url: str = ""
    settings: RequestSettings = RequestSettings()


class MissionRequest(Struct, frozen=True, kw_only=True):
    """A person's request, with the choices made on the command line; seconds and counts.

    `check_files` and `outside_files` are artifacts with the paths at which checks and outside checks see them;
    `outside_checks` are those given with the request. `red_base` decides what happens if checks already fail on
    the base, before any money is spent. The agent starts in `directory`, setup and checks in `checks_directory`,
    each relative to the top of the repository (""). `break_at` are the breakpoints at which it pauses: `plan`,
    `promote`, `step`, and `task:` with a task's id. `plan_seconds` bounds a plan with all its tasks by the clock,
    without a bound if `None`. `role` is "" for missions from before roles; `role_text` is the artifact with the
    role file's text, `role_from` the file's origin, `role_why` says in words why agent and model were chosen.
    `named` says which of `agent` and `model` a person named for the whole run: the other was configured or
    detected. `issue` is the forge's issue that it resolves.
    """

    text: str
    agent: str
    command: tuple[str, ...]
    slug: str
    only_checks: tuple[str, ...] | None = None
    extra_checks: tuple[str, ...] = ()
    check_files: tuple[tuple[str, str], ...] = ()
    outside_checks: tuple[str, ...] = ()
    outside_files: tuple[tuple[str, str], ...] = ()
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    attempts: int = 1
    seconds: float = 1800.0
    plan_seconds: float | None = None
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
    red_base: RedBase = "go"
    directory: str = ""
    checks_directory: str = ""
    break_at: tuple[str, ...] = ()
    named: tuple[Literal["agent", "model"], ...] = ()
    issue: IssueLink | None = None


class Alert(Struct, frozen=True, kw_only=True):
    """A crossed threshold of a rule, for one subject ("" if the rule has only one).

    `last` is its last breach, `count` the number of breaches, `value` the worst one against `limit`. `told` is the
    time of the last notice, `told_count` the number of notices. Times are ISO 8601 in UTC; `ended` is "" while the
    alert is raised.
    """

    rule: str
    subject: str
    raised: str
    last: str
    value: float
    limit: float
    count: int = 1
    told: str = ""
    told_count: int = 0
    ended: str = ""


class Promotion(Struct, frozen=True, kw_only=True):
    """A promoted commit, the attempt that made it ("" if it is not known), and its base.

    `branch` is the branch that has the change since `landed` (ISO 8601, UTC): it was applied there, or a look
    found it merged; both are "" before. `fate` is final, and `by` the commit that shows it.
    """

    attempt: str
    commit: str
    base: Base
    branch: str = ""
    landed: str = ""
    fate: Fate | None = None
    by: str = ""

    def judge(self, presence: Presence, now: datetime, *, days: int) -> Fate | None:
        """Return the fate that a look at the branch proves, `None` while it is open.

        A change survives if the branch has it `days` after it landed. If the clock went back, that is later.
        """
        if presence == "undone":
            return "reverted"
        if presence == "absent":
            return "rewritten" if self.landed else None
        if not self.landed:
            return "merged"
        passed = (now - datetime.fromisoformat(self.landed)).total_seconds()
        return "survived" if passed >= days * 86_400 else None


class Feedback(Struct, frozen=True, kw_only=True):
    """A person's word on an attempt, as in `FeedbackGiven`, given at `time` (ISO 8601, UTC)."""

    identity: str
    attempt: str
    good: bool
    place: str
    note: str
    time: str
