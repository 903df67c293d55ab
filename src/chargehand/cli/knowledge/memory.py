"""`chargehand memory`: lessons from earlier missions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, json_option, repo_option

if TYPE_CHECKING:
    from chargehand.app.knowledge import LessonEntry
    from chargehand.cli.terminal.output import Output

_lesson_argument = click.argument("lesson")
_SHOWN = 60


@click.group(cls=CommandGroup)
def memory() -> None:
    """List, write, share and forget lessons from earlier missions."""


@memory.command("list")
@click.option("--all", "everywhere", is_flag=True, help="Of all projects.")
@repo_option
@json_option
def list_(everywhere: bool, repo: Path | None, out: Output) -> None:
    """List your lessons, and those that others share in the project."""
    from chargehand.app.knowledge import list_lessons
    from chargehand.identity.accounts import owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        project = None if everywhere else reader.projects.find(repo).id
        listed = list_lessons(reader, project=project, by=owner(reader))
    out.document(listed)
    rows = [
        (each.lesson, each.status, "shared" if each.shared else "private", _effect(each), _headline(each))
        for each in listed.lessons
    ]
    out.table(("LESSON", "STATUS", "FOR", "WITH/WITHOUT", "ABOUT"), rows)
    for each in listed.lessons:
        if each.contradicts:
            out.text(f"{each.lesson} contradicts {', '.join(each.contradicts)}: forget the wrong one")


@memory.command()
@_lesson_argument
@json_option
def show(lesson: str, out: Output) -> None:
    """Show a lesson, its evidence, and its effect on missions."""
    from chargehand.app.knowledge import show_lesson
    from chargehand.identity.accounts import owner
    from chargehand.reports.reading import StateReader

    with StateReader.open() as reader:
        shown = show_lesson(reader, lesson, by=owner(reader))
    out.document(shown)
    out.text(f"{shown.lesson}, {shown.status}, {'shared' if shown.shared else 'private'}, by {shown.author}")
    out.text(f"from      {shown.mission or 'a person'} ({shown.created[:19]})")
    out.text(f"effect    {_effect(shown)} first attempts passed with/without it; harmful: {shown.harm:.0%}")
    for other in shown.contradicts:
        out.text(f"contradicts {other}: neither is shown to missions until one is forgotten")
    out.text("")
    out.text(shown.text)


@memory.command()
@click.argument("text")
@click.option("--paths", multiple=True, metavar="PATTERN", help="Paths that it is about, as in .gitignore.")
@repo_option
@json_option
def add(text: str, paths: tuple[str, ...], repo: Path | None, out: Output) -> None:
    """Write a lesson for later missions of a project.

    \b
    Example:
      chargehand memory add "the parser needs the C locale" --paths "src/parser/*"
    """
    from chargehand.app.composition import App
    from chargehand.app.knowledge import add_lesson
    from chargehand.identity.accounts import owner

    with App.open() as app:
        added = add_lesson(app, text, paths, project=app.projects.find(repo).id, by=owner(app))
    out.document(added)
    out.text(f"{added.lesson} is stored; only your own missions get it until you share it")


@memory.command()
@_lesson_argument
@json_option
def share(lesson: str, out: Output) -> None:
    """Let missions of all users of the project get a lesson."""
    from chargehand.app.composition import App
    from chargehand.app.knowledge import share_lesson
    from chargehand.identity.accounts import owner

    with App.open() as app:
        shared = share_lesson(app, lesson, by=owner(app))
    out.document(shared)
    out.text(f"{shared.lesson} is shared in {shared.project}")


@memory.command()
@_lesson_argument
@json_option
def forget(lesson: str, out: Output) -> None:
    """Erase a lesson for good."""
    from chargehand.app.composition import App
    from chargehand.app.knowledge import forget_lesson
    from chargehand.identity.accounts import owner

    with App.open() as app:
        forgotten = forget_lesson(app, lesson, by=owner(app))
    out.document(forgotten)
    out.text(f"{forgotten.lesson} is forgotten")
    if not forgotten.erased:
        out.text(
            "its bytes may remain in store.db-wal, which another process uses; forget it again when that is done"
        )
    if forgotten.missions:
        out.text(f"its text stays in the logs and recordings of {', '.join(forgotten.missions)}")


def _effect(entry: LessonEntry) -> str:
    shown, withheld = entry.effect.shown, entry.effect.withheld
    return f"{shown.green}/{shown.missions} {withheld.green}/{withheld.missions}"


def _headline(entry: LessonEntry) -> str:
    content = entry.content
    first = content.tests[0] if content.tests else content.message or content.check or content.request
    return first.splitlines()[0][:_SHOWN] if first else ""


@memory.command()
@click.argument("lessons", nargs=-1, required=True, metavar="LESSON...")
@repo_option
@json_option
def propose(lessons: tuple[str, ...], repo: Path | None, out: Output) -> int:
    """Propose lessons for AGENTS.md, where every agent reads them.

    A mission adds a line for each and runs the checks. It waits for you, since agents obey that file: look at the
    change (`chargehand mission diff`), and promote or discard it.

    \b
    Example:
      chargehand memory propose l-1m8q
    """
    from chargehand.app.composition import App
    from chargehand.app.knowledge import request_proposal
    from chargehand.app.requests import plan_request, record_mission
    from chargehand.cli.terminal.running import leave_to_worker
    from chargehand.identity.accounts import owner

    with App.open() as app:
        request, plan = plan_request(app, request_proposal(app, lessons, repo=repo, by=owner(app)))
        return leave_to_worker(app, out, record_mission(app, request, plan=plan))
