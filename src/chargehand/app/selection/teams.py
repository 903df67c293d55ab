"""The teams there are: those that are shipped and the user's own, read anew each time."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from chargehand.app.config.locations import user_config_path
from chargehand.core.errors import ConfigError, NotFoundError, nearest
from chargehand.missions.plan_documents import Team, parse_team

_SUFFIX = ".toml"


def find_team(environ: Mapping[str, str], name: str) -> Team:
    """Return the team of that name, the user's own before a shipped one.

    Raises `NotFoundError` (`team_unknown`) with the teams there are, `ConfigError` (`team_invalid`).
    """
    own = user_config_path(environ).parent / "teams"
    shipped = resources.files("chargehand.agents") / "teams"
    files = {each.name: each for each in shipped.iterdir()} | {each.name: each for each in _files_in(own)}
    file = files.get(name + _SUFFIX)
    if file is None:
        names = sorted(each.removesuffix(_SUFFIX) for each in files if each.endswith(_SUFFIX))
        hint = f"{nearest(name, names)}; or write {own / (name + _SUFFIX)}"
        raise NotFoundError(f"no team named {name!r}", code="team_unknown", hint=hint)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file}: cannot be read: {error}"
        raise ConfigError(message, code="team_invalid", hint="save it as UTF-8") from error
    return parse_team(text, str(file))


def _files_in(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
