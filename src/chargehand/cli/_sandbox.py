"""`chargehand sandbox setup`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chargehand.app.composition import App
from chargehand.cli._output import Output
from chargehand.cli._progress import progress


def set_up(out: Output, *, packages: Sequence[Path]) -> int:
    """Put the kernel of virtual machines into the state directory and say which."""
    with App.open() as app, progress(out, "unpacking" if packages else "downloading"):
        guest = app.set_up_machines(packages)
    out.document({"tier": "vm", "kernel": guest.version, "path": guest.kernel})
    out.text(f"virtual machines run Linux {guest.version} from {guest.kernel.parent}")
    return 0
