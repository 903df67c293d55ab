"""Read access to a state directory: its store, the liveness of its workers, and the state of its missions.

Commands that only read (list, show, log, watch, statistics) are answered from here, so that they never wait for
the import of sandboxes, models, agents, checks or pygit2, which takes half a second.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chargehand import __version__
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.locations import state_home as state_home  # these two are parts of this face
from chargehand.configuration.locations import working_directory as working_directory
from chargehand.core.clock import Clock, SystemClock
from chargehand.core.errors import ChargehandError, NotFoundError, RepositoryError, UsageError
from chargehand.core.registry import Registry, use_registries
from chargehand.durable.workers import LocalWorkers, WatchedWorkers, Workers
from chargehand.store.projects import ProjectRow
from chargehand.store.store import Store, open_store
from chargehand.workspace.repository import Repository, find_repository

if TYPE_CHECKING:
    from typing import Self

    from chargehand.configuration.records import ResolvedConfig
    from chargehand.core.config import EngineConfig
    from chargehand.core.state import MissionState, MissionSummary
    from chargehand.credentials.credentials import Credentials
    from chargehand.missions.reading import FoldedMissions, MissionReader, Queue
    from chargehand.missions.statistics import TalliedBlocks
    from chargehand.reports.disk import StillNeeded
    from chargehand.reports.documents import ListedMission, MissionListDocument
    from chargehand.reports.state.profile import MachineProfile
    from chargehand.reports.state.project_registry import ProjectRegistry
    from chargehand.store.rows import MissionListing
    from chargehand.workspace.depot import Depot
    from chargehand.workspace.space import StateQuota

_TOKEN = "CHARGEHAND_TOKEN"
_AGO = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
# The name of the newest mission.
LAST = "last"


def find_registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind whose names are values of keys of the configuration."""
    if kind == "key_sources":
        from chargehand.credentials.credentials import KEY_SOURCES

        return KEY_SOURCES
    # Imported only to check or show such a value.
    from chargehand.agents.clis import SPECS
    from chargehand.agents.kinds import AGENTS
    from chargehand.forges.registries import FORGES
    from chargehand.models.registries import PROVIDERS
    from chargehand.sandbox.tiers import TIERS

    found: dict[str, Registry[Any]] = {
        "agents": AGENTS,
        "clis": SPECS,
        "providers": PROVIDERS,
        "tiers": TIERS,
        "forges": FORGES,
    }
    return found[kind]


# At import: whoever reads a configuration has imported this module.
use_registries(find_registry)


class StateReader:
    """Read access to one state directory of the calling user; a context manager by `open`.

    The store is opened, and the configuration read, at first use. `actor` is the acting identity if it is not the
    operating system's user; `starts_workers` allows starting a worker when one is needed. With `keeps_missions` a
    mission that was read before is only updated with new lines. Raises `StoreError` as `open_store` does,
    `ConfigError` if the user's configuration is invalid.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        cwd: Path,
        clock: Clock | None = None,
        actor: str = "",
        starts_workers: bool = True,
    ) -> None:
        self.environ = environ
        self.cwd = cwd
        self.home = state_home(environ)
        self.clock = clock or SystemClock()
        self._local = LocalWorkers(self.home, version=__version__)
        self._store: Store | None = None
        self.keeps_missions = False
        # By mission: its summary, the reasons why it waits, and its list entry.
        self.listed: dict[str, tuple[MissionSummary, object, ListedMission]] = {}
        self.tallied: TalliedBlocks = {}
        # By request: the rows and the queue that a list was made from, and the list.
        self.lists: dict[object, tuple[tuple[MissionListing, ...], Queue, MissionListDocument]] = {}
        self._actor = actor
        self.starts_workers = starts_workers
        self.projects = ProjectFinder(self)

    @classmethod
    @contextlib.contextmanager
    def open(cls, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Iterator[Self]:
        """Open the state directory that `environ` (default: the process's) names, and close it at the end."""
        reader = cls(environ=os.environ if environ is None else environ, cwd=cwd or working_directory())
        try:
            yield reader
        finally:
            reader.close()

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()

    @property
    def store(self) -> Store:
        """The state directory's store."""
        if self._store is None:
            self._store = open_store(self.home, clock=self.clock)
        return self._store

    @cached_property
    def engine(self) -> EngineConfig:
        """The configuration of the scheduler: the user's own, never a repository's."""
        return self.user_configuration().config.engine

    @cached_property
    def workers(self) -> Workers:
        """The living workers: on this machine by locks, with a shared database also by leases."""
        if self.engine.url is None:
            return self._local
        from chargehand.durable.leases import LeasedWorkers

        # Renewed four times per lease, so that one failed renewal does not count as death.
        return LeasedWorkers(self.engine.url, self._local, ttl=self.engine.lease, beat=self.engine.lease / 4)

    @cached_property
    def watched_workers(self) -> WatchedWorkers:
        """The living workers, as far as known, even while the shared database is not reachable."""
        return WatchedWorkers(self.workers, self._local)

    @property
    def mission_reader(self) -> MissionReader:
        """The mission reader: states of missions, why they wait, when they wake."""
        from chargehand.missions.reading import MissionReader

        kept = self.kept_missions if self.keeps_missions else None
        return MissionReader(store=self.store, workers=self.watched_workers, kept=kept)

    @cached_property
    def kept_missions(self) -> FoldedMissions:
        """The missions read before, for a reader that is used often (`keeps_missions`)."""
        from chargehand.missions.reading import FoldedMissions

        return FoldedMissions(self.store.log)

    @property
    def acting_reader(self) -> MissionReader:
        """The mission reader for decisions: it raises if it is unknown which workers are alive."""
        from chargehand.missions.reading import MissionReader

        return MissionReader(store=self.store, workers=self.workers)

    @cached_property
    def credentials(self) -> Credentials:
        """The keys of model providers: in the environment, the system's keyring, or the user's own file."""
        from chargehand.configuration.secret_settings import SecretSettings
        from chargehand.credentials.credentials import open_credentials

        path = user_config_path(self.environ)
        return open_credentials(self.environ, path.parent, SecretSettings(path), self.clock)

    def server_token(self, server: str) -> str | None:
        """Return the token for a server: from `CHARGEHAND_TOKEN`, else the stored one, `None` without a token."""
        return self.environ.get(_TOKEN, "").strip() or self.credentials.get(server_secret(server))

    def has_work(self) -> bool:
        """Return whether any mission should run that no live worker holds."""
        return any(not self.mission_reader.live(row) for row in self.store.log.takeable())

    def identity(self) -> str:
        """Return the acting identity: an account of the server, or the operating system's user name or number."""
        if self._actor:
            return self._actor
        user = os.getuid()
        try:
            return f"os:{pwd.getpwuid(user).pw_name}"
        except KeyError:
            return f"os:{user}"

    @property
    def user(self) -> str:
        """The user who pays for missions started here: an account, `CHARGEHAND_USER`, else `identity`."""
        return self._actor or self.environ.get("CHARGEHAND_USER", "").strip()[:200] or self.identity()

    def user_configuration(self) -> ResolvedConfig:
        """Return the configuration in force outside any repository."""
        from chargehand.configuration.resolve import resolve

        user = load_user_file(user_config_path(self.environ))
        return resolve(user=user, environ=self.environ, machine=self.profile.said())

    def clients_may_decide(self) -> bool:
        """Return whether the user's own file lets clients of the MCP server decide in the person's place."""
        from chargehand.configuration.resolve import resolve

        # Without the environment: it is set by the process that starts the server, which may be the client.
        return resolve(user=load_user_file(user_config_path(self.environ))).config.server.may_decide

    @cached_property
    def profile(self) -> MachineProfile:
        """The defaults that follow from this machine's size and the memory that the person gives to sandboxes."""
        from chargehand.configuration.resolve import resolve
        from chargehand.reports.state.profile import profile_for, read_machine

        # Without the machine's own defaults, which this property derives.
        own = resolve(user=load_user_file(user_config_path(self.environ)), environ=self.environ)
        return profile_for(read_machine(), budget_mb=own.config.engine.memory_mb)

    def find_mission(self, name: str) -> str:
        """Return the id of a mission given by a part of it, or `last`: the newest here, else the newest of all.

        Raises `NotFoundError`, `UsageError`.
        """
        if name != LAST:
            return self.store.log.find(name)
        project = self.projects.current()
        rows = (project and self.store.log.missions(project=project.id)) or self.store.log.missions()
        if not rows:
            raise NotFoundError("there are no missions yet", hint='chargehand run "TEXT" starts one')
        # Not the mission of a coordinator's task: no person requested it.
        return next(row.id for row in reversed(rows) if not row.parent)

    def mission_state(self, name: str) -> MissionState:
        """Return the state of the mission that `find_mission` finds. Raises `NotFoundError`, `UsageError`."""
        return self.mission_reader.state(self.find_mission(name))


class ProjectFinder:
    """The projects of one state directory: their repositories, their depots, and the space that they use."""

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader

    def find(self, repository: Path | None = None) -> ProjectRow:
        """Return the project of a repository (the working directory's by default); nothing is written."""
        return self.registry.find(
            find_repository(self._reader.cwd / repository if repository else self._reader.cwd)
        )

    @cached_property
    def registry(self) -> ProjectRegistry:
        """The registry that maps repositories to projects and back."""
        from chargehand.reports.state.project_registry import ProjectRegistry

        log = self._reader.store.log
        return ProjectRegistry(
            self._reader.home,
            self._reader.store.projects,
            has_missions=lambda project: bool(log.missions(project=project, limit=1)),
        )

    def mission_repository(self, state: MissionSummary) -> Repository:
        """Return the repository of a mission's project, at its current path.

        Raises `RepositoryError` (`repository_gone`) if it is at no known path and is not the working directory.
        """
        try:
            return self.registry.find_repository(state.project, Path(state.repository))
        except NotFoundError:  # the row of its project is lost
            return find_repository(repository_of(state))
        except RepositoryError:
            here = None
            with contextlib.suppress(ChargehandError):
                here = find_repository(self._reader.cwd)
                here = here if self.registry.find(here).id == state.project else None
            if here is None:
                raise
            return here

    def current(self, repository: Path | None = None) -> ProjectRow | None:
        """Return the project of `repository`, by default of the working directory; `None` outside any."""
        if repository is not None:
            return self.find(repository)
        try:
            return self.find()
        except RepositoryError:
            return None

    def depot(self, project: ProjectRow, *, repository: Repository | None = None) -> Depot:
        """Open the depot of a project; `repository` is its repository, if the caller has already found it."""
        from chargehand.missions.services import system_errors
        from chargehand.workspace.depot import Depot

        with system_errors():
            home = self._reader.home / "projects" / project.id
            return Depot.open(home, repository=repository or project.path, room=self.room)

    def mission_depot(self, state: MissionSummary) -> Depot:
        """Open the depot that holds a mission's trees. Raises `RepositoryError` if its repository is gone."""
        found = self.mission_repository(state)
        return self.depot(mission_project(state, found), repository=found)

    @cached_property
    def room(self) -> StateQuota:
        """The quota of the state directory, by the limits of the user's own configuration."""
        from chargehand.workspace.space import StateQuota

        limits = self._reader.user_configuration().config.limits
        return StateQuota(
            lambda: sorted((self._reader.home / "projects").glob("*/")),
            limit=limits.state_mb << 20,
            needed=lambda: self.needed,
            max_age=limits.workspace_age,
        )

    @property
    def needed(self) -> StillNeeded:
        """The parts of the state directory that missions need now."""
        from chargehand.reports.disk import StillNeeded

        return StillNeeded(self._reader.mission_reader.summaries())


def server_secret(server: str) -> str:
    """Return the name of the secret with a server's token: readable, and different for every server."""
    words = re.sub(r"[^A-Z0-9]+", "_", server.partition("://")[2].upper()).strip("_")[:32]
    return f"{_TOKEN}_{words}_{hashlib.sha256(server.encode()).hexdigest()[:8].upper()}"


def mission_project(state: MissionSummary, repository: Repository) -> ProjectRow:
    """Return the project of a mission, at a place of its repository."""
    return ProjectRow(id=state.project, path=repository.path, name=repository.path.name)


def repository_of(state: MissionSummary) -> Path:
    """Return the path of a mission's repository. Raises `RepositoryError` (`repository_gone`)."""
    if not Path(state.repository).is_dir():
        raise RepositoryError(
            f"the repository of mission {state.id!r} is gone: {state.repository!r}",
            code="repository_gone",
            hint="move it back to that path",
        )
    return Path(state.repository)


def parse_since(text: str, *, now: datetime) -> datetime:
    """Parse `7d`, `12h`, `30m` or `2w` before `now`, or a date in ISO 8601 (UTC by default).

    Raises `UsageError` (`since_invalid`).
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    # Six digits of weeks reach before the year 1: an OverflowError.
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"--since: {text!r} is not a point in time",
            code="since_invalid",
            hint="write 7d, 12h, 30m or 2w, or a date such as 2026-01-31",
        ) from error
