"""Names that a shell completes: missions, artifacts, secrets, agents, models, teams, tiers, configuration keys.

A shell shows no errors: what cannot be read completes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter

from chargehand.app.agents import team_names
from chargehand.app.configuration import list_secrets
from chargehand.app.missions import ListRequest, list_missions, listed_status
from chargehand.configuration.keys import NAME, NAMED, entry_keys, section_keys
from chargehand.configuration.locations import state_home
from chargehand.configuration.resolve import resolve
from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError
from chargehand.core.text import shown_path
from chargehand.reports.reading import StateReader

_MOST_MISSIONS = 50
_MOST_ARTIFACTS = 50
_TITLE_CHARACTERS = 40


def mission_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `last` and the ids of the newest missions here, each with its status and request."""
    try:
        if not state_home(environ).is_dir():  # only a command that runs creates one
            return {}
        with StateReader.open(environ=environ) as reader:
            found = list_missions(reader, ListRequest(limit=_MOST_MISSIONS)).missions
    except ChargehandError:
        return {}
    texts = {
        each.mission: f"{listed_status(each)}: {shown_path((each.request or '').strip()[:_TITLE_CHARACTERS])}"
        for each in found
    }
    return ({"last": "the newest mission"} if texts else {}) | texts


def entry_names(kind: str, environ: Mapping[str, str]) -> list[str]:
    """Return the known `agents`, `models`, `teams` or `tiers`."""
    if kind == "teams":
        return team_names(environ)
    if kind == "tiers":
        return list(section_keys()["sandbox.tier"].choices)
    with StateReader.open(environ=environ) as reader:
        config = _user_configuration(reader)
    return sorted({"native", *config.agents} if kind == "agents" else config.models)


def secret_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the stored secrets."""
    try:
        with StateReader.open(environ=environ) as reader:
            return [each.name for each in list_secrets(reader).secrets]
    except ChargehandError:
        return []


def artifact_names(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the newest artifacts, the newest first, each with its kind and mission."""
    try:
        if not state_home(environ).is_dir():
            return {}
        with StateReader.open(environ=environ) as reader:
            rows = reader.store.artifacts.list()[: -_MOST_ARTIFACTS - 1 : -1]
    except ChargehandError:
        return {}
    return {row.id: f"{row.kind} of {row.mission}" for row in rows}


def key_names(environ: Mapping[str, str]) -> list[str]:
    """Return the keys of the configuration, those of tables of entries for each entry of the user's own file."""
    with StateReader.open(environ=environ) as reader:
        config = _user_configuration(reader)
    names = [*section_keys()]
    for table in NAMED:
        for entry in attrgetter(table)(config):
            names += [key.name.replace(NAME, entry, 1) for key in entry_keys(table).values()]
    return names


def _user_configuration(reader: StateReader) -> Config:
    try:
        return reader.user_configuration().config
    except ChargehandError:
        return resolve().config
