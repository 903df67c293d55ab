"""Finds the project of a repository by its identity, so that a moved repository keeps its missions.

A project is a repository, not a path. All worktrees of a repository are one project. A moved repository is
recognised by its history and the inode of its git directory. Another repository at a remembered path is another
project. If neither is certain, a person decides with `chargehand project move`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from chargehand.core.errors import ChargehandError, RefusedError, RepositoryError
from chargehand.core.text import shown_path
from chargehand.store.projects import ProjectRow, Projects
from chargehand.workspace.identity import (
    RepositoryIdentity,
    find_roots,
    holds_base,
    identify,
    inode_of,
    load_identity,
    save_identity,
)
from chargehand.workspace.repository import Repository, find_repository


class ProjectRegistry:
    """Maps repositories to projects and back; one for each state directory."""

    def __init__(self, home: Path, projects: Projects, *, has_missions: Callable[[str], bool]) -> None:
        self._home = home
        self._projects = projects
        self._has_missions = has_missions

    def find(self, repository: Repository, *, register: bool = False) -> ProjectRow:
        """Return the project of a repository, with `repository.path` as its path.

        A new project is recorded only with `register`; a changed path of a known one is always recorded, if the
        disk allows it. Raises `RefusedError` (`project_uncertain`) if a person has to decide which project it is,
        and `StoreError`.
        """
        rows = [(row, load_identity(self._root(row.id))) for row in self._projects.list()]
        known = self._find_here(repository, rows) or self._find_moved(repository, rows)
        if known is not None:
            row, identity = known
            if identity is not None or register:
                self._note_place(row, identity, repository)
            return replace(row, path=repository.path)
        self._refuse_uncertain(repository, rows)
        return self._add(repository) if register else self._new_row(repository)[0]

    def find_repository(self, project: str, *paths: Path) -> Repository:
        """Return the repository of a project: at one of the `paths`, or at its last known place.

        Raises `NotFoundError`, and `RepositoryError` (`repository_gone`) if no place has it.
        """
        row = self._projects.find(project)
        identity = load_identity(self._root(project))
        places = [*paths, row.path, *(identity.directories if identity is not None else ())]
        for place in dict.fromkeys(places):
            with contextlib.suppress(RepositoryError):
                repository = find_repository(place)
                if self._is_one(row, identity, repository):
                    return repository
        shown = shown_path(str(paths[0] if paths else row.path))
        strange = (paths[0] if paths else row.path).is_dir()
        what = f"another repository is at {shown}" if strange else f"it is gone from {shown}"
        raise RepositoryError(
            f"the repository of project {project!r} is not found: {what}",
            code="repository_gone",
            hint=f"run in its present directory: chargehand project move {project}",
        )

    def move(self, project: ProjectRow, repository: Repository) -> ProjectRow:
        """Record a person's decision that a project is now this repository. Raises `StoreError`."""
        self._projects.move(project.id, repository.path)
        save_identity(self._root(project.id), identify(repository))
        return replace(project, path=repository.path)

    def add(self, repository: Repository) -> ProjectRow:
        """Record a repository as a new project, by a person's decision. Raises `StoreError`."""
        return self._add(repository)

    # --- finding

    def _find_here(
        self, repository: Repository, rows: list[tuple[ProjectRow, RepositoryIdentity | None]]
    ) -> tuple[ProjectRow, RepositoryIdentity | None] | None:
        """Return the project recorded at a repository's path, if it is the same repository."""
        here = [
            (row, identity)
            for row, identity in rows
            if (_is_at(row.path, repository) if identity is None else identity.place == repository.common_dir)
        ]
        # An older version made a project of each linked worktree, and each of these keeps its missions.
        here.sort(key=lambda each: each[0].path != repository.path)
        for row, identity in here:
            is_one = self._is_one(row, identity, repository)
            # Without missions there is nothing that the wrong repository could get.
            if is_one or (is_one is None and not self._has_missions(row.id)):
                return row, identity
        return None

    def _find_moved(
        self, repository: Repository, rows: list[tuple[ProjectRow, RepositoryIdentity | None]]
    ) -> tuple[ProjectRow, RepositoryIdentity] | None:
        inode = inode_of(repository)
        known = [(row, identity) for row, identity in rows if identity is not None and identity.inode == inode]
        # An older version made a project of each linked worktree; the main one moves with the git directory.
        known.sort(key=lambda each: each[0].path not in (each[1].place, each[1].place.parent))
        for row, identity in known:
            if not identity.is_here() and identity.shares_history(repository):
                return row, identity
        return None

    def _is_one(self, row: ProjectRow, identity: RepositoryIdentity | None, repository: Repository) -> bool | None:
        """Return whether a repository is that of a project, `None` if uncertain."""
        if identity is None:
            return _is_at(row.path, repository) and holds_base(self._root(row.id), repository) is not False
        if not identity.shares_history(repository):
            return False
        return True if identity.inode == inode_of(repository) else None

    def _refuse_uncertain(
        self, repository: Repository, rows: list[tuple[ProjectRow, RepositoryIdentity | None]]
    ) -> None:
        for row in self._list_lookalikes(repository, rows):
            if self._has_missions(row.id):
                raise RefusedError(
                    f"{shown_path(str(repository.path))} may be project {row.name!r} ({row.id}), which was at "
                    f"{shown_path(str(row.path))}: they share their history, and may be two repositories",
                    code="project_uncertain",
                    hint=f"chargehand project move {row.id} if it is that project, with its missions; "
                    "chargehand project move --new if it is another one",
                )

    def _list_lookalikes(
        self, repository: Repository, rows: list[tuple[ProjectRow, RepositoryIdentity | None]]
    ) -> Iterator[ProjectRow]:
        """Yield the projects that share a repository's history and are at no known place."""
        roots: set[str] | None = None
        for row, identity in rows:
            if identity is None:
                if not row.path.is_dir() and holds_base(self._root(row.id), repository):
                    yield row
            elif not identity.is_here():
                roots = set(find_roots(repository)) if roots is None else roots
                if roots.intersection(identity.roots):
                    yield row

    # --- recording

    def _root(self, project: str) -> Path:
        return self._home / "projects" / project

    def _new_row(self, repository: Repository) -> tuple[ProjectRow, str]:
        """Return the project that a repository becomes, and the root from which its unique id is derived."""
        taken = {row.id for row in self._projects.list()}
        row, salt = self._projects.identify(repository.path), ""
        if row.id in taken:
            roots = find_roots(repository)
            for salt in (*roots[:1], f"{'/'.join(roots)}/{inode_of(repository)}"):
                row = self._projects.identify(repository.path, root=salt)
                if row.id not in taken:
                    break
        return row, salt

    def _add(self, repository: Repository) -> ProjectRow:
        row = self._projects.register(repository.path, root=self._new_row(repository)[1])
        save_identity(self._root(row.id), identify(repository))
        return row

    def _note_place(self, row: ProjectRow, identity: RepositoryIdentity | None, repository: Repository) -> None:
        seen = identify(repository) if identity is None else identity.seen_at(repository)
        if seen == identity:
            return
        # The next command records it too: a full disk must not prevent this one.
        with contextlib.suppress(ChargehandError, OSError):
            save_identity(self._root(row.id), seen)
            if identity is not None and seen.common_dir != identity.common_dir:
                self._projects.move(row.id, repository.path)


def _is_at(path: Path, repository: Repository) -> bool:
    """Return whether a path is a repository's worktree, its main worktree or its git directory."""
    return path in (repository.path, repository.common_dir, repository.common_dir.parent)
