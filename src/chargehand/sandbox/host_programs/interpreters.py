"""Asks interpreters and compilers for their directories: only they know, behind shims and proxies."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    # program -> arguments that make it print its directories, one per line
    "python3": ("-I", "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"),
    "node": ("-p", "require('path').dirname(require('path').dirname(process.execPath))"),
    "rustc": ("--print", "sysroot"),
    "go": ("env", "GOROOT"),
    "java": ("-XshowSettings:properties", "-version"),
}
_VERSIONED = re.compile(r"python3\.\d+")
_JAVA_HOME = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_PYENV = "{PYENV_ROOT:.pyenv}/version"
_SELECTIONS = (
    # these change a shim's answer although its file stays the same
    _PYENV,
    "{RUSTUP_HOME:.rustup}/settings.toml",
    "{VOLTA_HOME:.volta}/tools/user/platform.json",
    "{NODENV_ROOT:.nodenv}/version",
    "{GOENV_ROOT:.goenv}/version",
    "{JENV_ROOT:.jenv}/version",
    "{HOME:}/.tool-versions",
    "{HOME:}/.config/mise/config.toml",
)
_CHOICES = ("PYENV_VERSION", "RUSTUP_TOOLCHAIN", "NODENV_VERSION", "GOENV_VERSION", "GOROOT", "JENV_VERSION")
_SECONDS = 20


def witness_paths(directories: Sequence[str], environ: Mapping[str, str]) -> set[str]:
    """Return the paths that decide which programs of these directories are asked, and their answers."""
    named = {
        f"{place}/{name}"
        for place in directories
        for name in os.listdir(place)
        if name in _QUESTIONS or _VERSIONED.fullmatch(name)
    }
    return {*directories, *named, *(place_of(template, environ) for template in _SELECTIONS)}


def chosen(environ: Mapping[str, str]) -> list[str]:
    """Return the environment's settings for version managers, with their directories and the home."""
    names = (
        *_CHOICES,
        "HOME",
        "PYENV_ROOT",
        "RUSTUP_HOME",
        "VOLTA_HOME",
        "NODENV_ROOT",
        "GOENV_ROOT",
        "JENV_ROOT",
    )
    return [environ.get(name, "") for name in names]


def askable(directory: str, environ: Mapping[str, str]) -> list[str]:
    """Return the programs of a directory that can print their directories, each answer once.

    A `python3.N` that is a copy of `python3` gives the same answer. A version manager has a shim for each version
    that was ever installed: only selected ones answer, after a while.
    """
    names = sorted(name for name in os.listdir(directory) if name in _QUESTIONS or _VERSIONED.fullmatch(name))
    found = [path for path in (f"{directory}/{name}" for name in names) if os.access(path, os.X_OK)]
    plain = f"{directory}/python3"
    if plain not in found:
        return found
    # The versions, like `3.12`, that pyenv selects in addition to that of `python3`.
    text = environ.get("PYENV_VERSION", "").replace(":", "\n")
    if not text:
        with contextlib.suppress(OSError):
            text = Path(place_of(_PYENV, environ)).read_text(errors="replace")
    selected = {".".join(line.split(".")[:2]) for line in text.split()[1:]}

    def answers_otherwise(path: str) -> bool:
        name = os.path.basename(path)
        if path == plain or not _VERSIONED.fullmatch(name) or name.removeprefix("python") in selected:
            return True
        return not os.path.samefile(path, plain) and not filecmp.cmp(path, plain, shallow=False)

    return [path for path in found if answers_otherwise(path)]


def ask_all(programs: Sequence[str], environ: Mapping[str, str], cache: Path | None) -> dict[str, list[str]]:
    """Return the directories that each program prints, as it spells them; an empty list if it does not answer.

    Answers are cached in the file `cache` and asked again when a program or the selection of a version manager
    changes, or a directory disappears.
    """
    selections = [stamp(place_of(template, environ)) for template in _SELECTIONS]
    choices: list[str | int] = [environ.get(name, "") for name in _CHOICES]
    key = json.dumps([*([program, *stamp(program)] for program in programs), choices, *selections])
    stored: Any = None
    if cache is not None:
        with contextlib.suppress(OSError, ValueError):
            stored = json.loads(cache.read_text())
    known = stored.get("answers") if isinstance(stored, dict) and stored.get("key") == key else None
    if isinstance(known, dict) and all(os.path.isdir(place) for places in known.values() for place in places):
        return known
    # In parallel: a version manager may take long to answer through its shim.
    with ThreadPoolExecutor(max_workers=4) as pool:
        answers = dict(zip(programs, pool.map(lambda program: _ask(program, environ), programs), strict=True))
    if cache is not None:
        fresh = cache.with_name(f"{cache.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # the cache only saves time
            fresh.write_text(json.dumps({"key": key, "answers": answers}))
            fresh.replace(cache)
    return answers


def stamp(path: str) -> list[str | int]:
    """Return a value that changes with a file, or with a directory's list of names."""
    real = os.path.realpath(path)
    try:
        info = os.stat(real)
    except OSError:
        return [real]
    return [real, info.st_mtime_ns, info.st_size]


def place_of(template: str, environ: Mapping[str, str]) -> str:
    """Return the path of a template like `{PYENV_ROOT:.pyenv}/version`: a variable, or a directory of the home."""
    name, _, default = template[1:].partition("}")[0].partition(":")
    home = environ.get("HOME", "/")
    return (environ.get(name) or os.path.join(home, default)) + template.partition("}")[2]


def _ask(program: str, environ: Mapping[str, str]) -> list[str]:
    name = os.path.basename(program)
    question = _QUESTIONS["python3" if _VERSIONED.fullmatch(name) else name]
    quiet = {"RUSTUP_AUTO_INSTALL": "0", "GOTOOLCHAIN": "local"}  # a question must download nothing
    # Outside any project: version managers let files in the current directory choose.
    try:
        answer = subprocess.run(
            [program, *question],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            check=False,
            cwd="/",
            env={**environ, **quiet},
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    text = "\n".join(_JAVA_HOME.findall(answer.stderr)) if name == "java" else answer.stdout
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines()))
    return lines if lines and all(os.path.isabs(line) and os.path.isdir(line) for line in lines) else []
