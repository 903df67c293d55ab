"""Host programs that a sandbox may use, found once and shown read-only at neutral paths."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chargehand.core import Bind, ConfigError

_TARGET = "/opt/toolchain"
SHIMS = f"{_TARGET}/shims"
"""Last on PATH: names that programs expect and the host does not have."""
LIBRARIES = f"{_TARGET}/lib"
"""Goes into LD_LIBRARY_PATH: holds only what a mounted interpreter is linked against."""
_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    # program on PATH -> how it is asked for the directory that holds all of it
    "python3": ("-I", "-c", "import sys; print(sys.base_prefix)"),
    "node": ("-p", "require('path').dirname(require('path').dirname(process.execPath))"),
    "rustc": ("--print", "sysroot"),
    "go": ("env", "GOROOT"),
}
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What is mounted and what stands on PATH; `id` changes when any program does."""

    binds: tuple[Bind, ...]
    path: tuple[str, ...]
    id: str


def discover(*, search: str, extra: Sequence[str] = (), cache: Path | None = None) -> Toolchain:
    """Return the toolchain for the host's PATH `search` and the user's `extra` directories.

    Programs below /usr need no mount of their own. Answers are kept in the file `cache` and asked anew when a
    program's file changes. Raises `ConfigError` for an `extra` directory that does not exist.
    """
    found = {name: shutil.which(name, path=search) for name in _QUESTIONS}
    key = json.dumps([[name, path, _stamp(path)] for name, path in found.items() if path])
    prefixes = _cached(cache, key)
    if prefixes is None:
        prefixes = {name: _ask(path, _QUESTIONS[name]) for name, path in found.items() if path}
        _remember(cache, key, prefixes)
    binds = [
        Bind(source=Path(prefix), target=f"{_TARGET}/{name}")
        for name, prefix in prefixes.items()
        if prefix and not _below_usr(prefix)
    ]
    path = [f"{bind.target}/bin" for bind in binds]
    binds += _python_libraries(binds)
    for number, directory in enumerate(extra):
        bind, place = _extra(directory, number)
        binds.insert(0, bind)
        path.insert(0, place)
    digest = hashlib.sha256(json.dumps([key, list(extra)]).encode()).hexdigest()[:16]
    return Toolchain(binds=tuple(binds), path=(*path, *_SYSTEM_PATH), id=digest)


def _python_libraries(binds: Sequence[Bind]) -> list[Bind]:
    """Return a mount for each libpython that an interpreter outside /usr is linked against.

    Its run path names the place on the host, so inside the loader would take a system's libpython of another
    patch version. They get a directory of their own, `LIBRARIES`, so that nothing else of the prefix's libraries
    stands in the loader's way.
    """
    found = [path for bind in binds for path in sorted((bind.source / "lib").glob("libpython*.so.1.0"))]
    return [Bind(source=path, target=f"{LIBRARIES}/{path.name}") for path in found]


def _extra(directory: str, number: int) -> tuple[Bind, str]:
    source = Path(directory).expanduser()
    if not source.is_dir():
        raise ConfigError(
            f"the toolchain directory {directory!r} does not exist",
            hint="correct sandbox.toolchain in your own configuration file",
        )
    target = f"{_TARGET}/extra-{number}"
    place = f"{target}/bin" if (source / "bin").is_dir() else target
    return Bind(source=source.resolve(), target=target), place


def _below_usr(prefix: str) -> bool:
    return prefix == "/usr" or prefix.startswith("/usr/")


def _stamp(path: str | None) -> list[float | str]:
    if path is None:
        return []
    real = os.path.realpath(path)
    return [real, os.stat(real).st_mtime]


def _ask(program: str, question: Sequence[str]) -> str | None:
    """Return the directory the program names, or `None` where it does not answer with one."""
    try:
        answer = subprocess.run(
            [program, *question], capture_output=True, text=True, timeout=20, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    prefix = answer.stdout.strip()
    return os.path.realpath(prefix) if answer.returncode == 0 and os.path.isdir(prefix) else None


def _cached(cache: Path | None, key: str) -> dict[str, str | None] | None:
    if cache is None or not cache.exists():
        return None
    try:
        kept = json.loads(cache.read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("key") != key or not isinstance(kept.get("prefixes"), dict):
        return None
    prefixes: dict[str, str | None] = kept["prefixes"]
    return prefixes if all(prefix is None or os.path.isdir(prefix) for prefix in prefixes.values()) else None


def _remember(cache: Path | None, key: str, prefixes: Mapping[str, str | None]) -> None:
    if cache is None:
        return
    fresh = cache.with_name(f"{cache.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # it only saves time
        fresh.write_text(json.dumps({"key": key, "prefixes": dict(prefixes)}))
        fresh.replace(cache)
