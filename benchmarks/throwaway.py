"""Environments for peers that are not among the product's own packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_INSTALL_SECONDS = 600.0


def environment_with(package: str, place: Path) -> Path | None:
    """Make a virtual environment with one package; return its `bin`, or `None` if that fails."""
    install = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", package]
    try:
        for argv in ([sys.executable, "-m", "venv", str(place)], install):
            subprocess.run(argv, check=True, capture_output=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return place / "bin"
