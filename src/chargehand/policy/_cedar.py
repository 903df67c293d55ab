"""Cedar, without what takes ten times as long to load as all else of it and is not used here."""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType

# Its typed syntax tree: thirty data classes.
_UNUSED = "cedarpy.pst"


@cache
def cedar() -> ModuleType:
    """Import `cedarpy` and return it; its syntax tree is loaded when somebody asks for something in it."""
    package = find_spec("cedarpy")
    if package is not None and _UNUSED not in sys.modules:
        tree = PathFinder.find_spec(_UNUSED, package.submodule_search_locations)
        if tree is not None and tree.loader is not None:
            tree.loader = LazyLoader(tree.loader)
            sys.modules[_UNUSED] = module = module_from_spec(tree)
            tree.loader.exec_module(module)
    import cedarpy

    return cedarpy
