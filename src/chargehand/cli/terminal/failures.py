"""Turns every failure of a command into one message on stderr and an exit code, and says when output is JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any, Literal

import click

# 128 plus the number of SIGINT, as shells report it.
INTERRUPTED = 130
# The exit code of a mission that needs a person, or that continues by itself later.
WAITING = 3
# How much of a running mission is shown: nothing but its result, its story, or every event of its log.
Detail = Literal["result", "story", "events"]
INTERNAL = 6
_USAGE = 2
# Number of tracebacks kept: a server hits the same fault each time a client asks for it.
_MOST_TRACEBACKS = 200


def json_wanted(words: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON; words after `--` belong to another program."""
    # click has parsed nothing yet, so only the words are known: a `--json` that is the value of an option costs
    # only the form of an error.
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def wants_colour(stream: IO[Any], *, refused: bool = False) -> bool:
    """Return whether output to a stream may be coloured; `refused` is `--no-color`."""
    refused = refused or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not refused and stream.isatty()


class CommandUsageError(click.UsageError):
    """A wrong command line whose remedy is known."""

    def __init__(self, message: str, hint: str, context: click.Context) -> None:
        super().__init__(message, context)
        self.hint = hint


def guarded(work: Callable[[], object], words: Sequence[str]) -> int:
    """Run a command and return its exit code; no exception leaves this function."""
    # The command line decides, not click: an error may come before anything is parsed.
    as_json = json_wanted(words)
    try:
        code = work()
        # Flushed here and not by the interpreter at exit, so that a closed reader is handled below.
        if sys.stdout is not None:  # None if the caller closed it
            sys.stdout.flush()
    except click.ClickException as error:
        no_command = isinstance(error, click.exceptions.NoArgsIsHelpError)
        if no_command and not as_json:
            click.echo(error.message, err=True)  # the help itself
            return _USAGE
        # Only click's usage errors know their command; its error about a file does not.
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "chargehand"
        message = "a command is missing" if no_command else error.format_message()
        hint = error.hint if isinstance(error, CommandUsageError) else f"see {path} --help"
        if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
            from chargehand.cli.terminal.phrases import missing_argument

            hint = missing_argument(path, error.param.name or "")
        show_error("usage", message, hint, as_json=as_json)
        # For all of click's errors: its own code for an unreadable file is 1, which means refused here.
        return _USAGE
    # click raises `Abort` for a Ctrl-C or the end of stdin at one of its prompts.
    except (KeyboardInterrupt, click.Abort):
        # A further Ctrl-C must not interrupt the exit and print a traceback.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        show_error("interrupted", "interrupted", as_json=as_json)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout is gone, and the interpreter's last flush would print an error.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the boundary: every error is one message, never a traceback on a terminal
        return show_failure(error, as_json=as_json)
    return code if isinstance(code, int) else 0


def show_error(code: str, message: str, hint: str = "", *, as_json: bool) -> None:
    """Write one error to stderr: an object for programs, lines for people."""
    # The command line decides, as the error may come before anything is parsed.
    coloured = wants_colour(sys.stderr, refused="--no-color" in sys.argv)
    from chargehand.core.text import printable

    message = printable(message)
    hint = printable(hint)
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            click.echo(json.dumps({"error": {"code": code, "message": message, "hint": hint}}), err=True)
            return
        from chargehand.cli.terminal.lines import error_width, wrap_lines

        for label, text in (("error:", message), *(("hint:", line) for line in hint.splitlines())):
            line = wrap_lines(f"{label} {text}", error_width()) if sys.stderr.isatty() else f"{label} {text}"
            if coloured:
                style: dict[str, Any] = {"fg": "red"} if label == "error:" else {}
                line = click.style(label, bold=True, **style) + line.removeprefix(label)
            click.echo(line, err=True)


def show_failure(error: Exception, *, as_json: bool) -> int:
    """Write an error to stderr and return its exit code; save the traceback of an unexpected error."""
    from chargehand.core.errors import ChargehandError

    if isinstance(error, ChargehandError):
        show_error(error.code, error.message, error.hint, as_json=as_json)
        return error.exit_code
    kept = keep_traceback(error)
    message = f"internal error in Chargehand: {type(error).__name__}: {error}"
    hint = f"the traceback was saved to {kept}" if kept else "the traceback could not be saved"
    show_error("internal", message, hint, as_json=as_json)
    return INTERNAL


def keep_traceback(error: Exception) -> str:
    """Write the traceback to the state directory or a temporary file; return its path, or "" on failure.

    The state directory keeps the newest 200.
    """
    import tempfile
    import traceback

    from chargehand.core.errors import ChargehandError

    text = "".join(traceback.format_exception(error))
    places: list[str | None] = [None]
    # The fault may be the state directory itself, or an incomplete installation.
    with contextlib.suppress(ChargehandError, ImportError):
        from chargehand.reports.reading import state_home

        places.insert(0, str(state_home(os.environ) / "errors"))
    for directory in places:
        try:
            if directory is not None:
                os.makedirs(directory, mode=0o700, exist_ok=True)
            # Mode 0600: a traceback quotes paths and values. A unique name: two commands may fail at once.
            descriptor, name = tempfile.mkstemp(prefix="error-", suffix=".txt", dir=directory)
            # A path that is not UTF-8 appears in the text as surrogates, which a text file does not accept.
            with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
                file.write(text)
            if directory is not None:
                _forget_oldest(directory)
        except OSError:
            continue
        return name
    return ""


def _forget_oldest(directory: str) -> None:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as found:  # another process was faster
        kept = [each for each in found if each.name.startswith("error-")]
        for each in sorted(kept, key=lambda each: each.stat().st_mtime)[:-_MOST_TRACEBACKS]:
            os.unlink(each)
