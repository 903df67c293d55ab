"""`chargehand exec --snippet`: runs one snippet of Python or JavaScript and shows what it gave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from msgspec import Struct

from chargehand.app.composition import App
from chargehand.app.sandbox_commands import judge_snippet, plan_snippet, run_judged_snippet
from chargehand.cli.terminal.failures import show_failure
from chargehand.cli.terminal.interrupt import run_async
from chargehand.cli.terminal.output import Output
from chargehand.core.errors import ChargehandError, UsageError

_NOT_RUN = 125
_ON_STDERR = ("warn", "error")


class SnippetOptions(Struct, frozen=True, kw_only=True):
    """What stands on the command line; `others` are words that a snippet has no use for."""

    file: str | None
    language: str | None
    given: str | None
    time: str | None
    others: tuple[str, ...]


def run_snippet_file(out: Output, options: SnippetOptions) -> int:
    """Run it, its console lines first; return 0 for a value, 1 for none, 125 where it could not be run."""
    try:
        if options.file is None:
            raise UsageError(
                "--language and --input need --snippet", hint="name the snippet's file: --snippet FILE"
            )
        if options.others:
            raise UsageError(
                f"a snippet runs by itself, without {options.others[0]!r}",
                hint="leave out what belongs to a command",
            )
        try:
            # As bytes: the locale must not decide what the snippet says.
            source = (sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"cannot read the snippet {options.file!r}: {error}", hint="name a file of UTF-8 text"
            ) from error
        try:
            value = None if options.given is None else json.loads(options.given)
        except (ValueError, RecursionError) as error:  # JSON of a thousand brackets is an error of recursion
            raise UsageError(
                f"--input is not JSON: {error}", hint="quote it for the shell: '{\"a\": 1}'"
            ) from error
        spec = plan_snippet(source, file=options.file, language=options.language, input=value, time=options.time)
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
        out.raw(f"{line.text}\n".encode(), err=line.level in _ON_STDERR)
    failed = done.error
    if failed is None:
        # In a pipe as it is: a shell script reads the value, where escapes of letters would only be in the way.
        out.raw((json.dumps(done.value, ensure_ascii=False) + "\n").encode())
        return 0
    where = "" if failed.line is None else f"line {failed.line}: "
    name = f"{failed.name}: " if failed.name else ""
    out.raw(f"{failed.kind}: {where}{name}{failed.message}\n".encode(), err=True)
    return 1
