"""The state directory of an earlier version, unpacked at its original path."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from chargehand.cli.main import chargehand

SAVED = Path(__file__).parent / "data/saved-state.tar.xz"
# Missions record the path of their repository, so it must have the same path again.
PLACE = Path("/tmp/chargehand-saved")


@contextmanager
def unpacked() -> Iterator[tuple[Path, dict[str, str]]]:
    """Unpack it, alone on this machine; yield its path and the environment of its owner."""
    # Lock the directory itself: a lock file would be left behind.
    lock = os.open(PLACE.parent, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        shutil.rmtree(PLACE, ignore_errors=True)
        with tarfile.open(SAVED) as archive:
            # `extractall` has a parameter for this since Python 3.11.4. The archive is the repository's own.
            archive.extraction_filter = lambda member, path: member
            archive.extractall(PLACE)
        (top,) = PLACE.iterdir()
        yield (
            top,
            {"CHARGEHAND_HOME": str(top / "state"), "XDG_CONFIG_HOME": str(top / "config"), "HOME": str(top)},
        )
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
        os.close(lock)


def ask(*words: str, code: int = 0) -> Any:
    """Run a command with --json and return its document."""
    done = CliRunner().invoke(chargehand, ["--json", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)
