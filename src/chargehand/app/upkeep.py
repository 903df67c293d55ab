"""Upkeep of a state directory: checking it for damage, backing it up, and restoring a backup."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.errors import ChargehandError, InfrastructureError, RefusedError, StoreError, UsageError
from chargehand.core.events import read_payload
from chargehand.core.fold import fold
from chargehand.core.state import MissionState
from chargehand.policy.access import ROLES
from chargehand.reports.disk import OPEN, mission_of
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor
from chargehand.store.audit import verify
from chargehand.store.chain import AuditProblem, audit_problem
from chargehand.store.heads import SignedHead
from chargehand.store.store import Store, is_state_directory, open_store
from chargehand.workspace.identity import IDENTITY

# Arguments of renameat2(2).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_PROJECTS = "projects"
# The status of a call whose reply the attempt already had.
_REPLAYED = "replayed"
_DEPOT = "depot.git"
_WORKSPACES = "refs/chargehand/workspaces/"


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of a check, and the differences from the written values.

    `artifacts` were read and compared with their ids, `commits` with all of their files.
    """

    ok: bool
    missions: int
    events: int
    signed_heads: int
    keys: tuple[str, ...]
    artifacts: int
    commits: int
    problems: tuple[AuditProblem, ...]


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The number of artifacts and commits read, and the problems found."""

    artifacts: int
    commits: int
    problems: tuple[AuditProblem, ...]


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup: its directory, contents, and size in bytes."""

    path: str
    missions: int
    projects: int
    bytes: int


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A restored backup; `before` is where the previous state directory was moved (null: there was none).

    `paused` are the missions that were running when the backup was made: a person resumes them.
    """

    path: str
    before: str | None
    missions: int
    paused: tuple[str, ...]


def check_store(reader: StateReader, mission: str | None = None) -> StoreCheck:
    """Check everything that missions need: the log, artifacts, and the commits of their depots.

    For an ended mission only commits that a ref still keeps are checked, since `gc --checkpoints` erases old ones.
    Raises `NotFoundError` for an unknown mission.
    """
    wanted = None if mission is None else reader.find_mission(mission)
    store = reader.store
    report = verify(store, wanted)
    content = find_lost_content(reader, wanted)
    problems = [*report.problems, *content.problems]
    if wanted is None:
        with contextlib.suppress(StoreError):  # the report already includes it
            damaged = store.grants.problems(roles=ROLES)
            problems += [audit_problem("", None, "access_damaged", problem) for problem in damaged]
            damaged = itertools.chain(store.networks.problems(), store.lessons.problems())
            problems += [audit_problem("", None, "store_damaged", problem) for problem in damaged]
        from chargehand.durable.engine_file import find_damage

        wrong = find_damage(reader.home / "engine.db")
        if wrong is not None:
            told = f"the queue of workers, engine.db: {wrong}; the next worker recreates it, and nothing is lost"
            problems.append(audit_problem("", None, "engine_damaged", told))
    return StoreCheck(
        ok=not problems,
        missions=report.missions,
        events=report.events,
        signed_heads=report.signed_heads,
        keys=report.keys,
        artifacts=content.artifacts,
        commits=content.commits,
        problems=tuple(problems),
    )


def find_lost_content(reader: StateReader, mission: str | None = None) -> Content:
    """Read the artifacts and commits that the log of a mission, or of all, names; see `check_store`."""
    store = reader.store
    content = _ContentReader(store, reader.home)
    problems = list(content.check_artifacts(mission))
    for name in [mission] if mission is not None else [row.id for row in store.log.missions()]:
        problems += content.check_commits(fold(store.log.read(name), live=False))
        problems += content.check_spending(name)
    if mission is None:
        known = {project.id for project in store.projects.list()}
        lost = sorted({row.project for row in store.log.missions()} - known)
        problems += [
            audit_problem("", None, "project_missing", f"the row of project {name} is missing") for name in lost
        ]
    return Content(artifacts=content.artifacts_read, commits=content.commits_read, problems=tuple(problems))


class _ContentReader:
    """Reads the content that the logs of missions name, each item once."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store = store
        self._home = home
        self._artifacts: dict[str, str | None] = {}
        self._commits: dict[tuple[str, str], str | None] = {}

    @property
    def artifacts_read(self) -> int:
        return len(self._artifacts)

    @property
    def commits_read(self) -> int:
        return len(self._commits)

    def check_artifacts(self, mission: str | None) -> Iterator[AuditProblem]:
        """Yield the lost or changed artifacts of a mission, or all of them, including those without a mission."""
        for row in self._store.artifacts.list(mission):
            if row.id not in self._artifacts:
                self._artifacts[row.id] = None
                try:
                    self._store.artifacts.get(row.id)
                except ChargehandError as error:
                    self._artifacts[row.id] = error.message
            if (wrong := self._artifacts[row.id]) is not None:
                yield audit_problem(row.mission, None, "artifact_damaged", f"{row.kind}: {wrong}")

    def check_commits(self, state: MissionState) -> Iterator[AuditProblem]:
        """Yield the commits of a mission that cannot be read completely."""
        from chargehand.workspace.damage import find_damage

        if not state.project:
            return
        yield from self._check_notes(state)
        depot = self._home / _PROJECTS / state.project / _DEPOT
        needed = dict(_needed_commits(state, depot))
        fresh = [commit for commit in needed if (state.project, commit) not in self._commits]
        found = find_damage(depot, fresh)
        self._commits |= {(state.project, commit): found.get(commit) for commit in fresh}
        for commit, what in needed.items():
            wrong = self._commits[state.project, commit]
            if wrong is not None:
                yield audit_problem(state.id, None, "depot_damaged", f"{what} {commit[:12]}: {wrong}")

    def _check_notes(self, state: MissionState) -> Iterator[AuditProblem]:
        """Yield the damaged notes on a mission's promoted commit: its signed head and its provenance."""
        from chargehand.workspace.damage import read_depot_note

        # A fork has its own promotion, or none yet; the copied part was signed for another mission.
        if state.signed is None or state.forked_from:
            return
        depot = self._home / _PROJECTS / state.project / _DEPOT
        for what in ("head", "provenance"):
            note, wrong = read_depot_note(depot, state.signed, what)
            if not wrong and what == "head":
                wrong = self._find_head_fault(note, state.id)
            if wrong:
                told = f"the note with the {what} of promoted commit {state.signed[:12]}: {wrong}"
                yield audit_problem(state.id, None, "depot_damaged", told)

    def _find_head_fault(self, note: bytes, mission: str) -> str:
        """Return why a note does not hold a mission's signed head, or "" if it does."""
        keys = self._store.known_keys().keys
        for line in note.splitlines():
            try:
                head = SignedHead.decode(line)
            except UsageError as error:
                return error.message
            key = keys.get(head.key)
            if key is not None and not head.signed_by(key):
                return "a signature is not its key's"
            if head.mission == mission:
                return ""
        return f"it has no head of mission {mission!r}"

    def check_spending(self, mission: str) -> Iterator[AuditProblem]:
        """Yield the calls of a mission whose bookings differ from its log."""
        payloads = map(read_payload, self._store.log.read(mission))
        # A replayed reply costs nothing, and is booked with the call that first got it.
        booked = {
            each.call: each.booked_usd
            for each in payloads
            if isinstance(each, ModelCalled) and each.status != _REPLAYED
        }
        for call, wrong in self._store.spending.find_damage(booked).items():
            yield audit_problem(mission, None, "spending_damaged", f"call {call}: {wrong}")


def _needed_commits(state: MissionState, depot: Path) -> Iterator[tuple[str, str]]:
    """Yield the commits of a mission that must exist, each with its purpose in words."""
    # A mission has no depot before a worker takes it up.
    if state.base is not None and (state.checkpoints or state.commit):
        yield state.base.commit, "base"
    if state.commit is not None:
        yield state.commit, "promoted commit"
    if state.status in OPEN:
        yield from ((point.commit, "checkpoint") for point in state.checkpoints)
        return
    parents = {point.commit: point.parent for point in state.checkpoints}
    # The commit that the ref of each workspace names, by the workspace's name.
    found = {}
    with contextlib.suppress(OSError):
        for line in (depot / "packed-refs").read_text(errors="replace").splitlines():
            commit, _, ref = line.partition(" ")
            if ref.startswith(_WORKSPACES):
                found[ref.removeprefix(_WORKSPACES)] = commit
    for path in sorted((depot / _WORKSPACES).glob("*")):
        with contextlib.suppress(OSError):
            found[path.name] = path.read_text(errors="replace").strip()
    for name, tip in found.items():
        if mission_of(name) == state.id:
            # A damaged ref names no checkpoint, and the commit that it names cannot be read.
            yield tip, f"workspace {name} at"
            while tip in parents:
                yield tip, "checkpoint"
                tip = parents[tip]


def back_up(reader: StateReader, target: Path) -> Backup:
    """Copy the state directory to a new directory while processes run: log, keys, artifacts, replies and depots.

    Bases, layers and workspaces are left out: they can be rebuilt. The copy is complete or does not exist, and as
    secret as the state directory. Raises `UsageError` if `target` exists, `StoreError`, `InfrastructureError`.
    """
    target = target.absolute()
    store = reader.store
    if target.is_relative_to(reader.home):
        raise UsageError(
            f"{str(target)!r} is in the state directory itself", hint="name a directory on another disk"
        )
    part = target.with_name(target.name + ".unfinished")
    if target.exists() or part.exists():
        taken = target if target.exists() else part
        raise UsageError(f"{str(taken)!r} exists", hint="name a directory that does not exist yet")
    try:
        # The log first: depots and replies, copied later, include everything that it names.
        store.backup(part)
        with _disk_errors(target):
            if (reader.home / "calls").is_dir():
                kept = reader.home / "calls"
                shutil.copytree(kept, part / "calls", dirs_exist_ok=True, copy_function=_copy_unless_gone)
            roots = [each for each in sorted((reader.home / _PROJECTS).glob("*/")) if (each / _DEPOT).is_dir()]
            for root in roots:
                _copy_depot(root / _DEPOT, part / _PROJECTS / root.name / _DEPOT)
                if (root / IDENTITY).exists():
                    shutil.copy2(root / IDENTITY, part / _PROJECTS / root.name / IDENTITY)
            size = sum(path.lstat().st_size for path in part.rglob("*") if path.is_file())
            part.rename(target)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    missions = len(store.log.missions())
    return Backup(path=str(target), missions=missions, projects=len(roots), bytes=size)


def _copy_depot(source: Path, target: Path) -> None:
    """Copy a repository; refs first, so that no copied ref names an object that is not copied."""
    target.mkdir(parents=True)
    for name in ("HEAD", "config", "packed-refs"):
        if (source / name).exists():
            shutil.copy2(source / name, target / name)
    # Git writes under temporary names until a file is complete. A ref may be deleted meanwhile; a missing object
    # would damage the copy, so it raises.
    for name, copy in (("refs", _copy_unless_gone), ("objects", shutil.copy2)):
        ignored = shutil.ignore_patterns("tmp_*", "*.lock")
        shutil.copytree(source / name, target / name, symlinks=True, ignore=ignored, copy_function=copy)


def _copy_unless_gone(source: str, target: str) -> None:
    """Copy a file, unless a mission removed it since its directory was listed, as each mission does at its end."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def restore(reader: StateReader, backup: Path, *, confirm: Callable[[str], None]) -> Restored:
    """Replace the state directory by a backup; the old one is kept next to it under another name.

    `confirm` gets a description of the effect and raises if the person declines. Missions that were running wait
    for a person: their actions since the backup are unknown. All sessions of the server are closed. Raises
    `UsageError` for a directory that is not a backup, `StoreError` (`backup_damaged`), `RefusedError`
    (`workers_alive`), `InfrastructureError`.
    """
    backup = backup.absolute()
    if not (backup / "store.db").is_file():
        raise UsageError(f"{str(backup)!r} is not a backup", hint="chargehand store backup DIRECTORY makes one")
    with open_store(backup, read_only=True) as store:
        report = verify(store)
    if not report.ok:
        first = report.problems[0]
        raise StoreError(
            f"the backup {str(backup)!r} is damaged itself: {first.mission or 'its store'}: {first.message}",
            code="backup_damaged",
            hint="restore an older one",
        )
    _refuse_beside_workers(reader)
    home = reader.home
    if home.is_dir() and not is_state_directory(home):
        raise UsageError(
            f"{str(home)!r} is not a state directory, and has files",
            hint="name a separate directory in CHARGEHAND_HOME; it need not exist yet",
        )
    before = home.with_name(f"{home.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    confirm(
        f"the state directory {str(home)!r} is replaced by the copy in {str(backup)!r};"
        f" its present content is kept as {str(before)!r}"
    )
    with _disk_errors(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copytree(backup, before, symlinks=True)
            before.chmod(0o700)
            with open_store(before) as store:
                paused = tuple(row.id for row in (*store.log.takeable(), *store.log.sleeping()))
                for mission in paused:
                    store.log.set_aside(mission)
                # The owner of a session may have been locked out since the backup was made.
                store.grants.close_all(actor=Actor(user=reader.identity()))
            # Checked again: copying takes a while.
            _refuse_beside_workers(reader)
        except BaseException:
            shutil.rmtree(before, ignore_errors=True)
            raise
        reader.close()
        existed = home.exists()
        _exchange(before, home)
    return Restored(
        path=str(home), before=str(before) if existed else None, missions=report.missions, paused=paused
    )


def _refuse_beside_workers(reader: StateReader) -> None:
    alive = reader.workers.members()
    if alive:
        raise RefusedError(
            f"{len(alive)} processes still work on missions, process {alive[0].pid} among them",
            code="workers_alive",
            hint="stop workers and `chargehand run` first; then nothing is lost between the copy and now",
        )


def _exchange(new: Path, old: Path) -> None:
    """Exchange two directories atomically, so that `old` always exists; it may be missing before."""
    if not old.exists():
        new.rename(old)
        return
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    arguments = (_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
    if rename is not None and rename(*arguments) == 0:
        return
    # For a C library or file system without support: between the two renames there is no state directory.
    aside = old.with_name(f"{old.name}.aside")
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


@contextlib.contextmanager
def _disk_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # shutil's own error is an OSError with a list as its message
        raise InfrastructureError(
            f"copying to {str(place)!r} failed: {error.strerror or error}",
            code="backup_failed",
            hint="free some space there, or name a directory on another disk; nothing was changed",
        ) from error
