"""An installation by `setup`: made once as a layer and reused by every later attempt, against a fresh one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import count

from benchmarks.measure import Result, Side, compare, settle, spend, timed
from benchmarks.mission_kit import MissionKit, Opened
from benchmarks.repositories import ENVIRONMENT
from chargehand.app.composition import App
from chargehand.app.wiring.session import Session
from chargehand.configuration.records import OptionValue
from chargehand.core.errors import RefusedError

PACKAGES = ("idna", "six", "iniconfig")
_INSTALL = f"python -m pip install --quiet --disable-pip-version-check {' '.join(PACKAGES)}"
_USE = f"import {', '.join(PACKAGES)}"
_BY_HAND = f"""
set -e
git worktree add --quiet --detach "$1" main
cd "$1"
"$2" -m venv .venv
.venv/bin/{_INSTALL}
.venv/bin/python -c "{_USE}"
"""
_numbers = count(1)


async def run(kit: MissionKit, opened: Opened, *, rounds: int) -> list[Result]:
    """Compare an existing layer with one made through the registry mirror, and with both by hand.

    Uses the registry of the person's own pip configuration; left out if no registry answers.
    """
    environ = kit.environ | {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    with App.open(environ=environ, cwd=kit.repository) as app:
        try:
            await _used(app, _INSTALL)
        except RefusedError as problem:
            print(f"layers: no registry answers, left out ({problem.message.strip()[-200:]!r})", file=sys.stderr)
            return []
        return [await _compared(kit, app, environ, rounds=rounds)]


async def _compared(kit: MissionKit, app: App, environ: dict[str, str], *, rounds: int) -> Result:
    target = kit.place / "installed"

    async def hit() -> float:
        return await _used(app, _INSTALL)

    async def made() -> float:
        return await _used(app, f"{_INSTALL} # {next(_numbers)}")

    async def by_hand() -> float:
        settle()
        argv = ["sh", "-c", _BY_HAND, "sh", str(target), sys.executable]
        hand = ENVIRONMENT | {name: value for name, value in environ.items() if name.startswith("PIP_")}
        spent = spend(argv, cwd=kit.repository, environment=hand | {"HOME": environ["HOME"]})
        kit.take_down(target)
        return spent.wall

    sides = [
        Side(name="workspace on the layer, packages imported", sample=hit, repeat=3),
        Side(name="layer made through the mirror, same", sample=made),
        Side(name="worktree, venv, pip install by hand, same", sample=by_hand),
    ]
    result = await compare(
        "layers", f"venv with {len(PACKAGES)} packages", sides, rounds=min(rounds, 5), files=kit.files, seconds=90
    )
    return replace(
        result, note="what pip and its registry take is in all but the first; opening the project in none"
    )


async def _used(app: App, setup: str) -> float:
    """Return the seconds to open a workspace with that setup's environment and import the packages in it."""
    async with app.session(options={"project.setup": OptionValue(value=setup, name="--setup")}) as session:
        settle()
        with timed() as seconds:
            await _imported(session)
        return seconds[0]


async def _imported(session: Session) -> None:
    async with session.open_workspace() as (_, sandbox):
        done = await sandbox.exec([".venv/bin/python", "-c", _USE])
        assert done.exit_code == 0, done.stderr
