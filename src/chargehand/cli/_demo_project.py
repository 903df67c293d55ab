"""The demo's project and its four agents: small scripts in the place of real ones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chargehand.core import InfrastructureError, MissionStatus

_CART = '''\
"""Prices of a shopping cart, in cents."""


def discounted(price: int, percent: int) -> int:
    """Return the price after a discount."""
    return price * percent // 100


def total(prices: list[int], percent: int = 0) -> int:
    """Return what all cost together."""
    return sum(discounted(price, percent) for price in prices)
'''
_TESTS = """\
import unittest

from shop.cart import discounted, total


class CartTest(unittest.TestCase):
    def test_discount(self) -> None:
        self.assertEqual(discounted(1000, 20), 800)

    def test_total(self) -> None:
        self.assertEqual(total([1000, 500], 10), 1350)

    def test_no_discount(self) -> None:
        self.assertEqual(total([1000, 500]), 1500)

    def test_empty(self) -> None:
        self.assertEqual(total([]), 0)
"""
_FILES: Mapping[str, str] = {
    "README.md": "# Shop\n\nA shop of the demo.\n",
    ".gitignore": "__pycache__/\n",
    "shop/__init__.py": "",
    "shop/cart.py": _CART,
    "tests/__init__.py": "",
    "tests/test_cart.py": _TESTS,
    "chargehand.toml": '[project]\nchecks = ["python3 -m unittest discover"]\nallow = ["shop/**", "tests/**"]\n',
}
_MEND = """\
from pathlib import Path
cart = Path("shop/cart.py")
cart.write_text(cart.read_text().replace("price * percent // 100", "price * (100 - percent) // 100"))
"""
REQUEST = "Fix the discount"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAgent:
    """A scripted agent, what it does in words, and how its mission has to end."""

    name: str
    story: str
    script: str
    status: MissionStatus
    reason: str | None


AGENTS = (
    DemoAgent(
        name="idler",
        story="It changes nothing and says it is done.",
        script='print("All done, every test passes now!")',
        status="refused",
        reason="no_change",
    ),
    DemoAgent(
        name="deleter",
        story="It deletes the tests that fail and says that none fails any more.",
        script='from pathlib import Path\nPath("tests/test_cart.py").unlink()\nprint("No test fails any more!")',
        status="refused",
        reason=None,
    ),
    DemoAgent(
        name="wanderer",
        story="It mends the bug, and writes where it was not allowed to: only shop/ and tests/ are.",
        script=_MEND + 'Path("deploy.sh").write_text("#!/bin/sh\\n")\nprint("Fixed, and a script to deploy it!")',
        status="refused",
        reason=None,
    ),
    DemoAgent(
        name="fixer",
        story="It mends the bug and nothing else.",
        script=_MEND + 'print("The discount is taken off the price now.")',
        status="promoted",
        reason=None,
    ),
)


def make_project(directory: Path) -> Path:
    """Make a git repository with a bug in it, at one commit; return its path."""
    project = directory / "shop"
    for name, content in _FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    git(project, "init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", "Demo"), ("user.email", "demo@example.org"), ("commit.gpgsign", "false")):
        git(project, "config", key, value)
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--no-verify", "--message=A shop with a bug in its discount")
    return project


def write_agents(path: Path) -> None:
    """Write the demo's own user configuration: four command agents."""
    path.parent.mkdir(parents=True)
    tables = [
        f"[agents.{agent.name}]\ncommand = {json.dumps(['python3', '-c', agent.script])}\n" for agent in AGENTS
    ]
    path.write_text("\n".join(tables))


def git(directory: Path, *words: str) -> str:
    """Run git in the demo's repository, without anybody's configuration; return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(
        ["git", *words], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InfrastructureError(f"git {words[0]} failed in the demo: {done.stderr.strip()}", code="demo_git")
    return done.stdout
