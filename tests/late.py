"""Modules imported at first use: each worker collects all tests but runs only some of them."""

from __future__ import annotations

import importlib
from typing import Any


class LateModule:
    """A lazy proxy for a module that takes long to import, such as a provider's official client."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for its marks in every object of a test module
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
