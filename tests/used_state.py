"""State directories of a machine that missions ran on before: what it can offer was tried there already.

Trying takes longer than a small mission. The product keeps what it found for as long as the machine, the device of
the state directory and the programs on PATH are the same, and tries anew where they are not: what is put here is
what the product itself wrote, and stands under the same conditions. Tests of a first command take a fresh one.
"""

from __future__ import annotations

import asyncio
import functools
import os
import tempfile
import threading
from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.wiring.tiers import choose_driver
from chargehand.core.errors import ChargehandError

_KEPT = "probe.json"


def used_state(home: Path) -> Path:
    """Make a state directory that knows what this machine can offer, where it can offer anything; return it."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = _kept(os.environ["PATH"])
    if kept:
        (home / _KEPT).write_text(kept)
    return home


@functools.cache
def _kept(search: str) -> str:
    """Return what the product writes down once it tried this machine; empty where it has no sandbox."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="chargehand-used-") as place:
        # In a thread of its own: a test's loop may be running in this one.
        trying = threading.Thread(target=lambda: found.append(asyncio.run(_tried(Path(place), search))))
        trying.start()
        trying.join()
    return "".join(found)


async def _tried(place: Path, search: str) -> str:
    home = place / "state"
    with App.open(environ={"PATH": search, "HOME": str(place), "CHARGEHAND_HOME": str(home)}, cwd=place) as app:
        try:
            await choose_driver(home, app.toolchain(), strategy="shadow")
        except ChargehandError:
            return ""
    return (home / _KEPT).read_text()
