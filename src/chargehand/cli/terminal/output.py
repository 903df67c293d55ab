"""Output of a command: documents for programs on stdout, text for people, progress on stderr."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from chargehand.cli.terminal.failures import Detail, wants_colour
from chargehand.core.errors import InfrastructureError
from chargehand.core.text import printable, shown_path
from chargehand.reports.documents import to_json

# A narrower cell would be unreadable: the terminal then wraps the line itself.
_NARROWEST = 8
# Remembered lines of a terminal: more are shown twice rather than kept.
_MOST_SEEN = 5_000

_STATUS_COLOURS = {
    "promoted": "green",
    "waiting": "yellow",
    "paused": "yellow",
    "running": "cyan",
    "planned": "cyan",
} | (dict.fromkeys(("cancelled", "discarded", "rolled-back"), "bright_black"))


class Output:
    """Writes as the command line requested: with `--json` only documents reach stdout, otherwise only text.

    Once stdout has no reader (`closed`), output is dropped, so that the exit code still reports how the work
    ended.
    """

    def __init__(
        self, *, as_json: bool, colour: bool = True, detail: Detail = "story", pages: bool = True
    ) -> None:
        self.as_json = as_json
        self.colour = colour
        self.pages = pages
        self.detail = detail
        self.closed = False
        self._seen = set[str]()

    def note_seen(self, text: str) -> None:
        """Note lines that a person saw on the terminal, so that the result need not repeat them.

        The text behind a line's label counts as seen, too.
        """
        if len(self._seen) < _MOST_SEEN:
            for line in text.split("\n"):
                self._seen.update((line.strip(), line.strip().partition("  ")[2].strip()))

    def has_seen(self, text: str) -> bool:
        """Return whether a person saw all of these lines on this terminal."""
        return self.on_terminal and all(line.strip() in self._seen for line in text.split("\n") if line.strip())

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads stdout as it comes."""
        return not self.as_json and sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a person watches stderr and wants to see progress."""
        return not self.as_json and self.detail != "result" and sys.stderr.isatty()

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask."""
        return not self.as_json and sys.stderr.isatty() and sys.stdin.isatty()

    def document(self, value: object) -> None:
        """Write one JSON document, on one line."""
        if self.as_json:
            self._write(self.encode(value))

    @staticmethod
    def encode(value: object) -> bytes:
        """Return a JSON document on one line, as `document` writes it."""
        # ASCII only: it can be written in any locale, and no terminal interprets it.
        return json.dumps(to_json(value)).encode() + b"\n"

    def text(self, text: str = "", **style: Any) -> None:
        """Write lines for a person, with control characters removed.

        On a terminal long lines are wrapped and aligned to the column where their text begins.
        """
        if not self.as_json:
            shown = printable(text)
            if self.width is not None:
                from chargehand.cli.terminal.lines import wrap_lines

                shown = wrap_lines(shown, self.width)
            # Styled after control characters are removed, which would remove our own escapes too.
            styled = style and wants_colour(sys.stdout, refused=not self.colour)
            self._write((click.style(shown, **style) if styled else shown) + "\n")

    def notice(self, text: str) -> None:
        """Show a person who watches stderr a message that is not a result."""
        if self.shows_progress:
            from chargehand.cli.terminal.lines import write_aside

            write_aside(text)

    @property
    def width(self) -> int | None:
        """The width of the terminal on stdout, `None` for a pipe: lines may have any length."""
        return shutil.get_terminal_size().columns if self.on_terminal else None

    def table(
        self,
        headers: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        colours: Sequence[str] = (),
        coloured: int = 0,
    ) -> None:
        """Write aligned columns under bold headers; on a terminal, wrap cells that do not fit.

        `colours` has the colour of each row's cell in the column `coloured`.
        """
        # Not `printable`, which keeps line breaks: a name with a line break would forge a row.
        cells = [[shown_path(str(cell)) for cell in row] for row in rows]
        widths = _fit_columns((headers, *cells), self.width)
        for number, row in enumerate((headers, *cells)):
            parts = [
                [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)
                for cell, width in zip(row, widths, strict=True)
            ]
            for line in itertools.zip_longest(*parts, fillvalue=""):
                aligned = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
                if number and colours and self.on_terminal and wants_colour(sys.stdout, refused=not self.colour):
                    # The cells have no control characters, and they fit.
                    aligned[coloured] = click.style(aligned[coloured], fg=colours[number - 1])
                    self._write("  ".join(aligned).rstrip() + "\n")
                else:
                    self.text("  ".join(aligned).rstrip(), bold=number == 0)

    def patch(self, content: bytes) -> None:
        """Write a patch: exact bytes in a pipe; on a terminal coloured, and through the person's pager."""
        if not self.on_terminal:
            self.raw(content)
            return
        from chargehand.cli.terminal.pager import colour_patch, show_in_pager

        text = printable(content.decode(errors="replace"))
        shown = colour_patch(text) if wants_colour(sys.stdout, refused=not self.colour) else text
        if not (self.pages and show_in_pager(shown)):
            self._write(shown)

    def raw(self, content: bytes, *, err: bool = False) -> None:
        """Write a program's or repository's output: raw in a pipe, without control characters on a terminal."""
        stream = sys.stderr if err else sys.stdout
        if stream.isatty():
            self._write(printable(content.decode(errors="replace")), err=err)
        else:
            self._write(content, err=err)

    def _write(self, content: str | bytes, *, err: bool = False) -> None:
        if self.closed:
            return
        try:
            # click flushes after each call: a reader that follows sees every line at once.
            click.echo(content, nl=False, err=err)
        except OSError as error:
            self.closed = True
            # The interpreter flushes stdout again at exit, and would complain that the reader is gone.
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(descriptor, (sys.stderr if err else sys.stdout).fileno())
            if not isinstance(error, BrokenPipeError):
                raise InfrastructureError(
                    f"cannot write to {'stderr' if err else 'stdout'}: {error.strerror}",
                    code="output_unwritable",
                    hint="free some space there, or redirect the output",
                ) from error


def _fit_columns(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the width of each column: the widest ones shrink, down to their longest words, until a table fits.

    The first column names the rows and keeps its width. Words are broken only if nothing else makes the table fit.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    for least in (words, [_NARROWEST] * len(widths)) if width is not None else ():
        while sum(widths) + 2 * (len(widths) - 1) > (width or 0):
            wide = [number for number in range(1, len(widths)) if widths[number] > least[number]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def status_colour(status: str) -> str:
    """Return the colour of a status on a terminal."""
    return _STATUS_COLOURS.get(status, "red")


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun; the noun's plural must end in s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def local_time(time: str, *, seconds: bool = False) -> str:
    """Format an ISO 8601 time of a log in this machine's time zone."""
    try:
        moment = datetime.fromisoformat(time).astimezone()
    except ValueError:  # a damaged line
        return shown_path(time)
    return moment.strftime("%Y-%m-%d %H:%M:%S %Z" if seconds else "%Y-%m-%d %H:%M %Z")
