"""The real program, killed at a chosen point: `python -m tests.dying PLAN WORDS…`.

Every write to a mission's log or to the gateway's replay cache, every settled call, every claim and every named
fault point is a *point*. PLAN is `trace:FILE` (append the name of each point passed to FILE), or `POINT#N` (end by
SIGKILL at the N-th passing of that point), or `-`. The file `durable` in the state directory holds the length of
the write-ahead log after the last durable write.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chargehand.app.worker as worker_start
from chargehand.cli.main import main
from chargehand.missions.missions import Missions
from chargehand.models.replay_cache import ReplayCache
from chargehand.store.ledger import _AttemptLedger
from chargehand.store.log import EventLog
from chargehand.workspace.depot import Depot


class Points:
    """Counts the points passed, and kills the process at the chosen one."""

    def __init__(self, plan: str) -> None:
        traced = plan.removeprefix("trace:")
        self._trace = Path(traced) if traced != plan else None
        self._last = plan
        self._passed: Counter[str] = Counter()

    def reach(self, name: str) -> None:
        """Pass a point, or die there."""
        self._passed[name] += 1
        point = f"{name}#{self._passed[name]}"
        if self._trace is not None:
            with self._trace.open("a") as file:
                file.write(f"{point}\n")
        elif point == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, method: str, *, named: Callable[..., str]) -> None:
        """Put a point before and after every call of a method of the event log."""
        inner: Callable[..., Any] = getattr(EventLog, method)

        def outer(log: EventLog, mission: str, *words: Any, **options: Any) -> Any:
            name = named(*words)
            self.reach(f"before {name}")
            result = inner(log, mission, *words, **options)
            if options.get("durable"):
                _note_durable(log._database.home)
            self.reach(f"after {name}")
            return result

        setattr(EventLog, method, outer)

    def beside(self, owner: type, method: str, name: str) -> None:
        """Put a point before and after every call of another method."""
        inner: Callable[..., Any] = getattr(owner, method)

        def outer(*words: Any, **options: Any) -> Any:
            self.reach(f"before {name}")
            result = inner(*words, **options)
            self.reach(f"after {name}")
            return result

        setattr(owner, method, outer)


def _note_durable(home: Path) -> None:
    log = home / "store.db-wal"
    (home / "durable").write_text(str(log.stat().st_size if log.exists() else 0))


def _types(*payloads: Any) -> str:
    return "+".join(payload.type for payload in payloads)


def _arm(points: Points) -> None:
    points.around("append", named=_types)
    points.around("claim", named=lambda: "claim")
    points.around("release", named=lambda: "release")
    points.beside(ReplayCache, "keep", "kept")
    points.beside(_AttemptLedger, "settle", "settled")
    Missions.__init__.__kwdefaults__["fault"] = points.reach
    Depot.open.__func__.__kwdefaults__["fault"] = points.reach
    # The test resumes the remaining work itself.
    worker_start.ensure_worker = lambda app: worker_start.WorkerStart(False)


if __name__ == "__main__":
    _arm(Points(sys.argv[1]))
    _note_durable(Path(os.environ["CHARGEHAND_HOME"]))
    sys.argv[1:] = sys.argv[2:]
    sys.exit(main())
