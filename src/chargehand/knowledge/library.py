"""The reference library: repositories that a user chose, each a snapshot with an index, searched together.

Only `add` and `update` fetch anything. Nothing of a repository is checked out or run.
"""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from chargehand.core.codec import convert_to, decode_as
from chargehand.core.errors import (
    ChargehandError,
    NotFoundError,
    RefusedError,
    RepositoryError,
    UsageError,
    nearest,
)
from chargehand.knowledge import _contents
from chargehand.knowledge._graph import CodeGraph
from chargehand.knowledge._languages import language_of, languages
from chargehand.knowledge._library_ranking import (
    RepositoryMatches,
    best_line,
    cut_excerpt,
    match_repository,
    merge_matches,
    word_weights,
)
from chargehand.knowledge._licences import UNKNOWN, LicenceFinder, is_allowed
from chargehand.knowledge._ranking import MapRequest
from chargehand.knowledge.index import CodeIndex
from chargehand.knowledge.records import (
    CuratedRepository,
    LibraryEntry,
    LibraryHit,
    LibraryProblem,
    LibraryUpdate,
    MapSummary,
)
from chargehand.workspace.errors import disk_errors
from chargehand.workspace.remotes import Remote, parse_source
from chargehand.workspace.snapshots import RepositorySnapshot, create_snapshot

Progress = Callable[[str, int, int], None]
"""Gets the name of a repository, the number of parsed files, and that of all to parse."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SOURCE = "source.json"
_LFS = b"version https://git-lfs.github.com/spec/"


class LibrarySource(Struct, frozen=True, kw_only=True):
    """The file next to a snapshot that says which address it has."""

    url: str
    protocol: str


@cache
def curated_repositories() -> tuple[CuratedRepository, ...]:
    """Return the repositories that may be added by name."""
    table = tomllib.loads((files(__package__) / "library.toml").read_text())
    return tuple(convert_to(row, CuratedRepository) for row in table["repository"])


class Library:
    """The library in a directory. Safe to use from several processes."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, source: str, *, name: str | None = None, progress: Progress | None = None) -> LibraryUpdate:
        """Fetch and index a repository: a path, an address, or a name of the curated list.

        Raises `UsageError` (`library_name`), `RefusedError` (`library_exists`), `RepositoryError`
        (`source_failed`, `remote_protocol`, `not_a_repository` and others of a repository), `MapError`.
        """
        curated = {each.name: each for each in curated_repositories()}.get(source)
        remote = parse_source(source if curated is None else curated.url)
        if name is None:
            name = _name_of(remote.url) if curated is None else curated.name
        chosen = _check_name(name)
        place = self._root / chosen
        content = msgspec.json.encode(LibrarySource(url=remote.url, protocol=remote.protocol))
        made = None if place.exists() else create_snapshot(place, remote, files={_SOURCE: content})
        if made is None:
            raise RefusedError(
                f"the library has a repository {chosen!r} already",
                code="library_exists",
                hint=f"chargehand library update {chosen} fetches it again; --name gives another name",
            )
        with self._changing(chosen) as snapshot:
            return self._fill_index(snapshot, "", progress)

    def update(self, name: str, *, progress: Progress | None = None) -> LibraryUpdate:
        """Fetch a repository again and index its changed files; a rewritten history replaces the old one.

        If the source cannot be fetched, the repository stays as it was. Raises `NotFoundError`
        (`library_not_found`), `RepositoryError` (`source_failed` and others), `MapError`.
        """
        with self._changing(name) as snapshot:
            previous = snapshot.head
            source = _read_source(snapshot)
            snapshot.fetch(Remote(name="source", url=source.url, protocol=source.protocol))
            done = self._fill_index(snapshot, previous, progress)
            if done.entry.commit != previous:
                snapshot.prune()
            return done

    def remove(self, name: str) -> int:
        """Remove a repository with its index and return the bytes that it took. Raises `NotFoundError`."""
        with self._changing(name) as snapshot:
            size = snapshot.size
            snapshot.remove()
        return size

    def check_known(self, name: str) -> None:
        """Raise `NotFoundError` (`library_not_found`) unless the library has a repository of that name."""
        self._find(name)

    def names(self) -> list[str]:
        """Return the names of all repositories."""
        return sorted(each.name for each in self._root.glob("*/") if _NAME.fullmatch(each.name))

    def describe(self, name: str) -> LibraryEntry:
        """Return a repository. Raises `NotFoundError`, `RepositoryError`, `MapError`."""
        with _repository_errors(name):
            return self._describe(self._find(name))

    def search(
        self,
        words: str,
        *,
        language: str | None = None,
        licences: Collection[str] = (),
        most: int = 10,
        progress: Progress | None = None,
        seconds: float | None = None,
    ) -> tuple[tuple[LibraryHit, ...], tuple[LibraryProblem, ...]]:
        """Return the most relevant files for some words, and the repositories that could not be searched.

        With `licences`, only files that may be used under these alone; never one without a known licence. A
        repository that is not in the index completely is indexed first; after `seconds` no further file is.
        Raises `UsageError` (`library_language`).
        """
        _check_language(language)
        deadline = None if seconds is None else time.monotonic() + seconds
        request = MapRequest.parse(words)
        matches: list[RepositoryMatches] = []
        problems: dict[str, LibraryProblem] = {}

        def keep(path: str) -> bool:
            return language is None or (language_of(path) or _contents.TEXT) == language

        @contextmanager
        def naming_problems(name: str) -> Iterator[None]:
            try:
                with _repository_errors(name):
                    yield
            except ChargehandError as error:
                problems[name] = LibraryProblem(name=name, code=error.code, message=error.message)

        for name in self.names():
            with naming_problems(name):
                matches.append(self._match(name, request, keep, progress, deadline))
        weights = word_weights(matches)
        hits: list[LibraryHit] = []
        readers: dict[str, _HitReader] = {}
        for match, path in merge_matches(matches, weights):
            if match.name in problems:
                continue
            with naming_problems(match.name):  # it may be removed or updated meanwhile
                if match.name not in readers:
                    readers[match.name] = _HitReader(match.name, self._find(match.name))
                if (hit := readers[match.name].read(path, licences, weights)) is not None:
                    hits.append(hit)
            if len(hits) == most:
                break
        return tuple(hits), tuple(problems.values())

    @contextmanager
    def _changing(self, name: str) -> Iterator[RepositorySnapshot]:
        """Hold a repository against changes by others. Raises `NotFoundError` if one of them removed it."""
        with _repository_errors(name), self._find(name).lock():
            yield self._find(name)

    def _find(self, name: str) -> RepositorySnapshot:
        if not _NAME.fullmatch(name) or not (self._root / name).is_dir():
            known = self.names()
            raise NotFoundError(
                f"the library has no repository {name[:80]!r}",
                code="library_not_found",
                hint=nearest(name, known) if known else "chargehand library add adds one",
            )
        return RepositorySnapshot(self._root / name)

    def _describe(self, snapshot: RepositorySnapshot) -> LibraryEntry:
        commit = snapshot.head
        tree = snapshot.tree_of(commit)
        with CodeIndex(snapshot.root, snapshot) as index, index.reading() as connection:
            slot = index.find_slot(tree)
            count = None if slot is None else CodeGraph(connection, slot).files
        return LibraryEntry(
            name=snapshot.root.name,
            url=_read_source(snapshot).url,
            commit=commit,
            licence=LicenceFinder(snapshot, tree).licence_in("") or UNKNOWN,
            size=snapshot.size,
            files=count,
        )

    def _fill_index(self, snapshot: RepositorySnapshot, previous: str, progress: Progress | None) -> LibraryUpdate:
        summary = _bring(snapshot, progress)
        return LibraryUpdate(
            entry=self._describe(snapshot), previous=previous, parsed=summary.parsed, seconds=summary.seconds
        )

    def _match(
        self,
        name: str,
        request: MapRequest,
        keep: Callable[[str], bool],
        progress: Progress | None,
        deadline: float | None,
    ) -> RepositoryMatches:
        snapshot = self._find(name)
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        _bring(snapshot, progress, seconds=seconds)
        tree = snapshot.tree_of(snapshot.head)
        with CodeIndex(snapshot.root, snapshot) as index, index.reading() as connection:
            slot = index.find_slot(tree)
            if slot is None:
                raise RepositoryError(
                    f"{name!r} is not in the index completely", code="library_changed", hint="search again"
                )
            return match_repository(name, CodeGraph(connection, slot), request, keep)


class _HitReader:
    """Reads hits in one repository."""

    def __init__(self, name: str, snapshot: RepositorySnapshot) -> None:
        self._name, self._snapshot = name, snapshot
        self._commit = snapshot.head
        self._tree = snapshot.tree_of(self._commit)
        self._licences = LicenceFinder(snapshot, self._tree)

    def read(self, path: str, licences: Collection[str], weights: dict[str, float]) -> LibraryHit | None:
        """Return a hit, `None` if the licence is not allowed or the file is not readable text."""
        entry = self._snapshot.lookup(self._tree, path)
        if entry is None or self._snapshot.blob_size(entry.id) > 2 * _contents.LONGEST_SOURCE:
            return None
        content = _contents.to_utf8(self._snapshot.read_blob(entry.id))
        if content.startswith(_LFS) or b"\0" in content[:8000]:
            return None
        licence = self._licences.licence_of(path, content)
        if licences and not is_allowed(licence, licences):
            return None
        lines = content.decode("utf-8", "replace").split("\n")
        with CodeIndex(self._snapshot.root, self._snapshot) as index, index.reading() as connection:
            slot = index.find_slot(self._tree)
            graph = None if slot is None else CodeGraph(connection, slot)
            found = [] if graph is None else [r for f in graph.files_at(path) for r in graph.definitions_in(f)]
        line = best_line(lines, found, weights)
        end, excerpt = cut_excerpt(lines, line)
        return LibraryHit(
            repository=self._name, commit=self._commit, path=path, line=line, end_line=end,
            language=language_of(path) or _contents.TEXT, licence=licence, excerpt=excerpt,
        )  # fmt: skip


@contextmanager
def _repository_errors(name: str) -> Iterator[None]:
    """Turn the errors of the disk in a block into `InfrastructureError` or `RepositoryError`."""
    try:
        with disk_errors(f"{name!r} of the library was used"):
            yield
    except OSError as error:
        raise RepositoryError(
            f"{name!r} of the library cannot be read: {error}",
            code="library_changed",
            hint="try again; if it stays so, remove it and add it again",
        ) from error


def _bring(snapshot: RepositorySnapshot, progress: Progress | None, *, seconds: float | None = None) -> MapSummary:
    """Bring the snapshot's tree into its index."""
    name = snapshot.root.name
    tree = snapshot.tree_of(snapshot.head)

    def show(done: int, total: int) -> None:
        if progress is not None:
            progress(name, done, total)

    with CodeIndex(snapshot.root, snapshot, progress=show) as index:
        return index.bring(tree, seconds=seconds)


def _read_source(snapshot: RepositorySnapshot) -> LibrarySource:
    try:
        return decode_as((snapshot.root / _SOURCE).read_bytes(), LibrarySource)
    except (OSError, msgspec.MsgspecError) as error:
        raise RepositoryError(
            f"{str(snapshot.root / _SOURCE)!r} cannot be read: {error}",
            code="snapshot_damaged",
            hint="remove it and add it again",
        ) from error


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a name of the library",
            code="library_name",
            hint="give --name with up to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    return name


def _name_of(url: str) -> str:
    """Return the last part of an address in lower case."""
    parts = re.split(r"[/:]", url.rstrip("/").removesuffix("/.git").rstrip("/"))
    return parts[-1].removesuffix(".git").lower()


def _check_language(language: str | None) -> None:
    known = (*sorted(languages()), _contents.TEXT)
    if language is not None and language not in known:
        raise UsageError(
            f"there is no language {language[:80]!r}", code="library_language", hint=f"known: {', '.join(known)}"
        )
