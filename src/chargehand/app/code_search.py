"""Use cases of code search: the repository map of a project, and the reference library of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from chargehand.configuration.extras import require_extra
from chargehand.core.errors import ChargehandError
from chargehand.knowledge.records import (
    CodeHits,
    CuratedRepository,
    LibraryEntry,
    LibraryHit,
    LibraryProblem,
    LibraryUpdate,
    MapSummary,
)
from chargehand.reports.reading import StateReader, state_home
from chargehand.workspace.repository import find_repository

if TYPE_CHECKING:
    from chargehand.knowledge.library import Library

_Result = TypeVar("_Result")
LibraryProgress = Callable[[str, int, int], None]
"""Gets the name of a repository, the number of parsed files, and that of all to parse."""


class MapQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question to the repository map: one of the last four, else the files for `request` ("": the extent only).

    `tokens` bounds the text for a request. `repo` and `revision` choose the commit (default: HEAD here).
    """

    request: str = ""
    repo: Path | None = None
    revision: str | None = None
    tokens: int = 2000
    search: str | None = None
    calls: str | None = None
    impact: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


class MapDocument(CodeHits, frozen=True, kw_only=True):
    """`map`: the answer about one commit; `text` is the map for a request, `hits` are the found places."""

    commit: str
    summary: MapSummary
    text: str = ""


def query_map(reader: StateReader, question: MapQuestion) -> MapDocument:
    """Answer a question about a commit, bringing it into the index first, however long that takes.

    Raises `NotInstalledError`, `NotFoundError` (`symbol_not_found`), `RepositoryError`, `InfrastructureError`.
    """
    require_extra("knowledge")
    from chargehand.knowledge.index import CodeIndex
    from chargehand.knowledge.maps import RepositoryMap

    depot = reader.projects.depot(reader.projects.find(question.repo))
    base = depot.resolve_base(question.revision)
    with CodeIndex(depot.root, depot) as index:
        found = RepositoryMap(index, base.tree)
        summary = found.bring()
        text = ""
        hits = CodeHits()
        if question.search is not None:
            hits = found.search_code(question.search)
        elif question.calls is not None:
            hits = found.who_calls(question.calls)
        elif question.impact or question.tests:
            ask = found.impact_of if question.impact else found.tests_for
            top = find_repository(reader.cwd / (question.repo or "")).path
            targets = [_in_tree(top, target) for target in question.impact or question.tests]
            hits = ask(targets, directory=os.path.relpath(os.path.realpath(reader.cwd), top))
        elif question.request.strip():
            text = found.render(question.request, tokens=question.tokens)
    return MapDocument(commit=base.commit, summary=summary, text=text, **msgspec.structs.asdict(hits))


def _in_tree(top: Path, target: str) -> str:
    """Return an absolute path below `top` as one of the tree; symbols and other paths stay as they are."""
    if not os.path.isabs(target):
        return target
    # The last part may be a link, which the tree has as a link.
    place = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
    return os.path.join("/", os.path.relpath(place, top)) if Path(place).is_relative_to(top) else target


class LibraryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`library list`: the repositories of the library; with `--curated` those that can be added by name.

    `problems` has those that cannot be read.
    """

    repositories: tuple[LibraryEntry, ...]
    curated: tuple[CuratedRepository, ...] = ()
    problems: tuple[LibraryProblem, ...] = ()


class LibraryUpdateDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`library update`: the updated repositories, and those that could not be updated and are as before."""

    updated: tuple[LibraryUpdate, ...]
    problems: tuple[LibraryProblem, ...]


class LibraryRemovedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`library remove`: the name, and the bytes that were freed."""

    name: str
    size: int


class LibrarySearchDocument(msgspec.Struct, frozen=True, kw_only=True):
    """`library search`: files, the most relevant first, and repositories that could not be searched."""

    hits: tuple[LibraryHit, ...]
    problems: tuple[LibraryProblem, ...]


def add_to_library(source: str, *, name: str | None, progress: LibraryProgress) -> LibraryUpdate:
    """Fetch and index a repository; see `Library.add`. Raises `NotInstalledError` too."""
    return _library().add(source, name=name, progress=progress)


def update_library(names: Sequence[str], *, progress: LibraryProgress) -> LibraryUpdateDocument:
    """Update repositories, by default all; one that fails does not stop the others.

    Raises `NotFoundError` (`library_not_found`) before any is updated.
    """
    library = _library()
    known = library.names()
    for name in names:
        library.check_known(name)
    updated, problems = _for_each(
        dict.fromkeys(names) or known, lambda name: library.update(name, progress=progress)
    )
    return LibraryUpdateDocument(updated=updated, problems=problems)


def list_library(*, curated: bool = False) -> LibraryDocument:
    """Return the repositories of the library, or those of the curated list."""
    library = _library()
    from chargehand.knowledge.library import curated_repositories

    if curated:
        return LibraryDocument(repositories=(), curated=curated_repositories())
    entries, problems = _for_each(library.names(), library.describe)
    return LibraryDocument(repositories=entries, problems=problems)


def _for_each(
    names: Iterable[str], work: Callable[[str], _Result]
) -> tuple[tuple[_Result, ...], tuple[LibraryProblem, ...]]:
    """Return the results of some work for each repository, and the problems of those for which it failed."""
    done, problems = [], []
    for name in names:
        try:
            done.append(work(name))
        except ChargehandError as error:
            problems.append(LibraryProblem(name=name, code=error.code, message=error.message))
    return tuple(done), tuple(problems)


def search_library(
    words: str,
    *,
    language: str | None = None,
    licences: Sequence[str] = (),
    most: int = 10,
    progress: LibraryProgress | None = None,
) -> LibrarySearchDocument:
    """Search all repositories; see `Library.search`."""
    hits, problems = _library().search(words, language=language, licences=licences, most=most, progress=progress)
    return LibrarySearchDocument(hits=hits, problems=problems)


def remove_from_library(name: str) -> LibraryRemovedDocument:
    """Remove a repository. Raises `NotFoundError` (`library_not_found`)."""
    return LibraryRemovedDocument(name=name, size=_library().remove(name))


def _library() -> Library:
    require_extra("knowledge")
    from chargehand.knowledge.library import Library

    return Library(state_home(os.environ) / "library")
