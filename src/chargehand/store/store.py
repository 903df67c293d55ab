"""The state directory as a whole."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
import stat
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import StoreError, UsageError
from chargehand.store.artifacts import Artifacts
from chargehand.store.database import summaries
from chargehand.store.database.caches import FlakyTests, Inspections, Verdicts
from chargehand.store.database.connection import Database, typed_errors
from chargehand.store.database.keys import KeyFiles, KnownKeys
from chargehand.store.database.migrate import ensure_current
from chargehand.store.heads import Heads, SignedHead, sign_head
from chargehand.store.ledger import Spending
from chargehand.store.log import EventLog
from chargehand.store.projects import Projects, Trust

if TYPE_CHECKING:  # a reader signs nothing, and checks no identity
    from chargehand.store.access_log import AccessLog
    from chargehand.store.accounts import Accounts, Grants
    from chargehand.store.alerts import Alerts, Followers
    from chargehand.store.derived import DerivedFiles
    from chargehand.store.envelopes import Envelope
    from chargehand.store.evidence import BenchEvidence
    from chargehand.store.factors import SecondFactors
    from chargehand.store.idempotency import IdempotencyKeys
    from chargehand.store.lessons import Lessons
    from chargehand.store.networks import NetworkVersions
    from chargehand.store.passkeys import Passkeys
    from chargehand.store.reviews import Reviews
    from chargehand.store.sign_ins import ExternalSubjects, PendingSignIns

# Files that commands and workers may write before the store exists, however they ended.
_BEFORE_THE_STORE = re.compile(
    r"toolchain(-found)?\.json.*|probe(-container|-vm)?\.json.*|probe-\w+|vm|logs|workers|last-worked|slots|actions"
    r"|engine\.(db.*|lock)|calls|mcp|bench|lost\+found"
)


class Rebuilt(Struct, frozen=True, kw_only=True):
    """The result of `Store.rebuild`: the number of missions, and the ids of those whose rows had differed.

    `renumbered` says that positions were missing or out of order, so that all lines have new ones.
    """

    missions: int
    differing: tuple[str, ...]
    renumbered: bool = False


class Store:
    """Everything stored in `home`; made by `open_store`, used as a context manager or closed.

    Threads may share it. A forked child must open its own. `database` is only for this package.
    """

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self.database = database
        self.home = database.home
        self._clock = clock
        self.log = EventLog(database, clock=clock)
        self.projects = Projects(database, clock=clock)
        self.trust = Trust(database, clock=clock)
        self.flaky = FlakyTests(database, clock=clock)
        self.artifacts = Artifacts(database, clock=clock)
        self.verdicts = Verdicts(database, clock=clock, holds_artifact=self.artifacts.is_intact)
        self.inspections = Inspections(database, clock=clock)
        self.spending = Spending(database, clock=clock)

    @cached_property
    def access_log(self) -> AccessLog:
        """The log of actions on accounts, sessions and tokens."""
        from chargehand.store.access_log import AccessLog

        return AccessLog(self.database, clock=self._clock)

    @cached_property
    def accounts(self) -> Accounts:
        """The accounts of the server."""
        from chargehand.store.accounts import Accounts

        return Accounts(self.database, self.access_log)

    @cached_property
    def grants(self) -> Grants:
        """The sessions, login codes and tokens of the server."""
        from chargehand.store.accounts import Grants

        return Grants(self.database, self.access_log, clock=self._clock)

    @cached_property
    def factors(self) -> SecondFactors:
        """The second factors of accounts."""
        from chargehand.store.factors import SecondFactors

        return SecondFactors(self.database, self.access_log)

    @cached_property
    def passkeys(self) -> Passkeys:
        """The passkeys of accounts."""
        from chargehand.store.passkeys import Passkeys

        return Passkeys(self.database, self.access_log, clock=self._clock)

    @cached_property
    def subjects(self) -> ExternalSubjects:
        """The external subjects of accounts."""
        from chargehand.store.sign_ins import ExternalSubjects

        return ExternalSubjects(self.database, self.access_log)

    @cached_property
    def sign_ins(self) -> PendingSignIns:
        """The sign-ins of browsers at an external provider."""
        from chargehand.store.sign_ins import PendingSignIns

        return PendingSignIns(self.database, self.access_log, clock=self._clock)

    @cached_property
    def alerts(self) -> Alerts:
        """Current and past alerts."""
        from chargehand.store.alerts import Alerts

        return Alerts(self.database)

    @cached_property
    def followers(self) -> Followers:
        """The reading positions of the followers of all lines."""
        from chargehand.store.alerts import Followers

        return Followers(self.database)

    @cached_property
    def idempotency(self) -> IdempotencyKeys:
        """The keys of requests to the server, and their answers."""
        from chargehand.store.idempotency import IdempotencyKeys

        return IdempotencyKeys(self.database, clock=self._clock)

    @cached_property
    def networks(self) -> NetworkVersions:
        """The versions of belief networks."""
        from chargehand.store.networks import NetworkVersions

        return NetworkVersions(self.database, self.access_log)

    @cached_property
    def lessons(self) -> Lessons:
        """Lessons from earlier missions."""
        from chargehand.store.lessons import Lessons

        return Lessons(self.database, clock=self._clock)

    @cached_property
    def reviews(self) -> Reviews:
        """Notes that people take while they review."""
        from chargehand.store.reviews import Reviews

        return Reviews(self.database, clock=self._clock)

    @cached_property
    def derived(self) -> DerivedFiles:
        """Files that save reading the log again."""
        from chargehand.store.derived import DerivedFiles

        return DerivedFiles(self.home, read_only=self.database.read_only)

    @cached_property
    def evidence(self) -> BenchEvidence:
        """Outcomes of benchmarks that count as evidence for choices."""
        from chargehand.store.evidence import BenchEvidence

        return BenchEvidence(self.home)

    def erase_payload(self, mission: str, seq: int, *, reason: str) -> None:
        """Remove the payload of one line for good, also from old pages; the chain stays whole and verifies.

        Artifacts that the payload names stay. Raises `NotFoundError` for an unknown line, `StoreError`:
        `store_busy` if another process kept the erased bytes in use; the same call again removes them.
        """
        self.log.erase(mission, seq, reason=reason)
        self.idempotency.drop_answers()
        with typed_errors(self.home):
            self.derived.clear()
        if not self.database.truncate_log():
            raise StoreError(
                f"line {seq} of {mission} is erased, but its bytes may remain in '{self.database.path}-wal'",
                code="store_busy",
                hint="another process reads the store; erase the line again when it is done",
            )

    def rebuild(self) -> Rebuilt:
        """Rebuild the summary rows from the logs, and the positions of lines if they are incomplete.

        Other processes may read and write meanwhile; readers that follow by position continue unless lines had to
        be renumbered. Raises `StoreError`.
        """
        with self.database.write(durable=True) as connection:
            renumbered = summaries.renumber(connection)
            rows = connection.execute("SELECT id FROM missions WHERE id <> project ORDER BY id")
            missions = [name for (name,) in rows]
            differing = tuple(mission for mission in missions if summaries.refold(connection, mission))
        with typed_errors(self.home):
            self.derived.clear()
        return Rebuilt(missions=len(missions), differing=differing, renumbered=renumbered)

    def sign_head(self, mission: str) -> SignedHead:
        """Sign and keep the head of the last line of `mission` on disk; the key is created at first use.

        The same line is signed once. Raises `NotFoundError` for an unknown mission, `StoreError`: `head_missing`
        if no durable append was made, `log_changed` if the log no longer has that line or it was signed
        differently, `key_missing`, `key_damaged`.
        """
        return sign_head(self.database, mission, clock=self._clock)

    def sign_envelope(self, body: bytes, *, kind: str) -> Envelope:
        """Sign a body of media type `kind` with the key that signs heads; see `envelopes.sign_envelope`."""
        from chargehand.store.envelopes import sign_envelope

        return sign_envelope(self.database, body, kind=kind)

    def known_keys(self) -> KnownKeys:
        """Return the keys for verifying signatures. Raises `StoreError`."""
        with typed_errors(self.home):
            return KeyFiles(self.home).known()

    def backup(self, target: Path) -> None:
        """Write a copy to `target`, which must not exist, that opens as a store; others may write meanwhile.

        The copy appears whole or not at all, and is as secret as the state directory: it holds the key that signs
        heads. Raises `UsageError` if `target` exists, `StoreError`.
        """
        if target.exists():
            raise UsageError(f"{str(target)!r} exists", hint="name a directory that does not exist yet")
        part = target.with_name(target.name + ".part")
        try:
            part.mkdir(mode=0o700, parents=True)
            try:
                # In this order no copied head is ahead of the copied log, and no artifact it names is missing.
                _copy_tree(self.home / "heads", part / "heads")
                _copy_tree(self.home / "keys", part / "keys")
                _make_file(part / "store.db")
                with self.database.plain() as connection:
                    copied = sqlite3.connect(part / "store.db")
                    try:
                        # SQLite's own copy: a file copy would miss content that is still in the write-ahead log.
                        connection.backup(copied)
                    finally:
                        copied.close()
                _copy_tree(self.home / "artifacts", part / "artifacts")
                part.rename(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
        except OSError as error:
            raise StoreError(
                f"copying to {str(target)!r} failed: {error.strerror or error}",
                code="backup_failed",
                hint="name a directory that you may write to, with space for a copy",
            ) from error

    def close(self) -> None:
        """Close all connections."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(home: Path, *, clock: Clock | None = None, read_only: bool = False) -> Store:
    """Open the state directory, creating it, restricting it (mode 0700) and migrating it if necessary.

    Raises `StoreError`: `store_newer`, `store_older` and `store_missing` (read-only), `store_corrupt`,
    `store_not_writable`, `store_full`, `store_busy`, `store_exposed` if others may read it and it cannot be
    restricted.
    """
    with typed_errors(home):
        _close_to_others(home)
        if not (home / "store.db").exists():
            if read_only:
                raise StoreError(
                    f"there is no store in {str(home)!r}", code="store_missing", hint="start a mission first"
                )
            home.parent.mkdir(parents=True, exist_ok=True)
            home.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                _make_file(home / "store.db")
    database = Database(home, read_only=read_only)
    try:
        ensure_current(database, kept_heads=Heads(home).missions)
    except BaseException:
        database.close()
        raise
    return Store(database, clock=clock or SystemClock())


def is_state_directory(path: Path) -> bool:
    """Return whether an existing directory is Chargehand's own, or empty: a mistake may name /tmp, or a home."""
    names = set(os.listdir(path))
    return all(map(_BEFORE_THE_STORE.fullmatch, names)) or not names.isdisjoint(("store.db", "migrate.lock"))


def _close_to_others(home: Path) -> None:
    """Remove the rights of group and others: it contains every project's sources, prompts and keys."""
    with suppress(FileNotFoundError):
        mode = home.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(home))
        ours = is_state_directory(home)
        if mode & 0o077 and ours:
            with suppress(OSError):
                home.chmod(0o700)
        if home.stat().st_mode & 0o077:
            what = "cannot be closed to them" if ours else "has files that are not Chargehand's"
            close = f"chmod 700 {home}, as its owner; or " if ours else ""
            raise StoreError(
                f"other users may read the state directory {str(home)!r}, and it {what}",
                code="store_exposed",
                hint=f"{close}name a separate directory in CHARGEHAND_HOME",
            )


def _make_file(path: Path) -> None:
    # Made before SQLite does, so that it and the files next to it belong to its owner alone.
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(".tmp-*"))
