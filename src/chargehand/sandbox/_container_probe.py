"""What the container tier can offer here, found by opening real containers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from chargehand.core.errors import ChargehandError, TierUnavailableError
from chargehand.sandbox._container import ContainerTier
from chargehand.sandbox._container_engine import Engine, find_engine
from chargehand.sandbox._probe import DRIVERS, Part, ProbeReport, try_driver, try_trials
from chargehand.sandbox._toolchain import Toolchain

TIER = "container"


async def probe_container(
    toolchain: Toolchain, *, scratch: Path, environ: Mapping[str, str], program: str = "", image: str = ""
) -> ProbeReport:
    """Find an engine and try each promise in real containers; nothing is left behind. Takes about 5 s.

    `program` and `image` are those of `ContainerTier`.
    """
    try:
        engine = await asyncio.to_thread(find_engine, program=program, image=image, environ=environ)
    except TierUnavailableError as error:
        part = Part(name="engine", ok=False, detail=error.message, mend=error.hint)
        return ProbeReport(tier=TIER, parts=(part,))
    parts = [Part(name="engine", ok=True, detail=_described(engine))]
    try:
        async with ContainerTier(toolchain, scratch=scratch, environ=environ, engine=engine) as tier:
            parts += [await try_driver(driver, tier, scratch) for driver in DRIVERS]
            driver = ProbeReport(tier=TIER, parts=tuple(parts)).driver
            if driver is not None:
                parts += await try_trials(driver, tier, scratch)
    except ChargehandError as error:
        parts.append(Part(name="containers", ok=False, detail=error.message, mend=error.hint))
    return ProbeReport(tier=TIER, parts=tuple(parts))


def _described(engine: Engine) -> str:
    options = f" with {' '.join(engine.options)}" if engine.options else ""
    shown = f"the image {engine.image}" if engine.image else "the host's own /usr"
    return f"{engine.version}{options}; containers show {shown}"
