"""`chargehand init`: a first chargehand.toml from what the repository's files say."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import click

from chargehand.app.composition import App
from chargehand.app.config.edit import set_user_values
from chargehand.app.config.records import REPOSITORY_FILE
from chargehand.app.locations import user_config_path
from chargehand.app.wiring.session import DetectedChecks
from chargehand.cli._init_agent import AgentPlan, ask_agent
from chargehand.cli._output import Output
from chargehand.core.errors import RepositoryError, UsageError
from chargehand.core.text import shown_path
from chargehand.workspace._depot import Depot

_HEAD = """\
# What a mission has to pass, and what it may touch. `chargehand config show --origin` explains every value.
[project]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    checks: tuple[str, ...]
    setup: str | None
    agent: AgentPlan | None = None


def init(out: Output, *, repo: Path | None, ask: bool) -> int:
    """Write the file where there is none; a second run changes nothing."""
    with App.open() as app:
        project = app.project(repo)
        depot = app.depot(project)
        if depot.repository.bare:
            raise RepositoryError(f"{str(project.path)!r} is bare: there is no place for a file", code="bare")
        path = project.path / REPOSITORY_FILE
        found = app.detected(depot, depot.resolve_base())
        if os.path.lexists(path):
            return _is_there(out, path, depot)
        chosen = _ask(app, out, project.name, found) if ask and out.can_ask else _taken(found)
        if chosen.agent is not None:
            _keep(app, out, chosen.agent)
    created = _write(path, _content(chosen, found))
    _show(out, path, chosen, created)
    return 0


def _keep(app: App, out: Output, plan: AgentPlan) -> None:
    """Keep what was answered: the key first, for a model without its key is of no use."""
    if plan.secret is not None:
        place = app.credentials.set(plan.secret.name, plan.secret.value)
        out.notice(f"The key is kept as {plan.secret.name} in {place}")
    set_user_values(user_config_path(app.environ), plan.values)


def _taken(found: DetectedChecks) -> _Chosen:
    return _Chosen(checks=found.checks, setup=found.setup)


def _is_there(out: Output, path: Path, depot: Depot) -> int:
    out.document({"path": str(path), "created": False, "checks": None, "setup": None, "agent": None})
    out.text(f"{shown_path(str(path))} is there already; nothing was changed")
    return 0


def _ask(app: App, out: Output, name: str, found: DetectedChecks) -> _Chosen:
    out.notice(f"Project {name}")
    checks = [
        command
        for command, why in zip(found.checks, found.why, strict=True)
        if click.confirm(f"Check with `{command}` ({why})?", default=True, err=True)
    ]
    more = click.prompt("Another check (empty: none)", default="", show_default=False, err=True).strip()
    setup = found.setup
    if setup is not None and not click.confirm(f"Set up with `{setup}`?", default=True, err=True):
        setup = None
    return _Chosen(checks=(*checks, *([more] if more else [])), setup=setup, agent=ask_agent(app, out))


def _content(chosen: _Chosen, found: DetectedChecks) -> str:
    lines = [_HEAD.rstrip("\n")]
    if chosen.checks:
        lines.append(f"checks = {_toml(list(chosen.checks))}")
    else:
        lines.append(
            '# checks = ["python -m pytest -q"]   # none were found: without checks a person has to decide'
        )
    if chosen.setup is not None:
        lines.append(f"setup = {_toml(chosen.setup)}")
    elif found.setup is not None:
        lines.append(f"# setup = {_toml(found.setup)}")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    # JSON's strings and lists are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _write(path: Path, content: str) -> bool:
    """Write the file whole, and only where there is none; return whether it was made."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with fresh.open("x", encoding="utf-8") as file:
            file.write(content)
        os.link(fresh, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()
    return True


def _show(out: Output, path: Path, chosen: _Chosen, created: bool) -> None:
    agent = chosen.agent.name if chosen.agent else None
    out.document(
        {
            "path": str(path),
            "created": created,
            "checks": chosen.checks,
            "setup": chosen.setup,
            "agent": agent,
        }
    )
    out.text(f"wrote {shown_path(str(path))}", bold=True)
    for check in chosen.checks:
        out.text(f"check     {check}")
    if not chosen.checks:
        out.text("check     none was found: missions will wait for a person to let them in")
    if chosen.setup is not None:
        out.text(f"setup     {chosen.setup}")
    if agent is not None:
        out.text(f"agent     {agent}, in your own configuration")
    named = f"--agent {agent}" if agent else '--agent "command:PROGRAM ARG"'
    out.text(f"next:     git add {REPOSITORY_FILE} && git commit -m 'Add {REPOSITORY_FILE}'")
    out.text(f'          chargehand run {named} "TEXT"')
