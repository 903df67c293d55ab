"""The records of the repository map: definitions, references and what queries return."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from chargehand.core.errors import InfrastructureError

_SHOWN_NAMES = 5
ReferenceKind = Literal["call", "import", "type", "use"]


class Definition(Struct, frozen=True, kw_only=True):
    """A definition in a file: lines count from 1, `signature` is the line with its name.

    `kind` is `function`, `method`, `class`, `struct`, `interface`, `enum`, `type`, `module`, `macro`, `constant`,
    `field` or `test`. `qualified` names the enclosing definitions too, separated by dots.
    """

    name: str
    kind: str
    qualified: str
    line: int
    end_line: int
    signature: str


class Reference(Struct, frozen=True, kw_only=True):
    """A use of a name; `within` is the position of the enclosing definition in its file's list, -1 without one."""

    name: str
    kind: ReferenceKind
    line: int
    within: int


class ParsedFile(Struct, frozen=True, kw_only=True):
    """The content of one file; `skipped` says why it was not parsed, "" if it was.

    `transient` is true if the reason may be the machine's load and not the file.
    `symbols` and `words` are for the full-text search: of defined names, and of comments, strings and used names.
    """

    definitions: tuple[Definition, ...] = ()
    references: tuple[Reference, ...] = ()
    symbols: str = ""
    words: str = ""
    skipped: str = ""
    transient: bool = False


class CodeHit(Struct, frozen=True, kw_only=True):
    """One place that a query found: a definition, or with `via` a reference from inside it.

    `name` is qualified; "" is the top level of the file. `via` names the symbol that is referenced at `line`, and
    `depth` counts the calls in between.
    """

    path: str
    line: int
    name: str
    kind: str
    signature: str = ""
    via: str = ""
    depth: int = 0


class CodeHits(Struct, frozen=True, kw_only=True):
    """The places that a query found, the best ones first, and the number of those that were left out.

    If `counted` is false, the search ended early: `left_out` or more. `common` has the names that too many
    definitions share: of their users only the likely ones were followed.
    """

    hits: tuple[CodeHit, ...] = ()
    left_out: int = 0
    counted: bool = True
    common: tuple[str, ...] = ()

    def note(self) -> str:
        """Return in words what the hits lack, "" if nothing."""
        parts = []
        if self.left_out or not self.counted:
            parts.append(f"{'' if self.counted else 'at least '}{self.left_out} more are left out")
        if self.common:
            names = ", ".join(self.common[:_SHOWN_NAMES]) + (", …" if len(self.common) > _SHOWN_NAMES else "")
            parts.append(f"the users of common names are followed only in part: {names}")
        return "; ".join(parts)


class SkippedFile(Struct, frozen=True, kw_only=True):
    """A file of a known language that is not in the map, with the reason."""

    path: str
    reason: str


class MapSummary(Struct, frozen=True, kw_only=True):
    """The extent of the map of one tree; `parsed` files were new to the index, in `seconds`.

    `complete` is false if the time limit came first: the next call continues from there. `skipped_left_out` more
    files than those of `skipped` are not in the map.
    """

    tree: str
    files: int
    parsed: int
    seconds: float
    complete: bool
    skipped: tuple[SkippedFile, ...] = ()
    skipped_left_out: int = 0


class LibraryEntry(Struct, frozen=True, kw_only=True):
    """A repository of the reference library; `licence` is that of its top directory, `size` in bytes on disk.

    `files` is `None` until all of the commit is in the index.
    """

    name: str
    url: str
    commit: str
    licence: str
    size: int
    files: int | None


class LibraryUpdate(Struct, frozen=True, kw_only=True):
    """A repository that was added or updated; `parsed` files were new to its index, in `seconds`.

    `previous` is the commit before, "" for a new repository.
    """

    entry: LibraryEntry
    previous: str
    parsed: int
    seconds: float


class LibraryHit(Struct, frozen=True, kw_only=True):
    """A file that a search found, with the lines `line` to `end_line` around the best place as `excerpt`.

    `licence` is an SPDX expression, or `unknown`. `language` is `text` for files without a grammar.
    """

    repository: str
    commit: str
    path: str
    line: int
    end_line: int
    language: str
    licence: str
    excerpt: str


class LibraryProblem(Struct, frozen=True, kw_only=True):
    """A repository that could not be updated or searched, with the error's code and message."""

    name: str
    code: str
    message: str


class CuratedRepository(Struct, frozen=True, kw_only=True):
    """A repository that is known by name; `licence` is the project's as of the list."""

    name: str
    url: str
    language: str
    licence: str
    summary: str


class MapError(InfrastructureError):
    """The repository map cannot be made or read."""

    default_code = "map_failed"
