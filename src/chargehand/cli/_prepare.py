"""The names under which commands of the project, roles and audit find what `StateReader` and `App` find."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chargehand.app._config_model import Option
from chargehand.app.composition import App
from chargehand.app.reading import StateReader
from chargehand.app.wiring.session import ConfiguredBase
from chargehand.cli.rendering import base_line
from chargehand.store.projects import ProjectRow

__all__ = ["base_line", "current_project", "find_mission", "prepare"]


def prepare(
    app: App, repo: Path | None, *, revision: str | None = None, options: Mapping[str, Option] | None = None
) -> ConfiguredBase:
    """Return a repository's base with its configuration; see `App.configured`."""
    return app.configured(repo, revision=revision, options=options)


def current_project(app: StateReader, repo: Path | None = None) -> ProjectRow | None:
    """Return the project one is in; see `StateReader.current_project`."""
    return app.current_project(repo)


def find_mission(app: StateReader, name: str) -> str:
    """Return the id of a mission; see `StateReader.find_mission`."""
    return app.find_mission(name)
