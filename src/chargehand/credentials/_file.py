"""`secrets.json`, and what names and values of secrets may be."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import ConfigError, UsageError
from chargehand.core.text import late_pattern

_NAME = late_pattern(r"[A-Z][A-Z0-9_]{1,63}")
_CONTROL = late_pattern(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONGEST = 16 * 1024
_LARGEST_FILE = 4 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO must not block
_REPAIR = "repair it, or move it away and set the secrets again"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_name(name: str) -> str:
    """Return `name`; raises `UsageError` (`secret_invalid`) unless it could name an environment variable."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"not a valid secret name: {name!r}",
            code="secret_invalid",
            hint="use 2 to 64 capital letters, digits and _, a letter first, such as OPENAI_API_KEY",
        )
    return name


def check_value(name: str, value: str, remedy: str = "") -> str:
    """Return `value` without the newline at its end; raises `UsageError` (`secret_invalid`).

    No message repeats the value: it may be right except for one character.
    """
    # Piped input ends in a newline, perhaps with a carriage return before it.
    value = value.removesuffix("\n").removesuffix("\r")
    wrong = ""
    if not value.strip():
        wrong = "is empty"
    elif _CONTROL.search(value):
        wrong = "has control characters or several lines"
    else:
        try:
            if len(value.encode()) > _LONGEST:
                wrong = f"is longer than {_LONGEST // 1024} kB"
        except UnicodeEncodeError:
            wrong = "is not UTF-8"
    if wrong:
        raise UsageError(
            f"the value of {name} {wrong}",
            code="secret_invalid",
            hint=remedy or f"copy it again: `chargehand secret set {name}`",
        )
    return value


class SecretsContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of the file: `secrets` by name, and names in the `keyring`, which cannot list them."""

    secrets: dict[str, str] = {}
    keyring: list[str] = []

    def __repr__(self) -> str:
        # Representations get into logs and tracebacks: so names only.
        return f"SecretsContent(secrets={sorted(self.secrets)!r}, keyring={self.keyring!r})"


class SecretsFile:
    """The file `path`, readable only for its owner, either complete or missing.

    Every method raises `ConfigError` (`secrets_file`) if the file is not in this state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, name: str) -> str | None:
        """Return the secret, `None` if it is not in the file."""
        return self.load().secrets.get(name)

    def load(self) -> SecretsContent:
        """Return the stored content; empty if the file is missing."""
        with self._named_errors("read"):
            try:
                descriptor = os.open(self.path, _READ)
            except (FileNotFoundError, NotADirectoryError):
                return SecretsContent()
            try:
                # By the open file: the path may lead to another file a moment later.
                self._refuse_exposed(os.fstat(descriptor))
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    content = file.read(_LARGEST_FILE + 1)
            finally:
                os.close(descriptor)
        if len(content) > _LARGEST_FILE:
            raise self._error("is far too large", _REPAIR)
        kept = self._decode(content)
        for name in kept.keyring:
            check_name(name)
        kept.secrets = {check_name(name): check_value(name, value) for name, value in kept.secrets.items()}
        return kept

    def _decode(self, content: bytes) -> SecretsContent:
        try:
            return decode_as(content, SecretsContent)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Not chained, and without detail: neither message nor traceback may show the content.
            form = '{"secrets": {"NAME": "VALUE"}, "keyring": ["NAME"]}'
            raise self._error(f"is not of the form {form}", _REPAIR) from None

    def _encode(self, kept: SecretsContent) -> bytes:
        return msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n"

    @contextmanager
    def changing(self) -> Iterator[SecretsContent]:
        """Lock the file against other processes; write the block's changes to its content at the end."""
        with self._named_errors("written"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A separate file: the secrets file is replaced, and a lock on the old one would exclude no process.
            lock = os.open(
                self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = self.load()
            before = msgspec.json.encode(kept)
            yield kept
            if msgspec.json.encode(kept) != before:
                self._write(self._encode(kept))
            else:  # a secret changed in the keyring: the time of this file says so to other processes
                with suppress(FileNotFoundError):
                    os.utime(self.path, ns=(now := time.time_ns(), now))
        finally:
            os.close(lock)

    def _refuse_exposed(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._error(
                "is not a regular file", "move it away; `chargehand secret set NAME` makes a new one"
            )
        if found.st_uid != os.geteuid() and os.geteuid() != 0:
            raise self._error("belongs to another user", "make it your own, or move it away")
        if found.st_mode & 0o077:
            raise self._error(
                f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})",
                f"chmod 600 {shlex.quote(str(self.path))}",
            )

    def _write(self, content: bytes) -> None:
        # In the same directory, since a rename is atomic only within one file system.
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
            # The new name must survive a power loss too: users who are told that a secret is stored discard their
            # copy.
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    @contextmanager
    def _named_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ELOOP:  # the error of O_NOFOLLOW for a link
                raise self._error("is a symbolic link", "put the file itself there") from error
            raise self._error(f"cannot be {what}: {error.strerror}", "fix that and try again") from error

    def _error(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"{str(self.path)!r} {what}", code="secrets_file", hint=hint)
