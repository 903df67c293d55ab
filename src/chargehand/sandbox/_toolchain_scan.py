"""What stands in a directory of PATH: each program by what it is made of, and what of the host it needs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from chargehand.sandbox._toolchain_ask import place_of
from chargehand.sandbox._toolchain_places import Places, visible

_DISTRIBUTIONS = (
    # what marks the parent of bin/ as the root of a program in many files
    "boot/plexus-classworlds*.jar",
    "lib/gradle-launcher-*.jar",
    "lib/ant.jar",
    "share/cmake-*",
    "lib/clang",
)
_NODE_WRAPPER = re.compile(rb'"\$basedir/([^"]*node_modules/[^"]*)"')
_ELF = b"\x7fELF"
_HOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that the host has: `target` is where it is shown, `needs` what has to be shown for it."""

    name: str
    target: str = ""
    needs: tuple[str, ...] = ()
    problem: str = ""


def programs(directory: str, places: Places, environ: Mapping[str, str]) -> Iterator[Program]:
    """Tell of each program of a directory what it is; shims of version managers are left out."""
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


def links_out(directory: str, places: Places) -> Iterator[str]:
    """Return the links of a directory that is shown which lead out of what every sandbox shows."""
    places.looked_at.add(directory)
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_symlink() and "/" in os.readlink(entry.path):  # one to a name beside it is looked at there
                *_, last = hops = tuple(_chain(entry.path))
                places.looked_at.update(map(os.path.dirname, hops))
                if not visible(last) and os.path.isfile(last):
                    yield entry.path


def virtual_environment(directory: str) -> tuple[str, ...]:
    """Return a virtual environment and the prefix of its interpreter, as its file spells them; else nothing."""
    try:
        text = Path(directory, "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        return ()
    home = re.search(r"^home\s*=\s*(.+?)\s*$", text, re.MULTILINE)
    return (directory, os.path.dirname(home[1])) if home and os.path.isabs(home[1]) else (directory,)


def program_at(path: str, places: Places, environ: Mapping[str, str]) -> Program | None:
    """Tell of one program what it is, or nothing of a version manager's shim."""
    name = os.path.basename(path)
    for hop in _chain(path):
        places.looked_at.update((hop, os.path.dirname(hop), f"{os.path.dirname(os.path.dirname(hop))}/pyvenv.cfg"))
        needs = virtual_environment(os.path.dirname(os.path.dirname(hop)))
        if needs:
            return Program(name=name, target=hop, needs=needs)
    real = os.path.realpath(path)
    root = os.path.dirname(os.path.dirname(real))
    places.looked_at.update((real, *(f"{root}/{name}" for name in ("boot", "lib", "share"))))
    if os.path.basename(real) == "volta-shim":
        image = _volta_image(name, environ, places)
        return program_at(image, places, environ) if image else None
    if places.shows(real):
        return Program(name=name, target=real)
    return _by_content(name, path, real)


def _by_content(name: str, path: str, real: str) -> Program | None:
    packages = _node_modules(real)
    if packages:
        return Program(name=name, target=real, needs=(packages,))
    root = Path(real).parent.parent
    in_bin = os.path.basename(os.path.dirname(real)) == "bin"
    if in_bin and any(next(root.glob(mark), None) for mark in _DISTRIBUTIONS):
        return Program(name=name, target=real, needs=(str(root),))
    try:
        with open(real, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        return Program(name=name, problem=f"cannot be read: {error.strerror}")
    if head.startswith(_ELF):
        return Program(name=name, target=real, needs=(real,))
    return _script(name, path, real, head)


def _script(name: str, path: str, real: str, head: bytes) -> Program | None:
    """Tell of a script: what a package manager wrote is shown; a person's own may hold anything and is not."""
    wrapped = _NODE_WRAPPER.search(head)
    if wrapped:
        main = os.path.normpath(os.path.join(os.path.dirname(real), os.fsdecode(wrapped[1])))
        packages = _node_modules(main)
        if packages and os.path.isdir(packages):
            return Program(name=name, target=real, needs=(real, packages))
    if any(word in head for word in (b"pyenv", b"nodenv", b"jenv", b"goenv", b"rbenv", b"asdf")):
        return None
    first = head.partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" in first:
        why = "its packages lie in your home (pip install --user); install it with pipx or `uv tool install`"
        return Program(name=name, problem=why)
    return Program(name=name, problem="a script of your own; name its directory in sandbox.toolchain")


def _chain(path: str) -> Iterator[str]:
    """Return a path and what each symbolic link on the way leads to."""
    for _ in range(_HOPS):
        yield path
        if not os.path.islink(path):
            return
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))


def _node_modules(path: str) -> str:
    """Return the outermost directory of node packages around a path, or nothing."""
    before, mark, _ = path.partition("/node_modules/")
    return f"{before}/node_modules" if mark else ""


def _volta_image(name: str, environ: Mapping[str, str], places: Places) -> str:
    images = Path(place_of("{VOLTA_HOME:.volta}/tools/image/packages", environ))
    places.looked_at.update(map(str, (images, *images.glob("*"), *images.glob("*/*"), *images.glob("*/*/bin"))))
    found = (path for depth in ("*", "*/*") for path in images.glob(f"{depth}/bin/{name}"))
    return str(next(found, ""))
