"""Records of configuration sources and of the resolved configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from msgspec import Struct, field

from chargehand.core.config import Config

REPOSITORY_FILE = "chargehand.toml"


class RepositoryFile(Struct, frozen=True, kw_only=True):
    """A `chargehand.toml` of a repository, byte for byte, and the `directory` that contains it.

    `commit` is `None` for an uncommitted file.
    """

    content: bytes
    commit: str | None = None
    directory: str = ""

    @property
    def path(self) -> str:
        """The path relative to the top of the repository."""
        return f"{self.directory}/{REPOSITORY_FILE}" if self.directory else REPOSITORY_FILE

    @property
    def digest(self) -> str:
        """The digest that trust refers to; see `content_digest`."""
        return content_digest(self.content)

    @property
    def origin(self) -> str:
        """The displayed origin of its values."""
        return f"{self.path} @ {self.commit[:12]}" if self.commit else f"{self.path} (uncommitted)"


class OptionValue(Struct, frozen=True, kw_only=True):
    """A value from the command line with its option; `None`, `()` and `[]` mean not given."""

    value: object
    name: str


class SourcedValue(Struct, frozen=True, kw_only=True):
    """A value of a key, with its source (`origin`) and the location for a person to look up (`place`)."""

    value: object
    origin: str
    place: str


class UntrustedKey(Struct, frozen=True, kw_only=True):
    """A key of the repository's file that would widen permissions, and was ignored for lack of trust."""

    key: str
    value: str
    place: str
    reason: str


class ResolvedConfig(Struct, frozen=True, kw_only=True):
    """The configuration in force, and the origin of its values.

    `origins` has the origin of each dotted key of `config`; a meet names all its contributors. `untrusted` is
    empty unless trust would change a value. `strangers` maps an agent to the program that the repository's
    untrusted file configures for it: such an agent works in the sandbox and gets no model. `digest` is the hex
    SHA-256 of the repository file's bytes, `""` without a file. `extra_checks` and `only_checks` come from the
    command line. `commands_from` is the directory of the repository's file if it sets checks or setup, which run
    there.
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
        """The digest by which a person trusts the repository, even without a configuration file."""
        return self.digest or NO_FILE


# The digest that is trusted for a repository without a configuration file.
NO_FILE = hashlib.sha256(b"").hexdigest()


def content_digest(content: bytes) -> str:
    """Return the hex SHA-256 by which the exact content of a repository's file is trusted."""
    return hashlib.sha256(content).hexdigest()


def trust_nothing(digest: str) -> bool:
    """Trust no content of a repository's file."""
    return False
