"""Finds and reads the user's repository. Only `export` and `checkout` write to it."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import RepositoryError
from chargehand.core.records import Base
from chargehand.core.text import printable
from chargehand.workspace.host.git import Git, user_git

# Submodules by their commit only: `status` would start git inside each, under its own configuration.
_STATUS = ("--untracked-files=normal", "--ignore-submodules=dirty")
# `git status` names a detached HEAD as a branch could be called too.
_UNCLEAR_HEADS = ("", "(detached)", "HEAD")


class Repository(Struct, frozen=True, kw_only=True):
    """The location of the user's repository; `path` is its top level (the git directory itself if it is bare).

    `branch` is the branch of HEAD, `None` if detached.
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

    def ignores(self, path: Path) -> bool:
        """Return whether the file at `path` is untracked and ignored, so that `git add` needs `--force`."""
        return bool(self.git.run("ls-files", "--others", "--ignored", "--exclude-standard", "--", str(path)).out)


def find_repository(path: Path) -> Repository:
    """Return the repository that holds `path`.

    Raises `RepositoryError`: `not_a_repository`, `repository_path` (a line break in it), `repository_owner` (it
    belongs to another user), `repository_format` (SHA-256, an extension that git does not know, a branch name that
    is not UTF-8), `repository_empty` (no commit yet).
    """
    _check_path(path)
    git = user_git(path)
    basics = ("--is-bare-repository", "--absolute-git-dir", "--git-common-dir", "--show-object-format")
    # One process for all properties. It fails if the repository is bare, empty or unusable, and prints less if a
    # branch is called HEAD: these few cases are queried one by one.
    asked = git.run("rev-parse", *basics, "--show-toplevel", "--symbolic-full-name", "HEAD")
    lines = asked.text.split("\n")
    usual = asked.code == 0 and len(lines) == len(basics) + 2
    if not usual:
        asked = git.run("rev-parse", *basics)
        if asked.code:
            raise _unusable(path, asked.error)
        lines = asked.text.split("\n")
    bare = lines[0] == "true"
    common_dir = (path / lines[2]).resolve()
    # Git trusts another user's repository if `safe.directory` names it. We do not, since we write to it.
    owner = common_dir.stat().st_uid
    if owner != os.geteuid():
        raise RepositoryError(
            f"{str(common_dir)!r} belongs to user {owner}, Chargehand runs as user {os.geteuid()}",
            code="repository_owner",
            hint="run Chargehand as the user who owns it",
        )
    if bare or usual:
        top = lines[1] if bare else lines[4]
    else:
        top = git.run("rev-parse", "--show-toplevel").text
        if not top:
            raise RepositoryError(
                f"{str(path)!r} is inside a git directory", code="not_a_repository", hint="give the working tree"
            )
    branch = _branch_name(lines[5]) if usual else _head_branch(git)
    found = Repository(path=Path(top), git_dir=Path(lines[1]), common_dir=common_dir, bare=bare, branch=branch)
    if lines[3] != "sha1":
        raise RepositoryError(
            f"{top!r} uses SHA-256 object ids",
            code="repository_format",
            hint="only SHA-1 is supported",
        )
    has_commit = usual or git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").code == 0
    if not has_commit and not git("for-each-ref", "--count=1").out:
        raise RepositoryError(f"{top!r} has no commit yet", code="repository_empty", hint="make a first commit")
    return found


def _check_path(path: Path) -> None:
    # Not `Path.is_dir`, which raises for a name that is too long, or below an inaccessible directory.
    if not os.path.isdir(path):
        raise RepositoryError(
            f"{str(path)!r} is not a directory",
            code="not_a_repository",
            hint="name the directory of a git repository",
        )
    if "\n" in str(path.resolve()):
        raise RepositoryError(
            f"{str(path)!r} has a line break in its path, and git answers by lines",
            code="repository_path",
            hint="move the repository to another directory",
        )


def _unusable(path: Path, error: str) -> RepositoryError:
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
            hint="run 'git init' there, or name another directory with --repo",
        )
    return RepositoryError(
        f"git cannot use the repository at {str(path)!r}: {' '.join(printable(error).split())!r}",
        code="repository_format",
        hint="fix the problem that git names; an unknown extension needs a newer git",
    )


def _head_branch(git: Git) -> str | None:
    head = git.run("symbolic-ref", "--quiet", "HEAD")
    return None if head.code else _branch_name(head.text)


def _branch_name(ref: str) -> str | None:
    """Return the name of HEAD's branch, from its full name; `None` if detached."""
    if ref == "HEAD":
        return None
    branch = ref.removeprefix("refs/heads/")
    if not _is_utf8(branch):
        raise RepositoryError(
            f"HEAD is on branch {branch!r}, whose name is not UTF-8",
            code="repository_format",
            hint="rename it ('git branch -m'), or check out another one",
        )
    return branch


def _is_utf8(name: str) -> bool:
    # `os.fsdecode` shows each byte that is not UTF-8 as a lone surrogate.
    return not any("\ud800" <= char <= "\udfff" for char in name)


def resolve(found: Repository, revision: str | None) -> Base:
    """Return the commit that `revision` (default HEAD) names, with its branch and upstream; reads only.

    Raises `RepositoryError` code `base_not_found`.
    """
    git = found.git
    name = "HEAD" if revision is None else revision
    if name == "HEAD" and not found.bare:
        base = _resolve_head(found)
        if base is not None:
            return base
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
    if name == "HEAD":
        branch = _head_branch(git)
    else:
        full = git.run("rev-parse", "--symbolic-full-name", "--end-of-options", name).lines
        branch = full[-1].removeprefix("refs/heads/") if full and full[-1].startswith("refs/heads/") else None
    upstream = git("for-each-ref", "--format=%(upstream:short)", f"refs/heads/{branch}").text if branch else ""
    behind = None
    if upstream:
        counted = git.run("rev-list", "--count", f"{commit}..{upstream}", "--")
        behind = int(counted.text) if counted.code == 0 else None
    dirty = False
    if not found.bare:  # if the state cannot be determined (a filter fails), do not call it clean
        state = git.run("status", "--porcelain", "-z", *_STATUS)
        dirty = state.code != 0 or bool(state.out)
    return Base(
        commit=commit,
        tree=git("rev-parse", f"{commit}^{{tree}}").text,
        revision=name,
        branch=branch,
        upstream=os.fsencode(upstream).decode("utf-8", "backslashreplace") or None,
        behind=behind,
        dirty=dirty,
    )


def _resolve_head(found: Repository) -> Base | None:
    """Return HEAD's commit, branch and state; `None` if one or two git processes cannot determine all of it."""
    git = found.git
    state = git.run("status", "--porcelain=v2", "--branch", "--ahead-behind", "-z", *_STATUS)
    fields = state.out.split(b"\0")
    # Headers come first; a later field may be the old name of a renamed file, which can be anything.
    headers = list(takewhile(lambda field: field.startswith(b"# "), fields))
    known = dict(header[2:].partition(b" ")[::2] for header in headers)
    commit = known.get(b"branch.oid", b"").decode()
    ahead_behind = known.get(b"branch.ab", b"").split(b" -")
    if state.code or commit in ("", "(initial)"):
        return None
    # Commands that only read do not load it.
    from chargehand.workspace.tree.objects import read_loose_commit

    content = read_loose_commit(found.common_dir / "objects", commit)
    head = os.fsdecode(known.get(b"branch.head", b""))
    if content is not None and head not in _UNCLEAR_HEADS:
        tree, branch = content.removeprefix(b"tree ")[:40].decode(), _branch_name(head)
    else:
        peeled = git.run("rev-parse", f"{commit}^{{tree}}", "--symbolic-full-name", "HEAD").text.split("\n")
        if len(peeled) != 2:  # a branch is called HEAD, or the commit cannot be read
            return None
        tree, branch = peeled[0], _branch_name(peeled[1])
    return Base(
        commit=commit,
        tree=tree,
        revision="HEAD",
        branch=branch,
        upstream=known.get(b"branch.upstream", b"").decode("utf-8", "backslashreplace") or None,
        behind=int(ahead_behind[1]) if len(ahead_behind) == 2 else None,
        dirty=any(fields[len(headers) :]),
    )
