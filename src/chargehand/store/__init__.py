"""What the state directory keeps: the event log, projects, trust, verdicts, money (SQLite), artifacts (files)."""

from chargehand.store._artifacts import ArtifactRow, Artifacts
from chargehand.store._audit import verify
from chargehand.store._audit_export import export_log, verify_export
from chargehand.store._chain import AuditProblem, AuditReport, ProblemKind
from chargehand.store._inspections import Inspections
from chargehand.store._log import EventLog, MissionRow
from chargehand.store._projects import ProjectRow, Projects, Trust, TrustRow
from chargehand.store._signing import SignedHead
from chargehand.store._spending import BookedCall, Spending, SpendingLimits, SpendingTotal
from chargehand.store._store import Store, open_store
from chargehand.store._verdicts import Verdicts

__all__ = [
    "ArtifactRow",
    "Artifacts",
    "AuditProblem",
    "AuditReport",
    "BookedCall",
    "EventLog",
    "Inspections",
    "MissionRow",
    "ProblemKind",
    "ProjectRow",
    "Projects",
    "SignedHead",
    "Spending",
    "SpendingLimits",
    "SpendingTotal",
    "Store",
    "Trust",
    "TrustRow",
    "Verdicts",
    "export_log",
    "open_store",
    "verify",
    "verify_export",
]
