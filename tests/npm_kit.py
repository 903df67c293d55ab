"""Data packages of the npm registry that tests read: fetched once per machine by npm, never committed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chargehand-test"


def npm_package(name: str, version: str, files: str) -> Path:
    """Return the directory of a package with the files that match, fetching it if missing; skip without npm."""
    place = CACHE / "npm" / f"{name.replace('/', '-')}-{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            if shutil.which("npm") is None:
                (pytest.fail if os.environ.get("CI") else pytest.skip)("npm is not installed")
            _fetch(f"{name}@{version}", place, files)
    return place


def _fetch(wanted: str, place: Path, files: str) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        command = ["npm", "pack", "--silent", wanted]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=250, check=False)
        if done.returncode:
            pytest.fail(f"npm pack {wanted}: {done.stderr[-500:]}")
        (archive,) = Path(scratch).glob("*.tgz")
        with tarfile.open(archive) as packed:
            # By hand: `extractall` has a parameter for safe extraction only since Python 3.11.4.
            for each in packed.getmembers():
                content = packed.extractfile(each) if re.fullmatch(f"package/{files}", each.name) else None
                if content is not None and ".." not in each.name.split("/"):
                    path = Path(scratch, "out", each.name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
        Path(scratch, "out", "package").rename(place)
