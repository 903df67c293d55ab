"""An attempt's result, and its form in the log."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.contract import ENDS_WITHOUT_A_WORD, AgentOutcome
from chargehand.core.codec import convert_to
from chargehand.core.records import Base, Change, Finding, Reverted, Severity
from chargehand.workspace.depot import Depot


class AttemptResult(Struct, frozen=True, kw_only=True):
    """The result of an attempt after inspection: the tree to judge and its difference from the base.

    `degraded` describes what inspection could not see, or is "". `report` is the artifact with the report of an
    agent whose role changes nothing.
    """

    outcome: AgentOutcome
    tree: str
    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]
    reverted: tuple[Reverted, ...] = ()
    discarded: tuple[Finding, ...] = ()
    degraded: str = ""
    report: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the result as JSON for the log; the agent's output is an artifact, changes are in the depot."""
        return {
            "outcome": replace(self.outcome, output=b"", said=""),
            "tree": self.tree,
            "findings": self.findings,
            "reverted": self.reverted,
            "discarded": self.discarded,
            "degraded": self.degraded,
            "report": self.report,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any], *, base: Base, depot: Depot) -> AttemptResult:
        """Return the result of a `to_record` document; the changes are read from the depot."""
        return cls(
            outcome=convert_to(record["outcome"], AgentOutcome),
            tree=record["tree"],
            changes=depot.diff(base.tree, record["tree"]),
            findings=convert_to(record["findings"], tuple[Finding, ...]),
            reverted=convert_to(record["reverted"], tuple[Reverted, ...]),
            discarded=convert_to(record["discarded"], tuple[Finding, ...]),
            degraded=record.get("degraded", ""),
            report=record.get("report"),
        )

    @property
    def unclear_end(self) -> tuple[Finding, ...]:
        """Findings for people and the next attempt: the agent's end was unreadable or says too little."""
        outcome = self.outcome
        if outcome.code not in ENDS_WITHOUT_A_WORD:
            return ()
        severity: Severity = "warning" if outcome.claim == "done" else "error"
        return (Finding(rule=outcome.code, severity=severity, path=".", message=outcome.reason),)

    @property
    def set_back(self) -> tuple[Reverted, ...]:
        """The changes that inspection reverted, by path, or by critical finding if it discarded everything."""
        return self.reverted or tuple(Reverted(path=each.path, rule=each.rule) for each in self.discarded)
