"""Shows the difference between two trees: line by line, or as line counts per file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chargehand.app.checkpoints import TreeDifference
    from chargehand.cli.terminal.output import Output
    from chargehand.workspace.depot import LineCount


# The exit code of a shell that does not find a program.
_NOT_FOUND = 127
_COLOURS = (
    (re.compile(r"(?:diff|index|---|\+\+\+|new file|deleted file|similarity|rename|old mode|new mode) ?"), None),
    (re.compile(r"@@"), "cyan"),
    (re.compile(r"\+"), "green"),
    (re.compile(r"-"), "red"),
)


def colour_patch(text: str) -> str:
    """Return a patch with the colours that git gives it."""
    return "\n".join(map(_colour_line, text.split("\n")))


def _colour_line(line: str) -> str:
    for pattern, colour in _COLOURS:
        if line and pattern.match(line):
            return click.style(line, bold=True) if colour is None else click.style(line, fg=colour)
    return line


def show_in_pager(text: str) -> bool:
    """Show a text in the person's pager; return whether there is one.

    It is chosen as git does: $GIT_PAGER, core.pager, $PAGER, `less`; `cat` or an empty text means none.
    """
    pager = _find_pager()
    if pager in ("", "cat") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    # As for git: `less` ends at once if the text fits on the screen, and shows colours.
    environ = {"LESS": "FRX", "LV": "-c"} | os.environ
    with subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env=environ) as shown:
        try:
            shown.communicate(text.encode(errors="replace"))
        except KeyboardInterrupt:  # meant for the pager, which reads the same terminal
            shown.wait()
    return shown.returncode != _NOT_FOUND


def _find_pager() -> str:
    if shutil.which("git") is not None:
        asked = subprocess.run(["git", "var", "GIT_PAGER"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return asked.stdout.strip()
    named = (os.environ.get(name) for name in ("GIT_PAGER", "PAGER"))
    return next((each for each in named if each is not None), "less")


def show_difference(out: Output, found: TreeDifference, *, stat: bool) -> None:
    """Write the difference between two trees: line counts, or the patch."""
    if out.as_json:
        out.document(found.document(with_patch=not stat))
    elif stat:
        show_line_counts(out, found.line_counts())
    else:
        out.patch(found.patch())


def show_line_counts(out: Output, files: Iterable[LineCount]) -> None:
    """Write the numbers of lines that each file gained and lost."""
    from chargehand.core.text import shown_path

    def count(sign: str, lines: int | None) -> str:
        return "binary" if lines is None else f"{sign}{lines}"

    rows = [(shown_path(file.path), count("+", file.added), count("-", file.removed)) for file in files]
    if rows:
        out.table(("FILE", "ADDED", "REMOVED"), rows)
    else:
        out.text("no difference")
