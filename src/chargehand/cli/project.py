"""`chargehand project`: repositories, the trust in their configuration, and their environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, base_option, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def project() -> None:
    """Show projects, trust their configuration, prepare their environment."""


@project.command("list")
@json_option
def list_(out: Output) -> None:
    """List the repositories that Chargehand has worked on."""
    from chargehand.app.projects import list_projects
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        listed = list_projects(reader)
    out.document(listed)
    if listed.projects:
        rows = [(each.id, each.name, each.missions, each.path) for each in listed.projects]
        out.table(("PROJECT", "NAME", "MISSIONS", "PATH"), rows)
    else:
        out.text("No projects yet. Run `chargehand init` in a repository to make one.")


@project.command()
@repo_option
@json_option
def show(repo: Path | None, out: Output) -> None:
    """Show a project: its base, its checks and setup, whether it is trusted."""
    from chargehand.app.composition import App
    from chargehand.app.projects import show_project
    from chargehand.cli.terminal.rendering import base_line
    from chargehand.core.text import shown_path

    with App.open() as app:
        shown = show_project(app, repo)
    out.document(shown)
    out.text(f"{shown.name}  {shown.id}", bold=True)
    out.text(f"path      {shown_path(shown.path)}")
    out.text(f"base      {base_line(shown.base)}")
    if shown.directory != ".":
        out.text(f"works     in {shown_path(shown.directory)}")
    out.text(f"checks    {shown.checks_from}")
    for check in shown.checks:
        out.text(f"            {check}")
    out.text(f"setup     {shown.setup or 'none'}")
    if shown.untrusted:
        out.text("trust     needed (chargehand project trust) for:")
        for key in shown.untrusted:
            out.text(f"            {key.place}: {key.key} = {key.value} {key.reason}")
    else:
        out.text(f"trust     {'granted' if shown.trusted else 'not needed'}")
    for note in shown.notes:
        out.text(f"note      {note}")
    out.text(f"missions  {shown.missions}")


@project.command()
@click.argument("name", metavar="[PROJECT]", required=False)
@click.option("--new", is_flag=True, help="The repository is a new project, not a known one.")
@repo_option
@json_option
def move(name: str | None, repo: Path | None, out: Output, *, new: bool) -> None:
    """Say which project a repository is, if that is not certain.

    A repository that was moved with `mv` is recognised. A copy, a new clone or a restored backup may be another
    project: this command gives it the missions of a project, or (--new) starts without missions.

    \b
    Examples:
      chargehand project move p-0123456789abcdef
      chargehand project move --new
    """
    from chargehand.app.projects import move_project
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        moved = move_project(reader, name, repo, new=new)
    out.document(moved)
    out.text(f"project   {moved.name}  {moved.id}")
    out.text(f"path      {shown_path(moved.path)}")
    if moved.before is not None:
        out.text(f"before    {shown_path(moved.before)}")


@project.command()
@repo_option
@base_option
@json_option
def setup(repo: Path | None, base: str | None, out: Output) -> None:
    """Build the environment layer of a base now, so that the first mission does not have to."""
    from chargehand.app.composition import App
    from chargehand.app.projects import set_up_project
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.cli.terminal.progress import progress

    with App.open() as app, progress(out, "setup runs"):
        done = run_async(lambda stop: set_up_project(app, repo, base=base))
    out.document(done)
    if done.setup is None:
        out.text("No setup is configured, so there is nothing to build.")
    else:
        out.text(f"The environment of {done.setup!r} is ready ({done.seconds:.1f} s).")


@project.command()
@repo_option
@base_option
@click.option("--show", "only_show", is_flag=True, help="Only show the settings that need trust.")
@click.option("--yes", is_flag=True, help="Grant it without asking.")
@json_option
def trust(repo: Path | None, base: str | None, only_show: bool, yes: bool, out: Output) -> None:
    """Trust the exact content of a repository's chargehand.toml and roles; any later change asks again.

    Needs --yes if you cannot be asked, as in a pipe.
    """
    from chargehand.app.composition import App
    from chargehand.app.projects import TrustRequest
    from chargehand.core.errors import RefusedError, UsageError

    with App.open() as app:
        request = TrustRequest(app, repo, base=base)
        for line in request.lines:
            out.text(line)
        if request.is_needed and not only_show:
            # Silence is never treated as a yes: trust means that a person has read the file.
            if not yes and not out.can_ask:
                hint = "to trust it without being asked: chargehand project trust --yes"
                raise UsageError("this is not a terminal, so you cannot be asked", code="trust_unasked", hint=hint)
            if not yes and not click.confirm("Trust this content?", default=False, err=True):
                hint = "nothing was changed; chargehand project trust asks again"
                raise RefusedError("you did not trust this content", code="trust_denied", hint=hint)
            request.grant()
    view = request.view()
    out.document(view)
    if not only_show and view.roles:
        out.text(f"trusted: {', '.join(each.place for each in view.roles)}")
    if view.trusted:
        out.text(f"trusted: chargehand.toml with sha256 {view.digest}")
    elif only_show or not view.roles:
        asks = bool(request.lines) or request.decides_tier
        out.text("not trusted" if asks else "nothing in chargehand.toml needs trust")


@project.command()
@repo_option
@json_option
def untrust(repo: Path | None, out: Output) -> None:
    """Revoke all trust in a repository; a run that needs trust asks again, or is refused.

    This includes all trusted contents of its chargehand.toml and roles, and its setup's access to registries.
    """
    from chargehand.app.projects import revoke_trust
    from chargehand.cli.terminal.output import count_text
    from chargehand.core.text import shown_path
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        done = revoke_trust(reader, repo)
    out.document(done)
    if done.revoked:
        out.text(f"no longer trusted: {shown_path(done.path)} ({count_text(done.revoked, 'grant')} taken back)")
    else:
        out.text(f"nothing of {shown_path(done.path)} was trusted, so nothing changed")


@project.command()
@repo_option
@json_option
def log(repo: Path | None, out: Output) -> None:
    """Show a project's own log: actions that belong to no mission."""
    from chargehand.app.missions import read_events
    from chargehand.cli.terminal.output import local_time
    from chargehand.reports.documents import event_document
    from chargehand.reports.reading import StateReader
    from chargehand.reports.story import describe_event

    with StateReader.open() as reader:
        for event in read_events(reader, reader.projects.find(repo).id):
            time = local_time(event.time, seconds=True)
            text = describe_event(event)
            out.document(event_document(event))
            out.text(f"{event.seq:>4}  {time}  {event.type:<20}  {text}")


@project.group(cls=CommandGroup)
def hook() -> None:
    """Manage a pre-commit hook that checks the format of staged files."""


@hook.command("install")
@repo_option
@json_option
def install_hook(repo: Path | None, out: Output) -> None:
    """Install the hook in git's hooks directory; another program's hook is never changed."""
    from chargehand.app.projects import install_project_hook
    from chargehand.core.text import shown_path

    hook = install_project_hook(repo)
    out.document(hook)
    out.text(f"{'wrote' if hook.changed else 'already installed:'} {shown_path(hook.path)}")


@hook.command("remove")
@repo_option
@json_option
def remove_hook(repo: Path | None, out: Output) -> None:
    """Remove the hook; another program's hook stays."""
    from chargehand.app.projects import remove_project_hook
    from chargehand.core.text import shown_path

    hook = remove_project_hook(repo)
    out.document(hook)
    out.text(f"{'removed' if hook.changed else 'there is no hook at'} {shown_path(hook.path)}")
