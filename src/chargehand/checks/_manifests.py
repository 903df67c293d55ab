"""Parsers of dependency files and of their package sources: a class for each kind of file."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from msgspec import Struct, field

from chargehand.core.text import late_pattern, printable

# Characters of a source that one message shows.
_MAX_SOURCE = 200

_URL = late_pattern(r"(?:(?:git|hg|svn|bzr|registry|sparse|direct)\+)?(?:https?|ssh|git|ftp|file)://[^\s\"'<>]+")
_GIT_SHORT = late_pattern(r"git@[\w.-]+:\S+")
_HOSTED = late_pattern(r"git@[\w.-]+:\S+|(?:github|gitlab|bitbucket|gist|git):\S+")
_LOCAL_PATH = late_pattern(r"(?:(?:file|link|portal):)?[/~]\S*")
_OWNER_NAME = late_pattern(r"[\w-][\w.-]*/[\w.-]+(?:#\S*)?")
_USUAL_REGISTRIES = frozenset(
    {"https://pypi.org", "https://files.pythonhosted.org", "https://registry.npmjs.org"}
    | {"https://registry.yarnpkg.com", "https://static.crates.io", "https://index.crates.io"}
    | {"https://proxy.golang.org", "https://registry.npmjs.com"}
)
_USUAL_INDEX = "registry+https://github.com/rust-lang/crates.io-index"

_REQUIREMENTS_NAME = late_pattern(r"(?:.*[-_.])?(?:requirements|constraints)(?:[-_.].*)?\.(?:txt|in)")
_PEP_508 = late_pattern(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_PIP_OPTION = late_pattern(
    r"(-i|-f|-e|--index-url|--extra-index-url|--find-links|--trusted-host|--editable)(?:[ \t=]+|(?<=-[ife]))(.+)"
)
_GO_REQUIRE = late_pattern(r"(?:require\s+)?([\w.~/-]+\.[\w.~/-]+)\s+(v[\w.+-]+)")
_GO_REPLACE = late_pattern(r"(?:replace\s+)?(\S+)(?:\s+v\S+)?\s+=>\s+(\S+)")
_LOCK_LINE = late_pattern(r"^\s*(?:resolved|tarball|repo|resolution)\b.*", re.MULTILINE)

_INDEX_KEYS = ("index", "index-url", "extra-index-url", "find-links", "sources", "source", "pypi-dependencies")
_TOML_LOCK_KEYS = ("source", "sdist", "wheels", "files", "git", "url")
_NPM_ABOUT_KEYS = frozenset({"funding", "repository", "bugs", "homepage"})
_NODE = "node_modules/"
# Kinds of source by which uv's lock marks a package of the tree itself.
_OWN_SOURCES = frozenset({"editable", "virtual"})


class Dependencies(Struct, frozen=True, kw_only=True):
    """The content of one file: requirements by name, foreign `sources`, and whether it could be read at all."""

    named: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    readable: bool = True


def _stated(pairs: Iterable[tuple[str, str]], sources: Iterable[str]) -> Dependencies:
    """Return requirements by name, each with its version; those of one name are joined."""
    collected: dict[str, set[str]] = {}
    for requirement, wanted in pairs:
        collected.setdefault(requirement, set()).add(wanted)
    named = {requirement: ", ".join(sorted(wanted)) for requirement, wanted in sorted(collected.items())}
    return Dependencies(named=named, sources=tuple(sorted(set(sources))))


class DependencyFile:
    """A kind of file that names a project's dependencies, or their sources.

    An agent writes these files: for a value of the wrong shape a method raises any of `UNREADABLE`.
    """

    names: ClassVar[tuple[str, ...]] = ()
    """The base names of such files."""
    manifest: ClassVar[str] = ""
    """The base name of the manifest that a lock file is made from, "" for any other file."""
    names_packages: ClassVar[bool] = True
    """False for a file that names at most sources of packages."""

    def read(self, text: str) -> Dependencies:
        """Return the requirements of a manifest, and the sources that any file names."""
        raise NotImplementedError

    def packages(self, text: str) -> frozenset[str]:
        """Return the packages that the file names, each with its version."""
        return frozenset(f"{package} {wanted}" for package, wanted in self.read(text).named.items())


UNREADABLE = (ValueError, RecursionError, TypeError, AttributeError, configparser.Error)


# --- manifests


class Requirements(DependencyFile):
    """Requirements and constraints files, which pip reads; recognised by patterns of names."""

    def read(self, text: str) -> Dependencies:
        named: list[tuple[str, str]] = []
        sources: list[str] = []
        for raw in text.replace("\\\n", " ").splitlines():
            line = re.sub(r"(?:^|\s)#.*", "", raw).partition(" --hash")[0].strip()
            if option := _PIP_OPTION.fullmatch(line):
                sources += _foreign_sources([option[2]], local=False)
            elif line and not line.startswith("-"):
                _add_requirement(line, named, sources)
        return _stated(named, sources)


class SetupCfg(Requirements):
    """The lists of requirements in setup.cfg."""

    names = ("setup.cfg",)

    def read(self, text: str) -> Dependencies:
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        lists = [parser.get("options", key, fallback="") for key in ("install_requires", "setup_requires")]
        extras = "options.extras_require"
        lists += [value for _, value in parser.items(extras)] if parser.has_section(extras) else []
        return super().read("\n".join(lists))


class PyprojectToml(DependencyFile):
    """pyproject.toml, with the tables of poetry, uv, pdm, pixi and hatch."""

    names = ("pyproject.toml",)

    def read(self, text: str) -> Dependencies:
        document = tomllib.loads(text)
        project = document.get("project", {})
        tools = document.get("tool", {})
        named: list[tuple[str, str]] = []
        sources: list[str] = []
        listed = [project.get("dependencies", []), document.get("build-system", {}).get("requires", [])]
        listed += project.get("optional-dependencies", {}).values()
        listed += document.get("dependency-groups", {}).values()
        for requirement in (each for group in listed for each in group):
            if isinstance(requirement, str):
                _add_requirement(requirement, named, sources)

        poetry = tools.get("poetry", {})
        in_groups = [poetry, *poetry.get("group", {}).values()]
        tables = [group.get(key, {}) for group in in_groups for key in ("dependencies", "dev-dependencies")]
        named += [(_python_name(name), _spec(wanted)) for table in tables for name, wanted in table.items()]
        sources += _foreign_sources(_strings([tables, poetry.get("source", [])]), local=True)

        for tool in ("uv", "pdm", "pixi", "hatch"):
            settings = tools.get(tool, {})
            indexes = {key: settings[key] for key in _INDEX_KEYS if key in settings}
            sources += _foreign_sources(_strings(indexes), local=True)
        return _stated(named, sources)


class Pipfile(DependencyFile):
    """The manifest of pipenv."""

    names = ("Pipfile",)

    def read(self, text: str) -> Dependencies:
        document = tomllib.loads(text)
        tables = [document.get(key, {}) for key in ("packages", "dev-packages")]
        named = [(_python_name(name), _spec(wanted)) for table in tables for name, wanted in table.items()]
        return _stated(named, _foreign_sources(_strings([tables, document.get("source", [])]), local=True))


class PackageJson(DependencyFile):
    """The manifest of npm, yarn, pnpm and bun."""

    names = ("package.json",)

    def read(self, text: str) -> Dependencies:
        document = json.loads(text or "{}")
        tables = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
        named = [(name, _spec(wanted)) for table in tables for name, wanted in document.get(table, {}).items()]
        forced = [document.get(key, {}) for key in ("overrides", "resolutions", "pnpm")]
        places = [*(wanted for _, wanted in named), *_strings(forced)]
        # npm treats a bare owner/name as a repository on its default hosting service.
        hosted = (f"github:{each}" if _OWNER_NAME.fullmatch(each) else each for each in places)
        return _stated(named, _foreign_sources(hosted, local=True))


class CargoToml(DependencyFile):
    """The manifest of cargo."""

    names = ("Cargo.toml",)

    def read(self, text: str) -> Dependencies:
        document = tomllib.loads(text)
        places = [document, document.get("workspace", {}), *document.get("target", {}).values()]
        kinds = ("dependencies", "dev-dependencies", "build-dependencies")
        tables = [place.get(kind, {}) for place in places for kind in kinds]
        named = [(name, _spec(wanted)) for table in tables for name, wanted in table.items()]
        registries = [
            wanted.get("registry-index", "")
            for table in tables
            for wanted in table.values()
            if isinstance(wanted, Mapping)
        ]
        patched = [document.get("patch", {}), document.get("replace", {})]
        # The keys of `patch` are themselves sources, by URL.
        urls = [*_strings(tables), *_strings(patched), *document.get("patch", {}), *registries]
        return _stated(named, _foreign_sources(urls, local=True))


class GoMod(DependencyFile):
    """The manifest of a Go module."""

    names = ("go.mod",)

    def read(self, text: str) -> Dependencies:
        lines = [line.partition("//")[0].strip() for line in text.splitlines()]
        named = [(found[1], found[2]) for line in lines if (found := _GO_REQUIRE.fullmatch(line))]
        replaced = [found[2] for line in lines if (found := _GO_REPLACE.match(line))]
        return _stated(named, [place for place in replaced if not place.startswith(".")])


def _add_requirement(requirement: str, named: list[tuple[str, str]], sources: list[str]) -> None:
    """Add one requirement in Python's syntax; a bare URL has no name."""
    found = _PEP_508.fullmatch(requirement)
    bare = _URL.search(requirement) or _GIT_SHORT.search(requirement)
    if bare is not None and (found is None or not found[2].startswith("@")):
        sources.append(_without_secrets(bare[0]))
    elif found is not None:
        named.append((_python_name(found[1]), found[2].strip()))
        if found[2].startswith("@"):
            sources += _foreign_sources([found[2].lstrip("@ ")], local=False)


def _python_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _spec(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else json.dumps(wanted, sort_keys=True, default=str)


# --- lock files and settings


class LockFile(DependencyFile):
    """A file that names sources. A lock's packages are those of its manifest and their own dependencies."""

    def read(self, text: str) -> Dependencies:
        return _stated((), _foreign_sources(self.places(text), local=True))

    def places(self, text: str) -> Iterable[str]:
        """Return the texts in the file that may name a source."""
        return _words(text.splitlines())


class PythonLock(LockFile):
    """The locks of uv, poetry and pdm, and the standard one; cargo's has the same form."""

    names: ClassVar[tuple[str, ...]] = ("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml")
    manifest = "pyproject.toml"

    def places(self, text: str) -> Iterable[str]:
        packages = tomllib.loads(text).get("package", [])
        return _strings([{key: package[key] for key in _TOML_LOCK_KEYS if key in package} for package in packages])

    def packages(self, text: str) -> frozenset[str]:
        """Return all packages except the project's own."""
        document = tomllib.loads(text)
        listed = (*document.get("package", ()), *document.get("packages", ()))
        return frozenset(f"{each.get('name')} {each.get('version')}" for each in listed if not self.is_own(each))

    def is_own(self, package: Mapping[str, Any]) -> bool:
        """Return whether a package is the project's own: uv gives it a source within the tree."""
        return not _OWN_SOURCES.isdisjoint(package.get("source") or ())


class CargoLock(PythonLock):
    """The lock of cargo."""

    names = ("Cargo.lock",)
    manifest = "Cargo.toml"

    def is_own(self, package: Mapping[str, Any]) -> bool:
        """Return whether a package is the project's own: cargo gives it no source."""
        return "source" not in package or super().is_own(package)


class PipfileLock(LockFile):
    """The lock of pipenv."""

    names = ("Pipfile.lock",)
    manifest = "Pipfile"

    def places(self, text: str) -> Iterable[str]:
        return _strings(json.loads(text or "{}"))

    def packages(self, text: str) -> frozenset[str]:
        document = json.loads(text or "{}")
        groups = [document.get(kind, {}) for kind in ("default", "develop")]
        return frozenset(f"{key} {each.get('version')}" for group in groups for key, each in group.items())


class NpmLock(LockFile):
    """The locks of npm."""

    names = ("package-lock.json", "npm-shrinkwrap.json")
    manifest = "package.json"

    def places(self, text: str) -> Iterable[str]:
        waiting = [json.loads(text or "{}")]
        resolved: list[str] = []
        while waiting:
            part = waiting.pop()
            if isinstance(part, Mapping):
                resolved += [part["resolved"]] if isinstance(part.get("resolved"), str) else []
                # Home pages and funding links are not sources.
                waiting += [part[key] for key in part if key not in _NPM_ABOUT_KEYS]
        return resolved

    def packages(self, text: str) -> frozenset[str]:
        """Return the packages below `node_modules`: any other path is the project itself, or a part of it."""
        document = json.loads(text or "{}")
        listed = {**document.get("dependencies", {}), **document.get("packages", {})}
        return frozenset(
            f"{key} {each.get('version')}"
            for key, each in listed.items()
            if "packages" not in document or _NODE in key
        )


class NodeTextLock(LockFile):
    """The locks of yarn, pnpm and bun, which are read line by line."""

    names = ("yarn.lock", "pnpm-lock.yaml", "bun.lock")
    manifest = "package.json"

    def places(self, text: str) -> Iterable[str]:
        return _words(_LOCK_LINE.findall(text))

    def packages(self, text: str) -> frozenset[str]:
        """Return all lines: any new one may be a package or a version."""
        return frozenset(line.strip() for line in text.splitlines())


class SettingsFile(LockFile):
    """Settings of package clients, which may name registries."""

    names = (".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", "pip.ini", "uv.toml", "bunfig.toml", ".pypirc")
    names_packages = False


class GoSum(LockFile):
    """The hashes of Go modules; go.mod names the modules and their sources."""

    names = ("go.sum",)
    manifest = "go.mod"
    names_packages = False

    def places(self, text: str) -> Iterable[str]:
        return ()


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in a document, at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _words(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.lstrip().startswith(("#", ";")):
            yield from re.split(r"[\s\"'=,{}]+", line)


# --- sources of packages


def _foreign_sources(texts: Iterable[str], *, local: bool) -> list[str]:
    """Return the sources among texts that are not the default registries.

    With `local`, texts that name no source are skipped; without it, each text is a source by its position.
    """
    found: list[str] = []
    for text in map(str.strip, texts):
        if url := _URL.search(text):
            origin = _origin(url[0].removeprefix("registry+").removeprefix("sparse+"))
            # cargo's default index is one repository of many on its host, so it is recognised by its whole
            # address.
            if not url[0].startswith(_USUAL_INDEX) and origin not in _USUAL_REGISTRIES:
                found.append(_without_secrets(url[0]))
            continue
        outside = _LOCAL_PATH.fullmatch(text) or _HOSTED.fullmatch(text)
        if outside or (not local and text and not text.startswith(".")):
            found.append(_without_secrets(text))
    return found


def _without_secrets(place: str) -> str:
    """Return a registry as its host, and any other source in full; neither with a possible password."""
    if _URL.fullmatch(place) is None:
        return printable(place[:_MAX_SOURCE])
    kind, plus, rest = place.partition("+")
    plain = rest if plus and "/" not in kind else place
    is_repository = plain is not place and kind not in ("registry", "sparse", "direct")
    if is_repository or not plain.startswith("http") or ".git" in plain:
        where = re.sub(r"//[^/@]*@", "//", plain).partition("#")[0].partition("?")[0]
        return printable(where[:_MAX_SOURCE])
    return printable(_origin(plain)[:_MAX_SOURCE])


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return url.rpartition("@")[2]
    return f"{parts.scheme}://{host}{port}"


# --- the table

_REQUIREMENTS = Requirements()
_BY_NAME: Mapping[str, DependencyFile] = {
    name: kind
    for kind in (
        *(PyprojectToml(), SetupCfg(), Pipfile(), PackageJson(), CargoToml(), GoMod()),
        *(PythonLock(), PipfileLock(), NpmLock(), NodeTextLock(), CargoLock(), GoSum(), SettingsFile()),
    )
    for name in kind.names
}
MANIFEST_OF = {name: kind.manifest for name, kind in _BY_NAME.items() if kind.manifest}
"""Each lock file and its manifest, both by base name."""


def kind_of(path: str) -> DependencyFile | None:
    """Return the kind of a file by its name, `None` for a file that does not concern dependencies."""
    *directories, name = path.split("/")
    if name in _BY_NAME:
        return _BY_NAME[name]
    in_folder = directories[-1:] == ["requirements"] and name.endswith((".txt", ".in"))
    return _REQUIREMENTS if in_folder or _REQUIREMENTS_NAME.fullmatch(name) else None
