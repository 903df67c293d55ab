"""What probes found out of models, kept in the state directory until the next probe of the same model."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chargehand.app._config_files import state_home
from chargehand.core.codec import convert_to

if TYPE_CHECKING:
    from chargehand.models.catalogue import Reported

_FILE = "models.json"


class Reports:
    """The kept probes of all models, by address and the provider's name of the model; made by `kept_reports`.

    What is there and cannot be read counts as nothing: the next probe writes it anew.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[str, Any] | None = None

    def of(self, address: str, model: str) -> Reported | None:
        """Return what the latest probe of a model found out, `None` where there was none."""
        from chargehand.models.catalogue import Reported

        if self._known is None:
            self._known = self._read()
        try:
            return convert_to(self._known.get(_name(address, model)), Reported | None)
        except msgspec.ValidationError:
            return None

    def keep(self, address: str, model: str, reported: Reported) -> None:
        """Keep what a probe found out, in place of an older one; raises `OSError`."""
        self._known = {**self._read(), _name(address, model): asdict(reported)}
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._place.with_name(f"{_FILE}.{os.getpid()}")
        fresh.write_text(json.dumps(self._known, indent=1, sort_keys=True))
        fresh.replace(self._place)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            known = json.loads(self._place.read_text())
            if isinstance(known, dict):
                return known
        return {}


def kept_reports(environ: Mapping[str, str]) -> Reports:
    """Return the probes that are kept in the state directory."""
    return Reports(state_home(environ) / _FILE)


def _name(address: str, model: str) -> str:
    return f"{address.rstrip('/')} {model}"
