"""Outcomes of the targets that write a branch of the user's repository, as deliveries and with their retry."""

from __future__ import annotations

from msgspec.structs import replace

from chargehand.core.records import Export, TargetDelivery
from chargehand.core.state import MissionState
from chargehand.missions.reading import retry_command


def with_retry(state: MissionState, export: Export) -> Export:
    """Add the command for a retry to the reason of a blocked export."""
    if export.state != "blocked":
        return export
    return replace(export, reason=f"{export.reason}; once that is resolved: {retry_command(state)}")


def describe_export(
    state: MissionState, target: str, commit: str, export: Export | None, *, done: bool
) -> TargetDelivery:
    """Return the delivery of a commit from the last recorded export; `done` says whether it had this commit."""
    if done or export is None or export.state != "blocked":
        return TargetDelivery(target=target, commit=commit, state="done" if done else "pending")
    return TargetDelivery(
        target=target, commit=commit, state="blocked", reason=export.reason, remedy=retry_command(state)
    )
