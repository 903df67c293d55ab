"""Changes to a project's dependencies: what manifests and lock files name, and from which places."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, field

from chargehand.checks.trees import TreeReader, is_regular
from chargehand.core.records import Change, Finding
from chargehand.core.text import late_pattern, printable, shown_path

# Bytes of the largest file that is parsed; the lock file of a large workspace has a few million.
_MAX_TEXT = 8_000_000
# Characters of a source, and names of dependencies, that one message shows.
_MAX_SOURCE, _MAX_NAMES = 200, 8

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
_SETTINGS = frozenset(
    {".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", "pip.ini", "uv.toml", "bunfig.toml", ".pypirc"}
)
# Each lock file with the manifest that it is made from.
_MANIFEST_OF = {
    **dict.fromkeys(("uv.lock", "poetry.lock", "pdm.lock", "pylock.toml"), "pyproject.toml"),
    "Pipfile.lock": "Pipfile",
    **dict.fromkeys(("package-lock.json", "npm-shrinkwrap.json", "yarn.lock"), "package.json"),
    **dict.fromkeys(("pnpm-lock.yaml", "bun.lock"), "package.json"),
    "Cargo.lock": "Cargo.toml",
    "go.sum": "go.mod",
}

_NODE = "node_modules/"
_OWN = {"editable", "virtual"}
_Pairs = Iterable[tuple[str, str]]


class Dependencies(Struct, frozen=True, kw_only=True):
    """What one file says: requirements by name, foreign `sources`, and whether it could be read at all."""

    named: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    readable: bool = True


# By path what a changed file said before and says now.
_Known = Mapping[str, tuple[Dependencies | None, Dependencies | None]]


# --- findings


def dependency_findings(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Yield what the changes mean for what the project depends on."""
    ours = [change for change in changes if change.path in known]
    if not ours:
        return
    # Of all files together: a place that another manifest named before is not new to the project.
    before = {place for old, _ in known.values() if old is not None for place in old.sources}
    for change in ours:
        path, (old, new) = change.path, known[change.path]
        if all(each is None or each.readable for each in (old, new)):
            was, now = (old.named if old else {}), (new.named if new else {})
            added, removed = sorted(set(now) - set(was)), sorted(set(was) - set(now))
            changed = sorted(name for name in set(was) & set(now) if was[name] != now[name])
            if added:
                yield _warning("dependency_changed", path, f"new dependencies: {_list(added)}")
            others = [
                f"{word} {_list(names)}" for word, names in (("removed", removed), ("changed", changed)) if names
            ]
            if others:
                message = f"dependencies: {'; '.join(others)}"
                yield Finding(rule="dependency_changed", severity="info", path=path, message=message)
        if new is None:
            continue
        fresh = sorted(set(new.sources) - before)
        message = f"packages would come from a place that is new here: {_list(fresh)}" if fresh else ""
        if not new.readable:
            message = f"{shown_path(path)} cannot be read, so where packages would come from is unknown"
        if message:
            # Not an error: a person may want a fork or an index of their own, and only a person can know.
            yield Finding(
                rule="dependency_source", severity="warning", path=path, message=message, needs_person=True
            )
    yield from _find_lock_mismatches(ours, known, reader, base_tree)


def _find_lock_mismatches(
    changes: Sequence[Change], known: _Known, reader: TreeReader, base_tree: str
) -> Iterator[Finding]:
    """Find locks that changed without their manifest, and manifests that changed without their lock."""
    touched = {change.path for change in changes}
    for change in changes:
        folder, _, name = change.path.rpartition("/")
        if name in _MANIFEST_OF and change.kind != "added":
            manifest, below = _MANIFEST_OF[name], f"{folder}/" if folder else ""
            # One lock in a workspace's root serves the manifests of all its members.
            if not any(p.startswith(below) and p.rpartition("/")[2] == manifest for p in touched):
                what = "was deleted" if change.kind == "deleted" else "changed"
                yield _warning("lock_mismatch", change.path, f"it {what}, but no {manifest} did")
        old, new = known[change.path]
        if new is None or (old.named if old else {}) == new.named:
            continue
        directories = folder.split("/") if folder else []
        # A member of a workspace has its lock in any directory above; a lock that the base lacks cannot be stale.
        places = ["/".join([*directories[:n], ""]) for n in range(len(directories), -1, -1)]
        locks = [f"{p}{lock}" for p in places for lock, manifest in _MANIFEST_OF.items() if name == manifest]
        stale = next((lock for lock in locks if reader.lookup(base_tree, lock) is not None), None)
        if stale is not None and touched.isdisjoint(locks):
            message = f"its dependencies changed, but {shown_path(stale)} did not"
            yield _warning("lock_mismatch", change.path, message)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return printable(", ".join(names[:_MAX_NAMES]) + more)


def _warning(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="warning", path=path, message=message)


# --- reading one file


def is_dependency_file(path: str) -> bool:
    """Whether a file by its name says what a project depends on or where that comes from."""
    *directories, name = path.split("/")
    if name in _MANIFESTS or name in _MANIFEST_OF or name in _SETTINGS:
        return True
    in_folder = directories[-1:] == ["requirements"] and name.endswith((".txt", ".in"))
    return in_folder or _REQUIREMENTS_NAME.fullmatch(name) is not None


def dependencies_in(path: str, reader: TreeReader, mode: int | None, id: str | None) -> Dependencies | None:
    """Return what the file of this mode and id says; `None` for an absent or another kind of file."""
    if id is None or not is_dependency_file(path):
        return None
    if not is_regular(mode) or reader.blob_size(id) > _MAX_TEXT:
        return Dependencies(readable=False)
    text = reader.read_blob(id, limit=_MAX_TEXT).decode("utf-8", "replace")
    name = path.rpartition("/")[2]
    pairs: _Pairs = ()
    try:
        if name in _MANIFESTS:
            pairs, sources = _MANIFESTS[name](text)
        elif name in _MANIFEST_OF or name in _SETTINGS:
            # The names in a lock file are those of its manifest and what these need: only its sources count.
            sources = _foreign_sources(_places_in_lock(name, text), local=True)
        else:
            pairs, sources = _read_requirements(text)
    # An agent writes these files: a value of the wrong shape fails anywhere in a reader, with any of these.
    except (ValueError, RecursionError, TypeError, AttributeError, configparser.Error):
        return Dependencies(readable=False)
    collected: dict[str, set[str]] = {}
    for requirement, wanted in pairs:
        collected.setdefault(requirement, set()).add(wanted)
    joined = {requirement: ", ".join(sorted(wanted)) for requirement, wanted in sorted(collected.items())}
    return Dependencies(named=joined, sources=tuple(sorted(set(sources))))


def find_new_packages(
    changes: Iterable[Change], reader: TreeReader, is_ours: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the files in which a tree asks for packages, or versions of them, that its base does not ask for.

    What is only taken out, and what a manifest says of anything else, does not count. A file that cannot be read
    does. `is_ours` tells which paths are about the project.
    """
    return tuple(
        change.path
        for change in changes
        if is_ours(change.path)
        and (now := _packages_in(change.path, reader, change.new_mode, change.new_id)) is not None
        and not now <= (_packages_in(change.path, reader, change.old_mode, change.old_id) or frozenset())
    )


def _packages_in(path: str, reader: TreeReader, mode: int | None, id: str | None) -> frozenset[str] | None:
    """Return packages with their versions as a manifest or a lock has them, `None` where it is neither."""
    said, name = dependencies_in(path, reader, mode, id), path.rpartition("/")[2]
    if said is None or id is None or name in _SETTINGS or name == "go.sum":
        return None
    if not said.readable:
        return frozenset({f"unreadable {id}"})
    if name not in _MANIFEST_OF:
        return frozenset(f"{package} {wanted}" for package, wanted in said.named.items())
    text = reader.read_blob(id, limit=_MAX_TEXT).decode("utf-8", "replace")
    match name:
        case "package-lock.json" | "npm-shrinkwrap.json":
            document = json.loads(text or "{}")
            listed = {**document.get("dependencies", {}), **document.get("packages", {})}
            # What lies elsewhere is the project itself, or a part of it.
            locked = [(key, each) for key, each in listed.items() if "packages" not in document or _NODE in key]
        case "Pipfile.lock":
            document = json.loads(text or "{}")
            locked = [
                (key, each) for kind in ("default", "develop") for key, each in document.get(kind, {}).items()
            ]
        case "yarn.lock" | "pnpm-lock.yaml" | "bun.lock":
            return frozenset(line.strip() for line in text.splitlines())
        case _:
            document = tomllib.loads(text)
            locked = [
                (each.get("name"), each)
                for each in (*document.get("package", ()), *document.get("packages", ()))
                # Cargo gives its own packages no source, uv one that is a place in the tree.
                if (name != "Cargo.lock" or "source" in each) and not _OWN & set(each.get("source") or ())
            ]
    return frozenset(f"{key} {each.get('version')}" for key, each in locked)


def _places_in_lock(name: str, text: str) -> Iterable[str]:
    """Return the texts in a lock or settings file that may name a place."""
    match name:
        case "go.sum":
            return ()  # hashes of modules; where they come from is said in go.mod
        case "package-lock.json" | "npm-shrinkwrap.json":
            waiting, resolved = [json.loads(text or "{}")], list[str]()
            while waiting:
                part = waiting.pop()
                if isinstance(part, Mapping):
                    resolved += [part["resolved"]] if isinstance(part.get("resolved"), str) else []
                    # Home pages and funding links are no sources.
                    waiting += [part[key] for key in part if key not in _NPM_ABOUT_KEYS]
            return resolved
        case "Pipfile.lock":
            return _strings(json.loads(text or "{}"))
        case "yarn.lock" | "pnpm-lock.yaml" | "bun.lock":
            return _words(_LOCK_LINE.findall(text))
        case _ if name in _SETTINGS:
            return _words(text.splitlines())
    packages = tomllib.loads(text).get("package", [])
    return _strings([{key: package[key] for key in _TOML_LOCK_KEYS if key in package} for package in packages])


def _read_requirements(text: str) -> tuple[_Pairs, Iterable[str]]:
    named: list[tuple[str, str]] = []
    sources: list[str] = []
    for raw in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(?:^|\s)#.*", "", raw).partition(" --hash")[0].strip()
        if option := _PIP_OPTION.fullmatch(line):
            sources += _foreign_sources([option[2]], local=False)
        elif line and not line.startswith("-"):
            _add_requirement(line, named, sources)
    return named, sources


def _read_pyproject(text: str) -> tuple[_Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    project, tools = document.get("project", {}), document.get("tool", {})
    named: list[tuple[str, str]] = []
    sources: list[str] = []
    groups = [*project.get("optional-dependencies", {}).values(), *document.get("dependency-groups", {}).values()]
    listed = [project.get("dependencies", []), document.get("build-system", {}).get("requires", []), *groups]
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
    return named, sources


def _read_setup_cfg(text: str) -> tuple[_Pairs, Iterable[str]]:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(text)
    lists = [
        parser.get(section, key, fallback="")
        for section, key in (("options", "install_requires"), ("options", "setup_requires"))
    ]
    extras = "options.extras_require"
    lists += [value for _, value in parser.items(extras)] if parser.has_section(extras) else []
    return _read_requirements("\n".join(lists))


def _read_pipfile(text: str) -> tuple[_Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    tables = [document.get(key, {}) for key in ("packages", "dev-packages")]
    named = [(_python_name(n), _spec(w)) for table in tables for n, w in table.items()]
    return named, _foreign_sources(_strings([tables, document.get("source", [])]), local=True)


def _read_package_json(text: str) -> tuple[_Pairs, Iterable[str]]:
    document = json.loads(text or "{}")
    tables = ("dependencies", "devDependencies", "peerDependencies", "optionalDependencies")
    named = [(n, _spec(w)) for table in tables for n, w in document.get(table, {}).items()]
    forced = [document.get(key, {}) for key in ("overrides", "resolutions", "pnpm")]
    wanted = [*(wanted for _, wanted in named), *_strings(forced)]
    # To npm a bare owner/name is a repository on its usual hosting service.
    places = (f"github:{each}" if _OWNER_NAME.fullmatch(each) else each for each in wanted)
    return named, _foreign_sources(places, local=True)


def _read_cargo(text: str) -> tuple[_Pairs, Iterable[str]]:
    document = tomllib.loads(text)
    places = [document, document.get("workspace", {}), *document.get("target", {}).values()]
    kinds = ("dependencies", "dev-dependencies", "build-dependencies")
    named = [(n, _spec(w)) for place in places for kind in kinds for n, w in place.get(kind, {}).items()]
    wanted = [place.get(kind, {}) for place in places for kind in kinds]
    registries = [t.get("registry-index", "") for part in wanted for t in part.values() if isinstance(t, Mapping)]
    patched = [document.get("patch", {}), document.get("replace", {})]
    # The tables that `patch` names are places themselves, by URL.
    urls = [*_strings(wanted), *_strings(patched), *document.get("patch", {}), *registries]
    return named, _foreign_sources(urls, local=True)


def _read_go_mod(text: str) -> tuple[_Pairs, Iterable[str]]:
    lines = [line.partition("//")[0].strip() for line in text.splitlines()]
    named = [(f[1], f[2]) for line in lines if (f := _GO_REQUIRE.fullmatch(line))]
    replaced = [f[2] for line in lines if (f := _GO_REPLACE.match(line))]
    return named, [place for place in replaced if not place.startswith(".")]


_MANIFESTS: dict[str, Callable[[str], tuple[_Pairs, Iterable[str]]]] = {
    "pyproject.toml": _read_pyproject,
    "setup.cfg": _read_setup_cfg,
    "Pipfile": _read_pipfile,
    "package.json": _read_package_json,
    "Cargo.toml": _read_cargo,
    "go.mod": _read_go_mod,
}


def _add_requirement(requirement: str, named: list[tuple[str, str]], sources: list[str]) -> None:
    """Add one requirement as Python writes them; a bare URL has no name."""
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


# --- places that packages come from


def _foreign_sources(texts: Iterable[str], *, local: bool) -> list[str]:
    """Return the places among texts that are not the usual registries.

    With `local` texts that name no place are passed over; without, each text is a place by its position.
    """
    found: list[str] = []
    for text in map(str.strip, texts):
        if url := _URL.search(text):
            origin = _origin(url[0].removeprefix("registry+").removeprefix("sparse+"))
            # cargo's usual index is a repository among many on its host, so it is known by its whole address.
            if not url[0].startswith(_USUAL_INDEX) and origin not in _USUAL_REGISTRIES:
                found.append(_without_secrets(url[0]))
            continue
        outside = _LOCAL_PATH.fullmatch(text) or _HOSTED.fullmatch(text)
        if outside or (not local and text and not text.startswith(".")):
            found.append(_without_secrets(text))
    return found


def _without_secrets(place: str) -> str:
    """Return a registry by its host, anything else as it is; neither with what may be a password."""
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
