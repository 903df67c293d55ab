"""Remotes of the user's repository, fetched into and pushed from the depot, and current branch tips."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import RepositoryError, nearest
from chargehand.core.records import Base
from chargehand.workspace.depot import BASES, Depot
from chargehand.workspace.errors import RefMovedError
from chargehand.workspace.host.git import Git
from chargehand.workspace.repository import Repository
from chargehand.workspace.tree.history import read_ref

REMOTES = "refs/chargehand/remotes/"
SEEN = "refs/chargehand/seen/"
PROTOCOLS = frozenset({"file", "https", "ssh", "http", "git"})
"""Protocols that may be configured. Helpers such as `ext::` run a program of the address and are excluded."""
_HELPER = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]*)::")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SSH = {"git+ssh", "ssh+git"}
# No `url.*.insteadOf`: `remote get-url` has already applied it, before the protocol is checked.
_OWN = r"^(credential\..*|http\..*|core\.sshcommand)$"
_ENVIRONMENT = (
    *(
        "HOME",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "USER",
        "LOGNAME",
        "SSH_AUTH_SOCK",
        "DBUS_SESSION_BUS_ADDRESS",
    ),
    *("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSH_COMMAND", "GIT_SSH"),
)


class Remote(Struct, frozen=True, kw_only=True):
    """A remote: its name, its address, and the protocol by which it is reached."""

    name: str
    url: str
    protocol: str

    @property
    def shown_url(self) -> str:
        """The address without a password."""
        return re.sub(r"(?<=://)[^/@]*@", "", self.url)


class RemoteLogin(Struct, frozen=True):
    """User name and password for a remote; git gets them in its environment, which others cannot read.

    With `key`, a private key's file, ssh logs in with exactly that one instead; `known_hosts` is a file of the
    host keys to accept, "" for ssh's usual ones.
    """

    user: str
    password: str
    key: str = ""
    known_hosts: str = ""

    def __repr__(self) -> str:
        return f"RemoteLogin({self.user!r}, …)"


class HostCommand(Struct, frozen=True, kw_only=True):
    """A program of the host with its complete environment."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]

    def run(self, *, seconds: float) -> subprocess.CompletedProcess[bytes]:
        """Run it without input to its end. Raises `subprocess.TimeoutExpired`."""
        environment = dict(self.environment)
        return subprocess.run(
            self.argv, env=environment, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds
        )


def find_remote(repository: Repository, name: str, protocols: Iterable[str], *, push: bool = False) -> Remote:
    """Return a remote of the user's repository with its address for fetching or pushing.

    Raises `RepositoryError`: `remote_not_found`, `remote_protocol` (not allowed), `remote_inside` (a path among
    the repository's own files, which the user may not have written).
    """
    known = repository.git("remote").lines
    if name not in known or name.startswith("-"):
        raise RepositoryError(
            f"the repository has no remote {name!r}", code="remote_not_found", hint=nearest(name, known)
        )
    url = repository.git("remote", "get-url", *(("--push",) if push else ()), name).lines[0]
    protocol = _protocol_of(url)
    allowed = PROTOCOLS & set(protocols)
    if protocol not in allowed:
        raise RepositoryError(
            f"remote {name!r} is reached by {protocol!r}, which is not allowed",
            code="remote_protocol",
            hint=f"allowed: {', '.join(sorted(allowed)) or 'none'}; `actions.protocols` says so",
        )
    if protocol == "file":
        path = (repository.path / url.removeprefix("file://")).resolve()
        # Git runs the hooks of the other side: a repository among the project's files comes from the author of
        # those files.
        if not repository.bare and path.is_relative_to(repository.path.resolve()):
            raise RepositoryError(
                f"remote {name!r} is {str(path)!r}, among the project's own files",
                code="remote_inside",
                hint="move it out of there: git runs the hooks of the repository it pushes to",
            )
        url = str(path)
    return Remote(name=name, url=url, protocol=protocol)


def _protocol_of(url: str) -> str:
    if found := _HELPER.match(url):
        return found[1].lower()
    if found := _SCHEME.match(url):
        return "ssh" if found[1].lower() in _SSH else found[1].lower()
    # `host:path` is ssh unless a slash comes before the colon.
    colon, slash = url.find(":"), url.find("/")
    return "ssh" if colon > 0 and (slash < 0 or colon < slash) else "file"


def parse_source(text: str) -> Remote:
    """Return the repository that a person names by a path, or by an address of https, ssh or file.

    Raises `RepositoryError`: `remote_protocol`, `remote_password` (the address would be stored with it).
    """
    protocol = _protocol_of(text)
    if protocol not in ("file", "https", "ssh") or text.startswith("-") or not text.isprintable():
        raise RepositoryError(
            f"{text[:200]!r} is not an address of a repository",
            code="remote_protocol",
            hint="give a path, or an address such as https://HOST/OWNER/NAME.git",
        )
    if protocol == "file":
        return Remote(name="source", url=str(Path(text.removeprefix("file://")).resolve()), protocol=protocol)
    # Tokens of forges are often given as the name of the user.
    if re.search(r"://[^/@]*:[^/@]*@" if protocol == "ssh" else r"://[^/@]*@", text):
        raise RepositoryError(
            "the address has a login, which would be stored",
            code="remote_password",
            hint="leave it out: git asks your credential helper",
        )
    return Remote(name="source", url=text, protocol=protocol)


def snapshot_command(git: Git, remote: Remote, ref: str) -> HostCommand:
    """Return the command that sets a ref of a repository of ours to HEAD of a remote, without its history."""
    words = ("fetch", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--no-recurse-submodules")
    return _command(git, remote, *words, "--", remote.url, f"+HEAD:{ref}")


def fetch_command(depot: Depot, remote: Remote) -> HostCommand:
    """Return the command that fetches all branches of a remote to `refs/chargehand/remotes/NAME/` of the depot."""
    return _command(
        depot.git,
        remote,
        *(
            "fetch",
            "--verbose",
            "--prune",
            "--no-tags",
            "--no-write-fetch-head",
            "--no-auto-gc",
            "--update-shallow",
        ),
        *("--no-recurse-submodules", "--refmap=", "--", remote.url, f"+refs/heads/*:{REMOTES}{remote.name}/*"),
    )


def remote_tip_command(depot: Depot, remote: Remote, branch: str) -> HostCommand:
    """Return the command that prints a remote branch as id, tab, ref, or nothing if the branch is missing."""
    return _command(depot.git, remote, "ls-remote", "--", remote.url, f"refs/heads/{branch}")


def push_command(
    depot: Depot,
    remote: Remote,
    branch: str,
    *,
    commit: str | None,
    old: str | None = None,
    force: bool = False,
    login: RemoteLogin | None = None,
) -> HostCommand:
    """Return the command that sets a branch of a remote to `commit`, or removes it if `commit` is `None`.

    With `force`, and to remove it, the branch must still be at `old`, and history does not matter; otherwise git
    accepts only a fast-forward.
    """
    ref = f"refs/heads/{branch}"
    # Nothing after the colon means that the branch must not exist.
    lease = (f"--force-with-lease={ref}:{old or ''}",) if force or commit is None else ()
    words = ("push", "--porcelain", "--no-verify", "--no-follow-tags", "--no-recurse-submodules", *lease)
    return _command(depot.git, remote, *words, "--", remote.url, f"{commit or ''}:{ref}", login=login)


def update_command(
    clone: Repository, remote: Remote, branch: str, login: RemoteLogin | None, *, seen: str = ""
) -> HostCommand:
    """Return the command that sets a branch of a bare clone of ours to that of a remote, wherever it is there.

    With `seen`, the branches of the remote with that prefix are kept below `SEEN`, also once they are deleted.
    """
    ref = f"refs/heads/{branch}"
    others = (f"+refs/heads/{seen}*:{SEEN}{seen}*",) if seen else ()
    words = ("fetch", "--no-tags", "--no-write-fetch-head", "--no-auto-gc", "--no-recurse-submodules")
    return _command(clone.git, remote, *words, "--", remote.url, f"+{ref}:{ref}", *others, login=login)


def delete_command(
    clone: Repository, remote: Remote, branch: str, commit: str, login: RemoteLogin | None
) -> HostCommand:
    """Return the command that deletes a branch of a remote if it still is at `commit`."""
    ref = f"refs/heads/{branch}"
    words = ("push", "--porcelain", "--no-verify", "--no-recurse-submodules", f"--force-with-lease={ref}:{commit}")
    return _command(clone.git, remote, *words, "--", remote.url, f":{ref}", login=login)


def _command(git: Git, remote: Remote, *words: str, login: RemoteLogin | None = None) -> HostCommand:
    argv, environment = git.command(*words)
    own = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Perhaps no person is present to type a passphrase, and ssh would wait for it.
    own.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    # The user's own settings for credentials, HTTP and ssh; never those of a repository.
    configured: list[tuple[str, str]] = []  # for some keys, such as `credential.helper`, every value counts
    base = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", **own}
    for scope in ("--system", "--global"):
        found = Git((), environment=base, options=()).run(
            "config", scope, "--includes", "-z", "--get-regexp", _OWN
        )
        for entry in found.out.decode(errors="replace").split("\0") if not found.code else ():
            key, line, value = entry.partition("\n")
            if key:
                # A key without `=` is true; a key with an empty value is false.
                configured.append((key, value if line else "true"))
    if login is not None and login.key:
        own["GIT_SSH_COMMAND"], own["GIT_SSH_VARIANT"] = _ssh_command(login), "ssh"
    elif login is not None:
        basic = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        # For this address alone, and instead of the user's helpers, which could ask or know another account.
        configured += [
            ("credential.helper", ""),
            (f"http.{remote.url}.extraHeader", f"Authorization: Basic {basic}"),
        ]
    has_key = login is not None and bool(login.key)
    configures_ssh = any(key == "core.sshcommand" for key, _ in configured)
    if configures_ssh and "GIT_SSH_COMMAND" not in os.environ and not has_key:
        del own["GIT_SSH_COMMAND"]
    settings: dict[str, str] = {}  # in the environment: others could read the arguments of a process
    for number, (key, value) in enumerate(configured):
        settings[f"GIT_CONFIG_KEY_{number}"], settings[f"GIT_CONFIG_VALUE_{number}"] = key, value
    if settings:
        settings["GIT_CONFIG_COUNT"] = str(len(configured))
    return HostCommand(
        argv=tuple(argv),
        # The depot's environment wins, so only the settings picked above apply of the user's git configuration.
        environment={**own, **environment, "GIT_ALLOW_PROTOCOL": remote.protocol, **settings},
    )


def _ssh_command(login: RemoteLogin) -> str:
    # Without the user's file: its keys would be offered too, and a forge takes the first that it knows, which may
    # have more rights. `yes`: an unknown or changed host key ends the connection.
    words = ["ssh", "-F", "none", "-i", login.key, "-oIdentitiesOnly=yes", "-oIdentityAgent=none"]
    words += ["-oBatchMode=yes", "-oStrictHostKeyChecking=yes"]
    if login.known_hosts:
        # ssh splits the value at blanks, unless it is quoted.
        words += [f'-oUserKnownHostsFile="{login.known_hosts}"', "-oGlobalKnownHostsFile=none"]
    return shlex.join(words)


def remote_branches(depot: Depot, remote: str) -> dict[str, str]:
    """Return the branches of a remote as of the last fetch, each with its commit."""
    prefix = f"{REMOTES}{remote}/"
    listed = depot.git("for-each-ref", "--format=%(objectname) %(refname)", prefix).lines
    return {ref.removeprefix(prefix): commit for commit, _, ref in (line.partition(" ") for line in listed)}


def find_tip(depot: Depot, revision: str) -> Base:
    """Return the commit of a fetched branch (`REMOTE/BRANCH`), else of a revision of the user's repository.

    The commit is then in the depot and kept there like a base. Raises `RepositoryError` (`base_not_found`).
    """
    is_ref = depot.git.run("check-ref-format", REMOTES + revision).code == 0
    commit = depot.read_ref(REMOTES + revision) if is_ref else None
    if commit is None:
        return depot.resolve_base(revision)
    if depot.read_ref(BASES + commit) is None:
        with contextlib.suppress(RefMovedError):  # another process kept it just now
            depot.swap(BASES + commit, commit, None)
    return Base(commit=commit, tree=depot.tree_of(commit), revision=revision)


def moved_base(depot: Depot, base: Base) -> Base | None:
    """Return the commit that the branch of `base` has advanced to, now also in the depot.

    Return `None` if the branch did not move, is gone, or does not descend from the base (it was reset or
    rewritten). The user's repository is only read.
    """
    if base.branch is None:
        return None
    ref = f"refs/heads/{base.branch}"
    if read_ref(depot.repository.git, ref) in (None, base.commit):
        return None
    try:
        tip = depot.resolve_base(ref)
    except RepositoryError:  # it went away, or cannot be read completely: there is nothing to continue from
        return None
    return tip if tip.commit != base.commit and depot.contains(tip.commit, base.commit) else None
