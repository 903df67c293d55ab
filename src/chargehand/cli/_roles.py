"""`chargehand role …`."""

from __future__ import annotations

from pathlib import Path

from chargehand.agents._roles import Role
from chargehand.app.composition import App
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.selection.choice import DEFAULT_ROLE, role_assignments
from chargehand.app.selection.roles import RoleCatalogue, RoleFile, RoleInForce
from chargehand.cli._output import Output
from chargehand.cli._prepare import current_project, prepare
from chargehand.core.errors import ConfigError
from chargehand.core.text import shown_path


def roles_here(app: App, repo: Path | None) -> tuple[RoleCatalogue, ResolvedConfig]:
    """Return the roles and the configuration of a repository, or outside of any."""
    if current_project(app, repo) is None:
        return app.roles(), app.user_configuration()
    found = prepare(app, repo)
    return app.roles(found), found.resolved


def list_roles(out: Output, *, repo: Path | None) -> int:
    """Write every role with where it comes from; return 1 where a file is wrong."""
    with App.open() as app:
        roles, resolved = roles_here(app, repo)
        found = list(roles.all())
    unknown = sorted(set(resolved.config.roles) - {each.file.name for each in found} - {DEFAULT_ROLE})
    out.document(
        {"roles": [_listed(each) for each in found], "directory": str(roles.directory), "unknown": unknown}
    )
    out.table(("ROLE", "ENDS WITH", "WRITES", "FROM", "SUMMARY"), [_row(each) for each in found])
    for each in found:
        if each.problem is not None:
            out.text(f"wrong: {each.problem.message}" + (f" ({each.problem.hint})" if each.problem.hint else ""))
        if not each.file.trusted:
            out.text(f"not trusted: {each.file.place}; chargehand project trust")
    for name in unknown:
        out.text(f"[roles.{name}] is configured, and there is no role of that name")
    return 1 if any(each.problem is not None for each in found) else 0


def _row(found: RoleInForce) -> tuple[str, ...]:
    origin = _origin(found.file)
    if found.role is None:
        return (found.file.name, "-", "-", origin, "(its file is wrong)")
    return (found.role.name, found.role.output, _writes(found.role), origin, found.role.summary)


def _writes(role: Role) -> str:
    if not role.writes:
        return "no"
    return ", ".join(role.areas[:2]) + (", …" if len(role.areas) > 2 else "") if role.areas else "yes"


def _origin(file: RoleFile) -> str:
    return "shipped" if file.level == "shipped" else shown_path(file.place)


def _listed(found: RoleInForce) -> dict[str, object]:
    document: dict[str, object] = {
        "name": found.file.name,
        "level": found.file.level,
        "place": found.file.place,
        "digest": found.file.digest,
        "trusted": found.file.trusted,
        "hides": [file.place for file in found.hidden],
    }
    if found.problem is not None:
        return document | {"problem": found.problem.message}
    return document | {"problem": None, "role": found.role}


def show_role(out: Output, name: str, *, repo: Path | None) -> int:
    """Write one role as it is in force: as JSON in parts, as text the file itself, fit to begin one's own with."""
    with App.open() as app:
        roles, resolved = roles_here(app, repo)
        role, file = roles.find(name, resolved.config)
    levels = role_assignments(resolved.config, role)
    out.document(
        {
            "name": role.name,
            "level": file.level,
            "place": file.place,
            "digest": file.digest,
            "role": role,
            "works": [
                {"where": each.where, "agent": each.agent, "model": each.model, "fallback": each.fallback}
                for each in levels
            ],
        }
    )
    out.text(f"# {role.name}: {shown_path(file.place)}")
    for each in levels:
        said = " then ".join(filter(None, (each.agent, each.model, *each.fallback)))
        out.text(f"# {each.where}: {said}")
    out.text(file.text().strip())
    return 0


def role_path(out: Output, name: str | None, *, repo: Path | None) -> int:
    """Write the directory of the user's own roles, or the file of one role."""
    with App.open() as app:
        roles, resolved = roles_here(app, repo)
        if name is None:
            out.document({"path": str(roles.directory)})
            out.text(str(roles.directory))
            return 0
        _, file = roles.find(name, resolved.config)
    if file.level == "shipped":
        raise ConfigError(
            f"the role {name!r} is shipped, and has no file of its own",
            code="role_shipped",
            hint=f"chargehand role show {name} > {roles.directory / name}.toml makes one",
        )
    out.document({"path": file.place})
    out.text(file.place)
    return 0
