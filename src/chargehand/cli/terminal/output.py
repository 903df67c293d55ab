"""What a command says: documents for programs on stdout, text for people, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from chargehand.app.documents import to_json
from chargehand.core.text import printable, shown_path


class Output:
    """Writes as the command line asked: with `--json` only documents reach stdout, else only text.

    Once nobody reads stdout any more (`closed`) what is written is dropped, so that the exit code still tells
    how the work ended.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.closed = False

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads stdout as it comes."""
        return not self.as_json and sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """Whether a person watches stderr."""
        return not self.as_json and sys.stderr.isatty()

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask."""
        return self.shows_progress and sys.stdin.isatty()

    def document(self, value: object) -> None:
        """Write one JSON document, on one line."""
        if self.as_json:
            # ASCII alone: it can be written whatever the locale says, and no terminal acts on it.
            self._write(json.dumps(to_json(value)) + "\n")

    def text(self, text: str = "", **style: Any) -> None:
        """Write lines for a person; whatever they hold is made safe to show."""
        if not self.as_json:
            shown = printable(text)
            # Styled after it was made safe: the other way round our own escapes would be taken out.
            self._write((click.style(shown, **style) if style and self.on_terminal else shown) + "\n")

    def notice(self, text: str) -> None:
        """Tell a person who watches stderr something that is no result."""
        if self.shows_progress:
            click.echo(printable(text), err=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write aligned columns under bold headers; cells are kept to one line."""
        # Not `printable`, which keeps line breaks: a name with one would forge a row.
        cells = [[shown_path(str(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        self.text(_row(headers, widths), bold=True)
        for row in cells:
            self.text(_row(row, widths))

    def raw(self, content: bytes, *, err: bool = False) -> None:
        """Write what a program or repository said: its bytes in a pipe, stripped of controls on a terminal."""
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
        except BrokenPipeError:
            self.closed = True
            # The interpreter flushes stdout once more at its end, and would complain that nobody reads it.
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(descriptor, (sys.stderr if err else sys.stdout).fileno())


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
