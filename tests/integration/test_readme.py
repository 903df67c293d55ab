"""Every command in the README works as shown, in order, in a fresh repository."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from tests import forked
from tests.conftest import make_repository

from chargehand.configuration.records import RepositoryFile, ResolvedConfig
from chargehand.configuration.resolve import resolve

README = (Path(__file__).parents[2] / "README.md").read_text()
FILES = {
    "calc.py": "def add(a, b):\n    return a-b\n",
    "test_calc.py": (
        "import unittest\n\nfrom calc import add\n\n\nclass AddTest(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n"
    ),
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.mark.needs_bwrap
def test_the_commands_of_the_quick_start_work_in_order(tmp_path: Path) -> None:
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if "$ chargehand" in line]
    assert len(commands) >= 8
    repository = make_repository(tmp_path / "repo", FILES)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CHARGEHAND_HOME": str(tmp_path / "state"),
    }
    for command in commands:
        _, *words = shlex.split(command)
        code, *said = forked.run(words, cwd=repository, environ=environment)
        assert code == 0, (command, said)


def test_the_configuration_shown_is_accepted() -> None:
    (text,) = blocks("toml")
    assert tomllib.loads(text)
    resolved: ResolvedConfig = resolve(repository=RepositoryFile(content=text.encode(), commit="0" * 40))
    assert resolved.config.project.checks == ("python -m pytest -q",)
    assert not resolved.untrusted
