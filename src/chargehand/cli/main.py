"""The root of all commands.

No command module, and nothing here, imports more than click at its top: help and completion are instant. A command
imports only its own group's module.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from chargehand.cli.terminal.commands import COMMANDS, PLACES, SHORT, expand_words
from chargehand.cli.terminal.failures import guarded, json_wanted
from chargehand.cli.terminal.options import PROGRAM, CommandGroup, no_colour_option, run_elsewhere, server_options

_AGAIN_SECONDS = 0.002


class Root(CommandGroup):
    """Ends every run with a documented exit code, and reports every error as one message.

    A command is imported when it is named.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command; `None` if the name is unknown."""
        if cmd_name in SHORT:  # for the completion of its parameters: `main` has replaced it
            group, name = SHORT[cmd_name]
            found = self.get_command(ctx, group)
            return found.get_command(ctx, name) if isinstance(found, click.Group) else None
        if cmd_name not in PLACES:
            return None
        module, name, _ = PLACES[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def known_words(self, ctx: click.Context) -> tuple[str, ...]:
        """Return the names of all commands, and the short words."""
        return (*PLACES, *SHORT)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write all commands, by the task that they serve, with whole sentences."""
        for task, names in COMMANDS.items():
            with formatter.section(task):
                formatter.write_dl([(name, about) for name, (_, _, about) in names.items()])
        with formatter.section("Short forms"):
            formatter.write_text(f"chargehand {', '.join(SHORT)} (of a mission); help COMMAND; version")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and short words that begin with a text, and what click completes."""
        short = [CompletionItem(word) for word in SHORT if word.startswith(incomplete) and incomplete]
        return [*super().shell_complete(ctx, incomplete), *short]

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run one command line and exit; `standalone_mode` makes no difference."""
        words = expand_words(sys.argv[1:] if args is None else args)

        def work() -> object:
            # Not standalone: click would print errors in its own format and exit with its own codes.
            return super(Root, self).main(
                words, PROGRAM, complete_var, standalone_mode=False, obj=tuple(words), **extra
            )

        sys.exit(guarded(work, words))


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    import json

    from chargehand import __version__

    # Read from the command line: this option is eager, so `--json` may not have been parsed yet.
    as_json = json_wanted(context.obj or ())
    click.echo(json.dumps({"version": __version__}) if as_json else f"{PROGRAM} {__version__}")
    context.exit()


@click.group(cls=Root, name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, hidden=True)
@no_colour_option
@server_options
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def chargehand(context: click.Context, as_json: bool, server: str | None, insecure_http: bool) -> None:
    """Put coding agents to work on a git repository and let in only what passes.

    Start with `chargehand doctor`, see it work with `chargehand demo`, then `chargehand init` in a repository.
    With --server the same commands drive a Chargehand on another machine (chargehand login).

    \b
    Exit codes:
      0    promoted or done
      1    refused, failed or cancelled
      2    wrong usage
      3    waiting for a person
      4    budget or time used up
      5    no sandbox available
      6    internal error
      130  interrupted
    """
    # `login` and `logout` name their server as an argument.
    if server is None or context.invoked_subcommand in ("login", "logout"):
        return

    def run(command: click.Context, parameters: dict[str, Any]) -> int:
        from chargehand.cli.remote.dispatch import run_remotely

        return run_remotely(command, parameters, server=server, insecure=insecure_http)

    run_elsewhere(context, run)


def main() -> NoReturn:
    """Run the program's command line; SIGTERM ends it as Ctrl-C does."""
    listen_for_signals()
    open_closed_streams()
    write_what_streams_take()
    chargehand.main()


def open_closed_streams() -> None:
    """Open stdin, stdout and stderr on /dev/null if the caller closed them.

    Otherwise the next opened file, such as a log, gets the descriptor and receives a program's output.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def write_what_streams_take() -> None:
    """Let stdout and stderr in encodings other than UTF-8 accept every text, with ASCII replacements."""
    import codecs

    plain = {"…": "...", "→": "->", "–": "-", "·": "-", "×": "x", "‘": "'", "’": "'", "“": '"', "”": '"'}

    def write_plainly(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        lacking = error.object[error.start : error.end]
        return "".join(plain.get(letter, "?") for letter in lacking), error.end

    codecs.register_error("chargehand", write_plainly)
    for stream in (sys.stdout, sys.stderr):
        # None if the caller closed the stream; tests replace streams with objects that are not files.
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="chargehand")


def listen_for_signals() -> None:
    """Let SIGINT and SIGTERM raise `KeyboardInterrupt`, even if the parent process ignored them."""

    came = int(signal.SIGINT)

    def interrupt(number: int, frame: object) -> NoReturn:
        nonlocal came
        came = came if number == signal.SIGALRM else number
        raise KeyboardInterrupt(came)

    shown = sys.unraisablehook

    def repeat_interrupt(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            # The interpreter drops exceptions raised in a finaliser: try again shortly, once it has returned.
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            shown(lost)

    sys.unraisablehook = repeat_interrupt
    # A shell without job control starts background jobs with SIGINT ignored, and Python then installs no handler.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, interrupt)
