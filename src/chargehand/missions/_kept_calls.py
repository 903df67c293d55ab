"""The file in which an attempt's gateway keeps what it was answered, until the attempt is over."""

from __future__ import annotations

from pathlib import Path

from chargehand.core.attempt_events import ReplayDiverged
from chargehand.models.replay import Divergence
from chargehand.store.store import Store


def kept_calls(home: Path, attempt: str) -> Path:
    """Return the file of an attempt that is not over."""
    return home / "calls" / f"{attempt}.jsonl"


def put_away(store: Store, mission: str, *attempts: str) -> None:
    """Make an artifact of the calls of each attempt that is over; nothing where it made none, or that was done."""
    for path in (kept_calls(store.home, attempt) for attempt in attempts):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        if content.count(b"\n") > 1:
            store.artifacts.put(content, kind="calls", mission=mission)
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
