"""The locations of the user's configuration and Chargehand's state on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from chargehand.core.errors import ConfigError, UsageError


class UserFile(Struct, frozen=True, kw_only=True):
    """The user's own configuration file as read."""

    path: Path
    text: str


def user_config_path(environ: Mapping[str, str]) -> Path:
    """Return `$XDG_CONFIG_HOME/chargehand/config.toml`, or the same below `~/.config`; it need not exist."""
    return _base(environ, "XDG_CONFIG_HOME", ".config") / "chargehand" / "config.toml"


def state_home(environ: Mapping[str, str]) -> Path:
    """Return `$CHARGEHAND_HOME`, else `$XDG_STATE_HOME/chargehand`, else `~/.local/state/chargehand`.

    Raises `ConfigError` for a relative `CHARGEHAND_HOME`, with which state would move with the working directory,
    and for a path that is not UTF-8, which the databases there do not accept.
    """
    chosen = environ.get("CHARGEHAND_HOME", "")
    home = Path(chosen) if chosen else _base(environ, "XDG_STATE_HOME", ".local/state") / "chargehand"
    if not home.is_absolute():
        raise ConfigError(
            f"environment CHARGEHAND_HOME: not an absolute path: {chosen!r}",
            hint="give the full path, beginning with /",
        )
    if any("\ud800" <= letter <= "\udfff" for letter in str(home)):  # bytes that are not UTF-8 arrive as these
        raise ConfigError(
            f"the path of the state directory is not UTF-8: {str(home)!r}",
            hint="set CHARGEHAND_HOME to another path",
        )
    return home


def working_directory() -> Path:
    """Return the working directory of the process; raise `UsageError` if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise UsageError("the current directory no longer exists", hint="change to another one with cd") from error


def _base(environ: Mapping[str, str], name: str, fallback: str) -> Path:
    # The XDG base directory specification ignores relative paths.
    chosen = Path(environ.get(name, ""))
    if chosen.is_absolute():
        return chosen
    home = environ.get("HOME", "")
    try:
        return (Path(home) if home.startswith("/") else Path.home()) / fallback
    except RuntimeError as error:  # a user without an entry in the system, as in a container
        raise ConfigError(
            "your home directory is unknown: HOME is not set, and the system has no entry for your user",
            hint="set HOME to a directory of yours",
        ) from error


def load_user_file(path: Path) -> UserFile | None:
    """Return the user's file, `None` if missing; raise `ConfigError` if it is unreadable."""
    try:
        return UserFile(path=path, text=path.read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: the file is not UTF-8", hint="save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", hint="fix or remove the file") from error
