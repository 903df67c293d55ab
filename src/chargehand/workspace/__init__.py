"""Shadow workspaces: the depot, bases, layers, scans, checkpoints, rollback, export."""

from typing import TYPE_CHECKING, Any

from chargehand.core import Conflict, ConflictHunk, ConflictKind, Excerpt, Side
from chargehand.workspace._apply import apply
from chargehand.workspace._apply_files import AppliedFiles, apply_files
from chargehand.workspace._bases import OBJECTS_TARGET, BaseLayers
from chargehand.workspace._depot import BASES, Depot, LineCount, TreeEntry
from chargehand.workspace._drivers import TARGET
from chargehand.workspace._environment import DEFAULT_INPUTS, EnvironmentLayers, FrozenLayer
from chargehand.workspace._errors import Fault, GitError, RefMovedError, no_fault
from chargehand.workspace._export import export
from chargehand.workspace._export_notes import export_notes
from chargehand.workspace._gc import GcReport, ProjectGc, gc
from chargehand.workspace._history import Author, Commit
from chargehand.workspace._hook import Hook, install_hook, remove_hook
from chargehand.workspace._hunks import Hunk, LineRange, find_hunks, keep_hunks
from chargehand.workspace._merge import MergeResult
from chargehand.workspace._merge_conflicts import MergeConflictError, conflict_report
from chargehand.workspace._moved import moved_base
from chargehand.workspace._notes import NOTES
from chargehand.workspace._quota import AttemptQuota, StateQuota
from chargehand.workspace._remotes import (
    PROTOCOLS,
    REMOTES,
    HostCommand,
    Remote,
    fetch_command,
    find_remote,
    find_tip,
    push_command,
    remote_branches,
    remote_tip_command,
)
from chargehand.workspace._repository import Repository, find_repository
from chargehand.workspace._rollback import (
    PathAction,
    PathPlan,
    RollbackKind,
    RollbackPlan,
    plan_rollback,
    stale_plan,
    write_rollback,
)
from chargehand.workspace._rollback_hunks import Drop, HunkPlan, drops_of
from chargehand.workspace._rules import WorkspaceLimits
from chargehand.workspace._scan import Scan
from chargehand.workspace._space import Need, Needed, Room, room_on_disk
from chargehand.workspace._staged import Staged, staged_tree
from chargehand.workspace._watch import Watcher
from chargehand.workspace._watch_events import Batch, FileEvent, Gap
from chargehand.workspace._workspace import WORKSPACES, Workspace

if TYPE_CHECKING:
    from chargehand.workspace._contract import DriverContract
    from chargehand.workspace._contract_yard import DriverYard

__all__ = [
    "BASES",
    "DEFAULT_INPUTS",
    "NOTES",
    "OBJECTS_TARGET",
    "PROTOCOLS",
    "REMOTES",
    "TARGET",
    "WORKSPACES",
    "AppliedFiles",
    "AttemptQuota",
    "Author",
    "BaseLayers",
    "Batch",
    "Commit",
    "Conflict",
    "ConflictHunk",
    "ConflictKind",
    "Depot",
    "DriverContract",
    "DriverYard",
    "Drop",
    "EnvironmentLayers",
    "Excerpt",
    "Fault",
    "FileEvent",
    "FrozenLayer",
    "Gap",
    "GcReport",
    "GitError",
    "Hook",
    "HostCommand",
    "Hunk",
    "HunkPlan",
    "LineCount",
    "LineRange",
    "MergeConflictError",
    "MergeResult",
    "Need",
    "Needed",
    "PathAction",
    "PathPlan",
    "ProjectGc",
    "RefMovedError",
    "Remote",
    "Repository",
    "RollbackKind",
    "RollbackPlan",
    "Room",
    "Scan",
    "Side",
    "Staged",
    "StateQuota",
    "TreeEntry",
    "Watcher",
    "Workspace",
    "WorkspaceLimits",
    "apply",
    "apply_files",
    "conflict_report",
    "drops_of",
    "export",
    "export_notes",
    "fetch_command",
    "find_hunks",
    "find_remote",
    "find_repository",
    "find_tip",
    "gc",
    "install_hook",
    "keep_hunks",
    "moved_base",
    "no_fault",
    "plan_rollback",
    "push_command",
    "remote_branches",
    "remote_tip_command",
    "remove_hook",
    "room_on_disk",
    "staged_tree",
    "stale_plan",
    "write_rollback",
]


def __getattr__(name: str) -> Any:
    """Import the drivers' contract when it is first asked for: only an author's tests do."""
    if name == "DriverContract":
        from chargehand.workspace._contract import DriverContract

        return DriverContract
    if name == "DriverYard":
        from chargehand.workspace._contract_yard import DriverYard

        return DriverYard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
