"""A whole mission in virtual machines, from the command line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from command_line import MEND, PASSES, Cli, repository
from tests import vm_kit


@pytest.mark.needs_vm
@pytest.mark.timeout(1500)
@pytest.mark.soak
def test_a_mission_in_virtual_machines_is_promoted_and_records_its_tier(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    vm_kit.provide(Path(cli.environ["CHARGEHAND_HOME"]) / "vm")
    done = cli.say("exec", "--sandbox", "vm", "--", "sh", "-c", "cat f.txt; uname -r", cwd=repo)
    assert done.code == 0, done
    assert vm_kit.guest().version in done.document["stdout"]
    done = cli.say("run", "Mend f", "--agent", MEND, *PASSES, "--sandbox", "vm", cwd=repo)
    assert (done.code, done.document["status"]) == (0, "promoted"), done
    shown = cli.say("mission", "show", done.document["mission"], cwd=repo).document
    assert shown["places"] == [{"tier": "vm", "driver": "overlay"}]
    seen = subprocess.run(
        ["git", "-C", str(repo), "show", "chargehand/mend-f:f.txt"], capture_output=True, text=True, check=True
    )
    assert seen.stdout == "baa\n"


def test_a_missing_kernel_error_names_the_setup_command(tmp_path: Path) -> None:
    cli, repo = Cli(tmp_path), repository(tmp_path / "repo")
    done = cli.say("run", "Mend f", "--agent", MEND, *PASSES, "--sandbox", "vm", cwd=repo)
    assert done.code == 5
    assert "chargehand sandbox setup vm" in done.error["hint"] or "install QEMU" in done.error["hint"]
