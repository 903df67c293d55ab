"""The file in which an attempt's gateway keeps what it was answered, until the attempt is over."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chargehand.core import ReplayDiverged
from chargehand.missions._journal import Journal
from chargehand.missions._services import Services
from chargehand.models import Divergence


def kept_calls(home: Path, attempt: str) -> Path:
    """Return the file of an attempt that is not over."""
    return home / "calls" / f"{attempt}.jsonl"


async def put_away(services: Services, journal: Journal, number: int) -> None:
    """Make an artifact of the calls of an attempt that is over; nothing where it made none, or that was done."""
    over = journal.state.attempt(number)
    if over is not None:
        await asyncio.to_thread(_put_away, services, journal.mission, kept_calls(services.home, over.id))


def _put_away(services: Services, mission: str, path: Path) -> None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if content.count(b"\n") > 1:
        services.store.artifacts.put(content, kind="calls", mission=mission)
    path.unlink(missing_ok=True)


def diverged(attempt: str, divergence: Divergence) -> ReplayDiverged:
    """Return the event of an attempt that asks for something else than before."""
    return ReplayDiverged(
        attempt=attempt,
        turn=divergence.turn,
        pointer=divergence.pointer,
        recorded=divergence.recorded,
        sent=divergence.sent,
    )
