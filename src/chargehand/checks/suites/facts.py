"""What a test file holds, as facts by which two versions of it can be compared."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

EMPTY_BODY = "empty body"


class Case(Struct, frozen=True, kw_only=True):
    """One test: `marks` are what keeps it from running or from checking anything, as source text.

    `variants` is how many literal parameter sets it has, `None` where that is not to be read from the source.
    `looser` holds tolerances that grow as the test weakens, `stricter` those that shrink (digits), by name; a
    tolerance that the test leaves to its library stands there as that library's default. `body` is a digest of its
    lines without its name, "" where that was not asked for.
    """

    name: str
    scope: str = ""
    line: int = 0
    marks: tuple[str, ...] = ()
    assertions: int = 0
    variants: int | None = None
    looser: Mapping[str, float] = field(default_factory=dict)
    stricter: Mapping[str, float] = field(default_factory=dict)
    approximations: int = 0
    body: str = ""


class Suite(Struct, frozen=True, kw_only=True):
    """The tests of one file; `marks` hold for all of them, `blank` says that the file says nothing at all."""

    cases: tuple[Case, ...] = ()
    marks: tuple[str, ...] = ()
    blank: bool = False
