"""An attempt in the log: its model calls, its saved replies and its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from chargehand.core.attempt_events import ModelCalled, SecretUsed
from chargehand.core.events import read_payload
from chargehand.core.mission_events import AttemptFinished
from chargehand.core.records import AttemptStatus, Reason
from chargehand.core.state import AttemptState, MissionState
from chargehand.store.store import Store

if TYPE_CHECKING:
    from chargehand.agents.contract import Assignment
    from chargehand.credentials.scoped import SecretAccess
    from chargehand.models.contract import CallRecord


def call_event(record: CallRecord) -> ModelCalled:
    """Return the event of a finished call, from the gateway's record of it."""
    return ModelCalled(
        call=record.call,
        attempt=record.attempt,
        turn=record.turn,
        model=record.model,
        upstream=record.upstream,
        status=record.status,
        http_status=record.http_status,
        seconds=record.seconds,
        input_tokens=record.usage.input,
        output_tokens=record.usage.output,
        cached_tokens=record.usage.cached,
        cache_write_tokens=record.usage.cache_write,
        hour_write_tokens=record.hour_writes,
        cost_usd=record.cost_usd,
        cost_known=record.cost_usd is not None,
        booked_usd=record.booked_usd,
        reported_usd=record.reported_usd,
        computed_usd=record.computed_usd,
        reason=record.reason,
        provider=record.provider,
        operation=record.operation,
        first_seconds=record.first_seconds,
        skipped=record.skipped,
        converted=record.converted,
        left_out=record.left_out,
        bare=record.bare,
        retried=record.retried,
    )


def secret_events(
    store: Store, mission: str, assignment: Assignment, access: SecretAccess
) -> tuple[SecretUsed, ...]:
    """Return the event of a secret that an attempt was given or refused; nothing if its log has it already."""
    used = SecretUsed(
        attempt=assignment.attempt,
        secret=access.name,
        source=access.source,
        purpose=access.provider,
        role=assignment.role.name,
        refused=access.refused,
    )
    # A resumed attempt opens its gateway again.
    known = map(read_payload, store.log.read(mission, types=(SecretUsed.type,)))
    return () if used in known else (used,)


def settle_lost_calls(store: Store, state: MissionState, attempt: str) -> list[ModelCalled]:
    """Settle an attempt's calls that a dead worker left open; return the calls in the ledger but not in the log.

    The ledger is written before a call, the log after it. Call this only if no other worker can run the attempt.
    It is safe to repeat.
    """
    from chargehand.models.replay_cache import read_kept_calls  # loads every dialect

    kept = read_kept_calls(replies_path(store.home, attempt))
    store.spending.abandon(attempt, costs=kept.costs, bounds=kept.bounds)
    found: list[ModelCalled] = []
    for booked in store.spending.booked(attempt):
        if booked.call in state.calls:
            continue
        # The ledger knows only money: without a saved reply, model and turn are lost with the unwritten line.
        lost = ModelCalled(
            call=booked.call,
            attempt=attempt,
            turn=0,
            model="",
            upstream="",
            status="lost",
            http_status=0,
            seconds=0.0,
            cost_usd=booked.usd if booked.known else None,
            cost_known=booked.known,
            booked_usd=booked.usd,
            reason="its worker ended before the call was in the log",
        )
        if (reply := kept.replies.get(booked.call)) is not None:
            lost = replace(
                lost,
                turn=reply.turn,
                model=reply.model,
                upstream=reply.upstream,
                http_status=reply.status,
                operation=reply.operation,
                input_tokens=reply.usage.input,
                output_tokens=reply.usage.output,
                cached_tokens=reply.usage.cached,
                cache_write_tokens=reply.usage.cache_write,
            )
        found.append(lost)
    return found


def replies_path(home: Path, attempt: str) -> Path:
    """Return the file in which an attempt's gateway keeps paid replies until the attempt ends."""
    return home / "calls" / f"{attempt}.jsonl"


def archive_replies(store: Store, mission: str, *attempts: str) -> None:
    """Turn the replies of each finished attempt into an artifact and delete the file; safe to repeat."""
    for path in (replies_path(store.home, attempt) for attempt in attempts):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        # The artifact first: after a crash between the two steps the file still exists, and the same content makes
        # the same artifact, since artifacts are named by their digest.
        if content.count(b"\n") > 1:  # the first line is the file's own header
            store.artifacts.put(content, kind="calls", mission=mission)
        path.unlink(missing_ok=True)


def restore_replies(store: Store, mission: str, attempt: str) -> None:
    """Restore the file of an attempt's replies for a mission that resumes after its end; safe to repeat."""
    path = replies_path(store.home, attempt)
    if path.exists():
        return
    payloads = map(read_payload, store.log.read(mission))
    calls = {each.call for each in payloads if isinstance(each, ModelCalled) and each.attempt == attempt}
    kept = (row.id for row in store.artifacts.list(mission) if row.kind == "calls")
    for content in map(store.artifacts.get, kept):
        lines = map(msgspec.json.decode, content.splitlines())
        if any(line.get("call") in calls for line in lines):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_suffix(".new")
            with os.fdopen(
                os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(content)
            fresh.replace(path)


def attempt_end(
    attempt: AttemptState, status: AttemptStatus, reasons: tuple[Reason, ...], *, seconds: float
) -> AttemptFinished:
    """Return the event of an attempt's end, with the cost of its calls; without calls that is a known 0."""
    return AttemptFinished(
        attempt=attempt.id,
        status=status,
        seconds=seconds,
        reasons=reasons,
        cost_usd=attempt.cost_usd if attempt.calls else 0.0,
        cost_known=attempt.cost_known or not attempt.calls,
    )


def cancel_open_attempts(state: MissionState, reason: Reason) -> list[AttemptFinished]:
    """Return the end events of attempts that waited for a person or a worker and will not resume."""
    return [
        attempt_end(attempt, "cancelled", (reason,), seconds=state.seconds_of(f"attempt/{attempt.number}/"))
        for attempt in state.open_attempts
    ]
