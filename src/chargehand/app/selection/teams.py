"""The catalogue of teams: shipped ones and the user's own, read again for each use."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from msgspec import Struct

from chargehand.configuration.locations import user_config_path
from chargehand.core.errors import ConfigError, NotFoundError, nearest
from chargehand.missions.plan_documents import Team, parse_team

_SUFFIX = ".toml"


class TeamFile(Struct, frozen=True, kw_only=True):
    """A team's file: `place` is its path, `shipped` whether it comes with the program."""

    name: str
    place: str
    shipped: bool
    file: Traversable

    def team(self) -> Team:
        """Return the team; raise `ConfigError` (`team_invalid`) that names the file."""
        try:
            text = self.file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            message = f"{self.place}: cannot be read: {error}"
            raise ConfigError(message, code="team_invalid", hint="save it as UTF-8") from error
        return parse_team(text, self.place)


def user_teams_path(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's own teams, next to their configuration; it need not exist."""
    return user_config_path(environ).parent / "teams"


def team_files(environ: Mapping[str, str]) -> dict[str, TeamFile]:
    """Return the available teams by name; the user's own replace shipped ones with the same name."""
    shipped = (resources.files("chargehand.agents") / "teams").iterdir()
    own = list[Traversable]()
    with suppress(OSError):
        own.extend(sorted(user_teams_path(environ).iterdir()))
    found: dict[str, TeamFile] = {}
    for is_shipped, files in ((True, list(shipped)), (False, own)):
        for file in files:
            name = file.name.removesuffix(_SUFFIX)
            if file.name != name:
                found[name] = TeamFile(name=name, place=str(file), shipped=is_shipped, file=file)
    return dict(sorted(found.items()))


def find_team(environ: Mapping[str, str], name: str) -> Team:
    """Return the team with that name, the user's own before a shipped one.

    Raises `NotFoundError` (`team_unknown`) with the available teams, `ConfigError` (`team_invalid`).
    """
    files = team_files(environ)
    if name not in files:
        own = user_teams_path(environ) / (name + _SUFFIX)
        hint = f"{nearest(name, list(files))}; or write {own}; `chargehand team list` lists them"
        raise NotFoundError(f"no team named {name!r}", code="team_unknown", hint=hint)
    return files[name].team()
