"""Finds the directories that each program of the host needs, and that are mounted for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field

from chargehand.core.ports import Bind
from chargehand.sandbox.contract import WORKSPACE
from chargehand.sandbox.host_programs.interpreters import place_of

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Paths that the sandbox uses itself.
_TAKEN = (WORKSPACE, "/proc", "/dev", "/sys", "/etc", "/run/chargehand", "/opt/toolchain", *_SYSTEM)
_SHARED = ("/", "/home", "/opt", "/root", "/var", "/srv", "/mnt", "/media", "/tmp", "/run")
# Entries that never occur in a program's directory, but in a person's.
_PRIVATE = (".ssh", ".aws", ".gnupg", ".netrc", ".git-credentials", ".config", ".docker", "share/keyrings")
_PARTS: Mapping[str, tuple[str, ...]] = {
    # the parts that belong to an interpreter in bin, in a directory that also holds other things
    "python3": ("bin/python3*", "lib/libpython3*.so*", "lib/python3*", "include/python3*"),
    "node": ("bin/node", "lib/node_modules", "include/node"),
}


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is a directory or inside it."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def is_system_path(path: str) -> bool:
    """Return whether every sandbox shows a path anyway."""
    return any(is_below(path, directory) for directory in _SYSTEM)


class MountedPaths(Struct):
    """Collects the paths to show. The person's `home` is never shown, only the parts of it that programs need."""

    home: str
    sources: dict[str, str] = field(default_factory=dict)
    """Path inside -> path on the host, without symbolic links."""
    looked_at: set[str] = field(default_factory=set)
    """Every path whose change could change the result."""

    def show(self, path: str, *, kind: str = "") -> str:
        """Show a file or directory at `path` and at its real path; return the reason if it cannot be shown, or "".

        Of a directory that holds more than a program, only the parts that belong to `kind` are shown, if any.
        """
        real = os.path.realpath(path)
        self.looked_at.update((path, real, *(f"{path}/{name}" for name in ("bin", "lib", "include"))))
        if is_system_path(real):
            return ""
        home = os.path.realpath(self.home)
        shared = real in _SHARED or is_below(home, real) or real == f"{home}/.local"
        broad = os.path.isdir(real) and (shared or any(os.path.lexists(f"{real}/{name}") for name in _PRIVATE))
        parts = sorted(part for name in _PARTS.get(kind, ()) for part in Path(path).glob(name)) if broad else []
        if broad and not parts:
            return f"{real} contains more than the program, so it is not shown"
        for each in [str(part) for part in parts] or [path]:
            # At both paths: programs are started by one path, and find their files by the other.
            for target in {os.path.realpath(each): None, os.path.abspath(each): None}:
                if is_system_path(target):
                    continue
                taken = next((at for at in _TAKEN if is_below(target, at) or is_below(at, target)), None)
                if taken is not None:
                    return f"{target} cannot be shown: the sandbox has its own {taken}"
                self.sources[target] = os.path.realpath(target)
        return ""

    def show_listed(self, path: str, *, otherwise: str) -> str:
        """Show a whole directory that a person lists; return its path inside: `otherwise` if not the same."""
        self.looked_at.update((path, f"{path}/bin", f"{path}/pyvenv.cfg"))
        targets = {path, os.path.realpath(path)}
        # Over any of these it would cover a path that the sandbox uses itself.
        taken = (*_TAKEN, *_SHARED, os.path.realpath(self.home))
        shared = any(is_below(at, target) for target in targets for at in taken)
        if shared or any(is_below(target, at) for target in targets for at in _TAKEN if at not in _SYSTEM):
            self.sources[otherwise] = os.path.realpath(path)
            return otherwise
        self.sources |= {target: os.path.realpath(path) for target in targets if not is_system_path(target)}
        return path

    def shows(self, path: str) -> bool:
        """Return whether a path leads to the same file inside as on the host."""
        if is_system_path(path):
            return True
        return any(
            is_below(path, target)
            and os.path.realpath(path) == os.path.realpath(source + path.removeprefix(target))
            for target, source in self.sources.items()
        )

    def binds(self) -> tuple[Bind, ...]:
        """Return the mounts, outer ones first and without inner mounts that show the same."""
        kept: dict[str, str] = {}
        for target in sorted(self.sources):
            outer = next((each for each in kept if is_below(target, each)), None)
            if outer is None or os.path.realpath(kept[outer] + target.removeprefix(outer)) != self.sources[target]:
                kept[target] = self.sources[target]
        return tuple(Bind(source=Path(source), target=target) for target, source in kept.items())


_DISTRIBUTIONS = (
    # marks the parent of bin/ as the root of a program of many files
    "boot/plexus-classworlds*.jar",
    "lib/gradle-launcher-*.jar",
    "lib/ant.jar",
    "share/cmake-*",
    "lib/clang",
)
# Node's package managers write this instead of a link: a script that starts the package's program.
_NODE_WRAPPER = re.compile(rb'"\$basedir/([^"]*node_modules/[^"]*)"')
_ELF = b"\x7fELF"
_HOPS = 16


class HostProgram(Struct, frozen=True, kw_only=True):
    """A program that the host has: `target` is the path at which it is shown, `needs` the paths shown for it."""

    name: str
    target: str = ""
    needs: tuple[str, ...] = ()
    problem: str = ""


def programs(directory: str, places: MountedPaths, environ: Mapping[str, str]) -> Iterator[HostProgram]:
    """Yield each program of a directory with its needs; shims of version managers are left out."""
    places.looked_at.add(directory)
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    proxies = os.path.join(directory, "rustup")
    for entry in entries:
        places.looked_at.add(entry.path)
        if os.path.isdir(entry.path) or not os.access(entry.path, os.X_OK):
            continue
        if os.path.exists(proxies) and os.path.samefile(entry.path, proxies):
            continue
        found = program_at(entry.path, places, environ)
        if found is not None:
            yield found


def links_out(directory: str, places: MountedPaths) -> Iterator[str]:
    """Yield the links of a shown directory that lead out of the paths that every sandbox shows."""
    places.looked_at.add(directory)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_symlink() and "/" in os.readlink(
                entry.path
            ):  # a link within the directory is handled under its target's name
                *_, last = hops = tuple(_follow_links(entry.path))
                places.looked_at.update(map(os.path.dirname, hops))
                if not is_system_path(last) and os.path.isfile(last):
                    yield entry.path


def virtual_environment(directory: str) -> tuple[str, ...]:
    """Return a virtual environment and the prefix of its interpreter, as its file spells them; else nothing."""
    try:
        text = Path(directory, "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return ()
    home = re.search(r"^home\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return (directory, os.path.dirname(home[1])) if home and os.path.isabs(home[1]) else (directory,)


def program_at(path: str, places: MountedPaths, environ: Mapping[str, str]) -> HostProgram | None:
    """Return one program with its needs, or `None` for a version manager's shim."""
    name = os.path.basename(path)
    for hop in _follow_links(path):
        places.looked_at.update((hop, os.path.dirname(hop), f"{os.path.dirname(os.path.dirname(hop))}/pyvenv.cfg"))
        needs = virtual_environment(os.path.dirname(os.path.dirname(hop)))
        if needs:
            return HostProgram(name=name, target=hop, needs=needs)
    real = os.path.realpath(path)
    root = os.path.dirname(os.path.dirname(real))
    places.looked_at.update((real, *(f"{root}/{name}" for name in ("boot", "lib", "share"))))
    if os.path.basename(real) == "volta-shim":
        images = Path(place_of("{VOLTA_HOME:.volta}/tools/image/packages", environ))
        depths = [path for pattern in ("*", "*/*", "*/*/bin") for path in images.glob(pattern)]
        places.looked_at.update(map(str, (images, *depths)))
        found = (path for depth in ("*", "*/*") for path in images.glob(f"{depth}/bin/{name}"))
        image = next(found, None)
        return program_at(str(image), places, environ) if image else None
    if places.shows(real):
        return HostProgram(name=name, target=real)
    return _judge_content(name, real)


def _judge_content(name: str, real: str) -> HostProgram | None:
    """Judge a program by the package it is part of; a person's script may contain anything and is not shown."""
    packages = _node_modules(real)
    if packages:
        return HostProgram(name=name, target=real, needs=(packages,))
    root = Path(real).parent.parent
    in_bin = os.path.basename(os.path.dirname(real)) == "bin"
    if in_bin and any(next(root.glob(mark), None) for mark in _DISTRIBUTIONS):
        return HostProgram(name=name, target=real, needs=(str(root),))
    try:
        with open(real, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        return HostProgram(name=name, problem=f"cannot be read: {error.strerror}")
    if head.startswith(_ELF):
        return HostProgram(name=name, target=real, needs=(real,))
    wrapped = _NODE_WRAPPER.search(head)
    if wrapped:
        main = os.path.normpath(os.path.join(os.path.dirname(real), os.fsdecode(wrapped[1])))
        packages = _node_modules(main)
        if packages and os.path.isdir(packages):
            return HostProgram(name=name, target=real, needs=(real, packages))
    if any(word in head for word in (b"pyenv", b"nodenv", b"jenv", b"goenv", b"rbenv", b"asdf")):
        return None
    first = head.partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" in first:
        why = "its packages are in your home (pip install --user); install it with pipx or `uv tool install`"
        return HostProgram(name=name, problem=why)
    return HostProgram(name=name, problem="a script of your own; name its directory in sandbox.toolchain")


def _follow_links(path: str) -> Iterator[str]:
    """Yield a path and the target of each symbolic link on the way."""
    # Bounded: links may form cycles.
    for _ in range(_HOPS):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _node_modules(path: str) -> str:
    """Return the outermost directory of node packages around a path, or ""."""
    before, mark, _ = path.partition("/node_modules/")
    return f"{before}/node_modules" if mark else ""
