"""The page about services: its script starts a real service for a check."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from command_line import Cli, repository

PAGE = Path(__file__).parents[2] / "docs/how-to/services.md"
TEST = """\
import os
import subprocess
import unittest


class T(unittest.TestCase):
    def test_the_database_answers(self):
        words = ["psql", os.environ["DATABASE_URL"], "-Atc", "select 40 + 2"]
        done = subprocess.run(words, capture_output=True, text=True)
        self.assertEqual(done.stdout, "42\\n", done.stderr)
"""


@pytest.mark.needs_bwrap
def test_a_check_starts_postgresql(tmp_path: Path) -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        assert "CI" not in os.environ
        pytest.skip("PostgreSQL is not installed")
    [script] = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    place = repository(tmp_path / "repo", {"check.sh": script, "test_db.py": TEST, "a.py": "A = 1\n"})
    cli = Cli(tmp_path / "person")
    done = cli.say(
        *("run", "note", "--agent", "command:sed -i s/1/2/ a.py"),
        *("--only-check", "sh check.sh 'python3 -m unittest -v test_db'"),
        cwd=place,
    )
    verdict = cli.state(done).verdicts[-1]
    assert [(check.status, check.tests) for check in verdict.checks] == [("passed", 1)], done
