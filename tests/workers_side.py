"""The real program, recording its writes: `python -m tests.workers_side FILE WORDS…`.

Every write to a mission's log and every claim of one is a line of JSON in FILE, written afterwards.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chargehand.cli.main import main
from chargehand.store.log import EventLog


def record(file: Path) -> None:
    """Let the event log of this process record its writes."""
    append: Callable[..., Any] = EventLog.append
    claim: Callable[..., Any] = EventLog.claim

    def tell(**said: object) -> None:
        line = json.dumps({"pid": os.getpid(), "at": time.monotonic(), **said}) + "\n"
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, line.encode())
        os.close(fd)

    def appending(log: EventLog, mission: str, *payloads: Any, epoch: int | None = None, **options: Any) -> Any:
        lines = append(log, mission, *payloads, epoch=epoch, **options)
        if lines:
            tell(did="append", mission=mission, epoch=epoch, first=lines[0].seq, last=lines[-1].seq)
        return lines

    def claiming(log: EventLog, mission: str, *, owner: str, epoch: int) -> int:
        claimed = claim(log, mission, owner=owner, epoch=epoch)
        tell(did="claim", mission=mission, epoch=claimed, owner=owner)
        return claimed

    EventLog.append = appending
    EventLog.claim = claiming


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    sys.exit(main())
