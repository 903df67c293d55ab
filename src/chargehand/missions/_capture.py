"""What was going on in an attempt's sandbox when it ended badly: looked at from outside, kept as an artifact."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from chargehand.core.attempt_events import StateCaptured
from chargehand.core.events import encode_json
from chargehand.missions._control import Control
from chargehand.missions._journal import Journal
from chargehand.missions._services import Services
from chargehand.models.redaction import Redactor
from chargehand.sandbox.contract import OnOutput, RunningProcess, Sandbox, ShowsProcesses, Stream
from chargehand.workspace.workspace import Workspace

Why = Literal["timeout", "sandbox_died", "failed"]
Seen = tuple[RunningProcess, ...] | None
"""What runs in a sandbox, `None` where its tier cannot tell."""
_TAIL_BYTES = 4096
_LEAD_SECONDS, _LEAD_SHARE = 1.0, 0.1
"""A time limit kills what runs, so the look comes so long before it: a second, or a tenth of a short limit."""


class Capture:
    """Watches one run of an agent: remembers the end of its output, and looks once before its time is up."""

    def __init__(
        self,
        services: Services,
        journal: Journal,
        control: Control,
        *,
        attempt: str,
        workspace: Workspace,
        sandbox: Sandbox,
        on_output: OnOutput | None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._control = control
        self._attempt = attempt
        self._workspace = workspace
        self._sandbox = sandbox
        self._on_output = on_output
        self._tail = bytearray()
        self._late: Seen = None

    def output(self, stream: Stream, piece: bytes) -> None:
        """Take a piece of output, and hand it on."""
        self._tail += piece[-_TAIL_BYTES:]
        del self._tail[:-_TAIL_BYTES]
        if self._on_output is not None:
            self._on_output(stream, piece)

    @contextlib.asynccontextmanager
    async def watching(self, seconds: float) -> AsyncIterator[None]:
        """Look shortly before the `seconds` of the block are up; pauses are not counted."""
        looking = asyncio.create_task(self._look_late(seconds))
        try:
            yield
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _look_late(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with self._control.limited(seconds - min(_LEAD_SECONDS, seconds * _LEAD_SHARE)):
                await asyncio.Event().wait()
        self._late = await asyncio.to_thread(self._look)

    def _look(self) -> Seen:
        sandbox = self._sandbox
        return sandbox.processes() if isinstance(sandbox, ShowsProcesses) else None

    async def keep(self, why: Why) -> None:
        """Keep what is known now as an artifact, and note it."""
        seen = self._late if why == "timeout" else await asyncio.to_thread(self._look)
        document = await asyncio.to_thread(self._document, why, seen)
        artifact = self._services.store.artifacts.put(document, kind="state", mission=self._journal.mission)
        captured = StateCaptured(attempt=self._attempt, why=why, processes=len(seen or ()), artifact=artifact)
        self._journal.note(captured)

    def _document(self, why: Why, seen: Seen) -> bytes:
        entries, size = self._workspace.usage()
        disk = shutil.disk_usage(self._workspace.directory)
        document = {
            "why": why,
            "sandbox": self._sandbox.id,
            "processes": seen,
            "limits": dict(self._sandbox.limits_in_force),
            "disk": {"written_entries": entries, "written_bytes": size, "free_bytes": disk.free},
            "output": bytes(self._tail).decode(errors="replace"),
        }
        # A command line may hold what looks like a key; nothing of it is needed to see what hangs.
        return encode_json(Redactor().tree(msgspec.to_builtins(document)))
