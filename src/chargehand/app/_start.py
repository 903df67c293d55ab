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
    if any(member.role == "worker" for member in app.workers.members()):
        return False
    logs = app.home / "logs"
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Path(logs, "worker.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "chargehand", "worker", "--until-idle", "--wait-for-quota"],
            cwd="/",
            env={**os.environ, **app.environ, "CHARGEHAND_HOME": str(app.home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return True
