"""State directories of a machine on which missions ran before, so that its abilities are already probed.

Probing the machine and asking its interpreters for their paths takes longer than a small mission. The product
keeps the results as long as the machine, the device of the state directory and the programs on PATH are the same,
and probes again otherwise. This module stores the product's own results, under the same conditions. Tests of a
first command use a fresh directory.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from chargehand.app.composition import App
from chargehand.app.wiring.tiers import choose_driver
from chargehand.core.errors import ChargehandError
from chargehand.sandbox.toolchain import store_result

_PROBE, _ANSWERS, _FOUND = "probe.json", "toolchain.json", "toolchain-found.json"


class _Kept(Struct, frozen=True, kw_only=True):
    """The files that the product wrote in a state directory of a person whose home was `person`."""

    person: str
    probe: str
    answers: dict[str, Any]
    found: dict[str, Any]


def used_state(home: Path) -> Path:
    """Create a state directory, in its person's home, with the known abilities of this machine; return it."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = _try_machine(os.environ["PATH"])
    if kept.probe:
        (home / _PROBE).write_text(kept.probe)
    there, here = json.dumps(kept.person)[1:-1], json.dumps(str(home.parent))[1:-1]
    answers = {**kept.answers, "key": kept.answers["key"].replace(there, here)}
    (home / _ANSWERS).write_text(json.dumps(answers))
    store_result(
        home / _FOUND,
        kept.found["key"].replace(there, here),
        [path.replace(kept.person, str(home.parent)) for path in kept.found["paths"]],
        kept.found["found"],
        began=math.inf,
    )
    return home


@functools.cache
def _try_machine(search: str) -> _Kept:
    """Return what the product records after probing this machine; `probe` is empty if it has no sandbox."""
    found: list[_Kept] = []
    with tempfile.TemporaryDirectory(prefix="chargehand-used-") as place:
        # In a separate thread: a test's loop may be running in this one.
        trying = threading.Thread(target=lambda: found.append(asyncio.run(_tried(Path(place), search))))
        trying.start()
        trying.join()
    return found[0]


async def _tried(place: Path, search: str) -> _Kept:
    home = place / "state"
    with App.open(environ={"PATH": search, "HOME": str(place), "CHARGEHAND_HOME": str(home)}, cwd=place) as app:
        probe = ""
        try:
            await choose_driver(home, app.preparation.toolchain(), strategy="shadow")
            probe = (home / _PROBE).read_text()
        except ChargehandError:
            pass
        # The product keeps results only after a while without changes, and an interpreter may write to its home as
        # it answers.
        while not (home / _FOUND).exists():
            time.sleep(0.1)
            app.preparation.toolchain()
    kept = {name: json.loads((home / name).read_text()) for name in (_ANSWERS, _FOUND)}
    return _Kept(person=str(place), probe=probe, answers=kept[_ANSWERS], found=kept[_FOUND])
