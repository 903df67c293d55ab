"""A workspace: the copy-on-write shadow of a base in which an agent works."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, NotFoundError, nearest
from chargehand.core.ids import new_id
from chargehand.core.ports import DriverName, MountPlan
from chargehand.core.records import Base, Checkpoint
from chargehand.workspace.bases import BaseLayers
from chargehand.workspace.depot import Depot
from chargehand.workspace.drivers import DRIVERS, Driver, Generation, open_root
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.head import Head, HeadWriter
from chargehand.workspace.host.files import (
    INODE,
    Need,
    discard_tree,
    hold_lock,
    make_owned,
    remove_tree,
    replace_file,
    tree_bytes,
)
from chargehand.workspace.scan import Scan, ScanRules, WorkspaceLimits, scan
from chargehand.workspace.tree.history import Author, checkpoint_message, read_checkpoint
from chargehand.workspace.tree.ignore import IgnoreFile
from chargehand.workspace.tree.write import StatCache, open_directory, tree_need

WORKSPACES = "refs/chargehand/workspaces/"


class WorkspaceState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a workspace; `start` is the tree from which its present generation was made."""

    id: str
    base: Base
    driver: DriverName
    start: str
    generation: int = 0
    environment: str | None = None
    include: tuple[str, ...] = ()
    limits: WorkspaceLimits = WorkspaceLimits()
    caches: str | None = None
    head: Head | None = None


class Workspace:
    """One agent's workspace; made by `create`, loaded by `load`.

    Scans and checkpoints read the disk: first stop (freeze) every process that writes there. The host never runs
    git on these files. Every method may raise `InfrastructureError` (`no_space`).
    """

    def __init__(self, depot: Depot, state: WorkspaceState, layers: BaseLayers) -> None:
        self._depot = depot
        self._state = state
        self._layers = layers
        self._driver: Driver = DRIVERS[state.driver]
        self._cache: StatCache = self._driver.load_cache(self._generation(state.generation))
        self._known: set[bytes] = set()

    @classmethod
    def create(
        cls,
        depot: Depot,
        base: Base,
        *,
        driver: DriverName,
        tree: str | None = None,
        environment: Path | None = None,
        caches: Path | None = None,
        include: Sequence[str] = (),
        limits: WorkspaceLimits | None = None,
        id: str | None = None,
        head: Head | None = None,
    ) -> Workspace:
        """Make a workspace on `base` that shows `tree` (default: the base's tree), over an environment layer.

        Drivers that stack layers put `caches` below that, and make every file that differs from the base newer
        than them. Its `.git` is at the base, or at `head`, a commit of that tree. `include` names ignored paths
        (patterns as in `.gitignore`) that belong to the tree. Raises `NotFoundError` code `tree_not_found`.
        """
        state = WorkspaceState(
            id=id or new_id("workspace"),
            base=base,
            driver=driver,
            start=tree or base.tree,
            environment=None if environment is None else str(environment),
            caches=None if caches is None else str(caches),
            include=tuple(include),
            limits=limits or WorkspaceLimits(),
            head=head,
        )
        layers = depot.base_layers(base)
        place = _directory(depot, state.id)
        fresh = place.with_name(f".new-{state.id}")
        remove_tree(fresh)
        try:
            with disk_errors("making the workspace"):
                fresh.mkdir(parents=True)
                _make_generation(depot, state, layers, fresh)
                replace_file(fresh / "state.json", msgspec.json.encode(state))
                depot.fault("workspace:filled")
                fresh.rename(place)  # this step makes it a workspace: `gc` treats `.new-…` as litter
        except BaseException:
            remove_tree(fresh)
            raise
        return cls(depot, state, layers)

    @classmethod
    def load(cls, depot: Depot, id: str) -> Workspace:
        """Return the workspace of that id; raises `NotFoundError` code `workspace_not_found`."""
        state = read_state(depot, id)
        return cls(depot, state, depot.base_layers(state.base))

    @property
    def id(self) -> str:
        """The workspace's id: `w-` and letters."""
        return self._state.id

    @property
    def base(self) -> Base:
        """The base commit that it shows, with its tree."""
        return self._state.base

    @property
    def start(self) -> str:
        """The tree that it showed before any write, or after the last reset."""
        return self._state.start

    @property
    def driver(self) -> DriverName:
        """The name of the driver that makes and mounts its files."""
        return self._state.driver

    @property
    def limits(self) -> WorkspaceLimits:
        """Limits on the files and bytes that may be written in it."""
        return self._state.limits

    @property
    def ref(self) -> str:
        """The depot's ref that holds its checkpoints."""
        return WORKSPACES + self.id

    @property
    def directory(self) -> Path:
        """The directory of its files; only for its driver, `discard` and `gc`."""
        return _directory(self._depot, self.id)

    def mount_plan(self) -> MountPlan:
        """Return how a sandbox mounts this workspace; a reset makes a new plan."""
        return self._driver.plan(self._generation(self._state.generation))

    def scan_root(self) -> Path:
        """Return the directory that holds the files written inside."""
        return self._driver.root(self._generation(self._state.generation))

    @property
    def holds_base(self) -> bool:
        """Whether its directory also holds the base's files, so that `usage` counts more than written files."""
        return self._state.driver != "overlay"

    def usage(self) -> tuple[int, int]:
        """Return the number of entries in its directory, including ignored ones, and their bytes on disk."""
        return tree_bytes(self.scan_root())

    # --- reading

    def scan(self, *, trust_cache: bool = True, stop: threading.Event | None = None) -> Scan:
        """Return the present tree, its changes against base and the broken rules.

        With `trust_cache=False` every changed file is read again: a file mapped into memory can be written without
        a new time stamp, and the last scan before a verdict should not depend on time stamps. Setting `stop` ends
        a scan that runs in another thread, with `InfrastructureError`.
        """
        state = self._state
        place = self._generation(self._state.generation)
        # `known` is kept in both cases: it lists objects in the depot, which no agent can change.
        cache = self._cache if trust_cache else StatCache()
        path = _environment_path(state)
        opened = nullcontext() if path is None else open_directory(path)
        with open_root(self._driver, place) as root, opened as environment:
            rules = ScanRules(
                base=bytes.fromhex(state.base.tree),
                start=bytes.fromhex(state.start),
                driver=state.driver,
                include=IgnoreFile("\n".join(state.include).encode()) if state.include else None,
                environment=environment,
                limits=state.limits,
                stop=stop,
            )
            found, learnt = scan(root, rules, reader=self._depot.reader, cache=cache, known=self._known)
        if trust_cache:
            self._driver.keep_cache(place, cache, learnt=learnt)
        return found

    def last(self) -> Checkpoint | None:
        """Return the last checkpoint, or `None` before the first."""
        commit = self._depot.read_ref(self.ref)
        return None if commit is None else read_checkpoint(self._depot.reader, commit)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield all checkpoints, the last one first."""
        current = self.last()
        while current is not None:
            yield current
            current = (
                None if current.parent == self.base.commit else read_checkpoint(self._depot.reader, current.parent)
            )

    # --- writing

    def checkpoint(self, trigger: str, *, scan: Scan | None = None, repeat: bool = False) -> Checkpoint:
        """Store the present tree (or that of a `scan` just made) as a commit after the last checkpoint.

        An unchanged tree makes no new commit unless `repeat` is set. If killed at any moment, the ref is at the
        old or at the new checkpoint, and complete.
        """
        with hold_lock(self._lock):
            self._refresh()
            return self._commit_tree(trigger, (scan or self.scan()).tree, repeat=repeat)

    def reset(self, tree: str, trigger: str) -> Checkpoint:
        """Roll back (or forward) to exactly `tree`; keep the present tree as a checkpoint first, so undoable.

        Removes ignored and temporary files. A live mount keeps showing the old files: mount the new plan. Raises
        `NotFoundError` code `tree_not_found`.
        """
        with hold_lock(self._lock):
            self._refresh()
            # First the steps that can be refused, then the checkpoint that makes it undoable, then the change.
            self._depot.check_tree(tree)
            self._commit_tree(f"before {trigger}", self.scan().tree)
            return self._reset(tree, trigger)

    def reset_paths(self, paths: Sequence[str], tree: str, trigger: str = "rollback") -> Checkpoint:
        """Restore each path (a directory completely) from `tree`, or remove it if `tree` lacks it."""
        with hold_lock(self._lock):
            self._refresh()
            self._depot.check_tree(tree)
            before = self.scan().tree
            self._commit_tree(f"before {trigger}", before)
            return self._reset(self._depot.replace_paths(before, paths, tree), trigger)

    def tidy(self) -> None:
        """Remove generations that a reset left behind; call it when no sandbox has them mounted."""
        with hold_lock(self._lock):
            self._refresh()
            current = str(self._state.generation)
            for place in (self.directory / "generations").iterdir():
                if place.name != current:
                    remove_tree(place)

    def discard(self) -> None:
        """Remove its files; its checkpoints stay in the depot. Idempotent."""
        with hold_lock(self._lock):
            discard_tree(self.directory)

    # --- inside

    @property
    def _lock(self) -> Path:
        return self._depot.root / "locks" / f"workspace-{self.id}.lock"

    def _generation(self, number: int) -> Generation:
        directory = self.directory / "generations" / str(number)
        return _place_generation(directory, self._layers, self._state)

    def _refresh(self) -> None:
        """Follow a reset that another process may have made since."""
        state = read_state(self._depot, self.id)
        if state.generation != self._state.generation:
            self._switch_to(state)

    def _switch_to(self, state: WorkspaceState) -> None:
        self._state = state
        self._cache = self._driver.load_cache(self._generation(state.generation))

    def _commit_tree(self, trigger: str, tree: str, *, repeat: bool = False) -> Checkpoint:
        last = self.last()
        if last is not None and last.tree == tree and not repeat:
            return last
        parent = last.commit if last else self.base.commit
        changed = len(self._depot.diff(last.tree if last else self.base.tree, tree))
        trigger = " ".join(trigger.split())
        message = checkpoint_message(trigger, changed)
        with disk_errors("making a checkpoint"):
            # The commit before the ref that names it: a kill in between leaves only an unreachable object.
            commit = self._depot.commit(tree, (parent,), message, author=Author())
            self._depot.fault("checkpoint:written")
            self._depot.swap(self.ref, commit, last.commit if last else None)
        os.utime(self.directory / "state.json")  # its last use, for `gc`
        self._depot.fault("checkpoint:made")
        return Checkpoint(commit=commit, tree=tree, parent=parent, trigger=trigger, changed=changed)

    def _reset(self, tree: str, trigger: str) -> Checkpoint:
        generation = self._state.generation + 1
        state = msgspec.structs.replace(self._state, start=tree, generation=generation, head=None)
        with disk_errors("rolling back"):
            # A new generation in addition to the present one, then the state file that names it: the switch is one
            # rename. An upper is never rewound, since deleting behind a live mount still shows the old content.
            _make_generation(self._depot, state, self._layers, self.directory)
            self._depot.fault("reset:filled")
            replace_file(self.directory / "state.json", msgspec.json.encode(state))
        self._depot.fault("reset:switched")
        self._switch_to(state)
        return self._commit_tree(trigger, tree)


def read_state(depot: Depot, id: str) -> WorkspaceState:
    """Return the stored state of a workspace; raises `NotFoundError` code `workspace_not_found`."""
    place = _directory(depot, id)
    try:
        content = (place / "state.json").read_bytes()
    except (OSError, ValueError) as problem:
        known = [entry.name for entry in place.parent.glob("w-*")] if place.parent.is_dir() else []
        raise NotFoundError(
            f"no workspace {id!r}", code="workspace_not_found", hint=nearest(id, known)
        ) from problem
    try:
        return decode_as(content, WorkspaceState)
    except msgspec.MsgspecError as problem:
        raise InfrastructureError(f"the state of workspace {id!r} cannot be read", code="workspace") from problem


def _directory(depot: Depot, id: str) -> Path:
    # A person may type an id: it must lead neither elsewhere nor to the remains of a crash (`.new-…`).
    if not id or "/" in id or id.startswith("."):
        raise NotFoundError(f"no workspace {id!r}", code="workspace_not_found")
    return depot.root / "workspaces" / id


def discard_workspaces(depot: Depot, pattern: str) -> None:
    """Remove the files of the workspaces with matching names, including half made or half removed ones.

    Their checkpoints stay in the depot.
    """
    directory = depot.root / "workspaces"
    for path in directory.glob(pattern):
        with suppress(NotFoundError):
            Workspace.load(depot, path.name).discard()
    for path in (*directory.glob(f".new-{pattern}"), *directory.glob(f".trash-{pattern}")):
        with suppress(InfrastructureError):  # an abandoned worker may still write there: `gc` comes later
            remove_tree(path)


def _make_generation(depot: Depot, state: WorkspaceState, layers: BaseLayers, directory: Path) -> None:
    """Make a generation under a temporary name, then rename it: after a crash it is missing or complete."""
    base, tree = bytes.fromhex(state.base.tree), depot.check_tree(state.start)
    # An overlay needs space for the differences, a plain directory for everything.
    if state.driver == "overlay":
        need = tree_need(depot.reader, tree, besides=base)
    elif state.driver == "reflink":
        files = tree_need(depot.reader, tree).files
        need = Need(bytes=files * INODE, files=files)
    else:
        files = tree_need(depot.reader, tree).files
        environment = tree_bytes(Path(state.environment)) if state.environment else (0, 0)
        need = Need(bytes=tree_bytes(layers.tree)[1] + environment[1], files=files + environment[0])
    depot.room(directory, need, "the files of the workspace")
    generations = directory / "generations"
    generations.mkdir(exist_ok=True)
    # An existing directory is left from a reset that a crash cut off before the state file named it.
    final, fresh = generations / str(state.generation), generations / f".new-{state.generation}"
    remove_tree(final)
    remove_tree(fresh)
    make_owned(fresh)
    driver, place = DRIVERS[state.driver], _place_generation(fresh, layers, state)
    driver.make(place, base=base, tree=tree, reader=depot.reader)
    if state.head is not None:
        writer = HeadWriter(git=depot.git, reader=depot.reader, base=state.base, layers=layers)
        writer.write(state.head, driver.root(place), environment=place.environment)
    depot.fault("generation:filled")
    fresh.rename(final)


def _place_generation(directory: Path, layers: BaseLayers, state: WorkspaceState) -> Generation:
    caches = None if state.caches is None else Path(state.caches)
    return Generation(directory=directory, layers=layers, environment=_environment_path(state), caches=caches)


def _environment_path(state: WorkspaceState) -> Path | None:
    return None if state.environment is None else Path(state.environment)
