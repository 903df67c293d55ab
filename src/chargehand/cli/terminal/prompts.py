"""Questions put to the person at the terminal."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chargehand.app.missions import resolve_option
from chargehand.cli.terminal.lines import error_width, option_lines, wrap_lines, write_aside
from chargehand.core.errors import ConfigError, UsageError
from chargehand.core.state import MissionState, Question

if TYPE_CHECKING:
    from chargehand.app.agents import InstalledProgram
    from chargehand.cli.terminal.output import Output


def ask_question(out: Output, asked: Question) -> str | None:
    """Return the person's answer; `None` if they leave it for later."""
    # Questions go to stderr: stdout may be redirected while a person still sits at the terminal.
    write_aside()
    write_aside(question_heading(asked))
    write_aside(asked.text)
    for line in option_lines(asked.options, asked.meanings):
        write_aside(line)
        out.note_seen(line)
    if asked.deadline:
        write_aside(f"({asked.deadline})")
    words = "a number" if asked.closed else "a number, or your own words"
    hint = f" ({words}; leave empty to answer later)" if asked.options else " (empty: later)"
    forget_typed_ahead()
    # An empty default lets a person skip the question: without it click asks until something is typed.
    answer = click.prompt(f"Your answer{hint}", default="", show_default=False, err=True).strip()
    return resolve_option(asked, answer) if answer else None


def open_editor(path: Path) -> None:
    """Open a file in the person's editor, and return once they are done. Raises `UsageError`."""
    editor = next((os.environ[name] for name in ("VISUAL", "EDITOR") if os.environ.get(name)), "vi")
    # As git does: the variable may contain arguments.
    done = subprocess.run(["sh", "-c", f'{editor} "$@"', editor, str(path)], check=False)
    if done.returncode != 0:
        message = f"the editor {editor!r} ended with exit code {done.returncode}; nothing was changed"
        raise UsageError(message, hint="name another one in $VISUAL or $EDITOR")


def confirm_another_edit(error: ConfigError) -> bool:
    """Show an error in an edited file, and ask whether the person wants to mend it."""
    write_aside(error.message)
    for line in error.hint.splitlines():
        write_aside(f"hint: {line}")
    return click.confirm("Edit it again? (n: leave the file as it was)", default=True, err=True)


def question_heading(asked: Question) -> str:
    """Return the heading that names the asking party."""
    if asked.until:
        return "The mission resumes by itself; answer to try earlier:"
    return "The agent asks:" if asked.attempt is not None else "Chargehand asks:"


def confirm_trust(lines: tuple[str, ...]) -> bool:
    """Ask whether the person trusts these settings of chargehand.toml."""
    write_aside("The repository's chargehand.toml sets keys that need your trust:")
    for line in lines:
        write_aside(f"  {line}")
    forget_typed_ahead()
    return click.confirm("Trust this content of chargehand.toml?", default=False, err=True)


def confirm_registries(state: MissionState) -> bool:
    """Ask whether setup of a project may reach the registries, now and from now on."""
    write_aside()
    for reason in state.reasons:
        write_aside(f"{reason.code}: {reason.message}")
    question = "May setup of this project reach your package registries, now and from now on?"
    forget_typed_ahead()
    return click.confirm(question, default=False, err=True)


def confirm_promotion(state: MissionState) -> bool:
    """Ask whether the person promotes a mission that needs approval."""
    write_aside()
    for reason in state.reasons:
        write_aside(f"{reason.code}: {reason.message}")
    write_aside(f"To see the change first, answer n, then:\n  chargehand mission diff {state.id}")
    forget_typed_ahead()
    return click.confirm("This needs a person's approval. Promote it?", default=False, err=True)


def forget_typed_ahead() -> None:
    """Discard what was typed before a question: keys pressed while work ran must not approve anything."""
    import termios

    with contextlib.suppress(termios.error, OSError, ValueError):  # stdin is no terminal
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def installed_line(program: InstalledProgram) -> str:
    """Return one line about an installed coding agent and how to use it."""
    from chargehand.app.agents import agent_option

    option = agent_option(program.name)
    use = f"use it with --agent {option} --model NAME" if option else "Chargehand cannot run it"
    return f"{program.name} is installed ({program.path}): {use}"


class TerminalPrompts:
    """The questions of `init` and `model add` on a terminal; everything goes to stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out

    def notice(self, text: str, /) -> None:
        """Show a line."""
        self._out.notice(text)

    def confirm(self, question: str, /, *, default: bool) -> bool:
        """Return yes or no."""
        return click.confirm(self._wrap(question), default=default, err=True)

    def text(self, question: str, /, *, default: str | None = None, hidden: bool = False) -> str:
        """Return a line without blanks at its ends."""
        answer = click.prompt(question, default=default, show_default=bool(default), hide_input=hidden, err=True)
        return str(answer).strip()

    @staticmethod
    def _wrap(question: str) -> str:
        # With room for click's own hint about the answers.
        return wrap_lines(question, error_width() - len(" [Y/n]: "))

    def number(self, question: str, /, *, largest: int) -> int:
        """Return a number from 1 to `largest`."""
        return int(click.prompt(question, type=click.IntRange(1, largest), default=1, err=True))

    def word(self, question: str, /, *, words: Sequence[str]) -> str:
        """Return one of the words."""
        return str(click.prompt(question, type=click.Choice(words), default=words[0], err=True))

    def installed(self, program: InstalledProgram, /) -> None:
        """Show a coding agent that is installed."""
        self._out.notice(installed_line(program))
