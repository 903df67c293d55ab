"""The files of a local forge: one JSON file for each object, below the directory of its repository.

`OWNER/NAME.git` is a bare repository; `OWNER/NAME` has `settings.json` and the directories `items`, `comments`,
`reviews`, `lines`, `statuses`, `logs`, `files` and `hooks`. A repository without settings belongs to OWNER. Each
change is made under one lock, so many processes may use the directory, and ids grow in the order of the changes.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.forges.contract import ForgeError, MergeMethod, Right

_T = TypeVar("_T")
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)+")
_GIT_SECONDS = 60.0


class LocalRules(Struct, frozen=True, kw_only=True):
    """The conditions of merging into a protected branch."""

    checks: tuple[str, ...] = ()
    approvals: int = 0


class LocalSettings(Struct, frozen=True, kw_only=True):
    """The settings of a repository; `moved_to` is its new name after a renaming."""

    rights: Mapping[str, Right]
    archived: bool = False
    default_branch: str = "main"
    protected: Mapping[str, LocalRules] = {}
    merge_methods: tuple[MergeMethod, ...] = ("merge", "squash", "rebase")
    moved_to: str = ""


class LocalItem(Struct, frozen=True, kw_only=True):
    """An issue, or a request if `head` is not empty; `moved_to` is REPOSITORY#NUMBER after a transfer."""

    number: int
    title: str
    body: str
    author: str
    updated: datetime
    is_open: bool = True
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()
    locked: bool = False
    moved_to: str = ""
    head: str = ""
    head_commit: str = ""
    base: str = ""
    draft: bool = False
    merged: str | None = None
    asked: tuple[str, ...] = ()


class LocalDirectory:
    """The directory of a local forge."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude changes by other processes and threads for the block."""
        self._require_root()
        with (self.root / ".lock").open("a") as lock:
            # flock(2) belongs to the open file, so it also excludes other threads of this process.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def new_id(self) -> int:
        """Return the next id; the caller has the lock."""
        path = self.root / ".last-id"
        number = int(path.read_text()) + 1 if path.exists() else 1
        _replace_file(path, str(number).encode())
        return number

    def new_number(self, repository: str) -> int:
        """Return the next number of an issue or request of a repository; the caller has the lock."""
        found = [int(path.stem) for path in self.place(repository, "items").glob("*.json")]
        return max(found, default=0) + 1

    def repositories(self) -> list[str]:
        """Return the names of all repositories that were not renamed."""
        self._require_root()
        found = sorted(path for path in self.root.rglob("*.git") if (path / "HEAD").is_file())
        return [str(path.relative_to(self.root))[: -len(".git")] for path in found]

    def settings(self, repository: str) -> LocalSettings:
        """Return the settings of a repository. Raises `ForgeError` (`missing`, `moved`, `invalid`)."""
        found = self.find(repository, "settings.json", LocalSettings)
        if found is not None and found.moved_to:
            raise ForgeError("moved", f"{repository} was renamed", hint=f"use {found.moved_to}")
        if not self.git_directory(repository).is_dir():
            self._require_root()  # the whole forge may be away
            raise ForgeError("missing", f"there is no repository {repository}", hint="check the name")
        return found or LocalSettings(rights={repository.partition("/")[0]: "admin"})

    def item(self, repository: str, number: int) -> LocalItem:
        """Return an issue or request. Raises `ForgeError` (`missing`)."""
        found = self.find(repository, f"items/{number}.json", LocalItem)
        if found is None:
            raise ForgeError("missing", f"{repository} has no issue or request {number}")
        return found

    def items(self, repository: str) -> list[LocalItem]:
        """Return all issues and requests, by number."""
        return sorted(self.read_all(repository, "items", LocalItem), key=lambda item: item.number)

    def find(self, repository: str, name: str, kind: type[_T]) -> _T | None:
        """Return an object, `None` if its file is missing."""
        try:
            return decode_as(self.place(repository, name).read_bytes(), kind)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, OSError) as error:
            raise ForgeError("broken", f"a file of {repository} cannot be read", hint=str(error)) from error

    def read_all(self, repository: str, folder: str, kind: type[_T]) -> list[_T]:
        """Return all objects of a directory, in the order of their file names."""
        place = self.place(repository, folder)
        names = sorted(each.name for each in place.glob("*.json"))
        found = (self.find(repository, f"{folder}/{name}", kind) for name in names)
        return [each for each in found if each is not None]

    def save(self, repository: str, name: str, value: object) -> None:
        """Write an object atomically; bytes are written unchanged."""
        path = self.place(repository, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            content = value if isinstance(value, bytes) else msgspec.json.encode(value)
        except UnicodeEncodeError as error:
            raise ForgeError("invalid", "the text is not Unicode", hint="remove the half characters") from error
        _replace_file(path, content)

    def place(self, repository: str, name: str) -> Path:
        """Return the path of a file of a repository. Raises `ForgeError` (`invalid`)."""
        return self.root / _require_name(repository) / name

    def git_directory(self, repository: str) -> Path:
        """Return the path of a repository's git directory. Raises `ForgeError` (`invalid`)."""
        return self.root / f"{_require_name(repository)}.git"

    def git(
        self, repository: str, *arguments: str, ok: Sequence[int] = (0,), person: str = "forge"
    ) -> tuple[int, str]:
        """Run git in a repository and return its exit code and output. Raises `ForgeError` (`broken`)."""
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **{f"GIT_{role}_NAME": person for role in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{role}_EMAIL": f"{person}@forge.invalid" for role in ("AUTHOR", "COMMITTER")},
        }
        # The hooks of a repository are programs of other people.
        command = ["git", "-c", "core.hooksPath=/dev/null", "--git-dir", str(self.git_directory(repository))]
        try:
            done = subprocess.run(
                [*command, *arguments], env=environment, capture_output=True, timeout=_GIT_SECONDS, check=False
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise ForgeError("broken", f"git did not run in {repository}", hint=str(error)) from error
        if done.returncode not in ok:
            text = done.stderr.decode(errors="replace").strip()
            raise ForgeError("broken", f"git failed in {repository}: {arguments[0]}", hint=text)
        return done.returncode, done.stdout.decode(errors="replace").strip()

    def _require_root(self) -> None:
        if not self.root.is_dir():
            raise ForgeError(
                "unreachable", f"the directory {self.root} is missing", hint="create it, or fix the url"
            )


def create_repository(
    root: Path, repository: str, rights: Mapping[str, Right], settings: LocalSettings | None = None
) -> LocalDirectory:
    """Create an empty repository, and the local forge if it is missing; `settings` replace the rights."""
    root.mkdir(parents=True, exist_ok=True)
    directory = LocalDirectory(root)
    with directory.lock():
        place = directory.git_directory(repository)
        place.mkdir(parents=True)
        directory.git(repository, "init", "-q", "--bare", "-b", "main")
        directory.save(repository, "settings.json", settings or LocalSettings(rights=rights))
    return directory


def now() -> datetime:
    """Return the present time, as the forge writes it."""
    return datetime.now(UTC)


def changed(item: LocalItem, **values: Any) -> LocalItem:
    """Return a copy of an issue or request with other values, updated now; itself if nothing differs."""
    new = msgspec.structs.replace(item, **values)
    return item if new == item else msgspec.structs.replace(new, updated=now())


def _require_name(repository: str) -> str:
    if not _NAME.fullmatch(repository) or ".." in repository or repository.endswith(".git"):
        raise ForgeError("invalid", f"not the name of a repository: {repository!r}", hint="use OWNER/NAME")
    return repository


def _replace_file(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.write_bytes(content)
    os.replace(fresh, path)
