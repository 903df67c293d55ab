"""The tools of this machine that sandboxes show, found once for all tests of this process.

To find them asks each interpreter where its files are, which takes longer than to open a sandbox.
"""

from __future__ import annotations

import functools
import os

from chargehand.sandbox.toolchain import Toolchain, discover


def host_toolchain(*packages: str) -> Toolchain:
    """Return the tools on PATH, with these packages of their interpreters."""
    return _discover_once(os.environ["PATH"], packages)


@functools.cache
def _discover_once(search: str, packages: tuple[str, ...]) -> Toolchain:
    return discover(search=search, packages=packages)
