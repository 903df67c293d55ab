"""The catalogue of roles: shipped ones, a trusted repository's, and the user's own, read again for each use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from chargehand.agents.roles import Role, check_role_name, parse_role, shipped_roles
from chargehand.configuration.keys import is_short_form, model_hint
from chargehand.configuration.locations import user_config_path
from chargehand.configuration.records import content_digest, trust_nothing
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError, NotFoundError, nearest
from chargehand.workspace.depot import Depot

REPOSITORY_ROLES = ".chargehand/roles"
_SUFFIX = ".toml"
_LARGEST_FILE_BYTES = 64 << 10
_REGULAR = 0o100000
RoleLevel = Literal["shipped", "repository", "user"]


class RoleFile(Struct, frozen=True, kw_only=True):
    """A role's file as read: `place` is its path, `digest` the SHA-256 by which its content is trusted."""

    name: str
    level: RoleLevel
    place: str
    content: bytes
    trusted: bool = True

    @property
    def digest(self) -> str:
        """The hex SHA-256 of its content."""
        return content_digest(self.content)

    def text(self) -> str:
        """Return its content; raise `ConfigError` if it is not text or too large."""
        if len(self.content) > _LARGEST_FILE_BYTES:
            message = f"{self.place}: it has {len(self.content)} bytes, more than {_LARGEST_FILE_BYTES}"
            raise ConfigError(message, code="role_invalid", hint="make it shorter")
        try:
            return self.content.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.content.count(b"\n", 0, error.start) + 1
            message = f"{self.place}:{line}: the file is not UTF-8"
            raise ConfigError(message, code="role_invalid", hint="save it as UTF-8") from error

    def role(self) -> Role:
        """Return the role; raise `ConfigError` (`role_invalid`) that names the file, the key and the value."""
        return parse_role(self.name, self.text(), place=self.place)


class RoleInForce(Struct, frozen=True, kw_only=True):
    """The role in force for a name, or the error in its file; `hidden` are overridden files of that name."""

    file: RoleFile
    role: Role | None
    problem: ConfigError | None = None
    hidden: tuple[RoleFile, ...] = ()


class RoleCatalogue:
    """The roles for one project at one base, or outside any project."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        depot: Depot | None = None,
        tree: str = "",
        is_trusted: Callable[[str], bool] = trust_nothing,
    ) -> None:
        # The user's own roles are in the directory of their configuration; it need not exist.
        self.directory = user_config_path(environ).parent / "roles"
        self._depot = depot
        self._tree = tree
        self._is_trusted = is_trusted

    def find(self, name: str, config: Config) -> tuple[Role, RoleFile]:
        """Return the role in force with that name, and its file.

        Raises `NotFoundError` with the available roles, `ConfigError` (`role_invalid`) for an invalid file,
        (`role_untrusted`) if only an untrusted file of the repository defines it.
        """
        check_role_name(name, place="--role")
        files = [file for file in self.files() if file.name == name]
        trusted = [file for file in files if file.trusted]
        if not trusted and files:
            raise ConfigError(
                f"the role {name!r} is only in {files[0].place}, which is not trusted",
                code="role_untrusted",
                hint="chargehand project trust",
            )
        if not trusted:
            names = sorted({file.name for file in self.files()})
            guess = nearest(name, names)
            known = f"{guess} known: {', '.join(names)}" if guess.startswith("did") else guess
            hint = f"{known}; or write {self.directory / (name + _SUFFIX)}"
            raise NotFoundError(f"no role named {name!r}", code="role_unknown", hint=hint)
        file = trusted[-1]
        role = file.role()
        for model in role.models:
            if model not in config.models and not is_short_form(model):
                raise ConfigError(
                    f"{file.place}: key 'models': {model!r}: no model of that name",
                    code="role_invalid",
                    hint=model_hint(model, list(config.models)),
                )
        return role, file

    def all(self) -> Iterator[RoleInForce]:
        """Yield every role by name, including those with an invalid file."""
        by_name: dict[str, list[RoleFile]] = {}
        for file in self.files():
            by_name.setdefault(file.name, []).append(file)
        for _, files in sorted(by_name.items()):
            trusted = [file for file in files if file.trusted]
            file = (trusted or files)[-1]
            hidden = tuple(each for each in files if each is not file)
            try:
                yield RoleInForce(file=file, role=file.role(), hidden=hidden)
            except ConfigError as error:
                yield RoleInForce(file=file, role=None, problem=error, hidden=hidden)

    def files(self) -> list[RoleFile]:
        """Return every file, those of one name in order of precedence; raise `ConfigError` for unreadable ones."""
        shipped = [
            RoleFile(name=name, level="shipped", place=f"shipped {name}{_SUFFIX}", content=text.encode())
            for name, text in shipped_roles().items()
        ]
        theirs = self.of_repository()
        own = []
        try:
            for path in sorted(
                path for path in self.directory.iterdir() if _name_of(path.name) and path.is_file()
            ):
                content = path.read_bytes()
                own.append(RoleFile(name=_name_of(path.name), level="user", place=str(path), content=content))
        except (FileNotFoundError, NotADirectoryError):
            own = []
        except OSError as error:
            message = f"{error.filename or self.directory}: cannot be read: {error.strerror}"
            raise ConfigError(message, hint="fix or remove the file") from error
        return [*shipped, *theirs, *own]

    def of_repository(self) -> list[RoleFile]:
        """Return the repository's own files, trusted or not."""
        if self._depot is None:
            return []
        found = []
        for entry in self._depot.entries(self._tree, REPOSITORY_ROLES):
            name = _name_of(entry.path)
            regular = entry.mode & 0o170000 == _REGULAR
            if name and regular and entry.path.rpartition("/")[0] == REPOSITORY_ROLES:
                # One byte more than allowed, so that `text` can detect a larger file.
                content = self._depot.read_blob(entry.id, limit=_LARGEST_FILE_BYTES + 1)
                trusted = self._is_trusted(content_digest(content))
                found.append(
                    RoleFile(name=name, level="repository", place=entry.path, content=content, trusted=trusted)
                )
        return found


def _name_of(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) and not name.startswith(".") else ""
