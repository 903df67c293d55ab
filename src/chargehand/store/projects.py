"""Projects: the repositories that Chargehand has worked on, and the contents of theirs that a person trusts."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, UsageError, nearest
from chargehand.store.database.connection import Database
from chargehand.store.database.schema import projects, trust


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """A registered repository; `path` is its real path."""

    id: str
    path: Path
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRow:
    """A content that a person trusts in a project: its digest, who said so, and when (ISO 8601 in UTC)."""

    project: str
    digest: str
    identity: str
    granted: str


class Projects:
    """Registers and finds repositories."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def register(self, path: Path, *, root: str = "", name: str | None = None) -> ProjectRow:
        """Return the project at `path`, made when new; `root` is the repository's first commit, if known.

        The id follows from the real path and `root` alone, so another repository put at the same path is another
        project. `name` (default: the directory's) replaces an earlier one. Raises `StoreError`.
        """
        real = path.resolve()
        row = ProjectRow(id=_project_id(real, root=root), path=real, name=name or _shown_name(real))
        with self._database.write() as connection:
            known = connection.execute(sa.select(projects.c.name).where(projects.c.id == row.id)).scalar()
            if known is None:
                connection.execute(sa.insert(projects), self._values(row))
            elif name is None:
                row = ProjectRow(id=row.id, path=real, name=known)
            else:
                connection.execute(sa.update(projects).where(projects.c.id == row.id).values(name=name))
        return row

    def list(self) -> tuple[ProjectRow, ...]:
        """Return all projects by name. Raises `StoreError`."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(projects).order_by(projects.c.name, projects.c.id)).all()
        return tuple(ProjectRow(id=row.id, path=Path(os.fsdecode(row.path)), name=row.name) for row in rows)

    def find(self, name: str) -> ProjectRow:
        """Return the project of that id, beginning of an id, name or path, when it is the only one.

        Raises `NotFoundError`, `UsageError` (`ambiguous`), `StoreError`.
        """
        rows = self.list()
        found = [row for row in rows if name in (row.id, row.name, str(row.path))]
        found = found or [row for row in rows if name and row.id.startswith((name, f"p-{name}"))]
        if not found:
            raise NotFoundError(f"there is no project {name!r}", hint=nearest(name, (row.name for row in rows)))
        if len(found) > 1:
            ids = ", ".join(row.id for row in found)
            raise UsageError(f"{name!r} is {len(found)} projects", code="ambiguous", hint=f"say which: {ids}")
        return found[0]

    def _values(self, row: ProjectRow) -> dict[str, Any]:
        return {
            "id": row.id,
            "path": os.fsencode(row.path),
            "name": row.name,
            "registered": self._clock.now().isoformat(timespec="microseconds"),
        }


class Trust:
    """What a person trusts, by exact content: another digest is not trusted."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def grant(self, project: str, digest: str, *, identity: str) -> TrustRow:
        """Trust one content in one project; the first grant stands. Raises `StoreError`."""
        granted = self._clock.now().isoformat(timespec="microseconds")
        row = {"project": project, "digest": digest, "identity": identity, "granted": granted}
        with self._database.write(durable=True) as connection:
            known = connection.execute(sa.select(trust).where(_is(project, digest))).mappings().one_or_none()
            if known is None:
                connection.execute(sa.insert(trust), row)
        return TrustRow(**(row if known is None else known))

    def is_trusted(self, project: str, digest: str) -> bool:
        """Say whether a person trusts this very content in this project. Raises `StoreError`."""
        with self._database.read() as connection:
            return connection.execute(sa.select(trust.c.digest).where(_is(project, digest))).first() is not None

    def list(self, project: str | None = None) -> tuple[TrustRow, ...]:
        """Return what is trusted, oldest first, in all projects or one. Raises `StoreError`."""
        query = sa.select(trust).order_by(trust.c.granted, trust.c.digest)
        if project is not None:
            query = query.where(trust.c.project == project)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(TrustRow(**row) for row in rows)

    def revoke(self, project: str, digest: str | None = None) -> int:
        """Trust one content, or all of a project, no longer; return how many were trusted. Raises `StoreError`."""
        which = trust.c.project == project if digest is None else _is(project, digest)
        with self._database.write(durable=True) as connection:
            return int(connection.execute(sa.delete(trust).where(which)).rowcount)


def _is(project: str, digest: str) -> sa.ColumnElement[bool]:
    return (trust.c.project == project) & (trust.c.digest == digest)


def _project_id(path: Path, *, root: str) -> str:
    return "p-" + hashlib.sha256(os.fsencode(path) + b"\0" + root.encode()).hexdigest()[:16]


def _shown_name(path: Path) -> str:
    return os.fsencode(path.name or "/").decode(errors="replace")
