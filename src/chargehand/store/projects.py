"""Projects: the repositories that Chargehand has worked on, and their contents that a person trusts."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from msgspec import Struct

from chargehand.core.clock import Clock
from chargehand.core.errors import NotFoundError, UsageError, nearest
from chargehand.store.database.connection import Database

_ID = re.compile(r"p-[0-9a-f]{16}")


class ProjectRow(Struct, frozen=True, kw_only=True):
    """A registered repository; `path` is its real path."""

    id: str
    path: Path
    name: str


class TrustRow(Struct, frozen=True, kw_only=True):
    """A trusted content of a project: its digest, who granted trust, and when (ISO 8601 in UTC)."""

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
        """Return the project at `path`, registering a new one; `root` is the repository's first commit, if known.

        The id is derived from the real path and `root` alone, so another repository at the same path is another
        project. `name` (default: the directory's) replaces an earlier one. Raises `StoreError`.
        """
        row, known = self._look_up(path, root)
        if known and name in (None, row.name):
            return row
        row = ProjectRow(id=row.id, path=row.path, name=name or row.name)
        with self._database.write() as connection:
            known = connection.execute("SELECT name FROM projects WHERE id = ?", (row.id,)).fetchone()
            if known is None:
                registered = self._clock.now().isoformat(timespec="microseconds")
                values = (row.id, os.fsencode(row.path), row.name, registered)
                connection.execute("INSERT INTO projects VALUES (?, ?, ?, ?)", values)
            elif name is None:
                row = ProjectRow(id=row.id, path=row.path, name=str(known[0]))
            else:
                connection.execute("UPDATE projects SET name = ? WHERE id = ?", (name, row.id))
        return row

    def identify(self, path: Path, *, root: str = "") -> ProjectRow:
        """Return the project at `path` like `register`, but write nothing. Raises `StoreError`."""
        return self._look_up(path, root)[0]

    def move(self, project: str, path: Path) -> None:
        """Record the new path of a project; its id stays. Raises `StoreError`."""
        with self._database.write() as connection:
            values = (os.fsencode(path.resolve()), project)
            connection.execute("UPDATE projects SET path = ? WHERE id = ?", values)

    def _look_up(self, path: Path, root: str) -> tuple[ProjectRow, bool]:
        """Return the project at `path`, and whether it is registered."""
        real = path.resolve()
        digest = hashlib.sha256(os.fsencode(real) + b"\0" + root.encode()).hexdigest()
        row_id = f"p-{digest[:16]}"
        with self._database.read() as connection:
            known = connection.execute("SELECT name FROM projects WHERE id = ?", (row_id,)).fetchone()
        # A directory's name need not be text; the root of the file system has no name.
        name = str(known[0]) if known else os.fsencode(real.name or "/").decode(errors="replace")
        return ProjectRow(id=row_id, path=real, name=name), known is not None

    def list(self) -> tuple[ProjectRow, ...]:
        """Return all projects by name, without rows that no program of ours wrote. Raises `StoreError`."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT id, path, name FROM projects ORDER BY name, id").fetchall()
        return tuple(
            ProjectRow(id=project, path=Path(os.fsdecode(path)), name=str(name))
            for project, path, name in rows
            if isinstance(path, bytes) and b"\0" not in path and _ID.fullmatch(str(project))
        )

    def find(self, name: str) -> ProjectRow:
        """Return the only project with that id, beginning of an id, name or path.

        Raises `NotFoundError`, `UsageError` (`ambiguous`), `StoreError`.
        """
        rows = self.list()
        found = [row for row in rows if name in (row.id, row.name, str(row.path))]
        found = found or [row for row in rows if name and row.id.startswith((name, f"p-{name}"))]
        if not found:
            raise NotFoundError(f"there is no project {name!r}", hint=nearest(name, (row.name for row in rows)))
        if len(found) > 1:
            ids = ", ".join(row.id for row in found)
            raise UsageError(
                f"{name!r} matches {len(found)} projects", code="ambiguous", hint=f"use one of the ids: {ids}"
            )
        return found[0]


class Trust:
    """Contents that a person trusts, by exact digest: another digest is not trusted."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def grant(self, project: str, digest: str, *, identity: str) -> TrustRow:
        """Trust one content in one project; the first grant is kept. Raises `StoreError`."""
        granted = self._clock.now().isoformat(timespec="microseconds")
        # Durable both ways: a power cut must neither remove trust nor restore it.
        with self._database.write(durable=True) as connection:
            values = (project, digest, identity, granted)
            connection.execute("INSERT OR IGNORE INTO trust VALUES (?, ?, ?, ?)", values)
            query = "SELECT identity, granted FROM trust WHERE project = ? AND digest = ?"
            identity, granted = connection.execute(query, (project, digest)).fetchone()
        return TrustRow(project=project, digest=digest, identity=identity, granted=granted)

    def is_trusted(self, project: str, digest: str) -> bool:
        """Return whether a person trusts this exact content in this project. Raises `StoreError`."""
        query = "SELECT 1 FROM trust WHERE project = ? AND digest = ?"
        with self._database.read() as connection:
            return connection.execute(query, (project, digest)).fetchone() is not None

    def list(self, project: str | None = None) -> tuple[TrustRow, ...]:
        """Return the trusted contents, oldest first, of all projects or one. Raises `StoreError`."""
        where = "" if project is None else " WHERE project = :project"
        query = f"SELECT project, digest, identity, granted FROM trust{where} ORDER BY granted, digest"
        with self._database.read() as connection:
            rows = connection.execute(query, {"project": project}).fetchall()
        return tuple(
            TrustRow(project=own, digest=digest, identity=identity, granted=granted)
            for own, digest, identity, granted in rows
        )

    def revoke(self, project: str, digest: str | None = None) -> int:
        """Revoke trust in one content, or all of a project; return how many were trusted. Raises `StoreError`."""
        which = "DELETE FROM trust WHERE project = :project" + ("" if digest is None else " AND digest = :digest")
        with self._database.write(durable=True) as connection:
            return connection.execute(which, {"project": project, "digest": digest}).rowcount
