"""Runs git as a subprocess: hardened in our own repositories, careful in the user's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import InfrastructureError
from chargehand.workspace.errors import GitError, no_space

ZERO = "0" * 40
NO_GRAFTS = "/dev/null/grafts"  # never exists, and git does not warn about it (it warns about an empty file)
_TIMEOUT = 1800.0  # seconds; the first fetch of a large history over a slow disk takes minutes
_FULL = re.compile("No space left on device|Out of diskspace|Disk quota exceeded")
_DENIED = re.compile("Read-only file system|Permission denied")
# Everywhere: never run programs named in a repository's or a user's configuration, and never start background work
# that would outlive the command or hold a lock.
_QUIET = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",  # the program `true`: refs of alternates are not wanted
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
    "submodule.recurse=false",
    "protocol.file.allow=always",
    "protocol.ext.allow=never",  # we fetch from paths only; a rewritten path must not become a program
    "advice.detachedHead=false",
)
# Additionally in our own repositories: the answer must not depend on the machine, since verdicts are kept by tree
# id.
_PRIVATE = (
    *_QUIET,
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "diff.renames=false",
    "commit.gpgSign=false",
    "core.protectNTFS=false",  # names in the base stay as they are; our own validator checks new ones
)


class GitResult(Struct, frozen=True):
    """The result of one git command; `error` is its stderr as text."""

    code: int
    out: bytes
    error: str

    @property
    def text(self) -> str:
        """The output as text (file system encoding) without the trailing newline."""
        return os.fsdecode(self.out).rstrip("\n")

    @property
    def lines(self) -> list[str]:
        """The lines of the text. Only a newline ends a line: names may contain other separators."""
        return self.text.split("\n") if self.text else []


class Git:
    """Git for one repository, with one environment and one set of overriding options."""

    def __init__(
        self,
        at: Sequence[str],
        *,
        environment: Mapping[str, str],
        options: Sequence[str],
        timeout: float = _TIMEOUT,
    ) -> None:
        self._timeout = timeout
        self._at, self._options = tuple(at), tuple(options)
        overrides = [word for option in options for word in ("-c", option)]
        self._prefix = ["git", *at, "--no-pager", *overrides]
        self._environment = dict(environment)

    def run(self, *args: str, input: bytes = b"", detached: bool = False) -> GitResult:
        """Run one command to its end and return the result whatever its exit code.

        `detached` puts it into a new session, so that an interrupt at the terminal does not stop it half way.
        Raises `InfrastructureError` (`git_missing`, `no_space`, `git_timeout`).
        """
        try:
            done = subprocess.run(
                [*self._prefix, *args],
                input=input,
                capture_output=True,
                env=self._environment,
                # Never the current directory: git searches for a repository upward from there.
                cwd="/",
                timeout=self._timeout,
                start_new_session=detached,
            )
        except FileNotFoundError as problem:
            raise InfrastructureError(
                "git was not found on PATH", code="git_missing", hint="install git 2.34 or newer"
            ) from problem
        except subprocess.TimeoutExpired as problem:
            raise InfrastructureError(f"git {args[0]!r} did not end", code="git_timeout") from problem
        error = done.stderr.decode("utf-8", "replace").strip()
        # Git has no specific exit code for a full disk.
        if done.returncode and _FULL.search(error):
            raise no_space(f"git {args[0]} ran")
        return GitResult(done.returncode, done.stdout, error)

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        """Return a command's words and its complete environment, for a caller that runs it."""
        return [*self._prefix, *args], dict(self._environment)

    def within(self, **environment: str) -> Git:
        """Return a copy with additional environment variables."""
        more = {**self._environment, **environment}
        return Git(self._at, environment=more, options=self._options, timeout=self._timeout)

    def limited(self, seconds: float) -> Git:
        """Return a copy that kills each command after `seconds`."""
        return Git(self._at, environment=self._environment, options=self._options, timeout=seconds)

    def __call__(self, *args: str, input: bytes = b"", ok: Sequence[int] = (0,)) -> GitResult:
        """Run one command; raise `GitError` when its exit code is not one of `ok`."""
        result = self.run(*args, input=input)
        if result.code not in ok:
            hint = "make the paths that git names writable for you" if _DENIED.search(result.error) else ""
            raise GitError(f"git {args[0]} failed: {result.error!r}", exit_status=result.code, hint=hint)
        return result


def private_git(git_dir: Path) -> Git:
    """Return git for a bare repository of ours: no system or global configuration, hooks, filters or prompts."""
    environment = {
        **_common_environment(),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "file",
        "GIT_NO_LAZY_FETCH": "1",
        # Not left to git's defaults: we read refs as files and expect ids of 20 bytes.
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_DEFAULT_HASH": "sha1",
    }
    return Git([f"--git-dir={git_dir}"], environment=environment, options=_PRIVATE)


def user_git(directory: Path) -> Git:
    """Return git for the user's repository: the user's configuration applies, hooks and maintenance are off."""
    environment = _common_environment()
    for name in ("HOME", "XDG_CONFIG_HOME"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return Git(["-C", str(directory)], environment=environment, options=_QUIET)


def _common_environment() -> dict[str, str]:
    # Built from nothing, not copied from ours: GIT_DIR, GIT_INDEX_FILE or GIT_CONFIG_COUNT of a calling hook or
    # shell would point our commands at another repository.
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        # Some conditions, such as a full disk or a foreign owner, appear only in messages, which git translates.
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        # Otherwise `git status` rewrites the user's index, and the user's own git finds it locked.
        "GIT_OPTIONAL_LOCKS": "0",
        # With replace refs, grafts and lazy fetches one id would mean different content in different repositories.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": NO_GRAFTS,
        # A file may be called `*.py` or `:(top)x`.
        "GIT_LITERAL_PATHSPECS": "1",
    }


def quote_alternate(objects: Path) -> str:
    """Return a directory of objects as a value of `GIT_ALTERNATE_OBJECT_DIRECTORIES`."""
    path = os.fspath(objects)
    if not any(character in path for character in ':"\n'):
        return path
    # Git splits the list at colons, except in a quoted path.
    quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{quoted}"'


@lru_cache(maxsize=1)
def git_version() -> tuple[int, int]:
    """Return the major and minor version of the git on PATH."""
    found = re.search(r"(\d+)\.(\d+)", Git([], environment=_common_environment(), options=())("version").text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
