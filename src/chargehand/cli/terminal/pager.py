"""Patches on a terminal: their colours, and the person's pager."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import click

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
