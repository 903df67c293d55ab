"""The demo's project: a small shop with a bug in its discount, and an acceptance test that agents never see."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from chargehand.app.demo.script import MODEL, PRICE_IN, PRICE_OUT, SCRIPT, STUBBORN
from chargehand.core.errors import InfrastructureError

CHECK = "python3 -m unittest discover"
REQUEST = "Fix the discount. Fractions of a cent go to the customer."
# The path of the acceptance test while checks run; it is absent otherwise.
ACCEPTANCE = "tests/test_fractions.py"
# The reply for the fork, as `mission fork --reply @FILE` reads it.
STUBBORN_FILE = "stubborn.json"
CHEAT = "command:rm tests/test_cart.py"
CHEAT_REQUEST = "Make the tests pass"
# It changes no test and makes every comparison succeed: the code under test runs in the tests' process.
FORGERY = "command:sed -i '1i import unittest; unittest.TestCase.assertEqual = max' shop/cart.py"
# The person's own program, and its path in its sandbox; neither the agent nor the tree contains it.
OUTSIDE_FILE = "outside.sh"
OUTSIDE_PLACE = "outside/discount.sh"
OUTSIDE_CHECK = f"sh {OUTSIDE_PLACE}"

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

    def test_empty(self) -> None:
        self.assertEqual(total([]), 0)
"""
_ACCEPTANCE = """\
import unittest

from shop.cart import discounted


class FractionsTest(unittest.TestCase):
    def test_half_a_cent_goes_to_the_customer(self) -> None:
        self.assertEqual(discounted(999, 50), 499)
"""
_OUTSIDE = """\
set -e
answer=$(under-test python3 -c 'from shop.cart import discounted; print(discounted(999, 10))')
echo "999 cents less 10 %: $answer"
[ "$answer" = 899 ]
"""
_FILES: Mapping[str, str] = {
    "README.md": "# Shop\n\nA shop of the demo.\n",
    ".gitignore": "__pycache__/\n",
    "shop/__init__.py": "",
    "shop/cart.py": _CART,
    "tests/__init__.py": "",
    "tests/test_cart.py": _TESTS,
    "chargehand.toml": f'[project]\nchecks = ["{CHECK}"]\nallow = ["shop/**", "tests/**"]\n',
}


def make_project(directory: Path) -> Path:
    """Create a git repository with a bug in it, at one commit; return its path."""
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


def write_files_beside(directory: Path) -> Path:
    """Write the files that the shown commands name next to the project; return the acceptance test's path."""
    reply = {"text": STUBBORN.text, "tools": STUBBORN.tools}
    (directory / STUBBORN_FILE).write_text(json.dumps(reply, indent=2) + "\n")
    (directory / OUTSIDE_FILE).write_text(_OUTSIDE)
    path = directory / "fractions.py"
    path.write_text(_ACCEPTANCE)
    return path


def write_configuration(path: Path, directory: Path) -> None:
    """Write the demo's own user configuration: one model, whose replies are a script in `directory`."""
    script = directory / "script.jsonl"
    script.write_bytes(SCRIPT.dump())
    path.parent.mkdir(parents=True)
    # Without lessons: a coin decides whether a mission is shown one, and the demo prints the same each time.
    path.write_text(
        f'[knowledge]\nlessons = "off"\n\n[models.{MODEL}]\nprovider = "script"\nscript = "{script}"\n'
        f"price_in = {PRICE_IN}\nprice_out = {PRICE_OUT}\n"
    )


def git(directory: Path, *words: str) -> str:
    """Run git in the demo's repository, without any user's configuration; return its output."""
    # Inside a hook GIT_DIR and similar variables would point to another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(
        ["git", *words], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InfrastructureError(f"git {words[0]} failed in the demo: {done.stderr.strip()}", code="demo_git")
    return done.stdout


def own_environment(directory: Path) -> dict[str, str]:
    """Return the environment of a user who has only the demo's files."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("CHARGEHAND_")}
    return own | {"CHARGEHAND_HOME": str(directory / "state"), "XDG_CONFIG_HOME": str(directory / "config")}


@contextlib.contextmanager
def temporary_directory(keep: bool) -> Iterator[Path]:
    """Create a directory that is removed after the block unless `keep` is set."""
    directory = Path(tempfile.mkdtemp(prefix="chargehand-demo-")).resolve()
    try:
        yield directory
    finally:
        if not keep:
            _remove_tree(directory)


def _remove_tree(directory: Path) -> None:
    """Remove a tree in which directories may be read-only."""

    def again(remove: Callable[..., object], path: str, error: object) -> None:
        with contextlib.suppress(OSError):
            # The kernel leaves an overlay's `work/work` with mode 000.
            Path(path).parent.chmod(stat.S_IRWXU)
            if Path(path).is_dir() and not Path(path).is_symlink():
                Path(path).chmod(stat.S_IRWXU)
            remove(path)

    # Python 3.12 renamed the argument.
    if sys.version_info >= (3, 12):
        shutil.rmtree(directory, onexc=again)
    else:
        shutil.rmtree(directory, onerror=again)
    shutil.rmtree(directory, ignore_errors=True)
