"""`chargehand map`: the files that a request is about, and questions about code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chargehand.cli.terminal.options import json_option, repo_option

if TYPE_CHECKING:
    from pathlib import Path

    from chargehand.cli.terminal.output import Output


@click.command("map")
@click.argument("request", nargs=-1)
@click.option("--search", metavar="WORDS", help="Find definitions by names or words.")
@click.option("--calls", metavar="SYMBOL", help="List the places that use a function, class or other symbol.")
@click.option(
    "--impact", metavar="TARGET", multiple=True, help="List what uses a path or symbol, also indirectly."
)
@click.option("--tests", metavar="TARGET", multiple=True, help="List the tests that reach a path or symbol.")
@click.option("--revision", metavar="REV", help="The commit to look at (default: HEAD).")
@click.option(
    "--tokens", type=click.IntRange(100, 100_000), default=2000, help="Size of the map for a request, in tokens."
)
@repo_option
@json_option
def map_(
    request: tuple[str, ...],
    search: str | None,
    calls: str | None,
    impact: tuple[str, ...],
    tests: tuple[str, ...],
    revision: str | None,
    tokens: int,
    repo: Path | None,
    out: Output,
) -> None:
    """Show the files that a request is likely about, or ask who uses what.

    Reads commits, never uncommitted files. Users of a symbol are found by its name.

    \b
    Examples:
      chargehand map "empty input of interleave_evenly fails"
      chargehand map --calls Config.from_file
      chargehand map --tests src/config.py
    """
    from chargehand.app.code_search import MapQuestion, query_map
    from chargehand.core.text import printable, shown_path
    from chargehand.reports.reading import StateReader

    if sum((bool(request), search is not None, calls is not None, bool(impact), bool(tests))) > 1:
        raise click.UsageError("give a request, or one of --search, --calls, --impact and --tests")
    question = MapQuestion(
        request=" ".join(request), repo=repo, revision=revision, tokens=tokens, search=search, calls=calls,
        impact=impact, tests=tests,
    )  # fmt: skip
    with StateReader.open() as reader:
        found = query_map(reader, question)
    out.document(found)
    if out.as_json:
        return
    if found.hits:
        rows = [
            (f"{shown_path(hit.path)}:{hit.line}", hit.kind, printable(hit.name) or "-", printable(hit.via))
            for hit in found.hits
        ]
        out.table(("PLACE", "KIND", "IN", "USES") if found.hits[0].via else ("PLACE", "KIND", "NAME", ""), rows)
    elif found.text:
        out.text(found.text)
    else:
        asked = request or search or calls or impact or tests
        extent = f"{found.summary.files} files of commit {found.commit[:12]} are in the map"
        out.text(f"Nothing found; {extent}." if asked else f"{extent}.")
    if note := found.note():
        out.text(f"({printable(note)})", dim=True)
    for skipped in found.summary.skipped:
        out.text(f"not parsed: {shown_path(skipped.path)}: {skipped.reason}", dim=True)
    if found.summary.skipped_left_out:
        out.text(f"not parsed: {found.summary.skipped_left_out} more files", dim=True)
