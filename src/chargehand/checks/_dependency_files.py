"""What manifests and lock files name: dependencies by name, and places other than the usual to take them from."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from chargehand.checks._dependency_sources import foreign_sources, source_of
from chargehand.checks._reader import TreeReader, is_regular

_MAX_TEXT = 8_000_000
_REQUIREMENTS = re.compile(r"(?:.*[-_.])?(?:requirements|constraints)(?:[-_.].*)?\.(?:txt|in)")
_PEP_508 = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_OPTION = re.compile(
    r"(-i|-f|-e|--index-url|--extra-index-url|--find-links|--trusted-host|--editable)(?:[ \t=]+|(?<=-[ife]))(.+)"
)
_GO_REQUIRE = re.compile(r"(?:require\s+)?([\w.~/-]+\.[\w.~/-]+)\s+(v[\w.+-]+)")
_GO_REPLACE = re.compile(r"(?:replace\s+)?(\S+)(?:\s+v\S+)?\s+=>\s+(\S+)")
_OWNER_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(?:#\S*)?")
_LOCK_LINE = re.compile(r"^\s*(?:resolved|tarball|repo|resolution)\b.*", re.MULTILINE)
_SETTING_FILES = frozenset(
    {".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", "pip.ini", "uv.toml", "bunfig.toml", ".pypirc"}
)

Pairs = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """What one file says: requirements by name, foreign `sources`, and whether it could be read at all."""

    named: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    readable: bool = True


def is_dependency_file(path: str) -> bool:
    """Whether a file by its name says what a project depends on or where that comes from."""
    return _reader_of(path) is not None


def dependencies_in(path: str, reader: TreeReader, mode: int | None, id: str | None) -> Dependencies | None:
    """Return what the file of this mode and id says; `None` for an absent or another kind of file."""
    read = _reader_of(path)
    if read is None or id is None:
        return None
    if not is_regular(mode) or reader.blob_size(id) > _MAX_TEXT:
        return Dependencies(readable=False)
    text = reader.read_blob(id, limit=_MAX_TEXT).decode("utf-8", "replace")
    try:
        named, sources = read(text)
    except (ValueError, RecursionError, TypeError, AttributeError):
        return Dependencies(readable=False)
    collected: dict[str, set[str]] = {}
    for name, wanted in named:
        collected.setdefault(name, set()).add(wanted)
    joined = {name: ", ".join(sorted(wanted)) for name, wanted in sorted(collected.items())}
    return Dependencies(named=joined, sources=tuple(sorted(set(sources))))


_Read = Callable[[str], tuple[Pairs, Iterable[str]]]


def _reader_of(path: str) -> _Read | None:
    *directories, name = path.split("/")
    if name in _BY_NAME:
        return _BY_NAME[name]
    listed = directories[-1:] == ["requirements"] and name.endswith((".txt", ".in"))
    return _requirements if listed or _REQUIREMENTS.fullmatch(name) else None


def _requirements(text: str) -> tuple[Pairs, Iterable[str]]:
    named: list[tuple[str, str]] = []
    sources: list[str] = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(?:^|\s)#.*", "", raw).partition(" --hash")[0].strip()
        if option := _OPTION.fullmatch(line):
            sources += _place(option[2])
        elif line and not line.startswith("-"):
            _take_python(line, named, sources)
    return named, sources


def _take_python(requirement: Any, named: list[tuple[str, str]], sources: list[str]) -> None:
    """Note one requirement as Python writes them; a bare URL has no name."""
    found = _PEP_508.fullmatch(str(requirement))
    bare = source_of(str(requirement))
    if bare and (found is None or not found[2].startswith("@")):
        sources.append(bare)
    elif found is not None:
        named.append((_python_name(found[1]), found[2].strip()))
        sources += _place(found[2].lstrip("@ ")) if found[2].startswith("@") else []


def _python_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _place(text: str) -> list[str]:
    """Return a place that is named as such, whatever it looks like, unless it is the usual one or inside."""
    return foreign_sources([text.strip()], local=False)


def _pyproject(text: str) -> tuple[Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    project, tools = document.get("project", {}), document.get("tool", {})
    named: list[tuple[str, str]] = []
    sources: list[str] = []
    groups = [*project.get("optional-dependencies", {}).values(), *document.get("dependency-groups", {}).values()]
    listed = [project.get("dependencies", []), document.get("build-system", {}).get("requires", []), *groups]
    for requirement in (each for group in listed for each in group):
        if isinstance(requirement, str):
            _take_python(requirement, named, sources)
    _poetry(tools.get("poetry", {}), named, sources)
    for tool in ("uv", "pdm", "pixi", "hatch"):
        settings = tools.get(tool, {})
        indexes = {key: settings[key] for key in _INDEX_KEYS if key in settings}
        sources += foreign_sources(_strings(indexes), local=True)
    return named, sources


_INDEX_KEYS = ("index", "index-url", "extra-index-url", "find-links", "sources", "source", "pypi-dependencies")


def _poetry(poetry: Any, named: list[tuple[str, str]], sources: list[str]) -> None:
    groups = [poetry, *poetry.get("group", {}).values()]
    tables = [group.get(key, {}) for group in groups for key in ("dependencies", "dev-dependencies")]
    for name, wanted in ((n, w) for table in tables for n, w in table.items()):
        named.append((_python_name(name), _spec(wanted)))
        sources += foreign_sources(_strings(wanted), local=True)
    sources += foreign_sources(_strings(poetry.get("source", [])), local=True)


def _spec(wanted: Any) -> str:
    return wanted if isinstance(wanted, str) else json.dumps(wanted, sort_keys=True, default=str)


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


def _package_json(text: str) -> tuple[Pairs, Iterable[str]]:
    document = json.loads(text or "{}")
    tables = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
    named = [(n, _spec(w)) for table in tables for n, w in document.get(table, {}).items()]
    forced = [document.get(key, {}) for key in ("overrides", "resolutions", "pnpm")]
    wanted = [*(wanted for _, wanted in named), *_strings(forced)]
    # To npm a bare owner/name is a repository on its usual hosting service.
    places = (f"github:{each}" if _OWNER_NAME.fullmatch(each) else each for each in wanted)
    return named, foreign_sources(places, local=True)


def _cargo(text: str) -> tuple[Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    places = [document, document.get("workspace", {}), *document.get("target", {}).values()]
    kinds = ("dependencies", "dev-dependencies", "build-dependencies")
    named = [(n, _spec(w)) for place in places for kind in kinds for n, w in place.get(kind, {}).items()]
    wanted = [place.get(kind, {}) for place in places for kind in kinds]
    registries = [t.get("registry-index", "") for part in wanted for t in part.values() if isinstance(t, Mapping)]
    patched = [document.get("patch", {}), document.get("replace", {})]
    # The tables that `patch` names are places themselves, by URL.
    urls = [*_strings(wanted), *_strings(patched), *document.get("patch", {}), *registries]
    return named, foreign_sources(urls, local=True)


def _go_mod(text: str) -> tuple[Pairs, Iterable[str]]:
    lines = [line.partition("//")[0].strip() for line in text.splitlines()]
    named = [(f[1], f[2]) for line in lines if (f := _GO_REQUIRE.fullmatch(line))]
    replaced = [f[2] for line in lines if (f := _GO_REPLACE.match(line))]
    return named, [place for place in replaced if not place.startswith(".")]


def _npm_lock(text: str) -> tuple[Pairs, Iterable[str]]:
    document = json.loads(text or "{}")
    return (), foreign_sources(_resolved(document), local=True)


def _resolved(document: Any) -> Iterator[str]:
    """Yield where a lock of npm takes packages from; their home pages and funding links are no sources."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("resolved"), str):
                yield part["resolved"]
            waiting += [part[key] for key in part if key not in ("funding", "repository", "bugs", "homepage")]


def _toml_lock(text: str) -> tuple[Pairs, Iterable[str]]:
    packages = tomllib.loads(text).get("package", [])
    kept = [{k: p[k] for k in ("source", "sdist", "wheels", "files", "git", "url") if k in p} for p in packages]
    return (), foreign_sources(_strings(kept), local=True)


def _pipfile(text: str) -> tuple[Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    tables = [document.get(key, {}) for key in ("packages", "dev-packages")]
    named = [(_python_name(n), _spec(w)) for table in tables for n, w in table.items()]
    return named, foreign_sources(_strings([tables, document.get("source", [])]), local=True)


def _json_lock(text: str) -> tuple[Pairs, Iterable[str]]:
    return (), foreign_sources(_strings(json.loads(text or "{}")), local=True)


def _line_lock(text: str) -> tuple[Pairs, Iterable[str]]:
    return (), foreign_sources(_words(_LOCK_LINE.findall(text)), local=True)


def _settings(text: str) -> tuple[Pairs, Iterable[str]]:
    return (), foreign_sources(_words(text.splitlines()), local=True)


def _no_sources(text: str) -> tuple[Pairs, Iterable[str]]:
    return (), ()


def _words(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if not line.lstrip().startswith(("#", ";")):
            yield from re.split(r"[\s\"'=,{}]+", line)


_BY_NAME: dict[str, _Read] = {
    "pyproject.toml": _pyproject,
    "Pipfile": _pipfile,
    "package.json": _package_json,
    "Cargo.toml": _cargo,
    "go.mod": _go_mod,
    **dict.fromkeys(("uv.lock", "poetry.lock", "pdm.lock", "Cargo.lock", "pylock.toml"), _toml_lock),
    **dict.fromkeys(("package-lock.json", "npm-shrinkwrap.json"), _npm_lock),
    "Pipfile.lock": _json_lock,
    **dict.fromkeys(("yarn.lock", "pnpm-lock.yaml", "bun.lock"), _line_lock),
    "go.sum": _no_sources,
    **dict.fromkeys(_SETTING_FILES, _settings),
}
