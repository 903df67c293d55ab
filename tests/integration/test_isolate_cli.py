"""`chargehand exec --snippet`, and its examples in the reference."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.forked import ForkedPopen
from tests.used_state import used_state

from chargehand.cli.main import chargehand

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "chargehand"]
pytestmark = pytest.mark.needs_bwrap


def say(place: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program in `place` as a person would."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(place),
        "CHARGEHAND_HOME": str(used_state(place / "state")),
    }
    pipe = subprocess.PIPE
    argv = [*PROGRAM, *words]
    with ForkedPopen(argv, cwd=place, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        stdout, stderr = process.communicate(stdin)
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def test_a_file_runs_by_its_suffix_and_lines_come_before_the_value(tmp_path: Path) -> None:
    (tmp_path / "count.js").write_text("console.log('seen'); console.warn('careful');\ninput.map(x => x * 2)")
    said = say(tmp_path, "exec", "--snippet", "count.js", "--input", "[1, 2]")
    assert (said.returncode, said.stdout, said.stderr) == (0, "seen\n[2, 4]\n", "careful\n")


def test_json_output_is_a_single_document(tmp_path: Path) -> None:
    said = say(tmp_path, "exec", "--snippet", "-", "--language", "python", "--json", stdin="print('x')\n1 / 0")
    document = json.loads(said.stdout)
    assert said.returncode == 1
    assert document["error"] == {
        "kind": "exception",
        "name": "ZeroDivisionError",
        "message": "division by zero",
        "line": 2,
    }
    assert document["console"] == [{"level": "log", "text": "x"}]
    assert (document["value"], document["tier"], document["language"]) == (None, "isolate", "python")
    assert not said.stderr


def test_a_time_limit_is_taken(tmp_path: Path) -> None:
    said = say(
        tmp_path, "exec", "--snippet", "-", "--language", "javascript", "--time", "1s", "--json", stdin="for (;;);"
    )
    assert json.loads(said.stdout)["error"]["kind"] == "time"


@pytest.mark.parametrize(
    "words",
    [
        ["--snippet", "missing.py"],
        ["--snippet", "notes.txt"],
        ["--snippet", "-", "--language", "ruby"],
        ["--snippet", "-", "--language", "python", "--input", "{"],
        ["--snippet", "-", "--language", "python", "--base", "HEAD"],
        ["--snippet", "-", "--language", "python", "--", "true"],
        ["--snippet", "-", "--language", "python", "--time", "soon"],
        ["--language", "python"],
    ],
)
def test_an_unusable_snippet_is_an_error_with_a_hint(words: list[str]) -> None:
    said = CliRunner().invoke(chargehand, ["exec", *words], input="1")
    assert said.exit_code == 125
    assert "hint: " in said.stderr
    assert not said.stdout


def test_exec_without_a_command_or_snippet_is_a_usage_error() -> None:
    assert CliRunner().invoke(chargehand, ["exec"]).exit_code == 2


def test_the_examples_of_the_reference_run(tmp_path: Path) -> None:
    text = (ROOT / "docs/reference/snippets.md").read_text()
    shell, code = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
    (tmp_path / "count.js").write_text("input.length")
    for line in shell.splitlines():
        if line.startswith("$ "):
            script = line[2:].replace("chargehand", " ".join(PROGRAM))
            environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
            subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=environment, check=True, capture_output=True)
    names: dict[str, Any] = {}
    exec(code, names)
    assert asyncio.run(names["double"]([1, 2])) == [2, 4]
