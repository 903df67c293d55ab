"""Areas: which paths a mission may change, by patterns written as in .gitignore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pathspec import GitIgnoreSpec

from chargehand.core.errors import ConfigError
from chargehand.core.records import Change, Finding
from chargehand.core.text import shown_path

OWN_CONFIG = "chargehand.toml"
_OWN = (OWN_CONFIG, "chargehand.cedar")
_LINE_BREAKS = str.maketrans("\n\r\v\f\x85\u2028\u2029", "\ufffd" * 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Areas:
    """What a mission may change; an empty `allow` is everything.

    `commands` are the checks that will run: the scripts and targets they name belong to the check surface.
    `check_surface_allowed` says that a person let the mission change it. From `large_bytes` on a file, from
    `large_change_files` or `large_change_bytes` on a whole change is told to be large.
    """

    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    check_surface_allowed: bool = False
    commands: tuple[str, ...] = ()
    large_bytes: int = 1_000_000
    large_change_files: int = 1_000
    large_change_bytes: int = 20_000_000


@lru_cache(maxsize=16)
def area_rules(areas: Areas) -> AreaRules:
    """Return the areas compiled: once for all the looks at one mission's changes. Raises `ConfigError`."""
    return AreaRules(areas)


class AreaRules:
    """Areas compiled once for any number of changes."""

    def __init__(self, areas: Areas) -> None:
        self._allow = _compile(areas.allow)
        self._forbid = _compile(areas.forbid)
        self._protect = _compile(areas.protect)

    def findings(self, change: Change) -> Iterator[Finding]:
        """Yield what the areas say of one path: the first error alone, or what a person must let in."""
        broken = self._broken(change.path)
        if broken is not None:
            rule, message = broken
            yield Finding(rule=rule, severity="error", path=change.path, message=message)
        elif _matches(self._protect, change.path):
            message = f"{shown_path(change.path)} is protected: only a person may let a change in"
            yield Finding(
                rule="area_protected", severity="warning", path=change.path, message=message, needs_person=True
            )

    def _broken(self, path: str) -> tuple[str, str] | None:
        own = next((name for name in _OWN if path == name or path.startswith(name + "/")), None)
        if own is not None:
            return "config_protected", f"{own} may never be changed by an agent"
        if _matches(self._forbid, path):
            return "area_forbidden", f"{shown_path(path)} lies in a forbidden area"
        if self._allow is not None and not _matches(self._allow, path):
            return "area_outside", f"{shown_path(path)} lies outside the allowed areas"
        return None


def _compile(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    if not patterns:
        return None
    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise ConfigError(
            f"area patterns {list(patterns)!r} are not valid: {error}",
            code="area_invalid",
            hint="write them as in .gitignore, for example 'src/**'",
        ) from error


def _matches(spec: GitIgnoreSpec | None, path: str) -> bool:
    # In a pattern neither '*' nor the end of a name matches a line break, which a hostile name may hold.
    return spec is not None and spec.match_file(path.translate(_LINE_BREAKS))
