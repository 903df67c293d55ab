"""Workspaces made of clones: blocks are shared, never writes; refused if files cannot be cloned."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.workspace_kit import WorkspaceKit, agent, changed, cloning_disk

from chargehand.core.errors import InfrastructureError
from chargehand.sandbox.probe import ProbePart, ProbeReport, probe
from chargehand.sandbox.toolchain import Toolchain, discover
from chargehand.workspace.environment import EnvironmentLayers

BIG = 8 << 20


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with cloning_disk("btrfs", tmp_path_factory.mktemp("disk")) as place:
        yield place


@pytest.fixture
def tools() -> Toolchain:
    return discover(search=os.environ["PATH"])


def used(disk: Path) -> int:
    subprocess.run(["sync", "--file-system", disk], check=True)
    room = os.statvfs(disk)
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def cost(disk: Path, make: Callable[[], object]) -> int:
    before = used(disk)
    make()
    return used(disk) - before


def not_where_files_are_cloned(place: Path) -> None:
    (place / "old").write_text("old\n")
    cloned = subprocess.run(
        ["cp", "--reflink=always", place / "old", place / "new"], capture_output=True, check=False
    )
    for name in ("old", "new"):
        (place / name).unlink(missing_ok=True)
    if cloned.returncode == 0:
        pytest.skip(f"{place} lies on a file system that clones")


@pytest.mark.needs_root
def test_unchanged_files_share_blocks_but_writes_are_isolated(disk: Path) -> None:
    kit = WorkspaceKit(disk / "blocks")
    (kit.repository / "big").write_bytes(os.urandom(BIG))
    kit.commit()
    first = kit.workspace("reflink")  # creates the base too
    assert cost(disk, lambda: kit.workspace("reflink")) < BIG // 4
    assert cost(disk, lambda: first.reset(first.base.tree, "back")) < BIG // 4
    shown = agent(first, "printf X | dd of=big conv=notrunc status=none; head -c 1 big")
    assert (shown, changed(first)) == ("X", {"big": "modified"})
    assert kit.workspace("reflink").scan(trust_cache=False).tree == first.base.tree


@pytest.mark.needs_root
def test_an_environment_is_cloned_too(disk: Path) -> None:
    kit = WorkspaceKit(disk / "environment")
    setup = kit.workspace("reflink")
    agent(setup, f"mkdir build; head -c {BIG} /dev/urandom > build/big; chmod 750 build/big; ln -s big build/link")
    environment = EnvironmentLayers(kit.depot()).freeze(setup, "k").path
    made = []
    assert cost(disk, lambda: made.append(kit.workspace("reflink", environment=environment))) < BIG // 4
    shown = agent(made[0], "stat -c '%a %s' build/big; readlink build/link; echo x >> build/big")
    assert shown == f"750 {BIG}\nbig\n"
    assert (environment / "build/big").stat().st_size == BIG, "the layer is not what was written to"


def test_reflink_is_refused_without_clone_support_and_leaves_no_files(tmp_path: Path) -> None:
    not_where_files_are_cloned(tmp_path)
    kit = WorkspaceKit(tmp_path)
    with pytest.raises(InfrastructureError) as caught:
        kit.workspace("reflink")
    assert caught.value.code == "no_clone"
    assert "CHARGEHAND_HOME" in caught.value.hint
    place = kit.workspace("worktree").directory.parent
    assert len(list(place.iterdir())) == 1


# --- the choice of driver


@pytest.mark.needs_bwrap
async def test_the_direct_strategy_copies_without_clone_support(tmp_path: Path, tools: Toolchain) -> None:
    not_where_files_are_cloned(tmp_path)
    report = await probe(tools, scratch=tmp_path)
    assert [part.name for part in report.drivers] == ["overlay", "reflink", "worktree"]
    cloned = report.drivers[1]
    assert (report.ok, report.direct) == (True, "worktree")
    assert f"{str(tmp_path)!r} does not clone files" in cloned.detail
    assert "btrfs" in cloned.mend


def report(**works: bool) -> ProbeReport:
    parts = [
        ProbePart(name=name, ok=ok, detail=f"{name} was tried", mend=f"mend {name}") for name, ok in works.items()
    ]
    return ProbeReport(tier="process", parts=tuple(parts))


def test_the_best_driver_that_works_is_taken() -> None:
    everything = report(bubblewrap=True, overlay=True, reflink=True, worktree=True, network=True)
    assert (everything.driver, everything.direct, everything.ok) == ("overlay", "reflink", True)
    no_overlay = report(bubblewrap=True, overlay=False, reflink=True, worktree=True)
    assert (no_overlay.require(), no_overlay.require("direct"), no_overlay.ok) == ("reflink", "reflink", True)
    only_copies = report(overlay=False, reflink=False, worktree=True)
    assert (only_copies.require(), only_copies.require("direct")) == ("worktree", "worktree")
    no_network = report(overlay=True, reflink=False, worktree=True, network=False)
    for strategy in ("shadow", "direct"):
        with pytest.raises(Exception, match="network was tried") as caught:
            no_network.require(strategy)
        assert caught.value.hint == "mend network"
    nothing = report(bubblewrap=True, overlay=False, reflink=False, worktree=False)
    assert (nothing.driver, nothing.direct, nothing.ok) == (None, None, False)
    with pytest.raises(Exception, match="worktree was tried"):
        nothing.require()
