"""Bare clones of forges' repositories, from which missions of issues start, and pushes to the forge.

The login is given to git alone, in its environment: no sandbox gets it, and no file has it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from chargehand.core.records import IssueLink
from chargehand.core.redaction import Redactor
from chargehand.core.text import printable
from chargehand.forges.contract import Forge, ForgeError, ForgeProblem, ForgeRepository
from chargehand.network.addresses import is_loopback
from chargehand.workspace.depot import Depot
from chargehand.workspace.remotes import (
    SEEN,
    HostCommand,
    Remote,
    RemoteLogin,
    delete_command,
    push_command,
    update_command,
)
from chargehand.workspace.repository import Repository

_SECONDS = 600.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_.-]{1,100}){1,10}")
_LOST = ("could not resolve host", "failed to connect", "connection", "timed out", "early eof", "rpc failed")
_DENIED = (
    *("authentication failed", "could not read username", "403", "401"),
    *("permission denied (", "host key verification failed"),
)
# Gitea; GitHub, twice; GitLab, twice.
_FORBIDDEN = (
    *("not authorized to write", "marked as read only", "write access to repository not granted"),
    *("does not have write access", "not allowed to push code"),
)
_REFUSED = ("protected", "non-fast-forward", "fetch first", "hook declined", "stale info", "[remote rejected]")
_TELLING = ("fatal:", "error:", "remote:", "!", "Host key", "Gitea:", "ERROR:")
_UNKNOWN_HOST = "compare the host's key with the published one, then add it to the file of git_known_hosts"
_RULED = "change that rule at the forge for the branches of requests, or their names with requests.branch"
_REFUSED_KEY = "add the public key of git_key to the repository at the forge, with write access"
_SIGNS: tuple[tuple[ForgeProblem, tuple[str, ...]], ...] = (
    ("refused", _REFUSED),
    ("forbidden", _FORBIDDEN),
    ("denied", _DENIED),
    ("unreachable", _LOST),
)


def clone_path(home: Path, account: str, name: str) -> Path:
    """Return the place of the clone of a repository. Raises `ForgeError`."""
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        raise ForgeError("invalid", f"{name!r} is not the name of a repository")
    return home / "forges" / account / f"{name}.git"


def linked_repository(link: IssueLink) -> ForgeRepository | None:
    """Return the repository of a mission with the addresses for git as they were recorded, `None` without them."""
    if not link.clone_url:
        return None
    return ForgeRepository(
        name=link.repository, url="", clone_url=link.clone_url, ssh_url=link.ssh_url, default_branch=link.target
    )


def update_clone(
    home: Path, account: str, forge: Forge, repository: ForgeRepository, branch: str, *, seen: str = ""
) -> Path:
    """Return the bare clone of a repository, with `branch` as it is at the forge now. Raises `ForgeError`.

    It also keeps the names of the branches that begin with `seen`, for `seen_branches`.
    """
    # The first command of a new state directory may be one of forges: keep its files private.
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = clone_path(home, account, repository.name)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            made = Path(temporary) / "clone"
            # `-b` also makes it the branch of HEAD, so that commands without a revision start there.
            words = ["git", "init", "--quiet", "--bare", "--template=", f"--initial-branch={branch}", str(made)]
            subprocess.run(words, check=True, capture_output=True, cwd="/")
            try:
                made.rename(place)
            except OSError:  # another process made it meanwhile
                shutil.rmtree(made, ignore_errors=True)
    clone = _clone(place, branch)
    login = _login(forge)
    remote = _remote(repository, login)
    command = update_command(clone, remote, branch, login, seen=seen)
    _run(command, login, f"fetch {branch} of {repository.name}")
    return place


def seen_branches(clone: Path, prefix: str) -> set[str]:
    """Return the branches with a prefix that were at the forge at some `update_clone` with that prefix."""
    words = ["git", f"--git-dir={clone}", "for-each-ref", "--format=%(refname)", f"{SEEN}{prefix}*"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True, cwd="/").stdout
    return {each.removeprefix(SEEN) for each in listed.splitlines()}


def _clone(place: Path, branch: str) -> Repository:
    return Repository(path=place, git_dir=place, common_dir=place, bare=True, branch=branch)


def push_branch(depot: Depot, forge: Forge, repository: ForgeRepository, branch: str, *, commit: str) -> bool:
    """Push a commit to a branch, only as a fast-forward; return whether that moved it. Raises `ForgeError`."""
    login = _login(forge)
    remote = _remote(repository, login)
    command = push_command(depot, remote, branch, commit=commit, login=login)
    said = _run(command, login, f"push {branch} to {repository.name}")
    return not any(line.startswith("=") for line in said.splitlines())


def delete_branch(clone: Path, forge: Forge, repository: ForgeRepository, branch: str, *, commit: str) -> None:
    """Delete a branch that is still at `commit`; git compares and deletes in one step. Raises `ForgeError`."""
    login = _login(forge)
    command = delete_command(_clone(clone, branch), _remote(repository, login), branch, commit, login)
    _run(command, login, f"delete {branch} of {repository.name}")


def _remote(repository: ForgeRepository, login: RemoteLogin | None) -> Remote:
    if login is not None and login.key:
        if not repository.ssh_url:
            raise ForgeError("invalid", f"{repository.name} has no address for ssh", hint="unset git_key")
        return Remote(name="forge", url=repository.ssh_url, protocol="ssh")
    url = repository.clone_url
    protocol = url.partition("://")[0].lower()
    if protocol not in ("https", "ssh", "file") and not (protocol == "http" and is_loopback(url)):
        raise ForgeError(
            "invalid", f"{repository.name} is not reached by https, ssh or a file", hint="use https://"
        )
    return Remote(name="forge", url=url.removeprefix("file://"), protocol=protocol)


def _login(forge: Forge) -> RemoteLogin | None:
    login = forge.git_login()
    if login is None or login.key is None:
        return None if login is None else RemoteLogin(login.user, login.password)
    known = login.key.known_hosts
    return RemoteLogin("", "", key=str(login.key.file), known_hosts=str(known) if known else "")


def _run(command: HostCommand, login: RemoteLogin | None, what: str) -> str:
    try:
        done = command.run(seconds=_SECONDS)
    except subprocess.TimeoutExpired:
        raise ForgeError("unreachable", f"cannot {what}: git did not end in {_SECONDS:.0f} s") from None
    if done.returncode:
        said = (done.stderr + b"\n" + done.stdout).decode(errors="replace")
        shown = (
            Redactor({"token": login.password} if login and login.password else {}).text(printable(said)).strip()
        )
        lower = shown.lower()
        telling = (
            each.strip() for each in shown.splitlines() if each.startswith(_TELLING) or "ermission den" in each
        )
        lines = [each for each in telling if not each.endswith(":")]
        reason = "; ".join(lines[:3]) or f"git ended with {done.returncode}"
        problems = (problem for problem, signs in _SIGNS if any(sign in lower for sign in signs))
        hint = _RULED if "[remote rejected]" in lower or "protected branch" in lower else ""
        hint = _REFUSED_KEY if "permission denied (" in lower else hint
        hint = _UNKNOWN_HOST if "host key verification failed" in lower else hint
        raise ForgeError(next(problems, "refused"), f"cannot {what}: {reason}", hint=hint)
    return done.stdout.decode(errors="replace")
