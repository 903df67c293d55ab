"""Which directories of the host a sandbox sees for its programs: read-only, at the paths they have on the host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chargehand.core.ports import Bind
from chargehand.sandbox._contract import WORKSPACE

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_TAKEN = (WORKSPACE, "/proc", "/dev", "/sys", "/etc", "/run/chargehand", "/opt/toolchain", *_SYSTEM)
"""Where the sandbox shows something of its own."""
_SHARED = ("/", "/home", "/opt", "/root", "/var", "/srv", "/mnt", "/media", "/tmp", "/run")
_PRIVATE = (".ssh", ".aws", ".gnupg", ".netrc", ".git-credentials", ".config", ".docker", "share/keyrings")
"""What a directory of a program never holds, and one of a person does."""
_PARTS: Mapping[str, tuple[str, ...]] = {
    # what of a directory that also holds other things belongs to an interpreter in its bin
    "python3": ("bin/python3*", "lib/libpython3*.so*", "lib/python3*", "include/python3*"),
    "node": ("bin/node", "lib/node_modules", "include/node"),
}


def below(path: str, directory: str) -> bool:
    """Whether a path is a directory or lies in it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def visible(path: str) -> bool:
    """Whether every sandbox shows a path anyway."""
    return any(below(path, directory) for directory in _SYSTEM)


@dataclass(slots=True)
class Places:
    """Collects what is shown. `home` is the person's: it is never shown, only what programs need of it."""

    home: str
    sources: dict[str, str] = field(default_factory=dict)
    """Path inside -> path on the host, without symbolic links."""
    looked_at: set[str] = field(default_factory=set)
    """Every path whose change could change what is found."""

    def show(self, path: str, *, kind: str = "") -> str:
        """Show a file or directory at `path` and at its real path; return why it cannot be, or nothing.

        A directory that holds more than a program is shown in the parts that one of `kind` has there, if it has.
        """
        real = os.path.realpath(path)
        self.looked_at.update((path, real, *(f"{path}/{name}" for name in ("bin", "lib", "include"))))
        if visible(real):
            return ""
        broad = os.path.isdir(real) and self._holds_more(real)
        parts = sorted(part for name in _PARTS.get(kind, ()) for part in Path(path).glob(name)) if broad else []
        if broad and not parts:
            return f"{real} holds more than the program, so it is not shown"
        for each in [str(part) for part in parts] or [path]:
            for target in (os.path.realpath(each), os.path.abspath(each)):
                problem = self._add(target)
                if problem:
                    return problem
        return ""

    def shows(self, path: str) -> bool:
        """Whether a path leads to the same thing inside as on the host."""
        if visible(path):
            return True
        return any(
            below(path, target) and os.path.realpath(path) == os.path.realpath(source + path.removeprefix(target))
            for target, source in self.sources.items()
        )

    def binds(self) -> tuple[Bind, ...]:
        """Return the mounts, outer ones first and no mount within another that shows the same."""
        kept: dict[str, str] = {}
        for target in sorted(self.sources):
            outer = next((each for each in kept if below(target, each)), None)
            if outer is None or os.path.realpath(kept[outer] + target.removeprefix(outer)) != self.sources[target]:
                kept[target] = self.sources[target]
        return tuple(Bind(source=Path(source), target=target) for target, source in kept.items())

    def _add(self, target: str) -> str:
        if visible(target):
            return ""
        taken = next((place for place in _TAKEN if below(target, place) or below(place, target)), None)
        if taken is not None:
            return f"{target} cannot be shown: the sandbox has its own {taken}"
        self.sources[target] = os.path.realpath(target)
        return ""

    def _holds_more(self, real: str) -> bool:
        home = os.path.realpath(self.home)
        if real in _SHARED or below(home, real) or real == f"{home}/.local":
            return True
        return any(os.path.lexists(f"{real}/{name}") for name in _PRIVATE)
