"""Lines for people: wrapped at words, aligned to the column where their text begins."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence

import click

from chargehand.core.text import printable

# The gap between a line's name or mark and its text.
_GAP = re.compile(" {2,}")
# Meant to be copied: a line break would split the command.
_COMMAND = re.compile(r"(^| {2})(chargehand|git|cd|export(?= \w+=)) ")
_USUAL_WIDTH = 80


def write_aside(text: str = "") -> None:
    """Write lines for a person to stderr, wrapped at words on a terminal."""
    shown = printable(text)
    with contextlib.suppress(OSError):  # a reader that is gone misses no result
        click.echo(wrap_lines(shown, error_width()) if sys.stderr.isatty() else shown, err=True)


def error_width() -> int:
    """Return the width of the terminal on stderr, which may be one although stdout is none."""
    with contextlib.suppress(OSError, ValueError):
        return (
            int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL_WIDTH
        )
    return _USUAL_WIDTH


def option_lines(options: Sequence[str], meanings: Sequence[str]) -> Iterator[str]:
    """Yield one line for each option: its number, the option, and its meaning if it has one."""
    width = max(map(len, options), default=0)
    for number, (option, meaning) in enumerate(itertools.zip_longest(options, meanings, fillvalue=""), start=1):
        yield f"  {number}  {option:<{width}}  {meaning}".rstrip()


def wrap_lines(text: str, width: int) -> str:
    """Wrap lines at words, each aligned to the column where its text begins; commands stay on one line."""
    return "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width or _COMMAND.search(line):
        return line
    begin = max((gap.end() for gap in _GAP.finditer(line, 0, width // 2)), default=0)
    if begin == 0 and line.strip():
        # At most half: the indent may be wider than the terminal.
        begin = min(len(line) - len(line.lstrip()), width // 2)
    wrapped = textwrap.wrap(
        line[begin:],
        width - begin,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
    return line[:begin] + f"\n{' ' * begin}".join(wrapped)
