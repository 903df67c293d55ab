"""What one attempt took, added up from its sandboxes' ends."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.attempt_events import NetworkRequested, SandboxClosed, SandboxOpened


class AttemptUsage(Struct, frozen=True, kw_only=True):
    """What an attempt took in the sandboxes of its agent, `None` for what is not known: never 0 instead.

    Seconds and bytes. `wall_seconds` is the time sandboxes stood, `disk_used` what lay in the workspace at the
    end, `disk_written` what went to a disk on the way, `output` what commands wrote to their streams. Peaks are
    the most at once; with `sampled` the most that was seen at looks. `network_out` and `network_in` are `None`
    where there was no network. A sandbox whose worker died tells nothing: then nothing is known of any sum.
    """

    opened: int = 0
    closed: int = 0
    wall_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    peak_processes: int | None = None
    disk_used: int | None = None
    disk_written: int | None = None
    output: int | None = None
    network_out: int | None = None
    network_in: int | None = None
    sampled: bool = False

    def with_opened(self, event: SandboxOpened) -> AttemptUsage:
        """Return it with one more sandbox."""
        more = replace(self, opened=self.opened + 1)
        if not event.egress:
            return more
        return replace(more, network_out=self.network_out or 0, network_in=self.network_in or 0)

    def with_request(self, event: NetworkRequested) -> AttemptUsage:
        """Return it with the bytes of one more request, or of those that were only counted."""
        return replace(
            self,
            network_out=(self.network_out or 0) + event.bytes_out,
            network_in=(self.network_in or 0) + event.bytes_in,
        )

    def with_closed(self, event: SandboxClosed) -> AttemptUsage:
        """Return it with what one more sandbox took."""
        if self.closed + 1 < self.opened:  # one before was lost with its worker
            unknown = AttemptUsage(network_out=self.network_out, network_in=self.network_in)
            return replace(unknown, opened=self.opened, closed=self.closed + 1)
        first = self.closed == 0
        return replace(
            self,
            closed=self.closed + 1,
            wall_seconds=_sum(self.wall_seconds, event.seconds, first=first),
            cpu_seconds=_sum(self.cpu_seconds, event.cpu_seconds, first=first),
            peak_memory=_most(self.peak_memory, event.peak_memory, first=first),
            peak_processes=_most(self.peak_processes, event.peak_processes, first=first),
            disk_used=event.written_bytes,
            disk_written=_count(self.disk_written, event.disk_written, first=first),
            output=_count(self.output, event.output, first=first),
            sampled=self.sampled or event.sampled,
        )


def _sum(before: float | None, more: float | None, *, first: bool) -> float | None:
    if first or before is None or more is None:
        return more if first else None
    return before + more


def _count(before: int | None, more: int | None, *, first: bool) -> int | None:
    if first or before is None or more is None:
        return more if first else None
    return before + more


def _most(before: int | None, more: int | None, *, first: bool) -> int | None:
    if first or before is None or more is None:
        return more if first else None
    return max(before, more)
