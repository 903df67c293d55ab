"""From the gateway's and the books' word on a call to a model to the log's."""

from __future__ import annotations

from chargehand.core.attempt_events import ModelCalled
from chargehand.models.contract import CallRecord
from chargehand.store.ledger import BookedCall


def called(record: CallRecord) -> ModelCalled:
    """Return how a gateway says a call ended, as the log has it."""
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
        bare=record.bare,
    )


def lost_call(attempt: str, booked: BookedCall) -> ModelCalled:
    """Return the event of a call that the books have and the log has not."""
    return ModelCalled(
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
