"""Merging, rebasing and naming what a mission left, by a person's wish and without a working tree.

What is changed is the mission's chain of checkpoints: the branch that is exported moves by promotion alone. The
new tree has no verdict, and the log says so: it gets out once it was judged like any other (`mission promote`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from chargehand.core.clock import Clock
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.mission_events import BaseResolved, CheckpointRestored, VerdictGiven
from chargehand.core.records import Base, Checkpoint, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import printable, shown_path
from chargehand.missions._hold import hold
from chargehand.missions._journal import Journal
from chargehand.missions._meeting import conflicted
from chargehand.missions._missions import Look
from chargehand.missions._promote import COMMITTED
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import MergeConflictError, MergeResult

_AT_REST = ("waiting", "refused", "failed", "exhausted", "cancelled", "promoted")
_NAMED = 5
_LONGEST_MESSAGE = 10_000


class StoppedError(Exception):
    """The action is to end; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched:
    """What an action made of a mission: its last checkpoint and base now; `changed` is false where all was so."""

    commit: str
    tree: str
    base: str
    changed: bool
    replayed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Branching:
    """Changes what missions at rest left; needs no sandbox.

    Every method holds the mission for the time it takes. Raises `RefusedError` (`mission_held`, `not_at_rest`,
    `no_change`), `MergeConflictError` with what clashes, and `StoppedError` once `stop` is set: the mission is
    then as it was.
    """

    store: Store
    look: Look
    worker: str
    clock: Clock

    def merge(self, depot: Depot, mission: str, tip: Base, *, message: str, stop: threading.Event) -> Branched:
        """Merge a tip into what a mission left, as a commit with both as parents; it stands on the tip then."""
        with self._held(mission) as journal:
            base, last = _ground(journal.state)
            if _follows(depot, tip.commit, base.commit):
                return _unchanged(base, last)
            theirs = depot.commit(last.tree, (base.commit,), "candidate")
            tree = self._merged(journal, tip, last.tree, depot.merge(tip.commit, theirs))
            commit = depot.commit(tree, (last.commit, tip.commit), message or f"Merge {tip.revision}")
            return self._keep(depot, journal, tip, last, commit, trigger="merged", stop=stop)

    def rebase(self, depot: Depot, mission: str, tip: Base, *, stop: threading.Event) -> Branched:
        """Make what a mission left anew on a tip, checkpoint by checkpoint; one that changes nothing is left out.

        Refused (`rebase_promoted`) where a branch is promoted already: it would have to go back.
        """
        with self._held(mission) as journal:
            base, last = _ground(journal.state)
            if journal.state.commit is not None:
                raise RefusedError(
                    f"mission {mission!r} has a promoted branch, and that never moves back",
                    code="rebase_promoted",
                    hint=f"chargehand git merge --mission {mission}",
                )
            if tip.commit == base.commit:
                return _unchanged(base, last)
            on, replayed = tip.commit, 0
            for before, commit in _chain(depot, base, last):
                _go_on(stop)
                on, moved = self._replay(depot, journal, tip, on, before, commit)
                replayed += moved
            if on == tip.commit:
                raise _nothing(mission, f"{tip.revision!r} holds all of it already")
            return self._keep(depot, journal, tip, last, on, trigger="rebased", stop=stop, replayed=replayed)

    def commit(self, depot: Depot, mission: str, message: str, *, stop: threading.Event) -> Branched:
        """Give what a mission left a message: a checkpoint of the same tree, whose message a promotion takes."""
        if not message.strip() or len(message) > _LONGEST_MESSAGE:
            raise UsageError("a commit needs a message of at most 10,000 characters", code="commit_message")
        with self._held(mission) as journal:
            base, last = _ground(journal.state)
            commit = depot.commit(last.tree, (last.commit,), message)
            return self._keep(depot, journal, None, last, commit, trigger=COMMITTED, stop=stop, base=base)

    def keep(
        self, depot: Depot, mission: str, tree: str, *, before: str, trigger: str, stop: threading.Event
    ) -> Branched:
        """Keep a tree that was made of what a mission left, `before`, as its last checkpoint.

        Raises `RefusedError` (`plan_stale`) where that is not its last tree any more.
        """
        with self._held(mission) as journal:
            base, last = _ground(journal.state)
            if last.tree != before:
                raise RefusedError(
                    f"mission {mission!r} moved on meanwhile",
                    code="plan_stale",
                    hint="do it again on what is there",
                )
            commit = depot.commit(tree, (last.commit,), trigger)
            return self._keep(depot, journal, None, last, commit, trigger=trigger, stop=stop, base=base)

    @contextmanager
    def _held(self, mission: str) -> Iterator[Journal]:
        before = self.look.state(mission)  # not held by us yet: our own hold would look like a run
        with hold(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            journal = Journal(self.store, mission, clock=self.clock, epoch=epoch)
            if before.status not in _AT_REST or journal.state.open_question is not None:
                raise RefusedError(
                    f"mission {mission!r} is {before.status} and will go on by itself",
                    code="not_at_rest",
                    hint=f"wait for it, or `chargehand mission cancel {mission}` first",
                )
            yield journal

    def _replay(
        self, depot: Depot, journal: Journal, tip: Base, on: str, before: str, commit: str
    ) -> tuple[str, bool]:
        """Return where the new chain is with the changes of one commit, and whether they changed anything."""
        found = depot.read_commit(commit)
        if found.tree == depot.tree_of(before):
            if len(found.message.strip()) and not found.message.startswith("checkpoint: "):
                return depot.commit(depot.tree_of(on), (on,), found.message), True
            return on, False
        theirs = depot.commit(found.tree, (before,), "candidate")
        tree = self._merged(journal, tip, found.tree, depot.merge(on, theirs, before), of=found.message)
        if tree == depot.tree_of(on):
            return on, False
        return depot.commit(tree, (on,), found.message), True

    def _merged(self, journal: Journal, tip: Base, tree: str, result: MergeResult, *, of: str = "") -> str:
        """Return the merged tree; a conflict is noted with its hunks, and raised."""
        if result.tree is not None:
            return result.tree
        count = len(result.conflicts)
        where = {"branch": tip.revision, "commit": tip.commit, "tree": tree}
        journal.note(conflicted(self.store, journal.mission, result.details, count=count, **where))
        named = ", ".join(shown_path(path) for path in result.conflicts[:_NAMED])
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        which = f" at {printable(of.splitlines()[0])!r}" if of.strip() else ""
        raise MergeConflictError(
            f"mission {journal.mission!r} conflicts with {tip.revision!r} in {named}{more}{which}",
            result.details,
            hint="nothing was changed; a new mission on that tip, or a change to it, resolves this",
        )

    def _keep(
        self,
        depot: Depot,
        journal: Journal,
        tip: Base | None,
        last: Checkpoint,
        commit: str,
        *,
        trigger: str,
        stop: threading.Event,
        replayed: int = 0,
        base: Base | None = None,
    ) -> Branched:
        """Record the new end of the chain, if nobody came in between; the old one stays."""
        state = journal.state
        tree = depot.tree_of(commit)
        depot.swap(f"refs/chargehand/restored/{state.id}/{commit}", commit, None)
        stands = tip and Base(
            commit=tip.commit,
            tree=tip.tree,
            revision=tip.revision,
            branch=tip.branch or (state.base.branch if state.base else None),
        )
        checkpoint = Checkpoint(
            commit=commit,
            tree=tree,
            parent=last.commit,
            trigger=trigger,
            changed=len(depot.diff(last.tree, tree)),
        )
        judged = tree == last.tree and stands is None
        missing = VerdictGiven(verdict=Verdict(tree=tree, scope="merged", status="missing"))
        _go_on(stop)
        journal.note(
            *((BaseResolved(base=stands),) if stands else ()),
            CheckpointRestored(workspace="", checkpoint=checkpoint),
            *(() if judged else (missing,)),
            durable=True,
        )
        at = stands or base
        assert at is not None
        return Branched(commit=commit, tree=tree, base=at.commit, changed=True, replayed=replayed)


def _go_on(stop: threading.Event) -> None:
    if stop.is_set():
        raise StoppedError


def _ground(state: MissionState) -> tuple[Base, Checkpoint]:
    if state.base is None or not state.checkpoints:
        raise _nothing(state.id, "it left no change")
    return state.base, state.checkpoints[-1]


def _nothing(mission: str, why: str) -> RefusedError:
    return RefusedError(f"mission {mission!r}: {why}", code="no_change", hint=f"chargehand mission show {mission}")


def _unchanged(base: Base, last: Checkpoint) -> Branched:
    return Branched(commit=last.commit, tree=last.tree, base=base.commit, changed=False)


def _follows(depot: Depot, old: str, new: str) -> bool:
    return old == new or depot.git.run("merge-base", "--is-ancestor", old, new).code == 0


def _chain(depot: Depot, base: Base, last: Checkpoint) -> list[tuple[str, str]]:
    """Return what to replay, the oldest first: each commit with the one whose changes it is told from.

    The chain is followed by first parents down to the base, or to where it left the base's history; what then is
    the difference to the base becomes one commit.
    """
    found: list[tuple[str, str]] = []
    at = last.commit
    while at != base.commit:
        parents = depot.read_commit(at).parents
        if not parents or _follows(depot, at, base.commit):
            break
        found.append((parents[0], at))
        at = parents[0]
    if at != base.commit:  # it stands on another base by a merge: its parts mean nothing on this one
        return [(base.commit, last.commit)]
    return found[::-1]
