"""Which tier and which workspace driver: chosen by proof, remembered until the machine changes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from chargehand.core import DriverName, Strategy, TierUnavailableError
from chargehand.sandbox import Toolchain, probe

_TIERS = ("process",)


def require_tier(tier: str) -> None:
    """Raise `TierUnavailableError` unless this version has the tier."""
    if tier not in _TIERS:
        raise TierUnavailableError(
            f"the sandbox tier {tier!r} is not available in this version", hint="use --sandbox process"
        )


async def choose_driver(home: Path, toolchain: Toolchain, *, strategy: Strategy) -> DriverName:
    """Return a strategy's workspace driver on this machine, proven by a probe when nothing is known of it yet.

    Raises `TierUnavailableError` with the mend where no sandbox can be had.
    """
    place, key = home / "probe.json", _machine(home, toolchain)
    known = _known(place, key, strategy)
    if known is not None:
        return known
    report = await probe(toolchain, scratch=home)
    driver = report.require(strategy)
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    drivers = {"shadow": report.driver, "direct": report.direct}
    fresh.write_text(json.dumps({"machine": key, "drivers": drivers}))
    fresh.replace(place)
    return driver


def _machine(home: Path, toolchain: Toolchain) -> list[object]:
    bwrap = shutil.which("bwrap")
    stamp = os.stat(bwrap).st_mtime if bwrap else 0
    system = os.uname()
    return [system.release, system.version, os.geteuid(), os.stat(home).st_dev, bwrap, stamp, toolchain.id]


def _known(place: Path, key: list[object], strategy: Strategy) -> DriverName | None:
    try:
        kept = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    drivers: dict[Strategy, DriverName] = kept.get("drivers", {}) if kept.get("machine") == key else {}
    return drivers.get(strategy)
