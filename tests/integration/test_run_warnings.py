"""`run` reports inspection's warnings about a change that it promotes, as text and as JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import FILES, Cli, repository, shell

from chargehand.cli.terminal.output import Output
from chargehand.cli.terminal.rendering import show_result

pytestmark = pytest.mark.needs_bwrap

LOCKED = FILES | {"package.json": '{"name": "x"}\n', "package-lock.json": '{"lockfileVersion": 3}\n'}
CHANGE = (
    "rm package-lock.json; head -c 3000000 /dev/zero > big.bin; chmod 644 big.bin;"
    " echo run > tool.txt; chmod 755 tool.txt; mkdir many; cd many; seq 1001 | xargs touch; chmod 644 *"
)


def test_inspection_warnings_are_in_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(tmp_path / "person")
    result = cli.run(repository(tmp_path / "repo", LOCKED), agent=shell(CHANGE))
    assert result.document["status"] == "promoted", result
    warned = {(each["rule"], each["path"]) for each in result.document["warnings"]}
    assert warned >= {
        ("lock_mismatch", "package-lock.json"),
        ("binary_file", "big.bin"),
        ("large_file", "big.bin"),
        ("entry_executable", "tool.txt"),
        ("large_change", ""),
    }
    show_result(Output(as_json=False), cli.state(result))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  warning ")]
    assert len(shown) == len(warned)
    assert "  warning   tool.txt is newly executable (entry_executable)" in shown
    assert any(line.startswith("  warning   package-lock.json: it was deleted") for line in shown)
