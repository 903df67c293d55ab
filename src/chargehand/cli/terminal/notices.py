"""Calls a person back to a mission that they waited long for: by the bell, and by a popup on their desktop."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from chargehand.core.errors import ChargehandError
from chargehand.core.text import printable

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.cli.terminal.output import Output
    from chargehand.core.state import MissionState

# A person who waits for longer probably looks elsewhere.
_LONG_SECONDS = 30
_MOST_CHARACTERS = 120
# Terminals whose documentation says that OSC 9, or OSC 777, shows a popup, by TERM_PROGRAM or TERM. Others give
# OSC 9 another meaning: Windows Terminal and ConEmu show progress.
_OSC_9 = {"iTerm.app", "WezTerm", "ghostty", "xterm-ghostty", "xterm-kitty"}
_OSC_777 = ("foot", "rxvt-unicode")


def call_person(app: App, out: Output, since: float, mission: MissionState) -> None:
    """Ring and show a popup if a person waited long at this terminal; `alerts.bell` and `alerts.desktop` allow it.

    `since` is the monotonic time at which they began to wait.
    """
    if time.monotonic() - since < _LONG_SECONDS or not out.shows_progress:
        return
    try:
        config = app.user_configuration().config.alerts
    except ChargehandError:  # the file was changed meanwhile; its error must not hide the result
        return
    if config.bell:
        click.echo("\a", nl=False, err=True)
    if not config.desktop:
        return
    text = notice_text(mission)
    if sequence := popup_sequence(text, app.environ):
        click.echo(sequence, nl=False, err=True)
        return
    from chargehand.reports.statistics import show_on_desktop

    show_on_desktop(text, app.environ)


def notice_text(mission: MissionState) -> str:
    """Return a mission's status and request on one line, without control characters, of at most 120 characters."""
    from chargehand.cli.terminal.rendering import status_text

    request = mission.request.text if mission.request is not None else mission.id
    text = " ".join(printable(f"Chargehand: {status_text(mission)}: {request}").split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def popup_sequence(text: str, environ: Mapping[str, str]) -> str:
    """Return the escape sequence with which this terminal shows a popup, "" if it is not known to have one."""
    # A multiplexer drops the sequence, and inherits the variables of the terminal that started it.
    if environ.get("TMUX") or environ.get("STY"):
        return ""
    term = environ.get("TERM", "")
    if term in _OSC_9 or environ.get("TERM_PROGRAM") in _OSC_9:
        return f"\x1b]9;{text}\x1b\\"
    if term.startswith(_OSC_777):
        return f"\x1b]777;notify;Chargehand;{text}\x1b\\"
    return ""
