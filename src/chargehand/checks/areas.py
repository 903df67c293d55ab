"""Areas: the paths that a mission may change, by patterns as in .gitignore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from chargehand.core.errors import ConfigError
from chargehand.core.records import Change, Finding
from chargehand.core.text import shown_path

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OWN_CONFIG = "chargehand.toml"
_OWN_POLICY = "chargehand.cedar"
_LINE_BREAKS = str.maketrans("\n\r\v\f\x85\u2028\u2029", "\ufffd" * 7)


class Areas(Struct, frozen=True, kw_only=True):
    """The paths that a mission may change; an empty `allow` means every path.

    `commands` are the checks that will run in `directory`: scripts and targets they name are check surface, as are
    new modules that would hide one of `installed` (top-level names in the environment layer), and new files that
    change how a file at one of the `acceptance` paths runs. So are the programs that `outside` checks name.
    `check_surface_allowed` means that a person allowed the mission to change it. A file of more than
    `large_bytes`, or a change of more than `large_change_files` or `large_change_bytes`, is reported as large.
    """

    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    check_surface_allowed: bool = False
    commands: tuple[str, ...] = ()
    directory: str = ""
    outside: tuple[str, ...] = ()
    installed: frozenset[str] = frozenset()
    acceptance: tuple[str, ...] = ()
    large_bytes: int = 1_000_000
    large_change_files: int = 1_000
    large_change_bytes: int = 20_000_000


@lru_cache(maxsize=16)
def area_rules(areas: Areas) -> AreaRules:
    """Return the areas compiled, once for all inspections of a mission. Raises `ConfigError` (`area_invalid`)."""
    return AreaRules(areas)


class AreaRules:
    """Areas compiled once for any number of changes."""

    def __init__(self, areas: Areas) -> None:
        self._allow = _compile(areas.allow)
        self._forbid = _compile(areas.forbid)
        self._protect = _compile(areas.protect)

    def findings(self, change: Change) -> Iterator[Finding]:
        """Yield the areas' findings on one path: only the first error, or a needed approval."""
        path, shown = change.path, shown_path(change.path)
        parts = path.split("/")
        # Our own settings, in any directory: an agent that could change these would choose its own limits.
        own = OWN_CONFIG if OWN_CONFIG in parts else _OWN_POLICY if parts[0] == _OWN_POLICY else None
        if own is not None:
            yield _error("config_protected", path, f"agents may never change {own}")
        elif _matches(self._forbid, path):
            yield _error("area_forbidden", path, f"{shown} is in a forbidden area")
        elif self._allow is not None and not _matches(self._allow, path):
            yield _error("area_outside", path, f"{shown} is outside the allowed areas")
        elif _matches(self._protect, path):
            message = f"{shown} is protected: only a person may approve a change to it"
            yield Finding(rule="area_protected", severity="warning", path=path, message=message, needs_person=True)


@lru_cache(maxsize=16)
def match_paths(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return a function that matches a path against these patterns. Raises `ConfigError` (`area_invalid`)."""
    spec = _compile(patterns)
    return lambda path: _matches(spec, path)


def _error(rule: str, path: str, message: str) -> Finding:
    return Finding(rule=rule, severity="error", path=path, message=message)


def _compile(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    if not patterns:
        return None
    from pathspec import GitIgnoreSpec  # 10 ms that missions without areas need not pay

    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise ConfigError(
            f"invalid area patterns {list(patterns)!r}: {error}",
            code="area_invalid",
            hint="write patterns as in .gitignore, for example 'src/**'",
        ) from error


def _matches(spec: GitIgnoreSpec | None, path: str) -> bool:
    # In a pattern neither '*' nor the end of a name matches a line break, which a hostile name may contain.
    return spec is not None and spec.match_file(path.translate(_LINE_BREAKS))
