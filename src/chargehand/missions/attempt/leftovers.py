"""Checkpoints of the workspaces of interrupted attempts, taken before these are removed."""

from __future__ import annotations

from chargehand.core.attempt_events import CheckpointMade
from chargehand.core.errors import NotFoundError
from chargehand.core.records import Checkpoint
from chargehand.core.state import PAUSED, STOPPED, AttemptState, MissionState
from chargehand.workspace.depot import Depot
from chargehand.workspace.workspace import Workspace


def keep_workspace(workspace: Workspace, trigger: str, *, start: str, mark: bool) -> Checkpoint | None:
    """Checkpoint a workspace in which no process runs; return `None` if nothing was written on top of `start`.

    With `mark` a tree that has a checkpoint already gets one more, with this trigger. Raises `InfrastructureError`
    (`no_space`).
    """
    # A file mapped into memory changes without a new time stamp, so no time stamp is trusted.
    scan, last = workspace.scan(trust_cache=False), workspace.last()
    if last is None and scan.tree == start:
        return None
    marked = last is not None and (last.tree != scan.tree or last.trigger in (STOPPED, PAUSED))
    made = workspace.checkpoint(trigger, scan=scan, repeat=mark and not marked)
    return made if made.changed or made.trigger == trigger else None


def keep_unfinished(depot: Depot, state: MissionState) -> tuple[CheckpointMade, ...]:
    """Checkpoint the workspaces of open attempts; return the events that the log lacks.

    For a mission that ends while no agent of it runs: its worker died, or it waits or is paused. Raises
    `InfrastructureError`; the workspaces then have to stay.
    """
    known = {checkpoint.commit for checkpoint in state.checkpoints}
    events: list[CheckpointMade] = []
    for attempt in state.open_attempts:
        try:
            workspace = Workspace.load(depot, attempt.workspace)
        except NotFoundError:  # it was removed when its agent ended
            continue
        keep_workspace(workspace, STOPPED, start=workspace.start, mark=False)
        # All of them: a worker may have died between a checkpoint and its line in the log.
        unlogged = [each for each in workspace.checkpoints() if each.commit not in known and each.changed]
        events += [CheckpointMade(attempt=attempt.id, checkpoint=each) for each in reversed(unlogged)]
    return tuple(events)


def find_stopped_tree(state: MissionState, attempt: AttemptState) -> str | None:
    """Return the tree from which an agent without recorded steps resumes `attempt`: the one it was stopped at.

    A person may have restored another checkpoint since. `None` if the attempt was not stopped in order, or if its
    calls to models were recorded: their replies are replayed, and fit only the tree at which the attempt began.
    """
    return None if attempt.calls else state.stopped.get(attempt.id)
