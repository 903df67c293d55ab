"""Files that checks opened: changed code that no check read, and copies loaded in its place.

A file counts as read if a program opened or executed it while a check ran. That is less than being tested (a
linter opens files that no test runs), but still shows whether a tree was judged at all.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from chargehand.checks.paths import is_source, is_test_path
from chargehand.checks.surface.analysers import linter_of
from chargehand.checks.surface.parts import parts_of
from chargehand.checks.surface.pins import only_moves_pins
from chargehand.checks.trees import TreeReader
from chargehand.core.records import Change, Finding
from chargehand.core.text import shown_path
from chargehand.sandbox.contract import ObservesReads, Sandbox

_REGULAR = 0o100000
# A check may start within the second in which setup ended, so whole seconds do not separate them.
_STAT = """
export LC_ALL=C
for each; do if [ -e "$each" ]; then stat -c '%.9Y %n' -- "$each"; else echo "gone $each"; fi; done
"""
_STAT_SECONDS = 60.0
_KIND_OF_FILE, _EXECUTABLE = 0o170000, 0o111
# Roots of packages that are imported without the directory's name.
_SOURCE_ROOTS = ("src/", "lib/", "python/")
# Packages that setup installs are compared with the tree's environment, not with the files that a check opens.
_LOCKS = (".lock", "go.sum", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml")
_PROSE = (".md", ".markdown", ".rst", ".adoc", ".txt")
_APART = frozenset(
    {"doc", "docs", "documentation", "bench", "benches", "benchmark", "benchmarks", "example", "examples"}
)
PROJECT_FILES = (
    *(
        "pyproject.toml",
        "setup.py",
        "setup.cfg",
        "package.json",
        "Cargo.toml",
        "go.mod",
        "pom.xml",
        "build.gradle",
    ),
    *("build.gradle.kts", "Makefile", "CMakeLists.txt", "Gemfile", "composer.json", "tsconfig.json"),
)
"""Files that make their directory the root of a project."""


class Copy(Struct, frozen=True, kw_only=True):
    """A copy that setup installed or built of the changed file `of`, and its time (`modified`, in nanoseconds)."""

    of: str
    modified: int

    def differs(self, time: str) -> bool:
        """Return whether a time, as `_STAT` prints it, differs; a time without a fraction does not count."""
        whole, _, fraction = time.partition(".")
        return time == "gone" or (fraction.isdecimal() and int(whole + fraction) != self.modified)


@dataclass(slots=True)
class ReadObserver:
    """Records the files that each check opens in some directories; `complete` means that it saw all of them.

    `copies` are files outside the tree, by their paths inside; copies that the check remade do not count.
    """

    directories: Sequence[str]
    copies: Mapping[str, Copy] = field(default_factory=dict)
    opened: list[frozenset[str]] = field(init=False, default_factory=list)
    complete: bool = field(init=False, default=False)

    async def begin(self, sandbox: Sandbox) -> None:
        """Start to watch, in one sandbox after another; a sandbox that cannot observe makes it incomplete."""
        if isinstance(sandbox, ObservesReads):
            await sandbox.observe(self.directories)
            complete = (await sandbox.opened_files()).complete
            self.complete = complete and (self.complete or not self.opened)

    async def note_check(self, sandbox: Sandbox) -> None:
        """Record the files opened by the check that has just ended."""
        if isinstance(sandbox, ObservesReads):
            seen = await sandbox.opened_files()
            self.complete = self.complete and seen.complete
            copied, made_anew = sorted(seen.paths.intersection(self.copies)), frozenset[str]()
            if copied:
                said = await sandbox.exec(["sh", "-c", _STAT, "sh", *copied], timeout=_STAT_SECONDS)
                lines = said.stdout.decode("utf-8", "surrogateescape").splitlines()
                times = {path: time for time, _, path in (line.partition(" ") for line in lines)}
                # Copies with unknown times count as unchanged since setup.
                made_anew = frozenset(path for path in copied if self.copies[path].differs(times.get(path, "")))
            self.opened.append(seen.paths - made_anew)

    def read_of(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return those of `paths` that some check opened; all of them if that was not observed."""
        read = frozenset().union(*self.opened)
        return tuple(path for path in paths if path in read) if self.complete else tuple(paths)


class CodeReads(Struct, frozen=True, kw_only=True):
    """How checks read the changed code: `unread` is `None` if the sandbox could not observe reads.

    `elsewhere` are files outside the tree that a check loaded in place of changed ones. `judged` is false if the
    checks show nothing about the change: they read no changed code, or they loaded another copy of it.
    """

    unread: tuple[str, ...] | None = None
    elsewhere: tuple[str, ...] = ()
    judged: bool = True


def changed_code(changes: Iterable[Change]) -> tuple[str, ...]:
    """Return the source files that a change adds or modifies."""
    return tuple(change.path for change in changes if _is_code(change))


def changed_settings(
    changes: Iterable[Change], is_project: Callable[[str], bool], reader: TreeReader
) -> tuple[str, ...]:
    """Return changed files that are settings if a check opens them: not code, tests or prose.

    Settings are at the root of a project or are hidden; data of the code itself is next to the code. Files with
    parsers for their relevant part are excluded. `is_project` returns whether a directory is a root.
    """
    return tuple(
        change.path
        for change in changes
        if change.new_id is not None
        and not _is_code(change)
        and not is_test_path(change.path)
        and not change.path.lower().endswith((*_PROSE, *_LOCKS))
        and parts_of(posixpath.basename(change.path)) is None
        and not only_moves_pins(change, reader)
        and (
            any(part.startswith(".") for part in change.path.split("/"))
            or is_project(posixpath.dirname(change.path))
        )
    )


def surface_findings(settings: Iterable[str], observer: ReadObserver) -> list[Finding]:
    """Return findings for changed settings that a check opened: they are check surface under any name.

    A new file counts as well: a program looks for its name.
    """
    read = frozenset().union(*observer.opened)
    return [
        Finding(
            rule="check_surface",
            severity="warning",
            path=path,
            message=f"{shown_path(path)} affects how checks run: a check opened it",
            needs_person=True,
        )
        for path in settings
        # Settings of a linter that no command names count unless no check was seen to read them.
        if path in read or (not observer.complete and linter_of(path))
    ]


def watched_directories(*paths: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that a `ReadObserver` has to watch for these files."""
    return tuple(dict.fromkeys(posixpath.dirname(path) for each in paths for path in each))


def judge_reads(code: Sequence[str], observer: ReadObserver, *, skipped: Collection[str] = ()) -> CodeReads:
    """Return how checks read changed `code`; files in `skipped` were opened only to be left out."""
    if not observer.complete:
        return CodeReads()
    opened = frozenset().union(*observer.opened)
    read = opened.difference(skipped)
    unread = tuple(path for path in code if path not in read)
    # A linter that reads the tree does not make up for tests that load a copy, whether or not in one command.
    elsewhere = opened.intersection(observer.copies)
    # Changed tests that ran show nothing about accompanying code that did not.
    judging = [path for path in code if path in read or not _is_apart(path, opened)]
    subject = [path for path in judging if not is_test_path(path)] or judging
    judged = not subject or any(path in read for path in subject)
    return CodeReads(unread=unread, elsewhere=tuple(sorted(elsewhere)), judged=judged and not elsewhere)


def _is_apart(path: str, opened: Collection[str]) -> bool:
    """Return whether code is for documentation, benchmarks or a linter, and no check opened its directory."""
    place, _, rest = path.partition("/")
    if rest and place.lower() in _APART:
        return not any(each.startswith(f"{place}/") for each in opened)
    return linter_of(path) is not None


def _is_code(change: Change) -> bool:
    mode = change.new_mode or 0
    # An executable program needs no suffix.
    known = is_source(change.path) or bool(mode & _EXECUTABLE and "." not in posixpath.basename(change.path))
    return change.new_id is not None and mode & _KIND_OF_FILE == _REGULAR and known


def installed_names(path: str) -> tuple[str, ...]:
    """Return the paths below site-packages under which Python code from `path` could be installed.

    `src/pkg/mod.py` is installed as `pkg/mod.py`; a single module is at the top.
    """
    if not path.endswith(".py") or is_test_path(path):
        return ()
    parts = path.split("/")
    names = ["/".join(parts[start:]) for start in range(len(parts) - 1)]
    alone = path.removeprefix(next((root for root in _SOURCE_ROOTS if path.startswith(root)), ""))
    # Deeper down a bare module name is too ambiguous: every second package has a `utils.py`.
    return tuple(dict.fromkeys((*names, *(() if "/" in alone else (alone,)))))
