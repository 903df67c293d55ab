"""`chargehand config …`."""

from __future__ import annotations

from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.config.edit import set_user_value
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.locations import user_config_path
from chargehand.app.reference.configuration import shown_value
from chargehand.cli._output import Output
from chargehand.cli._prepare import current_project, prepare
from chargehand.core.text import shown_path


def configuration_here(app: App, repo: Path | None) -> ResolvedConfig:
    """Return the configuration in force: of a repository, or outside of any the user's own."""
    if current_project(app, repo) is None:
        return app.user_configuration()
    return prepare(app, repo).resolved


def show_configuration(out: Output, *, repo: Path | None, origin: bool) -> int:
    """Write every key with its value, and where it comes from."""
    with App.open() as app:
        resolved = configuration_here(app, repo)
    values = _flat(resolved)
    document: dict[str, object] = {"values": values}
    if origin:
        document["origins"] = dict(resolved.origins)
    out.document(document | {"untrusted": resolved.untrusted, "notes": resolved.notes})
    rows = [
        (name, shown_value(name, value), resolved.origins.get(name, ""))
        if origin
        else (name, shown_value(name, value))
        for name, value in values.items()
    ]
    out.table(("KEY", "VALUE", "FROM") if origin else ("KEY", "VALUE"), rows)
    for key in resolved.untrusted:
        out.text(f"not in force: {key.key} = {key.value} ({key.place}) {key.reason}; see chargehand project trust")
    for note in resolved.notes:
        out.text(f"note: {note}")
    return 0


def _flat(resolved: ResolvedConfig) -> dict[str, object]:
    values: dict[str, object] = {}
    for dotted in resolved.origins:
        owner: object = resolved.config
        for part in dotted.split("."):
            owner = owner.get(part) if isinstance(owner, dict) else getattr(owner, part, None)
        values[dotted] = owner
    return values


def set_configuration(out: Output, key: str, value: str) -> int:
    """Set a key in the user's own file."""
    with App.open() as app:
        path = user_config_path(app.environ)
    set_user_value(path, key, value)
    out.document({"key": key, "value": value, "path": str(path)})
    out.text(f"{key} is set in {shown_path(str(path))}")
    return 0
