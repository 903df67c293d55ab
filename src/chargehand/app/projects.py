"""Use cases of projects: details of a repository, its trust, its setup, and the pre-commit hook."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from chargehand.app.selection.roles import RoleFile
from chargehand.configuration.records import UntrustedKey
from chargehand.configuration.resolve import REGISTRIES
from chargehand.configuration.trust import describe_untrusted
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.records import Base
from chargehand.reports.reading import StateReader, working_directory
from chargehand.workspace.branches import MergedBranch, merged_branches, remove_branch
from chargehand.workspace.checkout import install_hook, remove_hook
from chargehand.workspace.repository import find_repository

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.core.state import MissionState


def remember_registries(app: App, state: MissionState) -> None:
    """Let the setup of a mission's project reach the registries from now on; the calling user grants it."""
    app.store.trust.grant(state.project, REGISTRIES, identity=app.identity())


class BranchCleanup(msgspec.Struct, frozen=True, kw_only=True):
    """The merged branches of Chargehand in a repository, and the names of those that were removed."""

    merged: tuple[MergedBranch, ...]
    removed: tuple[str, ...]


def clean_branches(
    app: App, repo: Path | None, *, confirm: Callable[[tuple[MergedBranch, ...]], bool]
) -> BranchCleanup:
    """Remove the branches of Chargehand that are part of HEAD, if the person agrees to all of them.

    A branch that moved meanwhile stays. Raises `RepositoryError`.
    """
    repository = app.preparation.find(repo, only_reads=True).depot.repository
    merged = merged_branches(repository)
    if not merged or not confirm(merged):
        return BranchCleanup(merged=merged, removed=())
    removed = tuple(each.name for each in merged if remove_branch(repository, each))
    return BranchCleanup(merged=merged, removed=removed)


class ProjectEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One registered repository and its number of missions."""

    id: str
    name: str
    path: str
    missions: int


class ProjectList(msgspec.Struct, frozen=True, kw_only=True):
    """All registered repositories."""

    projects: tuple[ProjectEntry, ...]


class ProjectView(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that a mission started now would use. `checks_from` is `configured`, `detected` or `none`.

    Its agent would start in `directory`, "." at the top of the repository.
    """

    id: str
    name: str
    path: str
    base: Base
    directory: str
    checks: tuple[str, ...]
    checks_from: str
    setup: str | None
    digest: str | None
    trusted: bool
    untrusted: tuple[UntrustedKey, ...]
    notes: tuple[str, ...]
    missions: int


class HookDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The file of the pre-commit hook, and whether it was changed."""

    path: str
    changed: bool


class RoleDigest(msgspec.Struct, frozen=True, kw_only=True):
    """A role's file in the repository, and the SHA-256 by which its content is trusted."""

    place: str
    digest: str


class TrustView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the exact content of the repository's file is trusted, and the keys and roles that need trust."""

    project: str
    digest: str | None
    trusted: bool
    keys: tuple[UntrustedKey, ...]
    roles: tuple[RoleDigest, ...]


class RevokedTrust(msgspec.Struct, frozen=True, kw_only=True):
    """A repository whose trust was revoked, and the number of its contents that were trusted until now."""

    project: str
    path: str
    revoked: int


class SetupResult(msgspec.Struct, frozen=True, kw_only=True):
    """The setup command whose environment layer was built (null without a setup), and the time it took."""

    setup: str | None
    seconds: float


def install_project_hook(repo: Path | None) -> HookDocument:
    """Write the pre-commit hook that checks the format of staged files; another program's hook is never changed.

    Raises `RepositoryError`, `RefusedError`.
    """
    # The full path is written into the hook: git may be started with another PATH, for example by an editor.
    program = shutil.which("chargehand") or str(Path(sys.executable).with_name("chargehand"))
    hook = install_hook(find_repository(repo or working_directory()), Path(program).absolute())
    return HookDocument(path=str(hook.path), changed=hook.changed)


def remove_project_hook(repo: Path | None) -> HookDocument:
    """Remove the pre-commit hook if it is ours."""
    hook = remove_hook(find_repository(repo or working_directory()))
    return HookDocument(path=str(hook.path), changed=hook.changed)


def list_projects(reader: StateReader) -> ProjectList:
    """Return the registered repositories."""
    counts = reader.store.log.mission_counts()
    return ProjectList(
        projects=tuple(
            ProjectEntry(id=row.id, name=row.name, path=str(row.path), missions=counts.get(row.id, 0))
            for row in reader.store.projects.list()
        )
    )


class MovedProject(msgspec.Struct, frozen=True, kw_only=True):
    """The project that a repository now belongs to; `before` is its previous path, null for a new project."""

    id: str
    name: str
    path: str
    before: str | None


def move_project(reader: StateReader, project: str | None, repo: Path | None, *, new: bool) -> MovedProject:
    """Record a person's decision about the project of a repository; with `new`, as a new project.

    Raises `NotFoundError`, `UsageError`, `RepositoryError`, and `RefusedError` (`project_here`) if the repository
    already is another project that has missions.
    """
    repository = find_repository(repo or working_directory())
    if new:
        row = reader.projects.registry.add(repository)
        return MovedProject(id=row.id, name=row.name, path=str(row.path), before=None)
    if project is None:
        raise UsageError(
            "no project was named", hint="chargehand project list shows all, with their last known paths"
        )
    wanted = reader.store.projects.find(project)
    present = None
    with contextlib.suppress(RefusedError):  # the person decides now which one it is
        present = reader.projects.registry.find(repository)
    if present is not None and present.id != wanted.id and reader.store.log.missions(project=present.id, limit=1):
        raise RefusedError(
            f"{str(repository.path)!r} is project {present.id!r} already, and has missions",
            code="project_here",
            hint=f"name the repository of {wanted.id} with --repo",
        )
    moved = reader.projects.registry.move(wanted, repository)
    return MovedProject(id=moved.id, name=moved.name, path=str(moved.path), before=str(wanted.path))


def show_project(app: App, repo: Path | None) -> ProjectView:
    """Return the settings that a mission started now would use; raise `RepositoryError`, `ConfigError`."""
    found = app.preparation.configured(repo, only_reads=True)
    project = found.project
    resolved = found.resolved
    places = app.preparation.places(found, resolved)
    checks = resolved.config.project.checks
    source = "configured"
    if checks is None:
        checks = app.preparation.detected(found.depot, found.base, places.checks).checks
        source = "detected" if checks else "none"
    return ProjectView(
        id=project.id,
        name=project.name,
        path=str(project.path),
        base=found.base,
        directory=places.agent or ".",
        checks=checks,
        checks_from=source,
        setup=resolved.config.project.setup,
        digest=resolved.digest or None,
        trusted=bool(resolved.digest) and app.store.trust.is_trusted(project.id, resolved.digest),
        untrusted=resolved.untrusted,
        notes=resolved.notes,
        missions=len(app.store.log.missions(project=project.id)),
    )


async def set_up_project(app: App, repo: Path | None, *, base: str | None) -> SetupResult:
    """Build the environment layer of a base if it is missing; `base` is a revision, HEAD by default."""
    started = time.monotonic()
    async with app.session(repo, revision=base) as session, session.open_workspace():
        command = session.resolved.config.project.setup
    return SetupResult(setup=command, seconds=round(time.monotonic() - started, 3))


def revoke_trust(reader: StateReader, repo: Path | None) -> RevokedTrust:
    """Revoke all trust in a repository: every content of its files, and its setup's access to registries.

    Every content, not only that of HEAD: a person who revokes trust means the repository. Raises
    `RepositoryError`, `StoreError`.
    """
    project = reader.projects.find(repo)
    return RevokedTrust(project=project.id, path=str(project.path), revoked=reader.store.trust.revoke(project.id))


class TrustRequest:
    """The parts of a repository that need a person's trust: keys of `chargehand.toml`, and files of roles.

    A person trusts one exact content: any change of a file needs trust again.
    """

    def __init__(self, app: App, repo: Path | None, *, base: str | None) -> None:
        self._app = app
        self._prepared = app.preparation.configured(repo, revision=base)
        resolved = self._prepared.resolved
        # Trust covers the whole file, so its agents may then use the person's models.
        self._asked = replace(resolved, untrusted=(*resolved.untrusted, *resolved.strangers.values()))
        # With the tier `auto`, trust decides how strong sandboxes are: a repository without a file needs trust
        # too.
        self.decides_tier = resolved.config.sandbox.tier == "auto"
        self._digest = resolved.trusted_by if self.decides_tier else resolved.digest
        self._roles: list[RoleFile] = [
            each for each in app.preparation.roles(self._prepared).of_repository() if not each.trusted
        ]
        self._trusted = bool(self._digest) and app.store.trust.is_trusted(self._prepared.project.id, self._digest)

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each part that needs trust, for a person to read before they answer."""
        roles = (f"{each.place}: a role's prompt and tools (sha256 {each.digest[:12]}…)" for each in self._roles)
        return (*describe_untrusted(self._asked), *roles)

    @property
    def is_needed(self) -> bool:
        """Whether granting trust would change anything."""
        return bool(self.lines) or (self.decides_tier and not self._trusted)

    def grant(self) -> None:
        """Record that the calling user trusts these contents."""
        # Trust of chargehand.toml vouches for its commands too: it is granted only if it was asked for.
        whole = [self._digest] if self.decides_tier or self._asked.untrusted else []
        for content in (*whole, *(each.digest for each in self._roles)):
            self._app.store.trust.grant(self._prepared.project.id, content, identity=self._app.identity())
        self._trusted = self._trusted or bool(whole)

    def view(self) -> TrustView:
        """Return the current trust."""
        return TrustView(
            project=self._prepared.project.id,
            digest=self._digest or None,
            trusted=self._trusted,
            keys=self._asked.untrusted,
            roles=tuple(RoleDigest(place=each.place, digest=each.digest) for each in self._roles),
        )
