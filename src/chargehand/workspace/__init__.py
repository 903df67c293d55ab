"""Shadow workspaces: the depot, bases, layers, scans, checkpoints, rollback, export."""

from chargehand.workspace._apply import apply
from chargehand.workspace._bases import OBJECTS_TARGET, BaseLayers
from chargehand.workspace._depot import BASES, Depot, LineCount, TreeEntry
from chargehand.workspace._drivers import TARGET
from chargehand.workspace._environment import DEFAULT_INPUTS, EnvironmentLayers, FrozenLayer
from chargehand.workspace._errors import Fault, GitError, RefMovedError, no_fault
from chargehand.workspace._export import export
from chargehand.workspace._export_notes import export_notes
from chargehand.workspace._gc import GcReport, gc
from chargehand.workspace._history import Author, Commit
from chargehand.workspace._merge import MergeResult
from chargehand.workspace._notes import NOTES
from chargehand.workspace._repository import Repository, find_repository
from chargehand.workspace._rules import WorkspaceLimits
from chargehand.workspace._scan import Scan
from chargehand.workspace._workspace import WORKSPACES, Workspace

__all__ = [
    "BASES",
    "DEFAULT_INPUTS",
    "NOTES",
    "OBJECTS_TARGET",
    "TARGET",
    "WORKSPACES",
    "Author",
    "BaseLayers",
    "Commit",
    "Depot",
    "EnvironmentLayers",
    "Fault",
    "FrozenLayer",
    "GcReport",
    "GitError",
    "LineCount",
    "MergeResult",
    "RefMovedError",
    "Repository",
    "Scan",
    "TreeEntry",
    "Workspace",
    "WorkspaceLimits",
    "apply",
    "export",
    "export_notes",
    "find_repository",
    "gc",
    "no_fault",
]
