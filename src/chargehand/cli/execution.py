"""`chargehand exec` and `format`: commands in a sandbox, on request; `map` and `library`: questions about code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    CommandGroup,
    base_option,
    complete_missions,
    json_option,
    repo_option,
    time_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chargehand.app.sandbox_commands import ExecRequest
    from chargehand.cli.terminal.output import Output
    from chargehand.sandbox.contract import Stream

# The exit code of `env` and `docker run` if the command could not be run at all.
_NOT_RUN = 125
# The pre-commit hook blocks a commit only for the first: a missing formatter must not lock people out.
_WOULD_CHANGE = 1
_NOT_FORMATTED = 2


# Not interspersed: from the first word of the command on, every option belongs to that command.
@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD…")
@repo_option
@base_option
@click.option(
    "--mission",
    metavar="MISSION",
    shell_complete=complete_missions,
    help="Work on this mission's result (its last checkpoint).",
)
@time_option
@click.option("--detach", is_flag=True, help="Return an action's id at once; `chargehand action` follows it.")
@click.option(
    "--snippet", metavar="FILE", help="Run Python or JavaScript by itself, without files or network; - is stdin."
)
@click.option("--sandbox", metavar="TIER", help="process, container, vm or auto; isolate with --snippet.")
@click.option("--language", metavar="NAME", help="python or javascript, if the snippet's name does not show it.")
@click.option("--input", "given", metavar="JSON", help="Value of the snippet's variable `input`.")
@json_option
def exec_(
    command: tuple[str, ...],
    out: Output,
    snippet: str | None,
    language: str | None,
    given: str | None,
    detach: bool,
    **options: Any,
) -> int:
    """Run one command in a sandbox on a fresh workspace, and promote nothing.

    The exit code is the command's, or 125 if it could not be run. With --snippet it is 0 for a value, else 1.
    With --detach the time limit is `actions.time` (60 s) unless --time is given.

    \b
    Examples:
      chargehand exec -- python -m pytest -q
      chargehand exec --snippet count.js --input '[1, 2, 3]'
    """
    from chargehand.app.sandbox_commands import ExecRequest

    if snippet is not None or language is not None or given is not None:
        others = (*command, *(option for option in ("repo", "base", "mission") if options[option] is not None))
        if options["sandbox"] not in (None, "isolate"):
            others = (*others, "sandbox")
        others = (*others, *(("detach",) if detach else ()))
        wanted = {"file": snippet, "language": language, "given": given, "time": options["time"]}
        return _run_snippet(out, **wanted, others=others)
    if not command:
        # click's own error: `nargs=-1` cannot be required, since a snippet comes without a command.
        raise click.MissingParameter(param_hint="'-- CMD…'", param_type="argument")
    request = ExecRequest(command=command, **options)
    if not detach:
        return _execute(out, request)
    from chargehand.app.actions import Actions
    from chargehand.app.composition import App
    from chargehand.cli.actions import run_action

    with App.open() as app:
        actions = Actions(app)
        return run_action(actions, out, actions.begin_exec(request), detach=True)


def _execute(out: Output, request: ExecRequest) -> int:
    """Run the command and show its output as it comes; return its exit code, or 125 if it could not be run."""
    from chargehand.app.composition import App
    from chargehand.app.sandbox_commands import execute
    from chargehand.cli.terminal.failures import show_failure
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.core.errors import ChargehandError

    def show(stream: Stream, piece: bytes) -> None:
        # With --json the output is part of the final document: stdout receives only documents.
        if not out.as_json:
            out.raw(piece, err=stream == "stderr")

    try:
        with App.open() as app:
            result, document = run_async(lambda stop: execute(app, request, show))
    # Caught here and not at the boundary, whose exit codes could be mistaken for the command's.
    except ChargehandError as error:
        show_failure(error, as_json=out.as_json)
        return _NOT_RUN
    out.document(document)
    if result.timed_out:
        out.notice(f"Stopped at its time limit after {result.seconds:.0f} s.")
    elif result.limit is not None:
        out.notice(f"Stopped by the {result.limit} limit. See: chargehand config show")
    return result.exit_code


def _run_snippet(
    out: Output,
    *,
    file: str | None,
    language: str | None,
    given: str | None,
    time: str | None,
    others: tuple[str, ...],
) -> int:
    """Run a snippet, its console lines first; return 0 for a value, 1 without a value, 125 if it could not be run.

    `others` are command-line words that a snippet does not accept.
    """
    import json

    from chargehand.app.composition import App
    from chargehand.app.sandbox_commands import judge_snippet, plan_snippet, run_judged_snippet
    from chargehand.cli.terminal.failures import show_failure
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.core.errors import ChargehandError, UsageError

    try:
        if file is None:
            raise UsageError(
                "--language and --input need --snippet", hint="name the snippet's file: --snippet FILE"
            )
        source, value = _read_snippet(file, given, others)
        spec = plan_snippet(source, file=file, language=language, input=value, time=time)
        with App.open() as app:
            judged = judge_snippet(app, spec)
        done = run_async(lambda stop: run_judged_snippet(spec, judged))
    except ChargehandError as error:
        show_failure(error, as_json=out.as_json)
        return _NOT_RUN
    out.document(done)
    if out.as_json:
        return 0 if done.error is None else 1
    for line in done.console:
        out.raw(f"{line.text}\n".encode(), err=line.level in ("warn", "error"))
    failed = done.error
    if failed is None:
        # In a pipe the value is written unescaped, for shell scripts: escaped letters would only be in their way.
        out.raw((json.dumps(done.value, ensure_ascii=False) + "\n").encode())
        return 0
    where = "" if failed.line is None else f"line {failed.line}: "
    name = f"{failed.name}: " if failed.name else ""
    out.raw(f"{failed.kind}: {where}{name}{failed.message}\n".encode(), err=True)
    return 1


def _read_snippet(file: str, given: str | None, others: tuple[str, ...]) -> tuple[str, Any]:
    """Return a snippet's source and its input. Raises `UsageError`."""
    import json
    import sys
    from pathlib import Path

    from chargehand.core.errors import UsageError

    if others:
        raise UsageError(
            f"a snippet runs by itself, without {others[0]!r}", hint="leave out the options of commands"
        )
    try:
        # As bytes: the locale must not decide how the snippet is decoded.
        source = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the snippet {file!r}: {error}", hint="name a file of UTF-8 text") from error
    try:
        return source, None if given is None else json.loads(given)
    except (ValueError, RecursionError) as error:  # a thousand nested brackets of JSON raise `RecursionError`
        raise UsageError(f"--input is not JSON: {error}", hint="quote it for the shell: '{\"a\": 1}'") from error


@click.command("format")
@click.argument("paths", nargs=-1, metavar="[PATH]…")
@repo_option
@click.option(
    "--mission",
    metavar="MISSION",
    shell_complete=complete_missions,
    help="Format this mission's result, as a new checkpoint.",
)
@click.option("--check", is_flag=True, help="Change nothing: exit 1 if a file would change.")
@click.option("--staged", is_flag=True, help="Only files that are staged for the next commit.")
@click.option("--apply", is_flag=True, help="Write into your files, those that are as they were staged.")
@time_option
@json_option
def format_(out: Output, **options: Any) -> int:
    """Run the formatters that the project's configuration names, in a sandbox.

    Formats the index, as the next commit would contain it, or a mission's result; your own files change only with
    --apply. Exits 1 if --check finds a file that would change, 2 if a formatter failed or is missing.
    """
    from chargehand.app.composition import App
    from chargehand.app.sandbox_commands import FormatRequest, format_files
    from chargehand.cli.terminal.interrupt import run_async
    from chargehand.core.text import shown_path

    request = FormatRequest(**options)
    with App.open() as app:
        document = run_async(lambda stop: format_files(app, request))
    out.document(document)
    applied = document.applied
    wrote = not request.check and (request.mission is not None or applied is not None)
    for path in document.changed:
        out.text(f"{'changed' if wrote else 'would change'}  {shown_path(path)}")
    for path in applied.left if applied else ():
        out.text(f"not changed, because it differs from the staged content: {shown_path(path)}", fg="yellow")
    if not document.formatters:
        out.text("The project's configuration names no formatter, or there is nothing to format.")
    elif not document.changed:
        out.text("All files are formatted.")
    elif not request.check and applied is None and request.mission is None:
        out.text("Nothing was written. Use --apply to change your files.")
    for run in document.runs:
        if run.problem:
            out.text(f"{run.name} {'is not in the sandbox' if run.missing else 'failed'}: {run.problem}", fg="red")
    if request.check and document.changed:
        return _WOULD_CHANGE
    return _NOT_FORMATTED if any(run.problem for run in document.runs) else 0


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
