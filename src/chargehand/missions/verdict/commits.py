"""The commit that a promotion makes from a tree, and that checks see as HEAD: its parents, message and branch."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from chargehand.core.config import ProjectConfig
from chargehand.core.plans import Task
from chargehand.core.records import Base
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.missions.reading import mission_ref
from chargehand.workspace.depot import Depot
from chargehand.workspace.head import Head

HEADS = "refs/heads/"
# The trigger of a checkpoint with a person's message (`git commit`).
COMMITTED = "committed"


def exported_name(state: MissionState) -> str:
    """Return the branch that a mission's result is exported to, unless the name is taken then."""
    project = state.config.project if state.config is not None else ProjectConfig()
    return f"{project.branch_prefix}{state.request.slug if state.request else ''}"


def promotion_parents(depot: Depot, tip: str, base: Base, *, onto: str = "") -> tuple[str, ...]:
    """Return the parents of a promoted commit: the branch's tip and, after a rebase, the base as second one.

    `onto`, unless "", is a commit that the result has to contain: it becomes the first parent if it is not in the
    history of the tip.
    """
    # After a rebase the base is not in the history of the mission's branch.
    parents = (tip,) if depot.contains(tip, base.commit) else (tip, base.commit)
    return parents if not onto or depot.contains(tip, onto) else (onto, *parents)


def promotion_message(
    depot: Depot,
    state: MissionState,
    tree: str,
    checks: Sequence[str],
    *,
    mission: str,
    task: Task | None = None,
) -> str:
    """Return the commit message: a person's for this tree, else the request's first line; plus trailers.

    `state` is that of the mission, or of the child mission that did its `task`.
    """
    request = state.request
    assert request is not None
    lines = (_one_line(line) for line in (task.text if task else request.text).splitlines())
    title = next(filter(None, lines), request.slug)[:72].rstrip()  # as git shows titles in one line
    for point in reversed(state.checkpoints):
        if point.tree != tree:  # a message for another tree does not describe this one
            break
        if point.trigger == COMMITTED:
            title = printable(depot.read_commit(point.commit).message.strip()) or title
            break
    named = ", ".join(map(_one_line, checks)) or "none"
    by = f"Task: {task.id}\nTask-Mission: {state.id}\n" if task else ""
    return f"{title}\n\nMission: {mission}\n{by}Agent: {_one_line(request.agent)}\nChecks: {named}\n"


def judged_head(depot: Depot, state: MissionState, base: Base, tree: str, checks: Sequence[str]) -> Head | None:
    """Return the HEAD for a tree's checks, `None` for the base's tree, whose checks see the base's own HEAD.

    If the tree would be promoted unchanged, the commit has the parents of its promotion; else it is on the base.
    May block.
    """
    request = state.request
    if tree == base.tree or request is None:
        return None
    tip = depot.read_ref(mission_ref(state.id)) or base.commit
    parents: tuple[str, ...] = (base.commit,)
    if tip != base.commit and _lands_unchanged(depot, tip, base, tree):
        parents = promotion_parents(depot, tip, base)
    message = promotion_message(depot, state, tree, checks, mission=state.id)
    branch = state.export.ref.removeprefix(HEADS) if state.export is not None else exported_name(state)
    acceptance = tuple(path for _, path in request.check_files)
    # One tree is one commit, however often it is judged: values that a check derives from its id stay the same.
    when = datetime.fromisoformat(state.created) if state.created else None
    commit = depot.commit(tree, parents, message, when=when)
    return Head(commit=commit, branch=branch, overlaid=acceptance)


def _lands_unchanged(depot: Depot, tip: str, base: Base, tree: str) -> bool:
    if depot.tree_of(tip) == base.tree:
        return True
    return depot.merge(tip, depot.commit(tree, (base.commit,), "candidate")).tree == tree


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
