"""The roles that agents work in: the shipped ones, a trusted repository's, and the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from chargehand.agents.roles import Role
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.selection.choice import DEFAULT_ROLE, role_settings
from chargehand.app.selection.roles import RoleCatalogue, RoleInForce
from chargehand.core.errors import ConfigError

if TYPE_CHECKING:
    from chargehand.app.composition import App


class RoleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A role with its file's place and digest; `hides` are files of that name not in force.

    `problem` says what is wrong with the file, and then there is no `role`.
    """

    name: str
    level: str
    place: str
    digest: str
    trusted: bool
    hides: tuple[str, ...]
    problem: str | None
    role: Role | msgspec.UnsetType = msgspec.UNSET


class RoleList(msgspec.Struct, frozen=True, kw_only=True):
    """Every role, the directory of the user's own, and configured names that no role has."""

    roles: tuple[RoleEntry, ...]
    directory: str
    unknown: tuple[str, ...]


class AssignmentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One place that says who works in a role."""

    where: str
    agent: str | None
    model: str | None
    fallback: tuple[str, ...]


class RoleView(msgspec.Struct, frozen=True, kw_only=True):
    """One role as it is in force; `works` names who works in it, the first that says anything first."""

    name: str
    level: str
    place: str
    digest: str
    role: Role
    works: tuple[AssignmentDocument, ...]


class RolePath(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of the user's own roles, or the file of one role."""

    path: str


def _roles_here(app: App, repo: Path | None) -> tuple[RoleCatalogue, ResolvedConfig]:
    if app.current_project(repo) is None:
        return app.roles(), app.user_configuration()
    found = app.configured(repo)
    return app.roles(found), found.resolved


def list_roles(app: App, repo: Path | None) -> RoleList:
    """Return every role of a repository or outside of any, those with a fault in their file included."""
    roles, resolved = _roles_here(app, repo)
    entries = tuple(map(_entry, roles.all()))
    unknown = sorted(set(resolved.config.roles) - {each.name for each in entries} - {DEFAULT_ROLE})
    return RoleList(roles=entries, directory=str(roles.directory), unknown=tuple(unknown))


def _entry(found: RoleInForce) -> RoleEntry:
    return RoleEntry(
        name=found.file.name,
        level=found.file.level,
        place=found.file.place,
        digest=found.file.digest,
        trusted=found.file.trusted,
        hides=tuple(file.place for file in found.hidden),
        problem=None if found.problem is None else found.problem.message,
        role=msgspec.UNSET if found.role is None else found.role,
    )


def show_role(app: App, name: str, repo: Path | None) -> tuple[RoleView, str]:
    """Return a role as it is in force, and the text of its file. Raises `NotFoundError`, `ConfigError`."""
    roles, resolved = _roles_here(app, repo)
    role, file = roles.find(name, resolved.config)
    works = tuple(
        AssignmentDocument(where=each.where, agent=each.agent, model=each.model, fallback=each.fallback)
        for each in role_settings(resolved.config, role)
    )
    view = RoleView(name=role.name, level=file.level, place=file.place, digest=file.digest, role=role, works=works)
    return view, file.text()


def role_path(app: App, name: str | None, repo: Path | None) -> RolePath:
    """Return the directory of the user's own roles, or the file of one role.

    Raises `ConfigError` (`role_shipped`) for a role that has no file on this machine.
    """
    roles, resolved = _roles_here(app, repo)
    if name is None:
        return RolePath(path=str(roles.directory))
    _, file = roles.find(name, resolved.config)
    if file.level == "shipped":
        raise ConfigError(
            f"the role {name!r} is built in and has no file of its own",
            code="role_shipped",
            hint=f"to make one: chargehand role show {name} > {roles.directory / name}.toml",
        )
    return RolePath(path=file.place)
