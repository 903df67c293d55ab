"""What the state directory keeps: the event log, projects, trust, verdicts (SQLite) and artifacts (files)."""

from chargehand.store._artifacts import ArtifactRow, Artifacts
from chargehand.store._audit import AuditProblem, AuditReport, ProblemKind, verify
from chargehand.store._log import EventLog, MissionRow
from chargehand.store._projects import ProjectRow, Projects, Trust, TrustRow
from chargehand.store._store import Store, open_store
from chargehand.store._verdicts import Verdicts

__all__ = [
    "ArtifactRow",
    "Artifacts",
    "AuditProblem",
    "AuditReport",
    "EventLog",
    "MissionRow",
    "ProblemKind",
    "ProjectRow",
    "Projects",
    "Store",
    "Trust",
    "TrustRow",
    "Verdicts",
    "open_store",
    "verify",
]
