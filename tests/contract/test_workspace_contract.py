"""The drivers' contract over every driver that there is, by clones on each file system that clones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest
from tests.workspace_kit import Disk, agent, cloning_disk

from chargehand.core.ports import DriverName
from chargehand.sandbox.probe import DRIVERS as PROBED
from chargehand.workspace._contract import DriverContract
from chargehand.workspace._contract_yard import DriverYard
from chargehand.workspace._drivers import DRIVERS

_GROUNDS: dict[str, tuple[DriverName, Disk | None]] = {
    "overlay": ("overlay", None),
    "worktree": ("worktree", None),
    "reflink-btrfs": ("reflink", "btrfs"),
    "reflink-xfs": ("reflink", "xfs"),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.needs_root if disk else ()) for name, (_, disk) in _GROUNDS.items()
    ],
)
def yard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverYard]:
    driver, disk = _GROUNDS[request.param]
    place = tmp_path_factory.mktemp("ground")
    if disk is None:
        yield DriverYard(place, driver=driver, run=agent)
        return
    with cloning_disk(disk, place) as directory:
        yield DriverYard(directory / "yard", driver=driver, run=agent)


class TestDrivers(DriverContract):
    pass


def test_every_driver_is_probed_and_held_against_the_contract() -> None:
    assert set(get_args(DriverName)) == set(DRIVERS) == set(PROBED) == {driver for driver, _ in _GROUNDS.values()}
