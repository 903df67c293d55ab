"""What every command on a repository does first: find it, resolve base and configuration, ask for trust."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from chargehand.app.composition import App
from chargehand.app.config.records import OptionValue, ResolvedConfig
from chargehand.app.reading import StateReader
from chargehand.app.trust import describe_untrusted, require_trust, trust_needed
from chargehand.app.wiring.session import ConfiguredBase
from chargehand.cli.output import Output
from chargehand.core.errors import UsageError
from chargehand.core.records import Base
from chargehand.core.text import printable
from chargehand.store._projects import ProjectRow


def prepare(
    app: App, repo: Path | None, *, revision: str | None = None, options: Mapping[str, OptionValue] | None = None
) -> ConfiguredBase:
    """Return a repository's base with its configuration; see `App.configured`."""
    return app.configured(repo, revision=revision, options=options)


def current_project(app: StateReader, repo: Path | None = None) -> ProjectRow | None:
    """Return the project one is in; see `StateReader.current_project`."""
    return app.current_project(repo)


def find_mission(app: StateReader, name: str) -> str:
    """Return the id of a mission; see `StateReader.find_mission`."""
    return app.find_mission(name)


def settle_trust(app: App, out: Output, prepared: ConfiguredBase, *, ask: bool) -> None:
    """Ask a person once whether the repository's file may have what it asks for.

    Raises `WaitingError` where nobody can be asked or the answer is no.
    """
    if not trust_needed(prepared.resolved):
        return
    if ask and out.can_ask:
        show_untrusted(out, prepared.resolved)
        if click.confirm("Trust this content of chargehand.toml?", default=False, err=True):
            app.store.trust.grant(prepared.project.id, prepared.resolved.digest, identity=app.identity())
            return
    require_trust(prepared.resolved)


def show_untrusted(out: Output, resolved: ResolvedConfig) -> None:
    """Show a person what asks for trust."""
    out.notice("The repository's chargehand.toml asks for what only you may give:")
    for line in describe_untrusted(resolved):
        out.notice(f"  {line}")


def check_apply(prepared: ConfiguredBase) -> None:
    """Raise `RepositoryError` or `UsageError` where `--apply` can never work."""
    prepared.depot.check_can_apply()
    branch = prepared.depot.repository.branch
    if prepared.base.branch != branch:
        raise UsageError(
            f"--apply moves the branch that is checked out, {branch!r}, and the base is "
            f"{prepared.base.revision!r}",
            code="apply_base",
            hint="leave out --base or --apply",
        )


def base_line(base: Base) -> str:
    """Return where a mission starts, in words: branch, commit, how far behind, what it leaves out."""
    name = base.branch or base.revision
    parts = [f"{printable(name)} @ {base.commit[:12]}"]
    if base.upstream and base.behind:
        parts.append(f"{base.behind} commits behind {base.upstream}")
    if base.dirty:
        parts.append("uncommitted changes are not part of it")
    return ", ".join(parts)
