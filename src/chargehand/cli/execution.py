"""`chargehand exec` and `format`: commands in a sandbox, on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chargehand.cli.terminal.options import (
    base_option,
    complete_missions,
    json_option,
    repo_option,
    time_option,
)

if TYPE_CHECKING:
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
