"""What differs from run to run in what a program asks of its model, and its names in what is kept of that."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_ID = re.compile(r"(?<![0-9A-Fa-f-])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Fa-f-])")
_MIDDLE = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-")  # begins with a letter to look for, which is much faster


class RunNames:
    """Names for the ids of one run: the first that a request holds is `{{chargehand-id-1}}`, and so on.

    A program that does the same in another run shows its ids in the same order, so that equal requests are equal
    under these names, and a reply kept under them gets the ids of the run that it is given to.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def asked(self, value: Any) -> Any:
        """Return decoded JSON of a request under names; ids that are new get one."""
        return _each(value, self._asked)

    def answered(self, value: Any) -> Any:
        """Return decoded JSON of a reply with names for those ids that some request held."""
        if not self._names:
            return value
        return _each(value, lambda text: _renamed(text, lambda real: self._names.get(real, real)))

    def expand(self, value: Any) -> Any:
        """Return decoded JSON with the ids of this run in place of their names."""
        real = {name: found for found, name in self._names.items()}
        return _each(value, lambda text: _NAMED.sub(lambda found: real.get(found[0], found[0]), text))

    def _asked(self, text: str) -> str:
        return _renamed(text, self._name)

    def _name(self, id: str) -> str:
        return self._names.setdefault(id, f"{{{{chargehand-id-{len(self._names) + 1}}}}}")


_NAMED = re.compile(r"\{\{chargehand-id-[0-9]+\}\}")


def _renamed(text: str, name: Callable[[str], str]) -> str:
    return _ID.sub(lambda found: name(found[0]), text) if _MIDDLE.search(text) else text


def _each(value: Any, change: Any) -> Any:
    """Return decoded JSON with every text changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_each(item, change) for item in value]
    return value
