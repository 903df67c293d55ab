"""The drivers' contract over every existing driver, and cloning on each file system that clones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.workspace_kit import Disk, agent, cloning_disk

from chargehand.core.ports import DriverName
from chargehand.sandbox.probe import DRIVERS as PROBED
from chargehand.testing.workspace.driver_contract import DriverContract
from chargehand.testing.workspace.harness import DriverHarness
from chargehand.workspace.drivers import DRIVERS

_GROUNDS: dict[str, tuple[DriverName, Disk | None]] = {
    "overlay": ("overlay", None),
    "worktree": ("worktree", None),
    "reflink-btrfs": ("reflink", "btrfs"),
    "reflink-xfs": ("reflink", "xfs"),
}

# The driver uses both cloning file systems in the same way: the suite takes one.
_MARKS: dict[Disk | None, tuple[pytest.MarkDecorator, ...]] = {
    None: (),
    "btrfs": (pytest.mark.needs_root,),
    "xfs": (pytest.mark.needs_root, pytest.mark.soak),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=_MARKS[disk]) for name, (_, disk) in _GROUNDS.items()],
)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHarness]:
    driver, disk = _GROUNDS[request.param]
    place = tmp_path_factory.mktemp("ground")
    if disk is None:
        yield DriverHarness(place, driver=driver, run=agent)
        return
    with cloning_disk(disk, place) as directory:
        yield DriverHarness(directory / "harness", driver=driver, run=agent)


class TestDrivers(DriverContract):
    pass


def test_every_driver_is_probed_and_tested_by_the_contract() -> None:
    assert set(DRIVERS) == set(PROBED) == {driver for driver, _ in _GROUNDS.values()}
