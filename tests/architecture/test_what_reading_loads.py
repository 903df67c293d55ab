"""Commands that only read load little: their modules are counted, so that the count can only fall."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MISSIONS = 84
"""71 when this was written; a hundred is the aim."""
SCRIPT = """
import sys
from chargehand.cli.main import main
sys.argv = ["chargehand", *{words!r}]
try:
    main()
except SystemExit:
    pass
names = [name for name in sys.modules if name.startswith("chargehand")]
print(len(names), *sorted({{name.split(".")[1] for name in names if "." in name}}), file=sys.stderr)
"""


def loaded(tmp_path: Path, *words: str) -> tuple[int, set[str]]:
    """Return how many modules of ours a command loads, and of which packages."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(words=words)],
        cwd=tmp_path,
        env={**os.environ, "CHARGEHAND_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=True,
    )
    count, *packages = done.stderr.splitlines()[-1].split()
    return int(count), set(packages)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--help",), 32),
        (("mission", "--help"), 8),
        (("mission", "list"), MISSIONS),
        (("mission", "list", "--json"), MISSIONS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_reading_command_loads_little(tmp_path: Path, words: tuple[str, ...], most: int) -> None:
    count, _ = loaded(tmp_path, *words)
    assert count <= most


def test_the_facade_for_reading_loads_nothing_that_runs_missions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, chargehand.app.missions; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = (
        "chargehand.sandbox",
        "chargehand.models",
        "chargehand.checks",
        "chargehand.agents",
        "pygit2",
        "httpx",
    )
    assert [name for name in heavy if name in done.stdout.split()] == []
