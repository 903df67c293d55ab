"""Finds the directory of a repository in which work starts: the current directory, or the one given by `--dir`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from chargehand.core.errors import UsageError
from chargehand.core.records import Base
from chargehand.core.text import printable, shown_path
from chargehand.workspace.depot import Depot
from chargehand.workspace.repository import Repository

_TOP = "/"


def standing_directory(place: Repository, at: Path) -> str:
    """Return the directory `at` relative to its checkout, "" for the top, and always "" in a bare repository."""
    top = place.path.resolve()
    here = at.resolve()
    return "" if place.bare or not here.is_relative_to(top) else _relative(here, top)


def named_directory(depot: Depot, base: Base, name: str, *, at: Path) -> str:
    """Resolve `name` from `at` to a directory of a base; "/" and the top itself give "".

    Raises `UsageError` (`directory_invalid`) for a directory that the base does not have.
    """
    top = depot.repository.path.resolve()
    if name == _TOP:
        return ""
    if not name.strip() or "\0" in name:
        raise _invalid(name, "is not a path", "name a directory of the repository, such as services/api")
    # The current directory is resolved, not the name: for git a link below the top is an entry itself.
    named = Path(os.path.normpath(at.resolve() / name))
    if not named.is_relative_to(top):
        raise _invalid(
            name, f"is not in the repository {str(top)!r}", "name a directory of the repository, or '/'"
        )
    directory = _relative(named, top)
    found = depot.lookup(base.tree, directory) if directory else None
    if not directory or (found is not None and stat.S_ISDIR(found.mode)):
        return directory
    if found is not None:
        kind = {stat.S_IFLNK: "a symbolic link", stat.S_IFREG: "a file"}.get(
            stat.S_IFMT(found.mode), "a submodule"
        )
        hint = f"start in the submodule itself: --repo {shown_path(name)}"
        raise _invalid(
            name, f"is {kind} in the base", hint if kind == "a submodule" else "name the directory itself"
        )
    revision = printable(base.branch or base.revision)
    if named.is_dir():
        hint = "commit its files, or name its nearest committed parent"
        raise _invalid(name, f"has no file that is committed in {revision!r}", hint)
    raise _invalid(name, f"does not exist in {revision!r}", "name a directory of the base, or another --base")


def _relative(path: Path, top: Path) -> str:
    return "" if path == top else path.relative_to(top).as_posix()


def _invalid(name: str, problem: str, hint: str) -> UsageError:
    return UsageError(f"--dir: {shown_path(name)!r} {problem}", code="directory_invalid", hint=hint)
