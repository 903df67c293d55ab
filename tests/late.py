"""Modules that are imported where they are used first: each worker collects all tests and runs some of them."""

from __future__ import annotations

import importlib
from typing import Any


class LateModule:
    """Stands for a module that takes long to import, such as the official client of a provider."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks of its own in whatever a module of tests holds
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
