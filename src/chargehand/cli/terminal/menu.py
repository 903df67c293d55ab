"""The menu that Ctrl-C opens at a terminal while a mission runs; a second Ctrl-C acts as without a menu.

Lines are read and written on the descriptors: a signal may interrupt a write to the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from chargehand.core.errors import ChargehandError
from chargehand.core.text import printable

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.cli.terminal.interrupt import Stop
    from chargehand.cli.terminal.output import Output
    from chargehand.core.events import Event, Payload

_CHOICES = "[Enter] continue   p pause   t TEXT message   c cancel"


def _say(text: str) -> None:
    os.write(2, f"{printable(text)}\n".encode(errors="replace"))


def _offer(*, watching: bool) -> None:
    os.write(2, b"\n")
    _say(f"{_CHOICES}   q stop watching" if watching else _CHOICES)


def _read_line() -> str:
    return os.read(0, 4096).decode(errors="replace").strip()


def carry_out(app: App, mission: str, line: str) -> str:
    """Carry out a menu choice for a mission; return the message for the person, "" to continue."""
    from chargehand.app.missions import (
        cancel_mission,
        message_document,
        pause_mission,
        resume_mission,
        send_message,
    )

    word, _, text = line.partition(" ")
    try:
        match word:
            case "p":
                pause_mission(app, mission, reason="")
                return "Paused. Enter resumes it."
            case "t":
                from chargehand.cli.terminal.rendering import delivery_text

                return delivery_text(message_document(send_message(app, mission, text)))
            case "c":
                cancel_mission(app, mission)
            case "" | "r":
                if app.mission_reader.state(mission).status == "paused":
                    resume_mission(app, mission)
            case _:
                return f"{word!r} is not one of these."
    except ChargehandError as error:
        return error.message
    return ""


class RunMenu:
    """The menu over a mission that runs in this process; the mission continues meanwhile.

    `hold` is called with whether the menu is open, so that nothing is drawn over the person's input.
    """

    def __init__(self, app: App, stop: Stop, hold: Callable[[bool], None]) -> None:
        self._app = app
        self._stop = stop
        self._hold = hold
        self._open = self._telling = False
        self._work: asyncio.Task[None] | None = None
        self.mission = ""

    def note(self, event: Event, payload: Payload) -> None:
        """Note which mission runs; before that, the menu has nothing to offer."""
        self.mission = event.mission

    def __call__(self) -> bool:
        """Open the menu; return `False` if it is already open or no mission runs yet."""
        if self._open or not self.mission:
            self.close()
            return False
        self._open = True
        self._hold(True)
        _offer(watching=False)
        asyncio.get_running_loop().add_reader(0, self._read)
        return True

    def close(self) -> None:
        """Stop reading lines."""
        if self._open:
            self._open = self._telling = False
            asyncio.get_running_loop().remove_reader(0)
            self._hold(False)

    def _read(self) -> None:
        line = _read_line()
        if self._telling:
            line = f"t {line}"
            self._telling = False
        elif line == "t":
            self._telling = True
            _say("Message:")
            return
        if line == "c":
            self.close()
            self._stop.stop(self._stop.end)
            return
        # After a pause or an unknown word the menu stays open. Otherwise the next Ctrl-C opens it again.
        if line in ("", "r") or line.startswith("t "):
            self.close()

        async def work() -> None:
            # In a thread: the order goes to this same process, whose loop has to carry it out meanwhile.
            said = await asyncio.to_thread(carry_out, self._app, self.mission, line)
            if said:
                _say(said)

        self._work = asyncio.ensure_future(work())


class WatchMenu:
    """The menu over a mission of another process; while it is open, nothing else is shown.

    It opens inside the signal handler. If it is `deferred`, the code that draws the picture opens it between two
    pictures, once it is `asked` for.
    """

    def __init__(self, mission: str, *, watching: bool) -> None:
        self._mission = mission
        self._watching = watching
        self.deferred = self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Open the menu or request it; until that is done another Ctrl-C raises."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = True
        if not self.deferred and (said := self.open()):
            _say(said)

    def open(self) -> str:
        """Offer the choices and carry out one; return the message for the person, or ""."""
        from chargehand.app.composition import App

        self.asked = False
        _offer(watching=self._watching)
        line = _read_line()
        if line == "t":
            _say("Message:")
            line = f"t {_read_line()}"
        if self._watching and line == "q":
            raise KeyboardInterrupt
        # A separate store: the signal may have interrupted a read of the other one.
        with App.open() as app:
            said = carry_out(app, self._mission, line)
        # Before anything is shown: the person who reads it may press Ctrl-C at once.
        signal.signal(signal.SIGINT, self)
        return said


@contextlib.contextmanager
def watch_menu(out: Output, mission: str, *, watching: bool = True) -> Iterator[WatchMenu | None]:
    """Let the first Ctrl-C during the block open the menu over a mission of another process.

    A second Ctrl-C raises `KeyboardInterrupt`; so does any Ctrl-C without a terminal to ask on, and `q` if the
    person only watches (`watching`).
    """
    if not out.can_ask:
        yield None
        return
    menu = WatchMenu(mission, watching=watching)
    before = signal.signal(signal.SIGINT, menu)
    try:
        yield menu
    finally:
        signal.signal(signal.SIGINT, before)
