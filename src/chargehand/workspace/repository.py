"""The user's repository: found and read; `_export`, `_apply`, `_apply_files` and `_hook` alone write to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from chargehand.core.errors import RepositoryError
from chargehand.core.records import Base
from chargehand.core.text import printable
from chargehand.workspace.host.git import Git, user_git


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where the user's repository is; `path` is its top level (the git directory itself when it is bare).

    `branch` is what HEAD is on, `None` when detached.
    """

    path: Path
    git_dir: Path
    common_dir: Path
    bare: bool
    branch: str | None

    @property
    def git(self) -> Git:
        """Git in this repository, with the user's own configuration and without hooks."""
        return user_git(self.path)


def find_repository(path: Path) -> Repository:
    """Return the repository that holds `path`.

    Raises `RepositoryError`: `not_a_repository`, `repository_owner` (it belongs to another user),
    `repository_format` (SHA-256, an extension that git does not know, a branch name that is no UTF-8),
    `repository_empty` (no commit yet).
    """
    if not path.is_dir():
        raise RepositoryError(f"{str(path)!r} is not a directory", code="not_a_repository", hint="give --repo")
    if "\n" in str(path.resolve()):
        raise RepositoryError(
            f"{str(path)!r} has a line break in its path, and git answers by lines",
            code="repository_path",
            hint="move the repository to another directory",
        )
    git = user_git(path)
    asked = git.run(
        "rev-parse", "--is-bare-repository", "--absolute-git-dir", "--git-common-dir", "--show-object-format"
    )
    if asked.code:
        raise _not_usable(path, asked.error)
    bare, git_dir, common, object_format = asked.text.split("\n")
    common_dir = (path / common).resolve()
    _check_owner(common_dir)
    top = Path(git_dir) if bare == "true" else _top_level(git, path)
    found = Repository(
        path=top, git_dir=Path(git_dir), common_dir=common_dir, bare=bare == "true", branch=_head_branch(git)
    )
    _check_content(found, object_format)
    return found


def _not_usable(path: Path, error: str) -> RepositoryError:
    if "dubious ownership" in error:
        return RepositoryError(
            f"the repository at {str(path)!r} belongs to another user",
            code="repository_owner",
            hint="run Chargehand as the user who owns it",
        )
    if "not a git repository" in error:
        return RepositoryError(
            f"{str(path)!r} is not in a git repository",
            code="not_a_repository",
            hint="run 'git init' there, or give --repo",
        )
    return RepositoryError(
        f"git cannot use the repository at {str(path)!r}: {' '.join(printable(error).split())!r}",
        code="repository_format",
        hint="mend what git names there; an extension that it does not know needs a newer git",
    )


def _top_level(git: Git, path: Path) -> Path:
    top = git.run("rev-parse", "--show-toplevel")
    if top.code or not top.text:
        raise RepositoryError(
            f"{str(path)!r} is inside a git directory", code="not_a_repository", hint="give the working tree"
        )
    return Path(top.text)


def _check_owner(common_dir: Path) -> None:
    owner = common_dir.stat().st_uid
    if owner != os.geteuid():
        raise RepositoryError(
            f"{str(common_dir)!r} belongs to user {owner}, Chargehand runs as user {os.geteuid()}",
            code="repository_owner",
            hint="run Chargehand as the user who owns it",
        )


def _check_content(found: Repository, object_format: str) -> None:
    git = found.git
    if object_format != "sha1":
        raise RepositoryError(
            f"{str(found.path)!r} uses SHA-256 object ids",
            code="repository_format",
            hint="only SHA-1 is supported",
        )
    if (
        git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").code
        and not git("for-each-ref", "--count=1").out
    ):
        raise RepositoryError(
            f"{str(found.path)!r} has no commit yet", code="repository_empty", hint="make a first commit"
        )


def _head_branch(git: Git) -> str | None:
    head = git.run("symbolic-ref", "--quiet", "HEAD")
    if head.code:
        return None
    branch = head.text.removeprefix("refs/heads/")
    if not _is_utf8(branch):
        raise RepositoryError(
            f"HEAD is on branch {branch!r}, whose name is not UTF-8",
            code="repository_format",
            hint="rename it ('git branch -m'), or check out another one",
        )
    return branch


def _is_utf8(name: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in name)


def resolve(found: Repository, revision: str | None) -> Base:
    """Return the commit that `revision` (default HEAD) names, with where it stands; reads only.

    Raises `RepositoryError` code `base_not_found`.
    """
    git, name = found.git, "HEAD" if revision is None else revision
    if not _is_utf8(name):
        raise RepositoryError(
            f"{name!r} is not UTF-8", code="base_not_found", hint="give the commit's id, or rename the branch"
        )
    asked = git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if asked.code:
        raise RepositoryError(
            f"{name!r} names no commit in {str(found.path)!r}",
            code="base_not_found",
            hint="give a branch, tag or commit that exists",
        )
    commit = asked.text
    branch = _branch_of(git, name)
    upstream = git("for-each-ref", "--format=%(upstream:short)", f"refs/heads/{branch}").text if branch else ""
    return Base(
        commit=commit,
        tree=git("rev-parse", f"{commit}^{{tree}}").text,
        revision=name,
        branch=branch,
        upstream=os.fsencode(upstream).decode("utf-8", "backslashreplace") or None,
        behind=_behind(git, commit, upstream),
        dirty=not found.bare and _dirty(git),
    )


def _branch_of(git: Git, name: str) -> str | None:
    if name == "HEAD":
        return _head_branch(git)
    full = git.run("rev-parse", "--symbolic-full-name", "--end-of-options", name)
    ref = full.text.splitlines()[-1] if full.code == 0 and full.text else ""
    return ref.removeprefix("refs/heads/") if ref.startswith("refs/heads/") else None


def _behind(git: Git, commit: str, upstream: str) -> int | None:
    if not upstream:
        return None
    counted = git.run("rev-list", "--count", f"{commit}..{upstream}", "--")
    return int(counted.text) if counted.code == 0 else None


def _dirty(git: Git) -> bool:
    state = git.run("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
    return state.code != 0 or bool(state.out)  # what cannot be told (a filter that fails) is not called clean
