"""The example of `docs/how-to/write-a-tier.md` is a test file that passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-tier.md"


@pytest.mark.needs_bwrap
def test_the_example_of_a_contract_passes(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_mine.py").write_text(example)
    chosen = "id_tier or environment or killed_from_outside or vfork"  # the whole contract runs elsewhere
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    done = subprocess.run(
        [*command, "-k", chosen, "test_mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
