"""Records of benchmarks: problems with their validators, suites, runs and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from msgspec import Struct

Files = Mapping[str, tuple[bytes, bool] | None]
"""Files by path as (content, executable), `None` for a file that is removed."""

Form = Literal["directory", "humaneval", "swebench", "harbor"]
FORMS: tuple[str, ...] = get_args(Form)

Outcome = Literal["solved", "false_green", "not_promoted", "unvalidated", "error"]
"""`solved`: promoted and accepted by the validator. `false_green`: promoted and rejected by it. `not_promoted`:
the mission promoted nothing, whatever the validator says. `unvalidated`: the problem has no validator.
`error`: neither the agent's fault nor its merit; a resumed run tries it again."""

Judgement = Literal["passed", "failed", "timed_out", "limit", "none"]
"""A validator's judgement; `limit` means that the solution or the validator reached a limit of its sandbox, `none`
that there is no validator."""


class BenchValidator(Struct, frozen=True, kw_only=True):
    """A command of `sh` that judges a solution from another sandbox within `seconds`; exit code 0 accepts it.

    The command sees the problem's files and its own `files`, and runs programs on the solution with `under-test`.
    The files `over` are laid over the solution's tree, so that they replace its own at the same paths. `reports`
    says that the judgement is read from the report of tests that run in the solution's processes, which a hostile
    solution could forge.
    """

    command: str
    seconds: float = 30.0
    files: Files = {}
    over: Files = {}
    reports: bool = False


class BenchProblem(Struct, frozen=True, kw_only=True):
    """A repository, a request, and a validator that decides whether the request was fulfilled.

    The repository has `files`, or the tree of `commit` in the git repository `repository`. `checks` are the own
    checks of the mission, `None` for those of the project. `gold` are changes that solve it, once
    the command `gold_script`, if any, has run on them. `unsupported` is the reason if it cannot be run.
    """

    id: str
    request: str
    files: Files = {}
    repository: str = ""
    commit: str = ""
    checks: tuple[str, ...] | None = None
    validator: BenchValidator | None = None
    gold: Files | None = None
    gold_script: str = ""
    seconds: float | None = None
    unsupported: str = ""


class BenchSuite(Struct, frozen=True, kw_only=True):
    """Problems in a fixed order; `digest` is a hex SHA-256 of everything in them."""

    name: str
    form: str
    problems: tuple[BenchProblem, ...]
    digest: str


class Validation(Struct, frozen=True, kw_only=True):
    """A validator's judgement of one tree; `output` is the end of its output."""

    judgement: Judgement
    exit_code: int | None = None
    limit: str | None = None
    seconds: float = 0.0
    output: str = ""


class ProblemCheck(Struct, frozen=True, kw_only=True):
    """The check of a problem itself: its validator must reject the unchanged files and accept the known solution.

    `reason` is empty if it is valid. `gold` is `None` without a known solution, or if it was not needed.
    """

    id: str
    status: Literal["valid", "invalid", "unvalidated", "unsupported"]
    null: Judgement = "none"
    gold: Judgement | None = None
    reason: str = ""


class Arm(Struct, frozen=True, kw_only=True):
    """The configuration under test: agent, model and limits of each mission; `None` leaves it to the product."""

    agent: str | None = None
    model: str | None = None
    attempts: str | None = None
    budget: str | None = None
    time: str | None = None
    sandbox: str | None = None


class RunHeader(Struct, frozen=True, kw_only=True):
    """Everything that the results of a run depend on; `problems` are those to solve, in order.

    `reported` counts the problems whose validator reads a report that the solution's processes make.
    """

    id: str
    created: str
    suite: str
    name: str
    form: str
    digest: str
    arm: Arm
    samples: int
    seed: int
    problems: tuple[str, ...]
    invalid: tuple[ProblemCheck, ...]
    version: str
    machine: str
    clones: str = ""
    label: str = ""
    reported: int = 0


class BenchResult(Struct, frozen=True, kw_only=True):
    """The result of one trial: a problem solved once, as `sample`.

    `status` is the mission's; `reasons` are the codes of its reasons. `cheating` names the rules of missions that
    protect checks and tests and were broken. `cost_usd` is null if any call has no known cost. `seconds` are those
    of the mission, `overhead` those that the runner adds to mission and validation. `resumed`
    means that an earlier process began the mission.
    """

    problem: str
    sample: int
    seed: int
    outcome: Outcome
    status: str
    reasons: tuple[str, ...]
    cheating: tuple[str, ...]
    validation: Validation
    tree: str
    attempts: int
    agent: str
    model: str | None
    cost_usd: float | None
    seconds: float
    overhead: float
    tokens_in: int = 0
    tokens_out: int = 0
    resumed: bool = False
    message: str = ""
    finished: str = ""

    @property
    def passed(self) -> bool:
        """Whether the validator accepted the solution, promoted or not."""
        return self.validation.judgement == "passed"

    @property
    def key(self) -> tuple[str, int]:
        """The trial: its problem and its sample."""
        return self.problem, self.sample
