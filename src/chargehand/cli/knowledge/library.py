"""`chargehand library`: code of other people's repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import CommandGroup, json_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from chargehand.cli.terminal.output import Output


@click.group(cls=CommandGroup)
def library() -> None:
    """Search other people's repositories that you chose, with the licence of each file."""


@library.command()
@click.argument("source")
@click.option("--name", metavar="NAME", help="Its name in the library (default: the last part of the address).")
@json_option
def add(source: str, name: str | None, out: Output) -> None:
    """Download a repository and index it.

    SOURCE is a path, an address (https, ssh, file), or a name of `library list --curated`. Only the newest commit
    is fetched. Nothing of it is checked out or run.

    \b
    Examples:
      chargehand library add flask
      chargehand library add https://example.org/team/tool.git --name tool
    """
    from chargehand.app.code_search import add_to_library

    done = add_to_library(source, name=name, progress=_progress(out))
    out.document(done)
    entry = done.entry
    out.text(f"Added {entry.name}: {entry.files} files of commit {entry.commit[:12]}, licence {entry.licence}.")


@library.command()
@click.argument("names", nargs=-1, metavar="[NAME]…")
@json_option
def update(names: tuple[str, ...], out: Output) -> int:
    """Fetch repositories again, by default all, and index their changed files.

    Exits 1 if one of them could not be fetched; it stays as it was.
    """
    from chargehand.app.code_search import update_library

    done = update_library(names, progress=_progress(out))
    out.document(done)
    for each in done.updated:
        is_same = each.previous == each.entry.commit
        news = "unchanged" if is_same else f"now {each.entry.commit[:12]}, {each.parsed} files parsed"
        out.text(f"{each.entry.name}: {news}")
    for problem in done.problems:
        out.text(f"{problem.name}: {problem.message}", fg="red")
    return 1 if done.problems else 0


@library.command("list")
@click.option("--curated", is_flag=True, help="List the repositories that can be added by name.")
@json_option
def list_(curated: bool, out: Output) -> None:
    """List the repositories of the library."""
    from chargehand.app.code_search import list_library

    found = list_library(curated=curated)
    out.document(found)
    if curated:
        rows = [(each.name, each.language, each.licence, each.summary, each.url) for each in found.curated]
        out.table(("NAME", "LANGUAGE", "LICENCE", "FOR", "ADDRESS"), rows)
    elif found.repositories:
        out.table(
            ("NAME", "COMMIT", "FILES", "LICENCE", "SIZE", "ADDRESS"),
            [
                (
                    each.name,
                    each.commit[:12],
                    "not indexed" if each.files is None else each.files,
                    each.licence,
                    f"{each.size / 1e6:.1f} MB",
                    each.url,
                )
                for each in found.repositories
            ],
        )
    elif not found.problems:
        out.text("The library is empty. `chargehand library list --curated` lists repositories to add.")
    for problem in found.problems:
        out.text(f"{problem.name}: {problem.message}", fg="red")


@library.command()
@click.argument("words", nargs=-1, required=True)
@click.option("--language", metavar="LANGUAGE", help="Only files of this language, or `text`.")
@click.option(
    "--licence", metavar="ID[,ID]…", help="Only files that may be used under these licences (SPDX) alone."
)
@click.option("--most", type=click.IntRange(1, 100), default=10, help="The number of files.")
@json_option
def search(words: tuple[str, ...], language: str | None, licence: str | None, most: int, out: Output) -> None:
    """Find files by words and names in all repositories, with place, commit and licence.

    \b
    Example:
      chargehand library search parse a chunked body --licence MIT,BSD-3-Clause
    """
    from chargehand.app.code_search import search_library
    from chargehand.core.text import shown_path

    licences = [each.strip() for each in (licence or "").split(",") if each.strip()]
    if licence is not None and not licences:
        raise click.UsageError("--licence names no licence")
    found = search_library(
        " ".join(words), language=language, licences=licences, most=most, progress=_progress(out)
    )
    out.document(found)
    for hit in found.hits:
        place = f"{hit.repository}:{shown_path(hit.path)}:{hit.line}"
        out.text(f"{place}  {hit.licence}  {hit.commit[:12]}", bold=True)
        for line in hit.excerpt.splitlines():
            out.text(f"    {line}")
    if not found.hits:
        out.text("Nothing found.")
    for problem in found.problems:
        out.text(f"not searched: {problem.name}: {problem.message}", fg="yellow")


@library.command()
@click.argument("name")
@json_option
def remove(name: str, out: Output) -> None:
    """Remove a repository and its index from the library."""
    from chargehand.app.code_search import remove_from_library

    done = remove_from_library(name)
    out.document(done)
    out.text(f"Removed {done.name}, {done.size / 1e6:.1f} MB.")


def _progress(out: Output) -> Callable[[str, int, int], None]:
    def show(name: str, done: int, total: int) -> None:
        if total > 1000:  # fewer take a few seconds
            out.notice(f"{name}: {done} of {total} files are indexed.")

    return show
