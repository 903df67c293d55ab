"""The case of the conformance suite of forges: two people, a repository, and the acts of its owner."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from chargehand.forges.contract import Forge, GitLogin, ReviewState, Right


class ForgeHost(Protocol):
    """The acts of people that the contract of forges does not have; `login` is the acting person."""

    def create_issue(self, repository: str, title: str, body: str = "") -> int:
        """Open an issue as the owner and return its number."""
        ...

    def lock_issue(self, repository: str, number: int) -> None:
        """Let only people with the right `write` comment."""
        ...

    def submit_review(
        self,
        repository: str,
        number: int,
        state: ReviewState,
        body: str,
        lines: Sequence[tuple[str, int, str]] = (),
    ) -> None:
        """Review as the other person, with comments on lines: path, line, text."""
        ...

    def set_right(self, repository: str, login: str, right: Right) -> None:
        """Grant or revoke a right."""
        ...

    def protect(self, repository: str, check: str) -> None:
        """Require that a check passes before a merge into `main`."""
        ...

    def archive(self, repository: str) -> None:
        """Make a repository read-only."""
        ...

    def rename(self, repository: str, name: str) -> None:
        """Change the last part of a repository's name."""
        ...

    def create_repository(self) -> str:
        """Create an empty repository of the owner, in which the other person may read; return its name."""
        ...

    def open_forge(self, token: str) -> Forge:
        """Open the forge with a token."""
        ...

    def weak_forge(self) -> Forge | None:
        """Open the forge as the owner with a token that may only read; `None` if the forge has no such tokens."""
        ...


class ForgeCase(Struct, frozen=True, kw_only=True):
    """A repository with a commit on `main`, and its owner and a reader, each with a forge.

    `page` is the number of items in a page of the forge as it was opened, `many` a number of comments that it can
    take in a few seconds.
    """

    forge: Forge
    other: Forge
    host: ForgeHost
    repository: str
    scratch: Path
    page: int = 10
    many: int = 100
    reviews_have_text: bool = True

    def commit(self, branch: str, files: Mapping[str, str], *, repository: str = "") -> str:
        """Push a commit on top of `main` as the owner, as git does it, and return its id."""
        name = repository or self.repository
        found = self.forge.repository(name)
        clone = self.scratch / name.replace("/", "-")
        address = with_login(found.clone_url, self.forge.git_login())
        if not clone.exists():
            run_git(self.scratch, "clone", "-q", address, str(clone))
        if found.default_branch is None:
            run_git(clone, "checkout", "-q", "--orphan", branch)
        else:
            run_git(clone, "fetch", "-q", "origin")
            run_git(clone, "checkout", "-q", "-B", branch, "origin/main")
        for path, text in files.items():
            (clone / path).write_text(text)
        run_git(clone, "add", "-A")
        run_git(clone, "commit", "-q", "-m", f"on {branch}")
        run_git(clone, "push", "-q", "--force", address, f"HEAD:refs/heads/{branch}")
        new = run_git(clone, "rev-parse", "HEAD")
        # Some forges take note of a push after git has returned.
        wait_until(
            lambda: (self.forge.branch(name, branch), self.forge.repository(name).default_branch), (new, "main")
        )
        return new

    def remove_branch(self, branch: str) -> None:
        """Delete a branch as the owner, as git does it; `commit` has pushed it before."""
        address = with_login(self.forge.repository(self.repository).clone_url, self.forge.git_login())
        run_git(self.scratch / self.repository.replace("/", "-"), "push", "-q", address, f":refs/heads/{branch}")


def wait_until(read: Callable[[], object], expected: object, *, seconds: float = 20.0) -> None:
    """Wait until a forge, which may compute in the background, reads as expected."""
    end = time.monotonic() + seconds
    while (found := read()) != expected:
        assert time.monotonic() < end, f"{found!r} instead of {expected!r}"
        time.sleep(0.05)


def run_git(directory: Path, *arguments: str) -> str:
    """Run git without the machine's configuration and return its output."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        **{f"GIT_{role}_NAME": "Ada" for role in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{role}_EMAIL": "ada@example.org" for role in ("AUTHOR", "COMMITTER")},
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise AssertionError(f"git {arguments[0]}: {done.stderr}")
    return done.stdout.strip()


def with_login(address: str, login: GitLogin | None) -> str:
    """Return an address for git with a login in it, for trials alone: others can read it."""
    if login is None or not address.startswith("http"):
        return address
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{login.user}:{login.password}@{rest}"
