"""`chargehand project …`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from chargehand.app.composition import App
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.trust import describe_untrusted
from chargehand.app.wiring.session import DetectedChecks
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.cli._prepare import Prepared, base_line, prepare
from chargehand.cli._progress import progress
from chargehand.core.errors import RefusedError, UsageError
from chargehand.core.text import shown_path


def list_projects(out: Output) -> int:
    """Write the registered repositories."""
    with App.open() as app:
        projects = app.store.projects.list()
        counts = {project.id: len(app.store.log.missions(project=project.id)) for project in projects}
    out.document(
        {
            "projects": [
                {"id": one.id, "name": one.name, "path": str(one.path), "missions": counts[one.id]}
                for one in projects
            ]
        }
    )
    if projects:
        rows = [(one.id, one.name, counts[one.id], one.path) for one in projects]
        out.table(("PROJECT", "NAME", "MISSIONS", "PATH"), rows)
    else:
        out.text("no project yet; chargehand init in a repository makes one")
    return 0


def show_project(out: Output, *, repo: Path | None) -> int:
    """Write what would be in force for a mission started now."""
    with App.open() as app:
        found = prepare(app, repo)
        project, resolved = found.project, found.resolved
        trusted = bool(resolved.digest) and app.store.trust.is_trusted(project.id, resolved.digest)
        detected = app.detected(found.depot, found.base)
        missions = len(app.store.log.missions(project=project.id))
    checks, source = _checks(resolved, detected)
    out.document(
        {
            "id": project.id,
            "name": project.name,
            "path": str(project.path),
            "base": found.base,
            "checks": checks,
            "checks_from": source,
            "setup": resolved.config.project.setup,
            "digest": resolved.digest or None,
            "trusted": trusted,
            "untrusted": resolved.untrusted,
            "notes": resolved.notes,
            "missions": missions,
        }
    )
    _show_words(out, found, checks, source)
    _show_trust(out, found, trusted)
    out.text(f"missions  {missions}")
    return 0


def _checks(resolved: ResolvedConfig, detected: DetectedChecks) -> tuple[tuple[str, ...], str]:
    """Return the checks that would count, and where they come from."""
    configured = resolved.config.project.checks
    if configured is not None:
        return configured, "configured"
    return detected.checks, "detected" if detected.checks else "none"


def _show_words(out: Output, found: Prepared, checks: tuple[str, ...], source: str) -> None:
    out.text(f"{found.project.name}  {found.project.id}", bold=True)
    out.text(f"path      {shown_path(str(found.project.path))}")
    out.text(f"base      {base_line(found.base)}")
    out.text(f"checks    {source}")
    for check in checks:
        out.text(f"            {check}")
    out.text(f"setup     {found.resolved.config.project.setup or 'none'}")


def _show_trust(out: Output, found: Prepared, trusted: bool) -> None:
    if found.resolved.untrusted:
        out.text("trust     needed (chargehand project trust) for:")
        for line in describe_untrusted(found.resolved):
            out.text(f"            {line}")
    else:
        out.text(f"trust     {'granted' if trusted else 'not needed'}")
    for note in found.resolved.notes:
        out.text(f"note      {note}")


def set_up(out: Output, *, repo: Path | None, base: str | None) -> int:
    """Build the environment layer of a base, where it is not there yet."""
    with App.open() as app:
        started = time.monotonic()

        async def work(stop: Stop) -> str | None:
            async with app.session(repo, revision=base) as session, session.missions.open_place(session.base):
                return session.resolved.config.project.setup

        with progress(out, "setup runs"):
            command = run_async(work)
    seconds = round(time.monotonic() - started, 3)
    out.document({"setup": command, "seconds": seconds})
    if command is None:
        out.text("no setup is configured, so there is nothing to build")
    else:
        out.text(f"the environment layer of {command!r} is there ({seconds:.1f} s)")
    return 0


def trust(out: Output, *, repo: Path | None, base: str | None, only_show: bool, yes: bool) -> int:
    """Trust the exact content of a repository's file, by the word of the person who calls."""
    with App.open() as app:
        found = prepare(app, repo, revision=base)
        asks = found.resolved.config.sandbox.tier == "auto"  # then trust says how strong sandboxes have to be
        digest = found.resolved.trusted_by if asks else found.resolved.digest
        trusted = bool(digest) and app.store.trust.is_trusted(found.project.id, digest)
        roles = [each for each in app.roles(found).of_repository() if not each.trusted]
        wanted = (
            *describe_untrusted(found.resolved),
            *(f"{each.place}: a role's file (sha256 {each.digest[:12]}…): what agents are told" for each in roles),
        )
        for line in wanted:
            out.text(line)
        if (wanted or (asks and not trusted)) and not only_show:
            _agreed(out, yes)
            # Trust of chargehand.toml vouches for its commands too: it is given only where it was asked for.
            whole = [digest] if asks or found.resolved.untrusted else []
            for content in (*whole, *(each.digest for each in roles)):
                app.store.trust.grant(found.project.id, content, identity=app.identity())
            trusted = trusted or bool(whole)
    out.document(
        {
            "project": found.project.id,
            "digest": digest or None,
            "trusted": trusted,
            "keys": found.resolved.untrusted,
            "roles": [{"place": each.place, "digest": each.digest} for each in roles],
        }
    )
    if not only_show and roles:
        out.text(f"trusted: {', '.join(each.place for each in roles)}")
    if trusted:
        out.text(f"trusted: chargehand.toml with sha256 {digest}")
    elif only_show or not roles:
        out.text("not trusted" if wanted or asks else "nothing in chargehand.toml needs trust")
    return 0


def _agreed(out: Output, yes: bool) -> None:
    if yes:
        return
    if not out.can_ask:
        raise UsageError("nobody can be asked here", code="trust_unasked", hint="chargehand project trust --yes")
    if not click.confirm("Trust this content?", default=False, err=True):
        raise RefusedError("not trusted", code="trust_denied")
