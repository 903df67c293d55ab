"""A small real project in a real repository, and missions on it through the product's public interface."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace
from tests.conftest import make_repository
from tests.used_state import used_state

from chargehand.app.composition import App
from chargehand.core.records import MissionRequest
from chargehand.core.state import MissionState

FILES = {
    "calc/__init__.py": "",
    "calc/core.py": "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n",
    "tests/__init__.py": "",
    "tests/test_core.py": (
        "import unittest\n\nfrom calc.core import add, double\n\n\n"
        "class CoreTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n\n"
        "    def test_double(self):\n        self.assertEqual(double(4), 8)\n"
    ),
    ".gitignore": "__pycache__/\n*.pyc\nbuild/\n",
    "README.md": "# calc\n",
}
CHECK = "python3 -m unittest discover -q"
GOLD = "sed -i 's/a - b/a + b/' calc/core.py"
REQUEST = MissionRequest(text="add() subtracts: mend it", agent="", command=(), slug="mend-add", seconds=120.0)


class MissionKit:
    """One repository and one state directory."""

    def __init__(self, place: Path, files: Mapping[str, str] = FILES) -> None:
        self.place = place
        self.repository = make_repository(place / "repo", files)
        self.home = used_state(place / "state")
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "CHARGEHAND_HOME": str(self.home),
        }

    def app(self) -> App:
        """Return the app of this state directory."""
        return App(environ=self.environ, cwd=self.repository)

    def run(self, script: str, *, checks: Sequence[str] = (CHECK,), **changes: object) -> MissionState:
        """Run a mission whose agent is a shell script, to its end."""
        return asyncio.run(self.run_async(script, checks=checks, **changes))

    async def run_async(self, script: str, *, checks: Sequence[str] = (CHECK,), **changes: object) -> MissionState:
        """Run a mission whose agent is a shell script, to its end."""
        agent = f"command:sh -c {shlex.quote(script)}"
        wanted = replace(REQUEST, agent=agent, only_checks=tuple(checks), **changes)
        app = self.app()
        try:
            async with app.session() as session:
                mission = session.missions.create(
                    wanted, repository=str(self.repository), base=session.base, config={}
                )
                return await session.missions.run(mission)
        finally:
            app.close()

    def promote(self, mission: str) -> MissionState:
        """Promote the result of a mission, as a person."""

        async def decide() -> MissionState:
            app = self.app()
            try:
                async with app.session() as session:
                    return await session.missions.promote(mission, identity="os:test")
            finally:
                app.close()

        return asyncio.run(decide())
