"""Changes to a project's dependencies: what manifests and lock files name, and from which places."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from chargehand.checks.trees import TreeReader, is_regular
from chargehand.core.records import Change, Finding
from chargehand.core.text import printable, shown_path

_LONGEST = 200
_URL = re.compile(r"(?:(?:git|hg|svn|bzr|registry|sparse|direct)\+)?(?:https?|ssh|git|ftp|file)://[^\s\"'<>]+")
# git's short form, the short names of hosting services, and files outside of the project.
_SHORT = re.compile(r"git@[\w.-]+:\S+|(?:github|gitlab|bitbucket|gist|git):\S+")
_OUTSIDE = re.compile(r"(?:(?:file|link|portal):)?[/~]\S*")
_USUAL = frozenset(
    {"https://pypi.org", "https://files.pythonhosted.org", "https://registry.npmjs.org"}
    | {"https://registry.yarnpkg.com", "https://static.crates.io", "https://index.crates.io"}
    | {"https://proxy.golang.org", "https://registry.npmjs.com"}
)
_USUAL_INDEX = "registry+https://github.com/rust-lang/crates.io-index"


def source_of(text: str) -> str | None:
    """Return the place that a text names by URL or by git's short form, `None` where it names none."""
    url = _URL.search(text)
    if url is not None:
        return _shown(url[0])
    short = re.search(r"git@[\w.-]+:\S+", text)
    return printable(short[0][:_LONGEST]) if short else None


def foreign_sources(texts: Iterable[str], *, local: bool) -> list[str]:
    """Return the places among texts that are not the usual registries.

    With `local` texts that name no place are passed over; without, each text is a place by its position.
    """
    found = (_foreign(text.strip(), local=local) for text in texts)
    return [place for place in found if place is not None]


def _foreign(text: str, *, local: bool) -> str | None:
    url = _URL.search(text)
    if url is not None:
        return None if _is_usual(url[0]) else _shown(url[0])
    if _OUTSIDE.fullmatch(text) or _SHORT.fullmatch(text):
        return printable(text[:_LONGEST])
    inside = local or text.startswith(".") or not text
    return None if inside else printable(text[:_LONGEST])


def _is_usual(url: str) -> bool:
    return url.startswith(_USUAL_INDEX) or _origin(url.removeprefix("registry+").removeprefix("sparse+")) in _USUAL


def _shown(url: str) -> str:
    """Return a registry by its host, a repository as it is; neither with what may be a password."""
    kind, plus, rest = url.partition("+")
    plain = rest if plus and "/" not in kind else url
    is_repository = plain is not url and kind not in ("registry", "sparse", "direct")
    if is_repository or not plain.startswith("http") or ".git" in plain:
        where = re.sub(r"//[^/@]*@", "//", plain).partition("#")[0].partition("?")[0]
        return printable(where[:_LONGEST])
    return printable(_origin(plain)[:_LONGEST])


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
    except ValueError:
        return url.rpartition("@")[2]
    return f"{parts.scheme}://{host}{port}"


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


_SHOWN = 8
_LOCKS: dict[str, tuple[str, ...]] = {
    # a lock file and the manifests it is made from
    **dict.fromkeys(("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml"), ("pyproject.toml",)),
    "Pipfile.lock": ("Pipfile",),
    **dict.fromkeys(
        ("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock"), ("package.json",)
    ),
    "Cargo.lock": ("Cargo.toml",),
    "go.sum": ("go.mod",),
}
_Known = Mapping[str, tuple[Dependencies | None, Dependencies | None]]
"""By path what a changed file said before and says now."""


def dependency_findings(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield what the changes mean for what the project depends on."""
    ours = [change for change in changes if change.path in known]
    if not ours:
        return
    before = {place for old, _ in known.values() if old is not None for place in old.sources}
    for change in ours:
        old, new = known[change.path]
        yield from _named(change.path, old or Dependencies(), new or Dependencies())
        yield from _sources(change.path, new, before)
    yield from _locks_alone(ours)
    yield from _locks_left(ours, known, reader, base_tree)


def _named(path: str, old: Dependencies, new: Dependencies) -> Iterator[Finding]:
    if not old.readable or not new.readable:
        return
    added = sorted(set(new.named) - set(old.named))
    removed = sorted(set(old.named) - set(new.named))
    changed = sorted(n for n in set(old.named) & set(new.named) if old.named[n] != new.named[n])
    if added:
        yield _warning("dependency_changed", path, f"new dependencies: {_list(added)}")
    others = [f"{word} {_list(names)}" for word, names in (("removed", removed), ("changed", changed)) if names]
    if others:
        message = f"dependencies: {'; '.join(others)}"
        yield Finding(rule="dependency_changed", severity="info", path=path, message=message)


def _sources(path: str, new: Dependencies | None, before: set[str]) -> Iterator[Finding]:
    if new is None:
        return
    if not new.readable:
        message = f"{shown_path(path)} can not be read, so where packages would come from is unknown"
        yield _asking(path, message)
    elif fresh := sorted(set(new.sources) - before):
        yield _asking(path, f"packages would come from a place that is new here: {_list(fresh)}")


def _locks_alone(changes: Sequence[Change]) -> Iterator[Finding]:
    """Find locks that changed although nothing they are made from did, in their directory or below."""
    touched = [change.path for change in changes]
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if name not in _LOCKS or change.kind == "added":
            continue
        below = f"{folder}/" if folder else ""
        if not any(p.startswith(below) and p.rpartition("/")[2] in _LOCKS[name] for p in touched):
            what = "was deleted" if change.kind == "deleted" else "changed"
            yield _warning("lock_mismatch", change.path, f"it {what} and no {' or '.join(_LOCKS[name])} did")


def _locks_left(changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str) -> Iterator[Finding]:
    """Find locks of the base that stayed as they were although dependencies they are made from changed."""
    touched = {change.path for change in changes}
    for change in changes:
        old, new = known[change.path]
        if new is None or (old.named if old else {}) == new.named:
            continue
        *directories, name = change.path.split("/")
        places = ["/".join([*directories[:n], ""]) for n in range(len(directories), -1, -1)]
        locks = [f"{p}{lock}" for p in places for lock, made_from in _LOCKS.items() if name in made_from]
        there = next((lock for lock in locks if reader.lookup(base_tree, lock) is not None), None)
        if there is not None and touched.isdisjoint(locks):
            yield _warning(
                "lock_mismatch", change.path, f"its dependencies changed and {shown_path(there)} did not"
            )


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return printable(", ".join(names[:_SHOWN]) + more)


def _warning(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message)


def _asking(path: str, message: str) -> Finding:
    # Not an error: a person may want a fork or an index of their own, and only a person can know.
    return Finding(rule="dependency_source", severity="warning", path=path, message=message, needs_person=True)
