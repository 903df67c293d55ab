"""`chargehand exec --snippet`: one snippet of Python or JavaScript, by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from chargehand.app.composition import App
from chargehand.app.config.records import OptionValue
from chargehand.app.config.resolve import resolve
from chargehand.cli._failures import show_failure
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.policy._actions import Judgement, Snippet, Surroundings
from chargehand.policy._judge import denied, judge
from chargehand.sandbox._isolate import SnippetError, SnippetResult, SnippetSpec, language_of
from chargehand.sandbox._isolate_pool import run_snippet

_NOT_RUN = 125
_SHOWN_AS_ERRORS = ("warn", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnippetOptions:
    """What stands on the command line; `others` are words that a snippet has no use for."""

    file: str | None
    language: str | None
    given: str | None
    time: str | None
    others: tuple[str, ...]


def run_snippet_file(out: Output, options: SnippetOptions) -> int:
    """Run it, its console lines first; return 0 for a value, 1 for none, 125 where it could not be run."""
    try:
        spec = _spec(options)
        judged = _judged(spec)
        result = run_async(lambda stop: _run(stop, spec))
    except ChargehandError as error:
        show_failure(error, as_json=out.as_json)
        return _NOT_RUN
    out.document(
        {
            "value": result.value,
            "console": result.console,
            "seconds": result.seconds,
            "peak_memory": result.peak_memory,
            "error": result.error,
            "language": spec.language,
            "tier": "isolate",
            "judged": {"effect": judged.effect, "rule": judged.rule, "reason": judged.reason},
        }
    )
    _show(out, result)
    return 0 if result.error is None else 1


async def _run(stop: Stop, spec: SnippetSpec) -> SnippetResult:
    return await run_snippet(spec)


def _judged(spec: SnippetSpec) -> Judgement:
    """Judge it by the person's own rules; raises `RefusedError` unless they allow it."""
    action = Snippet(language=spec.language, source=spec.source)
    with App.open() as app:
        judged = judge(action, Surroundings(purpose="exec", who="person"), app.rules())
    if judged.effect != "allow":
        raise denied("snippet", judged)
    return judged


def _spec(options: SnippetOptions) -> SnippetSpec:
    if options.file is None:
        raise UsageError("--language and --input go with --snippet", hint="name the snippet's file")
    if options.others:
        raise UsageError(
            f"a snippet runs by itself, without {options.others[0]!r}", hint="leave out what belongs to a command"
        )
    language = options.language or language_of(options.file)
    wanted: dict[str, Any] = {} if options.time is None else {"seconds": _seconds(options.time)}
    return SnippetSpec(
        language=cast("Any", language), source=_source(options.file), input=_input(options.given), **wanted
    )


def _seconds(time: str) -> float:
    return resolve(options={"limits.time": OptionValue(value=time, name="--time")}).config.limits.time


def _source(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the snippet {file!r} cannot be read: {error}", hint="name a file of UTF-8 text"
        ) from error


def _input(given: str | None) -> Any:
    try:
        return None if given is None else json.loads(given)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--input is not JSON: {error}", hint="quote it for the shell: '{\"a\": 1}'") from error


def _show(out: Output, result: SnippetResult) -> None:
    if out.as_json:
        return
    for line in result.console:
        out.raw(f"{line.text}\n".encode(), err=line.level in _SHOWN_AS_ERRORS)
    if result.error is None:
        out.raw((json.dumps(result.value, ensure_ascii=False) + "\n").encode())
    else:
        out.raw(f"{_said(result.error)}\n".encode(), err=True)


def _said(error: SnippetError) -> str:
    where = "" if error.line is None else f"line {error.line}: "
    name = f"{error.name}: " if error.name else ""
    return f"{error.kind}: {where}{name}{error.message}"
