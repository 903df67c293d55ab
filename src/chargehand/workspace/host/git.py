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
NO_GRAFTS = "/dev/null/grafts"  # never there, and git says nothing about it (an empty file makes it warn)
_TIMEOUT = 1800.0  # seconds; the first fetch of a large history over a slow disk takes minutes
_FULL = re.compile("No space left on device|Out of diskspace|Disk quota exceeded")
_DENIED = re.compile("Read-only file system|Permission denied")
# Everywhere: nothing that a repository's or a user's configuration names is run, and nothing is done in the
# background that would outlive the command or hold a lock.
_QUIET = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",  # the program `true`: of objects elsewhere no refs are wanted
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.writeCommitGraph=false",
    "submodule.recurse=false",
    "protocol.file.allow=always",
    "protocol.ext.allow=never",  # what we fetch is a path; a rewritten one must not become a program
    "advice.detachedHead=false",
)
# In our own repositories too: the answer must not depend on the machine, for verdicts are kept by tree id.
_PRIVATE = (
    *_QUIET,
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "diff.renames=false",
    "commit.gpgSign=false",
    "core.protectNTFS=false",  # the base's names are what they are; new ones go through our own validator
)


class GitResult(Struct, frozen=True):
    """How one git command ended; `error` is its stderr as text."""

    code: int
    out: bytes
    error: str

    @property
    def text(self) -> str:
        """The output as text (file system encoding) without the trailing newline."""
        return os.fsdecode(self.out).rstrip("\n")

    @property
    def lines(self) -> list[str]:
        """The lines of the text. Only a newline ends one: whatever else `splitlines` cuts at may be in a name."""
        return self.text.split("\n") if self.text else []


class Git:
    """One repository, seen through one environment and one set of overriding options."""

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
        """Run one command to its end whatever its exit code.

        `detached` puts it into a session of its own, so that an interrupt at the terminal does not stop it half
        way. Raises `InfrastructureError` (`git_missing`, `no_space`, `git_timeout`).
        """
        try:
            done = subprocess.run(
                [*self._prefix, *args],
                input=input,
                capture_output=True,
                env=self._environment,
                # Never where we happen to be: git looks for a repository upward from there.
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
        # Git has no exit code of its own for a full disk.
        if done.returncode and _FULL.search(error):
            raise no_space(f"git {args[0]} ran")
        return GitResult(done.returncode, done.stdout, error)

    def command(self, *args: str) -> tuple[list[str], dict[str, str]]:
        """Return a command's words and its whole environment, for whoever runs it."""
        return [*self._prefix, *args], dict(self._environment)

    def within(self, **environment: str) -> Git:
        """Return the same with more in its environment."""
        more = {**self._environment, **environment}
        return Git(self._at, environment=more, options=self._options, timeout=self._timeout)

    def limited(self, seconds: float) -> Git:
        """Return the same, each command killed once it took so long."""
        return Git(self._at, environment=self._environment, options=self._options, timeout=seconds)

    def __call__(self, *args: str, input: bytes = b"", ok: Sequence[int] = (0,)) -> GitResult:
        """Run one command; raise `GitError` when its exit code is not one of `ok`."""
        result = self.run(*args, input=input)
        if result.code not in ok:
            hint = "make what git names writable for you" if _DENIED.search(result.error) else ""
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
        # Not left to git's defaults: refs are read as files here, and ids are taken to have 20 bytes.
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_DEFAULT_HASH": "sha1",
    }
    return Git([f"--git-dir={git_dir}"], environment=environment, options=_PRIVATE)


def user_git(directory: Path) -> Git:
    """Return git for the user's own repository: their configuration holds, hooks and maintenance are off."""
    environment = _common_environment()
    for name in ("HOME", "XDG_CONFIG_HOME"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return Git(["-C", str(directory)], environment=environment, options=_QUIET)


def _common_environment() -> dict[str, str]:
    # Built up from nothing, not taken from ours: GIT_DIR, GIT_INDEX_FILE or GIT_CONFIG_COUNT of a calling hook or
    # shell would point our commands at another repository.
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        # Some answers stand in messages alone, such as a full disk or a foreign owner, and git translates them.
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        # Else `git status` rewrites the user's index, and their own git finds it locked.
        "GIT_OPTIONAL_LOCKS": "0",
        # Replace refs, grafts and lazy fetches make one id stand for different content here and there.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": NO_GRAFTS,
        # A file may be called `*.py` or `:(top)x`.
        "GIT_LITERAL_PATHSPECS": "1",
    }


@lru_cache(maxsize=1)
def git_version() -> tuple[int, int]:
    """Return the major and minor version of the git on PATH."""
    found = re.search(r"(\d+)\.(\d+)", Git([], environment=_common_environment(), options=())("version").text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
