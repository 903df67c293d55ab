"""What the program takes before it does anything: processor time, user and system."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import Result, Sample, Side, compare, spend
from benchmarks.shop import Shop

AIM = 0.2
_PROGRAM = Path(sys.executable).with_name("chargehand")
_PACKAGES = ("core", "workspace", "sandbox", "store", "checks", "agents", "missions", "app", "cli")


async def run(shop: Shop, *, rounds: int) -> list[Result]:
    """Compare with the bare interpreter."""
    interpreter = Side(name="python -c pass", sample=_cpu(shop, [sys.executable, "-c", "pass"]))
    help_side = Side(name="chargehand --help", sample=_cpu(shop, [str(_PROGRAM), "--help"]))
    help_result = await compare("startup", "help", [help_side, interpreter], rounds=rounds, aim=AIM, note=_NOTE)
    imports = [
        Side(
            name=f"import chargehand.{package}",
            sample=_cpu(shop, [sys.executable, "-c", f"import chargehand.{package}"]),
        )
        for package in _PACKAGES
    ]
    return [help_result, await compare("startup", "imports", [interpreter, *imports], rounds=rounds, note=_NOTE)]


_NOTE = "processor time, user and system, of the whole process"


def _cpu(shop: Shop, argv: list[str]) -> Sample:
    async def sample() -> float:
        return spend(argv, environment=shop.environ).cpu

    return sample
