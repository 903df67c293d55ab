"""`secrets.json`: for its owner alone, there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import ConfigError
from chargehand.credentials._rules import checked_name, checked_value

_MOST_BYTES = 4 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not hold us up
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Kept(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the file holds: `secrets` by name, and the names of those in the `keyring`, which can list none."""

    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    keyring: list[str] = msgspec.field(default_factory=list)

    def __repr__(self) -> str:
        return f"Kept(secrets={sorted(self.secrets)!r}, keyring={self.keyring!r})"


class SecretsFile:
    """The file `path`; every method raises `ConfigError` (`secrets_file`) where it is not as it must be."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Kept:
        """Return what is kept; nothing where there is no file."""
        with self._named_errors("read"):
            try:
                descriptor = os.open(self.path, _READ)
            except (FileNotFoundError, NotADirectoryError):
                return Kept()
            with os.fdopen(descriptor, "rb") as file:
                self._refuse_exposed(os.fstat(file.fileno()))
                content = file.read(_MOST_BYTES + 1)
        return self._decoded(content)

    @contextmanager
    def changing(self) -> Iterator[Kept]:
        """Hold the file against other processes; what the block does to its content is written at its end."""
        with self._named_errors("written"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(
                self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self.load()
            before = msgspec.json.encode(kept)
            yield kept
            if msgspec.json.encode(kept) != before:
                self._write(kept)
        finally:
            os.close(lock)

    def _refuse_exposed(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._wrong("is no regular file", "move it away; `chargehand secret set NAME` makes a new one")
        if found.st_uid != os.geteuid() and os.geteuid() != 0:
            raise self._wrong("belongs to another user", "make it your own, or move it away")
        if found.st_mode & 0o077:
            raise self._wrong(
                f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})",
                f"chmod 600 {shlex.quote(str(self.path))}",
            )

    def _decoded(self, content: bytes) -> Kept:
        # Not chained, and no detail: neither message nor traceback may show what is in there.
        hint = "mend it, or move it away and set the secrets again"
        if len(content) > _MOST_BYTES:
            raise self._wrong("is far too large", hint)
        try:
            kept = decode_as(content, Kept)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._wrong(
                'is not of the form {"secrets": {"NAME": "VALUE"}, "keyring": ["NAME"]}', hint
            ) from None
        for name in kept.keyring:
            checked_name(name)
        kept.secrets = {checked_name(name): checked_value(name, value) for name, value in kept.secrets.items()}
        return kept

    def _write(self, kept: Kept) -> None:
        content = msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        with self._named_errors("written"):
            try:
                with os.fdopen(os.open(fresh, _NEW, 0o600), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.replace(self.path)
            except BaseException:
                with suppress(OSError):
                    fresh.unlink()
                raise
            _sync(self.path.parent)

    @contextmanager
    def _named_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise self._wrong("is a symbolic link", "put the file itself there") from error
            raise self._wrong(f"cannot be {what}: {error.strerror}", "mend what stands in the way") from error

    def _wrong(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"{str(self.path)!r} {what}", code="secrets_file", hint=hint)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
