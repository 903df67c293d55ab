"""Keys of model providers by name: from the environment, the system's keyring or `secrets.json`."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from chargehand.core.codec import decode_as
from chargehand.core.errors import ConfigError, NotFoundError, UsageError
from chargehand.core.ports import KeySource
from chargehand.core.registry import Registry
from chargehand.core.text import late_pattern

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

Origin = str  # a registered name
_SERVICE = "chargehand"
_NAME = late_pattern(r"[A-Z][A-Z0-9_]{1,63}")
_CONTROL = late_pattern(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONGEST = 16 * 1024
_LARGEST_FILE = 4 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a FIFO must not block
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOREIGN_ERRORS = {
    # Errors that backends let through from their libraries; a module that is not loaded raised nothing.
    "keyring.errors": ("KeyringError",),
    "secretstorage.exceptions": ("SecretStorageException",),
    "jeepney.wrappers": ("DBusErrorResponse",),
    "jeepney.io.common": ("RouterClosed",),
    "dbus.exceptions": ("DBusException",),
    "gi.repository.GLib": ("Error",),
    "configparser": ("Error",),
}


class SecretName(NamedTuple):
    """A stored secret, and its present origin; `None` if its keyring does not answer."""

    name: str
    origin: Origin | None


class KeySetup(NamedTuple):
    """The parameters of opening a source of keys: environment, and directory of the user's configuration."""

    environ: Mapping[str, str]
    directory: Path


class Credentials:
    """Looks in the environment, the system's keyring, `secrets.json`, then in extensions; a `core.KeySource`.

    Names have the form of environment variables. Every method raises `UsageError` (`secret_invalid`) for another
    name or an impossible value, `ConfigError` (`secrets_file`) if the file is open to others or damaged. No
    message, representation or traceback of ours shows a value.
    """

    def __init__(self, setup: KeySetup) -> None:
        self._setup = setup
        self._environ = setup.environ
        self._sources: dict[Origin, KeySource] = {}
        # Secrets are stored in these two alone.
        self._keyring = cast(SystemKeyring, self._open("keyring"))
        self._file = cast(SecretsFile, self._open("file"))

    def __repr__(self) -> str:
        return f"Credentials({str(self._file.path)!r})"

    def get(self, name: str) -> str | None:
        """Return the secret of that name, `None` if missing."""
        return self._find(check_name(name))[1]

    def every(self, name: str) -> Iterator[str]:
        """Yield the secret of each origin that has it, unchecked: all are secret, though `get` takes the first."""
        for origin in KEY_SOURCES.names():
            if value := self._open(origin).get(name):
                yield value

    def version(self) -> object:
        """Return a value that changes whenever a program of ours stores or removes a secret."""
        try:
            status = self._file.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def describe(self, name: str) -> Origin | None:
        """Return the origin from which `get` would take the secret, `None` if missing."""
        return self._find(check_name(name))[0]

    def names(self) -> tuple[SecretName, ...]:
        """Return the stored secrets with their present origins: the environment comes before stored secrets."""
        kept = self._file.load()
        return tuple(SecretName(name, self.describe(name)) for name in sorted({*kept.secrets, *kept.keyring}))

    def set(self, name: str, value: str) -> str:
        """Store or replace a secret, in the keyring if available; return the place in words.

        Raises `ConfigError` (`secret_keyring`) if the keyring that holds the earlier secret refuses.
        """
        value = check_value(check_name(name), value)
        with self._file.changing() as kept:
            return self._store(kept, name, value)

    def replace(self, name: str, before: str, value: str) -> bool:
        """Store a secret if the present one is `before`, in one step; return whether it was. Raises as `set`."""
        value = check_value(check_name(name), value)
        with self._file.changing() as kept:
            is_same = self.get(name) == before
            if is_same:
                self._store(kept, name, value)
        return is_same

    def _store(self, kept: SecretsContent, name: str, value: str) -> str:
        try:
            self._keyring.set(name, value)
        except KeyringFailedError as error:
            if name in kept.keyring:  # the keyring's comes first, and would hide the new one
                raise _keyring_error(name, error) from None
            kept.secrets[name] = value
            return f"the file {self._file.path}"
        # A secret in the keyring must not also remain in plain text.
        kept.secrets.pop(name, None)
        # A keyring cannot list its content: we have to remember the names.
        kept.keyring = sorted({*kept.keyring, name})
        return f"the system's keyring ({self._keyring.name})"

    def remove(self, name: str) -> None:
        """Remove a secret from every place.

        Raises `NotFoundError` if it is not stored, `ConfigError` (`secret_keyring`) as `set` does.
        """
        check_name(name)
        with self._file.changing() as kept:
            removed = indexed = name in kept.keyring
            # Removing only the name would leave a secret that we can never find again.
            if indexed and not self._keyring.works:
                raise _keyring_error(name, KeyringFailedError("it cannot be reached"))
            try:
                removed = self._keyring.remove(name) or indexed
            except KeyringFailedError as error:
                if indexed:
                    raise _keyring_error(name, error) from None
            removed = kept.secrets.pop(name, None) is not None or removed
            kept.keyring = [each for each in kept.keyring if each != name]
        if not removed:
            known = ", ".join(each.name for each in self.names()) or "none"
            set_there = "it is set in the environment; unset it there" if self._environ.get(name) else ""
            raise NotFoundError(f"there is no secret {name!r}", hint=set_there or f"known: {known}")

    def _find(self, name: str) -> tuple[Origin | None, str | None]:
        for origin in KEY_SOURCES.names():
            if value := self._open(origin).get(name):
                return origin, check_value(name, value)
        return None, None

    def _open(self, origin: Origin) -> KeySource:
        if origin not in self._sources:
            self._sources[origin] = KEY_SOURCES.find(origin)(self._setup)
        return self._sources[origin]


def open_credentials(environ: Mapping[str, str], directory: Path) -> Credentials:
    """Return the credentials of a user whose `secrets.json` is in `directory`; reads and creates nothing yet."""
    return Credentials(KeySetup(environ, directory))


def check_name(name: str) -> str:
    """Return `name`; raises `UsageError` (`secret_invalid`) unless it could name an environment variable."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"not a valid secret name: {name!r}",
            code="secret_invalid",
            hint="use 2 to 64 capital letters, digits and _, a letter first, such as OPENAI_API_KEY",
        )
    return name


def check_value(name: str, value: str) -> str:
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
            hint=f"copy it again: `chargehand secret set {name}`",
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
        hint = "repair it, or move it away and set the secrets again"
        if len(content) > _LARGEST_FILE:
            raise self._error("is far too large", hint)
        try:
            kept = decode_as(content, SecretsContent)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Not chained, and without detail: neither message nor traceback may show the content.
            form = '{"secrets": {"NAME": "VALUE"}, "keyring": ["NAME"]}'
            raise self._error(f"is not of the form {form}", hint) from None
        for name in kept.keyring:
            check_name(name)
        kept.secrets = {check_name(name): check_value(name, value) for name, value in kept.secrets.items()}
        return kept

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
            after = msgspec.json.encode(kept)
            if after != before:
                self._write(msgspec.json.format(after, indent=2) + b"\n")
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


class KeyringFailedError(Exception):
    """The keyring refused a request: it is locked, say, or does not answer."""


class SystemKeyring:
    """The system's keyring, if the `keyring` package is installed and has a real backend.

    Does nothing before its first use: importing the package and finding a backend take 0.3 s.
    """

    @cached_property
    def _backend(self) -> KeyringBackend | None:
        try:
            import keyring
            from keyring.core import recommended

            found = keyring.get_keyring()
            # Backends below recommended always fail, forget everything, or store plain text in a file.
            return found if recommended(found) else None
        except _keyring_failures():
            return None

    @property
    def works(self) -> bool:
        """Whether a backend is available."""
        return self._backend is not None

    @property
    def name(self) -> str:
        """The backend's name for people."""
        return str(self._backend.name) if self._backend else "none"

    def get(self, name: str) -> str | None:
        """Return the secret, `None` if it is missing or the keyring does not answer."""
        if self._backend is None:
            return None
        try:
            return self._backend.get_password(_SERVICE, name)
        except _keyring_failures():
            return None

    def set(self, name: str, value: str) -> None:
        """Store a secret; raises `KeyringFailedError`, which does not contain the value."""
        try:
            if self._backend is None:
                raise KeyringFailedError("there is none")
            self._backend.set_password(_SERVICE, name, value)
        except _keyring_failures() as error:
            # Only its type: a backend's message may contain the value.
            raise KeyringFailedError(type(error).__name__) from None

    def remove(self, name: str) -> bool:
        """Remove a secret and return whether it existed; raises `KeyringFailedError`."""
        if self._backend is None:
            return False
        try:
            if self._backend.get_password(_SERVICE, name) is None:
                return False
            self._backend.delete_password(_SERVICE, name)
        except _keyring_failures() as error:
            raise KeyringFailedError(type(error).__name__) from None
        return True


def _keyring_failures() -> tuple[type[Exception], ...]:
    """Return all errors that a missing, misconfigured, locked or silent keyring raises."""
    found: list[type[Exception]] = [ImportError, OSError, RuntimeError, AttributeError, ValueError]
    for module, names in _FOREIGN_ERRORS.items():
        loaded = sys.modules.get(module)
        found += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(found)


def _keyring_error(name: str, error: KeyringFailedError) -> ConfigError:
    return ConfigError(
        f"the system's keyring, which has {name}, refuses: {error}",
        code="secret_keyring",
        hint="unlock it and try again",
    )


class EnvironmentKeys:
    """Keys in the environment; an empty variable is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        """Return the variable's value, `None` if it is not set."""
        return self._environ.get(name) or None


# In the order in which they are asked. Extensions are asked last, and only read.
KEY_SOURCES: Registry[Callable[[KeySetup], KeySource]] = Registry("key_sources", "source of keys")
KEY_SOURCES.register("environment", lambda: lambda setup: EnvironmentKeys(setup.environ), "the environment")
KEY_SOURCES.register("keyring", lambda: lambda setup: SystemKeyring(), "the system's keyring")
KEY_SOURCES.register("file", lambda: lambda setup: SecretsFile(setup.directory / "secrets.json"), "secrets.json")
