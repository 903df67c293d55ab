"""A person's changes to a mission's last checkpoint: merge, rebase, commit message, formatting, restore.

All of them work without a working tree and add to the mission's chain of checkpoints; only promotion moves the
exported branch. A new tree has no verdict, and the log says so: it is judged like any other before it can be
promoted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from chargehand.checks.formatters import Formatter
from chargehand.core.clock import Clock
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.mission_events import BaseResolved, CheckpointRestored, VerdictGiven
from chargehand.core.records import Base, Change, Checkpoint, Verdict
from chargehand.core.state import MissionState
from chargehand.core.text import printable
from chargehand.missions.journal import Journal, claim_mission
from chargehand.missions.promotion.rebase import conflict_event, name_paths, union_of
from chargehand.missions.reading import MissionReader
from chargehand.missions.verdict.commits import COMMITTED
from chargehand.missions.verdict.restored import RESTORES
from chargehand.sandbox.contract import Sandbox
from chargehand.store.store import Store
from chargehand.workspace.depot import Depot
from chargehand.workspace.merge import MergeConflictError, MergeResult
from chargehand.workspace.rollback import RollbackPlan, plan_rollback, stale_plan, write_rollback
from chargehand.workspace.workspace import Workspace

_AT_REST = ("waiting", "refused", "failed", "exhausted", "cancelled", "promoted")


class EditStoppedError(Exception):
    """The action was stopped; nothing was changed."""


class EditedCheckpoints(Struct, frozen=True, kw_only=True):
    """The result of an edit: the mission's last checkpoint and base; `changed` is false if nothing was done."""

    commit: str
    tree: str
    base: str
    changed: bool
    replayed: int = 0


class CheckpointEditor(Struct, frozen=True, kw_only=True):
    """Changes the last checkpoint of missions at rest; needs no sandbox.

    Every method claims the mission while it works. Raises `RefusedError` (`mission_held`, `not_at_rest`,
    `no_change`), `MergeConflictError` with the conflicts, and `EditStoppedError` once `stop` is set: the mission
    is then unchanged.
    """

    store: Store
    look: MissionReader
    worker: str
    clock: Clock

    def merge(
        self, depot: Depot, mission: str, tip: Base, *, message: str, stop: threading.Event
    ) -> EditedCheckpoints:
        """Merge a tip into a mission's last tree, as a commit with both as parents; the tip becomes the base."""
        with self._claim(mission) as journal:
            base, last = _require_change(journal.state)
            if depot.contains(base.commit, tip.commit):
                return _keep_as_is(base, last)
            # As one change on the base: single checkpoints contain changes that the agent later undid.
            theirs = depot.commit(last.tree, (base.commit,), "candidate")
            merged = depot.merge(tip.commit, theirs, union=union_of(journal.state))
            tree = self._require_tree(journal, tip, last.tree, merged)
            commit = depot.commit(tree, (last.commit, tip.commit), message or f"Merge {tip.revision}")
            return self._record(depot, journal, tip, last, commit, trigger="merged", stop=stop)

    def rebase(self, depot: Depot, mission: str, tip: Base, *, stop: threading.Event) -> EditedCheckpoints:
        """Replay a mission's checkpoints on a tip, omitting those that change nothing there.

        Refused (`rebase_promoted`) if a branch is already promoted: it would have to move back.
        """
        with self._claim(mission) as journal:
            base, last = _require_change(journal.state)
            if journal.state.commit is not None:
                raise RefusedError(
                    f"mission {mission!r} has a promoted branch, which never moves back",
                    code="rebase_promoted",
                    hint=f"chargehand git merge --mission {mission}",
                )
            if tip.commit == base.commit:
                return _keep_as_is(base, last)
            on, replayed = tip.commit, 0
            for before, commit in _commits_to_replay(depot, base, last):
                _check_stop(stop)
                found = depot.read_commit(commit)
                if found.tree == depot.tree_of(before):
                    # A commit without changes matters only for a person's message; our own begin with `checkpoint:
                    # `.
                    if len(found.message.strip()) and not found.message.startswith("checkpoint: "):
                        on, replayed = depot.commit(depot.tree_of(on), (on,), found.message), replayed + 1
                    continue
                theirs = depot.commit(found.tree, (before,), "candidate")
                merged = depot.merge(on, theirs, before, union=union_of(journal.state))
                tree = self._require_tree(journal, tip, found.tree, merged, of=found.message)
                if tree != depot.tree_of(on):
                    on, replayed = depot.commit(tree, (on,), found.message), replayed + 1
            if on == tip.commit:
                raise _no_change_error(mission, f"{tip.revision!r} already contains this change")
            return self._record(depot, journal, tip, last, on, trigger="rebased", stop=stop, replayed=replayed)

    def commit(self, depot: Depot, mission: str, message: str, *, stop: threading.Event) -> EditedCheckpoints:
        """Give a mission's last tree a message: a checkpoint of the same tree, whose message a promotion uses."""
        if not message.strip() or len(message) > 10_000:
            raise UsageError(
                f"a commit needs a message of 1 to 10,000 characters, got {len(message)}",
                code="commit_message",
                hint="give it with --message",
            )
        with self._claim(mission) as journal:
            base, last = _require_change(journal.state)
            commit = depot.commit(last.tree, (last.commit,), message)
            return self._record(depot, journal, None, last, commit, trigger=COMMITTED, stop=stop, base=base)

    def keep(
        self, depot: Depot, mission: str, tree: str, *, before: str, trigger: str, stop: threading.Event
    ) -> EditedCheckpoints:
        """Record a tree made from a mission's last tree, `before`, as its last checkpoint.

        Raises `RefusedError` (`plan_stale`) if `before` is no longer its last tree.
        """
        with self._claim(mission) as journal:
            base, last = _require_change(journal.state)
            if last.tree != before:
                raise RefusedError(
                    f"mission {mission!r} changed in the meantime",
                    code="plan_stale",
                    hint="run the command again on the present state",
                )
            commit = depot.commit(tree, (last.commit,), trigger)
            return self._record(depot, journal, None, last, commit, trigger=trigger, stop=stop, base=base)

    @contextmanager
    def _claim(self, mission: str) -> Iterator[Journal]:
        before = self.look.state(mission)  # before our own claim, which would make it look running
        with claim_mission(self.store.log, mission, worker=self.worker, look=self.look) as epoch:
            journal = Journal(self.store, mission, clock=self.clock, epoch=epoch)
            if before.status not in _AT_REST or journal.state.open_question is not None:
                raise RefusedError(
                    f"mission {mission!r} is {before.status} and will continue by itself",
                    code="not_at_rest",
                    hint=f"wait for it, or `chargehand mission cancel {mission}` first",
                )
            yield journal

    def _require_tree(self, journal: Journal, tip: Base, tree: str, result: MergeResult, *, of: str = "") -> str:
        """Return the merged tree; record a conflict with its hunks, and raise it."""
        if result.tree is not None:
            return result.tree
        count = len(result.conflicts)
        where = {"branch": tip.revision, "commit": tip.commit, "tree": tree}
        journal.record(conflict_event(self.store, journal.mission, result.details, count=count, **where))
        named = name_paths(result.conflicts, count)
        which = f" at {printable(of.splitlines()[0])!r}" if of.strip() else ""
        raise MergeConflictError(
            f"mission {journal.mission!r} conflicts with {tip.revision!r} in {named}{which}",
            result.details,
            hint="nothing was changed; start a new mission on that tip, or change the tip",
        )

    def _record(
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
    ) -> EditedCheckpoints:
        """Record the new end of the chain of checkpoints; the old one stays."""
        state = journal.state
        tree = depot.tree_of(commit)
        # A ref before the line in the log: garbage collection must not remove commits that the log names.
        depot.swap(f"refs/chargehand/restored/{state.id}/{commit}", commit, None)
        new_base = tip and Base(
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
        judged = tree == last.tree and new_base is None
        # The new tree can be promoted only once it was judged: until then its verdict is missing.
        missing = VerdictGiven(verdict=Verdict(tree=tree, scope="merged", status="missing"))
        # The last point at which stopping leaves the mission unchanged.
        _check_stop(stop)
        journal.record(
            *((BaseResolved(base=new_base),) if new_base else ()),
            CheckpointRestored(workspace="", checkpoint=checkpoint),
            *(() if judged else (missing,)),
            durable=True,
        )
        at = new_base or base
        assert at is not None
        return EditedCheckpoints(commit=commit, tree=tree, base=at.commit, changed=True, replayed=replayed)


def _check_stop(stop: threading.Event) -> None:
    if stop.is_set():
        raise EditStoppedError


def _require_change(state: MissionState) -> tuple[Base, Checkpoint]:
    if state.base is None or not state.checkpoints:
        raise _no_change_error(state.id, "it left no change")
    return state.base, state.checkpoints[-1]


def _no_change_error(mission: str, why: str) -> RefusedError:
    return RefusedError(f"mission {mission!r}: {why}", code="no_change", hint=f"chargehand mission show {mission}")


def _keep_as_is(base: Base, last: Checkpoint) -> EditedCheckpoints:
    return EditedCheckpoints(commit=last.commit, tree=last.tree, base=base.commit, changed=False)


def _commits_to_replay(depot: Depot, base: Base, last: Checkpoint) -> list[tuple[str, str]]:
    """Return the commits to replay, the oldest first, each with the commit that it is compared with.

    The chain is followed by first parents down to the base, or to the commit at which it left the base's history;
    in that case the whole difference to the base becomes one commit.
    """
    found: list[tuple[str, str]] = []
    at = last.commit
    while at != base.commit:
        parents = depot.read_commit(at).parents
        if not parents or depot.contains(base.commit, at):
            break
        found.append((parents[0], at))
        at = parents[0]
    if at != base.commit:  # a merge put it on another base: its single commits have no meaning on this one
        return [(base.commit, last.commit)]
    return found[::-1]


# The largest number of files per formatter call: their names must fit into a command line.
_AT_ONCE = 400


class FormatRun(Struct, frozen=True, kw_only=True):
    """The outcome of one formatter; `problem` is "" on success, otherwise its error output."""

    name: str
    files: int
    seconds: float
    problem: str = ""
    missing: bool = False


class FormatResult(Struct, frozen=True, kw_only=True):
    """A tree before and after; `changes` covers only files passed to a formatter, not others that it wrote."""

    before: str
    tree: str
    changes: tuple[Change, ...]
    runs: tuple[FormatRun, ...]


async def run_formatters(
    depot: Depot,
    workspace: Workspace,
    sandbox: Sandbox,
    formatters: Sequence[Formatter],
    files: Mapping[str, Sequence[str]],
    *,
    tree: str,
    seconds: float,
) -> FormatResult:
    """Run the formatters on their files, one after the other, each call for at most `seconds`."""
    runs = []
    for formatter in formatters:
        own, taken, missing = files[formatter.name], 0.0, False
        problems: list[str] = []
        for start in range(0, len(own), _AT_ONCE):
            part = own[start : start + _AT_ONCE]
            # `./`, since a file name may look like an option.
            result = await sandbox.exec((*formatter.command, *(f"./{path}" for path in part)), timeout=seconds)
            taken += result.seconds
            if result.exit_code or result.timed_out:
                missing = missing or result.exit_code in (126, 127)  # not executable, or not found
                output = (result.stderr or result.stdout).decode(errors="replace").strip()
                ended = output or f"it ended with exit code {result.exit_code}"
                problems.append(f"it took longer than {seconds:g} s" if result.timed_out else ended)
        if own:
            problem = "\n".join(problems)[:4000]
            run = FormatRun(name=formatter.name, files=len(own), seconds=taken, problem=problem, missing=missing)
            runs.append(run)
    after = (await asyncio.to_thread(workspace.checkpoint, "formatted")).tree
    given = {path for paths in files.values() for path in paths}
    # A formatter may write caches and other files: only the given files are taken.
    touched = sorted(change.path for change in depot.diff(tree, after) if change.path in given)
    made = depot.replace_paths(tree, touched, after)
    return FormatResult(before=tree, tree=made, changes=depot.diff(tree, made), runs=tuple(runs))


def restore_checkpoint(
    depot: Depot, journal: Journal, commit: str, *, plan: RollbackPlan | None = None
) -> Checkpoint:
    """Carry out `plan` (default: the whole tree of `commit`); return the mission's resulting last checkpoint.

    A plan that changes nothing makes no checkpoint. Raises `RefusedError` (`no_change`, `plan_stale`).
    """
    state, target = journal.state, depot.tree_of(commit)
    if not state.checkpoints:
        raise RefusedError(
            f"mission {state.id!r} left no checkpoint",
            code="no_change",
            hint=f"chargehand mission show {state.id}",
        )
    last = state.checkpoints[-1]
    if plan is None:
        plan = plan_rollback(depot, last.tree, target)
    # The plan was shown to a person: exactly that happens, or nothing.
    elif (plan.source, plan.target) != (last.tree, target):
        raise stale_plan(plan, last.tree)
    if plan.result == last.tree:
        return last
    tree = write_rollback(depot, plan)
    made = depot.commit(tree, (last.commit,), f"restore {commit}")
    depot.swap(f"refs/chargehand/restored/{state.id}/{made}", made, None)
    restored = Checkpoint(
        commit=made,
        tree=tree,
        parent=last.commit,
        trigger=RESTORES[plan.kind],
        changed=len(depot.diff(last.tree, tree)),
    )
    base = state.stands.get(commit, state.base)
    # A rebased mission has trees on several bases: the base moves back with the tree.
    moved = base is not None and base != state.base and tree == target
    journal.record(
        *((BaseResolved(base=base),) if moved and base else ()),
        CheckpointRestored(workspace="", checkpoint=restored),
    )
    return restored
