"""Statistics of models: calls, tokens, money, durations, errors, and how their attempts ended.

Each figure is defined in `causes.toml`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from chargehand.core.attempt_events import ModelCalled
from chargehand.core.events import read_payload
from chargehand.core.state import AttemptState
from chargehand.missions.reading import MissionReader
from chargehand.missions.statistics import Cost, Percentiles, Sample
from chargehand.store.rows import MissionFilter


class Tokens(Struct, frozen=True, kw_only=True):
    """Tokens of the calls that reported them; `unknown` counts sent calls without a report."""

    input: int
    output: int
    cached: int
    unknown: int


class ModelStats(Struct, frozen=True, kw_only=True):
    """Figures of one model, defined in `causes.toml`. USD and seconds; `None` if unknown."""

    model: str
    upstream: str
    provider: str
    calls: int
    by_status: Mapping[str, int]
    by_operation: Mapping[str, int]
    errors: Mapping[str, int]
    retries: Mapping[str, int]
    skips: int
    converted: int
    tokens: Tokens
    cost: Cost
    reported: Cost
    booked_usd: float
    seconds: Percentiles
    first: Percentiles
    tokens_per_second: float | None
    attempts: int
    by_end: Mapping[str, int]
    verdicts: Mapping[str, int]


def gather_model_statistics(
    reader: MissionReader, *, project: str | None = None, since: datetime | None = None
) -> tuple[ModelStats, ...]:
    """Return figures for the models of all missions, or of one project, those with the most calls first.

    `since` (timezone-aware) omits earlier calls. Raises `StoreError`.
    """
    log, position, called = reader.store.log, 0, dict[str, list[ModelCalled]]()
    while page := log.after(position, project=project, types=(ModelCalled.type,)):
        position = page[-1].position
        for line in (each.event for each in page):
            new = since is None or datetime.fromisoformat(line.time) >= since
            if new and isinstance(call := read_payload(line), ModelCalled):
                called.setdefault(line.mission, []).append(call)
    tally = ModelTally()
    # Without calls no row is read: most missions of other programs' agents have no calls.
    for listing in log.summaries(wanted=MissionFilter(project=project)) if called else ():
        tally.add(called.pop(listing.row.id, []), listing.summary.attempts)
    return tally.stats()


class ModelTally:
    """Adds up the calls of missions, one mission at a time."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], _ModelRow] = {}

    def add(self, calls: list[ModelCalled], attempts: tuple[AttemptState, ...] | list[AttemptState]) -> None:
        """Count the calls of one mission, each call once even if logged repeatedly, and its attempts."""
        last: dict[str, _ModelRow] = {}
        # A call may be recorded twice, by the gateway and as lost by a resumed worker: its first line counts.
        for call in {one.call: one for one in reversed(calls)}.values():
            row = self._rows.setdefault((call.model, call.upstream, call.provider), _ModelRow())
            row.add(call)
        for call in calls:
            if call.status == "ok":
                last[call.attempt] = self._rows[call.model, call.upstream, call.provider]
        for attempt in attempts:
            if attempt.id in last:
                last[attempt.id].end(attempt)

    def stats(self) -> tuple[ModelStats, ...]:
        """Return the totals."""
        made = (row.stats(*key) for key, row in self._rows.items())
        return tuple(sorted(made, key=lambda one: (-one.calls, one.model, one.upstream, one.provider)))


class _ModelRow(Struct):
    """The calls to one model at one address."""

    statuses: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: Sample = field(default_factory=Sample)
    first: Sample = field(default_factory=Sample)
    usd: float = 0.0
    reported_usd: float = 0.0
    booked_usd: float = 0.0
    timed_output: int = 0
    timed_seconds: float = 0.0

    def add(self, call: ModelCalled) -> None:
        self.statuses[call.status] += 1
        self.operations[call.operation] += 1
        self.retries.update(call.retried)
        self.counts["skips"] += len(call.skipped)
        self.counts["converted"] += len(call.converted)
        self.counts["input"] += call.input_tokens or 0
        self.counts["output"] += call.output_tokens or 0
        self.counts["cached"] += call.cached_tokens or 0
        # A call that was refused before it was sent has no tokens; a call with a cost has unknown ones.
        reported = call.input_tokens is not None and call.output_tokens is not None
        self.counts["unknown"] += not reported and (call.cost_usd != 0 or call.status == "ok")
        self.booked_usd += call.booked_usd
        self.counts["priced"] += call.cost_known
        self.usd += (call.cost_usd or 0.0) if call.cost_known else 0.0
        if call.reported_usd is not None:
            self.counts["reported"] += 1
            self.reported_usd += call.reported_usd
        if call.status != "ok":
            code, colon, _ = call.reason.partition(":")
            code = code if colon and code.isidentifier() else call.status  # a reason may have no code
            # A provider's own errors are distinguished by status: 429 and 500 need different remedies.
            self.errors[f"{code} {call.http_status}" if code == "upstream_error" else code] += 1
            return
        self.seconds.add(call.seconds)
        self.first.add(call.first_seconds)
        # Speed is measured on replies only: embeddings have no output, and unknown tokens no speed.
        if call.output_tokens is not None and call.operation == "reply":
            self.timed_output += call.output_tokens
            self.timed_seconds += call.seconds

    def end(self, attempt: AttemptState) -> None:
        self.ends[attempt.status] += 1
        if attempt.verdict is not None:
            self.verdicts[attempt.verdict] += 1

    def stats(self, model: str, upstream: str, provider: str) -> ModelStats:
        calls, counts = self.statuses.total(), self.counts
        priced, reported = counts["priced"], counts["reported"]
        return ModelStats(
            model=model,
            upstream=upstream,
            provider=provider,
            calls=calls,
            by_status=dict(sorted(self.statuses.items())),
            by_operation=dict(sorted(self.operations.items())),
            errors=dict(self.errors.most_common()),
            retries=dict(self.retries.most_common()),
            skips=counts["skips"],
            converted=counts["converted"],
            tokens=Tokens(
                input=counts["input"], output=counts["output"], cached=counts["cached"], unknown=counts["unknown"]
            ),
            cost=Cost(usd=self.usd if priced else None, known=priced, unknown=calls - priced),
            reported=Cost(usd=self.reported_usd if reported else None, known=reported, unknown=calls - reported),
            booked_usd=self.booked_usd,
            seconds=self.seconds.spread(),
            first=self.first.spread(),
            tokens_per_second=self.timed_output / self.timed_seconds if self.timed_seconds > 0 else None,
            attempts=self.ends.total(),
            by_end=dict(sorted(self.ends.items())),
            verdicts=dict(sorted(self.verdicts.items())),
        )
