"""Opening a mission's session does not block the event loop for the other missions of a worker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from chargehand.app.composition import App
from chargehand.core.errors import NotFoundError
from chargehand.store.log import EventLog


def test_the_log_is_not_read_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    find = EventLog.find

    def noting(log: EventLog, name: str) -> str:
        threads.append(threading.current_thread())
        return find(log, name)

    monkeypatch.setattr(EventLog, "find", noting)

    async def open_session(app: App) -> None:
        async with app.mission_session("absent"):
            pass

    environ = {"CHARGEHAND_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    with App.open(environ=environ, cwd=tmp_path) as app, pytest.raises(NotFoundError):
        asyncio.run(open_session(app))
    assert threads
    assert threading.main_thread() not in threads
