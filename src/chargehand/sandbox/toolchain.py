"""The host's programs that sandboxes may use: found once, mounted read-only at their host paths."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chargehand.core.errors import ConfigError
from chargehand.core.ports import Bind
from chargehand.sandbox.host_programs.interpreters import ask_all, askable, chosen, stamp, witness_paths
from chargehand.sandbox.host_programs.packages import hide_packages, package_directories
from chargehand.sandbox.host_programs.search import (
    HostProgram,
    MountedPaths,
    is_below,
    is_system_path,
    links_out,
    program_at,
    programs,
    virtual_environment,
)

_TARGET = "/opt/toolchain"
# Last on PATH: names that programs expect and the host does not have.
SHIMS = f"{_TARGET}/shims"
_SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
# Programs below /usr whose change is a change of the toolchain.
_SYSTEM_TOOLS = (
    *("python3", "node", "npm", "rustc", "cargo", "go", "java", "javac", "mvn", "gradle"),
    *("cc", "gcc", "g++", "clang", "ld", "make", "cmake", "ninja", "git", "bash"),
)
# Settings to which programs of the system have links, and without which they do not start.
_ETC = ("/etc/java-*", "/etc/maven")
_PACKAGES = ("bin", "lib/python3*/site-packages", "lib/node_modules")
# Each link takes three words of bubblewrap's command line, and a request to the launcher has its limit.
_LINKS = 512
# Seconds within which a second change may leave the time stamps unchanged.
_UNSETTLED = 2.0


class HiddenPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """Programs of one directory of the host's PATH that no sandbox sees, and the reason."""

    directory: str
    names: tuple[str, ...]
    problem: str


class Toolchain(msgspec.Struct, frozen=True, kw_only=True):
    """The mounts and the PATH for host programs; `id` changes when any program does.

    `links` are symbolic links in a sandbox (path, target), in directories of `path`; `environment` has variables
    by which programs find themselves. `not_shown` is reported to people.
    """

    binds: tuple[Bind, ...]
    path: tuple[str, ...]
    id: str
    links: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    not_shown: tuple[HiddenPrograms, ...] = ()

    def find(self, program: str) -> str | None:
        """Return the host's path of what a sandbox starts as `program`, a name or absolute path, or `None`."""
        if program.startswith("/"):
            shown = is_system_path(program) or any(is_below(program, bind.target) for bind in self.binds)
            if not shown and program not in dict(self.links):
                return None
            path = dict(self.links).get(program, program)
            binds = [bind for bind in self.binds if is_below(path, bind.target)]
            innermost = max(binds, key=lambda bind: len(bind.target), default=None)
            if innermost is not None:
                path = str(innermost.source) + path.removeprefix(innermost.target)
            return shutil.which(path)
        found = (self.find(f"{directory}/{program}") for directory in self.path)
        return next((path for path in found if path), None)


class _Search(msgspec.Struct):
    """One walk over the directories of the host's PATH, in its order."""

    environ: Mapping[str, str]
    places: MountedPaths
    answers: Mapping[str, Sequence[str]]
    path: list[str] = msgspec.field(default_factory=list)
    links: dict[str, str] = msgspec.field(default_factory=dict)
    not_shown: list[HiddenPrograms] = msgspec.field(default_factory=list)
    watched: set[str] = msgspec.field(default_factory=set)
    python_prefixes: list[str] = msgspec.field(default_factory=list)
    looked_at: set[str] = msgspec.field(default_factory=set)

    def add_directory(self, spelled: str) -> None:
        real = os.path.realpath(spelled)
        if is_system_path(spelled) and is_system_path(real):
            self.path.append(spelled)
            if real not in self.looked_at:
                self.looked_at.add(real)
                self._show_linked_programs(real)
            return
        environment = os.path.dirname(os.path.abspath(spelled))
        self.places.looked_at.add(f"{environment}/pyvenv.cfg")
        for prefix in virtual_environment(environment):
            self._show_prefix(real, "python3", prefix)
        bins = [place for place in self._show_answers(real) if place]
        here = next((place for place in (os.path.abspath(spelled), real) if self.places.shows(place)), None)
        if here is not None:
            self.path.append(here)
            self._show_linked_programs(here)
            return
        self.path += [place for place in bins if place not in self.path]
        # Replace the directory by a directory of links to the programs that can be shown.
        place = f"{_TARGET}/bin-{len(self.path)}"
        problems: dict[str, list[str]] = {}
        for program in programs(real, self.places, self.environ):
            problem = program.problem or self._show_program(program)
            if problem:
                problems.setdefault(problem, []).append(program.name)
            elif len(self.links) < _LINKS:
                self.links[f"{place}/{program.name}"] = program.target
        if any(link.startswith(f"{place}/") for link in self.links):
            self.path.append(place)
        for problem, names in problems.items():
            self.not_shown.append(HiddenPrograms(directory=spelled, names=tuple(names), problem=problem))

    def add_listed(self, directory: str, number: int) -> None:
        """Show a directory that the person lists, with the interpreter of a virtual environment."""
        path = os.path.abspath(_expand(directory, self.environ))
        if not os.path.isdir(path):
            raise ConfigError(
                f"the toolchain directory {directory!r} does not exist",
                hint="correct sandbox.toolchain in your own configuration file",
            )
        place = self.places.show_listed(path, otherwise=f"{_TARGET}/extra-{number}")
        for prefix in virtual_environment(path)[1:]:
            self._show_prefix(path, "python3", prefix)
        self.path.insert(0, f"{place}/bin" if os.path.isdir(f"{path}/bin") else place)
        if place == path:
            self._show_linked_programs(self.path[0])

    def find_java_home(self) -> tuple[tuple[str, str], ...]:
        """Return JAVA_HOME if the host's first Java is not the system's: build tools need it to find that Java."""
        java = shutil.which("java", path=self.environ["PATH"])
        place = os.path.join(os.path.realpath(os.path.dirname(java)), "java") if java else ""
        homes = [
            home for home in self.answers.get(place, ()) if self.places.shows(home) and not is_system_path(home)
        ]
        return (("JAVA_HOME", homes[0]),) if homes else ()

    def _show_answers(self, real: str) -> list[str]:
        """Show the directories that programs of a directory report; return their program directories."""
        bins = []
        for program, prefixes in self.answers.items():
            if os.path.dirname(program) == real:
                name = os.path.basename(program)
                kind = "python3" if name.startswith("python3") else name
                shown = [prefix for prefix in prefixes if self._show_prefix(real, kind, prefix)]
                bins += [f"{prefix}/bin" for prefix in shown if self.places.shows(f"{prefix}/bin")]
        return list(dict.fromkeys(bins))

    def _show_prefix(self, directory: str, kind: str, prefix: str) -> bool:
        problem = self.places.show(prefix, kind=kind)
        if problem:
            self.not_shown.append(HiddenPrograms(directory=directory, names=(kind,), problem=problem))
            return False
        if kind == "python3":
            self.python_prefixes += [prefix, os.path.realpath(prefix)]
        self.watched.update(found for name in _PACKAGES for found in glob.glob(f"{glob.escape(prefix)}/{name}"))
        self.watched.update(f"{prefix}/bin/{name}" for name in (kind, "cargo"))
        return True

    def _show_linked_programs(self, directory: str) -> None:
        """Show the targets of links in a directory that is shown."""
        for path in links_out(directory, self.places):
            if not self.places.shows(os.path.realpath(path)):
                program = program_at(path, self.places, self.environ)
                problem = program.problem or self._show_program(program) if program else ""
                if program and problem:
                    self.not_shown.append(
                        HiddenPrograms(directory=directory, names=(program.name,), problem=problem)
                    )

    def read_paths(self) -> set[str]:
        """Return every path whose change could change the result of this walk."""
        answered = {place for places in self.answers.values() for place in places}
        etc = {place for place in self.places.sources if place.startswith("/etc/")}
        libraries = {f"{place}/lib" for place in answered}
        return {*self.places.looked_at, *self.watched, *answered, *libraries, "/etc", *etc}

    def _show_program(self, program: HostProgram) -> str:
        problems = [self.places.show(need) for need in program.needs]
        self.watched.update((program.target, *program.needs))
        return next((problem for problem in problems if problem), "")


def discover(
    *,
    search: str,
    extra: Sequence[str] = (),
    packages: Sequence[str] = (),
    cache: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Toolchain:
    """Return the toolchain for the host's PATH `search` and the user's `extra` directories.

    Of the interpreters' Python packages only `packages` and their requirements are shown; `all` shows each of
    them. Naming packages needs `cache`: links to them are made in its directory.

    Programs below /usr need no separate mount. Elsewhere, as little is shown as programs need: the prefix of an
    interpreter, a virtual environment, a directory of node packages, a single file. Interpreters' answers are
    cached in the file `cache` and asked again when one changes; the whole result is cached in the same directory
    until any path that it depends on changes. `environ` is the person's, by default that of this process. Raises
    `ConfigError` for an `extra` directory that does not exist.
    """
    environ = {**(os.environ if environ is None else environ), "PATH": search}
    if cache is None:
        return _search(search, extra, packages, None, environ)[0]
    place = cache.with_name(f"{cache.stem}-found.json")
    began = time.time()
    key = json.dumps([search, list(extra), list(packages), chosen(environ), _expand("~", environ)])
    stored = load_result(place, key)
    if stored is not None:
        return Toolchain(
            binds=tuple(Bind(**{**bind, "source": Path(bind["source"])}) for bind in stored["binds"]),
            path=tuple(stored["path"]),
            id=stored["id"],
            links=tuple((name, target) for name, target in stored["links"]),
            environment=tuple((name, value) for name, value in stored["environment"]),
            not_shown=tuple(
                HiddenPrograms(**{**each, "names": tuple(each["names"])}) for each in stored["not_shown"]
            ),
        )
    toolchain, witnesses = _search(search, extra, packages, cache, environ)
    store_result(place, key, witnesses, msgspec.to_builtins(toolchain, enc_hook=str), began=began)
    return toolchain


def _search(
    search: str, extra: Sequence[str], packages: Sequence[str], cache: Path | None, environ: Mapping[str, str]
) -> tuple[Toolchain, set[str]]:
    """Return the toolchain, and every path that it depends on."""
    spelled = dict.fromkeys(_expand(place, environ) for place in search.split(os.pathsep))
    directories = [place for place in spelled if os.path.isabs(place) and os.path.isdir(place)]
    real = dict.fromkeys(map(os.path.realpath, directories))
    asked = [path for place in real for path in askable(place, environ)]
    # Every sandbox sees the system's programs anyway.
    asked = [path for path in asked if not (is_system_path(path) and is_system_path(os.path.realpath(path)))]
    found = _Search(
        environ=environ,
        places=MountedPaths(home=_expand("~", environ)),
        answers=ask_all(asked, environ, cache),
    )
    for directory in directories:
        found.add_directory(directory)
    for number, directory in enumerate(extra):
        found.add_listed(directory, number)
    for place in sorted(each for pattern in _ETC for each in glob.glob(pattern)):
        found.places.sources[place] = os.path.realpath(place)
    binds, path = list(found.places.binds()), list(dict.fromkeys((*found.path, *_SYSTEM_PATH)))
    listed = [os.path.realpath(_expand(directory, environ)) for directory in extra]
    hidden = [
        place
        for place in package_directories(found.python_prefixes)
        if not any(is_below(os.path.realpath(place), directory) for directory in listed)
    ]
    scratch = cache.parent if cache is not None else Path("/nonexistent")
    binds += hide_packages(hidden, packages, scratch=scratch, target=_TARGET)
    system = {f"{place}/{name}" for place in ("/usr/local/bin", "/usr/bin") for name in _SYSTEM_TOOLS}
    stamps = [stamp(place) for place in sorted((*found.watched, *found.answers, *system))]
    shown = [[str(bind.source), bind.target] for bind in binds]
    identity = json.dumps([stamps, shown, path, sorted(found.links.items()), list(extra)])
    # By stamps and not by content: hashing an interpreter's prefix would take seconds at each start.
    toolchain = Toolchain(
        binds=tuple(binds),
        path=tuple(path),
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        links=tuple(found.links.items()),
        environment=found.find_java_home(),
        not_shown=tuple(found.not_shown),
    )
    witnesses = {*hidden, *system, *spelled, *witness_paths(list(real), environ)}
    return toolchain, witnesses | found.read_paths()


def _expand(path: str, environ: Mapping[str, str]) -> str:
    """Return a path with `~` replaced by the person's home, which may differ from that of this process."""
    home = environ.get("HOME")
    return home + path[1:] if home and (path == "~" or path.startswith("~/")) else os.path.expanduser(path)


def store_result(
    place: Path, key: str, witnesses: Iterable[str], document: dict[str, Any], *, began: float
) -> None:
    """Store a search result, unless a path changed since it `began` (as `time.time`) or just before that.

    Every path that the search depended on is a witness: a directory by its list of names, a file by its state.
    """
    # This file too: another version may find something else.
    paths = sorted({*witnesses, __file__})
    digest, changed = _digest(paths)
    if changed > began - _UNSETTLED:
        return
    fresh = place.with_name(f"{place.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # the cache only saves time
        fresh.write_text(json.dumps({"key": key, "paths": paths, "digest": digest, "found": document}))
        fresh.replace(place)


def load_result(place: Path, key: str) -> dict[str, Any] | None:
    """Return the stored result for the same question, `None` if any path that it depends on has changed."""
    try:
        stored = json.loads(place.read_text())
        same = stored["key"] == key and stored["digest"] == _digest(stored["paths"])[0]
        return stored["found"] if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _digest(paths: Iterable[str]) -> tuple[str, float]:
    """Return a digest of the present state of all paths, and the time of the latest change."""
    digest = hashlib.sha256()
    latest = 0
    for path in paths:
        try:
            info = os.stat(path)
        except (OSError, ValueError):
            digest.update(b"-")
            continue
        # All that stat(2) returns: it covers a file written in place, a link with another target and a new name,
        # and a program cannot set back the time of an inode's last change (ctime).
        parts = (info.st_dev, info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        digest.update(repr(parts).encode())
        latest = max(latest, info.st_ctime_ns)
    return digest.hexdigest(), latest / 1e9
