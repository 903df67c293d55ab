"""Differences of trees: `chargehand mission diff` and `checkpoint diff`."""

from __future__ import annotations

import base64
from pathlib import Path

from chargehand.app.composition import App
from chargehand.cli._prepare import find_mission
from chargehand.cli.output import Output
from chargehand.core.errors import RefusedError, RepositoryError, UsageError
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.missions._missions import find_checkpoint
from chargehand.workspace._depot import Depot


def mission_diff(out: Output, mission: str, *, stat: bool, checkpoint: str | None) -> int:
    """Write what a mission changed against its base."""
    with App.open() as app:
        state = app.look.state(find_mission(app, mission))
        old = base_tree(state)
        new = result_tree(state) if checkpoint is None else find_checkpoint(state, checkpoint).tree
        _show(out, depot_of(app, state), state, old, new, stat=stat)
    return 0


def checkpoint_diff(out: Output, a: str, b: str, *, mission: str, stat: bool, inverse: bool = False) -> int:
    """Write what changed between two checkpoints of one project; `inverse` is what takes that back."""
    with App.open() as app:
        states = [_state_of(app, name, mission) for name in (a, b)]
        if states[0].project != states[1].project:
            raise UsageError(
                f"missions {states[0].id!r} and {states[1].id!r} are of different projects",
                hint="only checkpoints of one project can be compared",
            )
        old, new = (named_tree(state, name.rpartition(":")[2]) for state, name in zip(states, (a, b), strict=True))
        if inverse:
            old, new = new, old
        _show(out, depot_of(app, states[1]), states[1], old, new, stat=stat)
    return 0


def _state_of(app: App, name: str, mission: str) -> MissionState:
    """Return the mission that `MISSION:CHECKPOINT` names, or else `mission`."""
    return app.look.state(find_mission(app, name.rpartition(":")[0] or mission))


def base_tree(state: MissionState) -> str:
    """Return the tree a mission started from. Raises `RefusedError` where it did not come so far."""
    if state.base is None:
        raise RefusedError(f"mission {state.id!r} ended before it had a base", code="no_base")
    return state.base.tree


def result_tree(state: MissionState) -> str:
    """Return the promoted tree, else the last one that was kept, else the base's."""
    base = base_tree(state)
    if state.tree is not None and state.tree != base:
        return state.tree
    return state.checkpoints[-1].tree if state.checkpoints else base


def named_tree(state: MissionState, name: str) -> str:
    """Return the tree of a checkpoint, or of `base`. Raises `NotFoundError`."""
    return base_tree(state) if name == "base" else find_checkpoint(state, name).tree


def depot_of(app: App, state: MissionState) -> Depot:
    """Return the depot that holds a mission's trees. Raises `RepositoryError` where its repository is gone."""
    if not Path(state.repository).is_dir():
        raise RepositoryError(
            f"the repository of mission {state.id!r} is gone: {state.repository!r}", code="repository_gone"
        )
    return app.depot(app.project(Path(state.repository)))


def _show(out: Output, depot: Depot, state: MissionState, old: str, new: str, *, stat: bool) -> None:
    lines = depot.numstat(old, new)
    if out.as_json:
        document: dict[str, object] = {"mission": state.id, "old": old, "new": new, "files": lines}
        if not stat:
            document |= _patch_document(depot.patch(old, new))
        out.document(document)
    elif stat:
        show_stat(out, depot, old, new)
    else:
        out.raw(depot.patch(old, new))


def _patch_document(patch: bytes) -> dict[str, object]:
    """Return a patch so that no byte of it is lost: as text where it is UTF-8."""
    try:
        return {"patch": patch.decode(), "patch_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"patch": base64.b64encode(patch).decode(), "patch_encoding": "base64"}


def show_stat(out: Output, depot: Depot, old: str, new: str) -> None:
    """Write how many lines each file gained and lost."""
    rows = [
        (shown_path(line.path), _count("+", line.added), _count("-", line.removed))
        for line in depot.numstat(old, new)
    ]
    if rows:
        out.table(("FILE", "ADDED", "REMOVED"), rows)
    else:
        out.text("no difference")


def _count(sign: str, lines: int | None) -> str:
    return "binary" if lines is None else f"{sign}{lines}"
