"""The records that configuration is read from and resolved into."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec import Struct, field

from chargehand.core.config import Config

REPOSITORY_FILE = "chargehand.toml"


class RepositoryFile(Struct, frozen=True, kw_only=True):
    """A `chargehand.toml` of a repository, byte for byte, and the `directory` that it is in.

    `commit` is `None` for an uncommitted one.
    """

    content: bytes
    commit: str | None = None
    directory: str = ""

    @property
    def path(self) -> str:
        """Where it lies, from the top of the repository."""
        return f"{self.directory}/{REPOSITORY_FILE}" if self.directory else REPOSITORY_FILE

    @property
    def digest(self) -> str:
        """What it is trusted by; see `content_digest`."""
        return content_digest(self.content)

    @property
    def origin(self) -> str:
        """Where its values are said to come from."""
        return f"{self.path} @ {self.commit[:12]}" if self.commit else f"{self.path} (uncommitted)"


class OptionValue(Struct, frozen=True, kw_only=True):
    """A value from the command line and the option that carried it; `None`, `()` and `[]` mean not given."""

    value: object
    name: str


class SourcedValue(Struct, frozen=True, kw_only=True):
    """One value of one key: who said it (`origin`) and where a person can look it up (`place`)."""

    value: object
    origin: str
    place: str


class UntrustedKey(Struct, frozen=True, kw_only=True):
    """A key of the repository's file that would widen what is allowed, and was passed over for want of trust."""

    key: str
    value: str
    place: str
    reason: str


class ResolvedConfig(Struct, frozen=True, kw_only=True):
    """The configuration in force, and why.

    `origins` has the origin of each dotted key of `config`; a meet names all its contributors. `untrusted` is
    empty unless trust would change a value. `strangers` has, by agent, the program that the repository's untrusted
    file puts behind it: such an agent works in the sandbox, and is given no model. `digest` is the hex SHA-256 of
    the repository file's bytes, `""` where there is none. `extra_checks` and `only_checks` are the command line's.
    `commands_from` is the directory of the repository's file where that sets checks or setup, which run there.
    """

    config: Config
    origins: Mapping[str, str]
    untrusted: tuple[UntrustedKey, ...] = ()
    strangers: Mapping[str, UntrustedKey] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str = ""
    extra_checks: tuple[str, ...] = ()
    only_checks: tuple[str, ...] | None = None
    commands_from: str | None = None

    @property
    def trusted_by(self) -> str:
        """The digest by which a person trusts the repository, also one that has no file of its own."""
        return self.digest or NO_FILE


# What is trusted of a repository that has no file of its own.
NO_FILE = hashlib.sha256(b"").hexdigest()


def content_digest(content: bytes) -> str:
    """Return the hex SHA-256 by which one exact content of a repository's file is trusted."""
    return hashlib.sha256(content).hexdigest()


def trust_nothing(digest: str) -> bool:
    """Trust no content of a repository's file."""
    return False
