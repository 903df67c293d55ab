"""Starts a worker beside the command that left something to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from chargehand.app._app import App


def ensure_worker(app: App) -> bool:
    """Start a detached worker where none lives; return whether one was started.

    It ends when nothing is left to do; for missions that wait for quota it stays, for nobody else may wake them.
    """
    return start_worker(app) is not None


def start_worker(app: App) -> subprocess.Popen[bytes] | None:
    """Start a worker as `ensure_worker` does and return its process, for who asks again before it has joined."""
    if any(member.role == "worker" for member in app.workers.members()):
        return None
    logs = app.home / "logs"
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Path(logs, "worker.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "chargehand", "worker", "--until-idle", "--wait-for-quota"],
            cwd="/",
            env={**os.environ, **app.environ, "CHARGEHAND_HOME": str(app.home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
