"""From the sources to the configuration in force.

Lowest to highest: defaults, the user's file, `CHARGEHAND_*`, the command line. The repository's file joins as a
meet: it can narrow, and can widen only after trust of that exact content, below the user's own word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from chargehand.app._config_entries import check_references, complete_agent, completed, entry_names, entry_values
from chargehand.app._config_keys import AGENTS, MCP, MODELS, NAMED, ROLES, SECTIONS, Key, find_key, section_keys
from chargehand.app._config_meet import joined, narrowed
from chargehand.app._config_model import (
    REPOSITORY_FILE,
    Option,
    RepositoryFile,
    Resolved,
    Said,
    UntrustedKey,
    UserFile,
    content_digest,
)
from chargehand.app._config_sources import EXTRA_CHECKS, ONLY_CHECKS, read_environment, read_options
from chargehand.app._config_toml import read_toml
from chargehand.app._config_values import fail, show_value, shown
from chargehand.core.config import Config

LARGEST_FILE = 1 << 20
"""The largest repository file that is read, in bytes."""


def never(digest: str) -> bool:
    """Trust nothing."""
    return False


def resolve(
    *,
    user: UserFile | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Option] | None = None,
    repository: RepositoryFile | None = None,
    is_trusted: Callable[[str], bool] = never,
    machine: Mapping[str, Said] | None = None,
) -> Resolved:
    """Return the configuration in force with the origin of every key.

    `machine` is what the machine's profile says below everything else. `options` is by dotted key:
    `project.checks` adds to the gates, `only_checks` replaces them, `project.allow` and `project.forbid` narrow.
    `is_trusted` is asked for the digest of the repository's file. Keys that need trust are passed over and listed;
    whoever acts on the result asks for it first (`require_trust`).
    Raises `ConfigError` for anything wrong in any source, trusted or not.
    """
    theirs = _read_repository(repository)
    own = read_toml(user.text, name=str(user.path), origin=str(user.path)) if user else {}
    entries = {table: entry_names(own, table) + entry_names(theirs, table) for table in NAMED}
    environment, notes = read_environment(environ or {}, entries=entries)
    said = read_options(options or {})
    extra, only = said.pop(EXTRA_CHECKS, None), said.pop(ONLY_CHECKS, None)
    digest = content_digest(repository.content) if repository else ""
    trusted = repository is not None and is_trusted(digest)
    mine = _layered({**(machine or {}), **own, **environment}, said)
    check_references(mine, mine)
    check_references(theirs, mine | theirs)
    joining = _Joining(mine=mine, theirs=theirs, trusted=trusted)
    values = joining.all()
    origins = {dotted: value.origin for dotted, value in values.items()}
    return Resolved(
        config=_build(values),
        origins=MappingProxyType(origins | _check_origins(extra, only)),
        untrusted=tuple(joining.untrusted),
        notes=(*_file_notes(repository), *notes, *joining.notes),
        digest=digest,
        extra_checks=_texts(extra) or (),
        only_checks=_texts(only),
    )


def _read_repository(repository: RepositoryFile | None) -> dict[str, Said]:
    if repository is None:
        return {}
    if len(repository.content) > LARGEST_FILE:
        message = f"the file has {len(repository.content)} bytes, more than {LARGEST_FILE}"
        raise fail(REPOSITORY_FILE, message, "make it shorter")
    try:
        text = repository.content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = repository.content.count(b"\n", 0, error.start) + 1
        raise fail(
            f"{REPOSITORY_FILE}:{line}", "not valid TOML: the file is not UTF-8", "save it as UTF-8"
        ) from error
    return read_toml(text, name=REPOSITORY_FILE, origin=repository.origin)


def _file_notes(repository: RepositoryFile | None) -> Iterator[str]:
    if repository is not None and repository.commit is None:
        digest = content_digest(repository.content)[:12]
        yield f"{REPOSITORY_FILE} is not committed: it was read from the checkout (sha256 {digest}…)"


def _check_origins(extra: Said | None, only: Said | None) -> dict[str, str]:
    named = {"extra_checks": extra, ONLY_CHECKS: only}
    return {name: said.origin for name, said in named.items() if said is not None}


def _texts(said: Said | None) -> tuple[str, ...] | None:
    value: Any = said.value if said else None
    return None if value is None else tuple(value)


def _layered(lower: dict[str, Said], options: dict[str, Said]) -> dict[str, Said]:
    mine = dict(lower)
    for dotted, option in options.items():
        key = find_key(dotted)
        mine[dotted] = narrowed(key, mine[dotted], option) if key and dotted in mine else option
    return mine


@dataclass(slots=True)
class _Joining:
    """One meet of the user's word (`mine`) and the repository's (`theirs`), with what came up on the way."""

    mine: dict[str, Said]
    theirs: dict[str, Said]
    trusted: bool
    untrusted: list[UntrustedKey]
    notes: list[str]
    on_host: bool

    def __init__(self, *, mine: dict[str, Said], theirs: dict[str, Said], trusted: bool) -> None:
        self.mine, self.theirs, self.trusted = mine, theirs, trusted
        self.untrusted, self.notes = [], []
        tier = joined(
            section_keys()["sandbox.tier"], mine.get("sandbox.tier"), theirs.get("sandbox.tier"), trusted=trusted
        )
        self.on_host = tier.value == "none"

    def all(self) -> dict[str, Said]:
        """Return every key's value in force."""
        values = {name: self._one(name, key) for name, key in section_keys().items()}
        owned = self._owned(MODELS, "model") | self._owned(ROLES, "role") | self._owned(MCP, "MCP server")
        return values | self._agents() | owned

    def _one(self, name: str, key: Key) -> Said:
        user, theirs = self.mine.get(name), self.theirs.get(name)
        asked = joined(key, user, theirs, trusted=True)
        given = asked if self.trusted else joined(key, user, self._without_trust(key, theirs), trusted=False)
        if theirs is not None and given.value != asked.value:
            self._mark(name, theirs, host=key.host)
        self._note_lowered(name, key, user, given)
        return given

    def _without_trust(self, key: Key, theirs: Said | None) -> Said | None:
        # Where there is no sandbox, a program the repository names would run as the user.
        return None if self.on_host and key.host and theirs and theirs.value else theirs

    def _mark(self, name: str, theirs: Said, *, host: bool) -> None:
        reason = "runs on the host: there is no sandbox" if host else "is wider than what you allow"
        self.untrusted.append(UntrustedKey(key=name, value=shown(theirs.value), place=theirs.place, reason=reason))

    def _note_lowered(self, name: str, key: Key, user: Said | None, given: Said) -> None:
        if key.meet == "min" and user is not None and given.value != user.value:
            before, after = show_value(key, user.value), show_value(key, given.value)
            self.notes.append(f"{name}: {before} ({user.origin}) is lowered to {after} by {given.place}")

    def _agents(self) -> dict[str, Said]:
        values: dict[str, Said] = {}
        for name in self._names(AGENTS):
            values |= self._agent(name)
        return values

    def _names(self, table: str) -> list[str]:
        return sorted({*entry_names(self.mine, table), *entry_names(self.theirs, table)})

    def _agent(self, name: str) -> dict[str, Said]:
        mine, theirs = entry_values(self.mine, AGENTS, name), entry_values(self.theirs, AGENTS, name)
        if mine:
            self._note_shadowed("agent", name, mine, theirs)
            return complete_agent(name, mine)
        if self.on_host and not self.trusted:
            command = f"{AGENTS}.{name}.command"
            dotted = command if command in theirs else next(iter(theirs))
            self._mark(dotted, theirs[dotted], host=True)
            return {}
        return complete_agent(name, self._without_models(theirs))

    def _without_models(self, theirs: dict[str, Said]) -> dict[str, Said]:
        """Return a repository's agent without what spends the user's keys, unless that is trusted."""
        if self.trusted:
            return theirs
        kept = dict(theirs)
        for dotted, said in theirs.items():
            key = find_key(dotted)
            if key and key.meet == "user" and said.value != key.default:
                self._mark(dotted, kept.pop(dotted), host=False)
        return kept

    def _owned(self, table: str, what: str) -> dict[str, Said]:
        """Return a table whose entries in the repository's file need trust as a whole."""
        values: dict[str, Said] = {}
        for name in self._names(table):
            mine, theirs = entry_values(self.mine, table, name), entry_values(self.theirs, table, name)
            if mine:
                self._note_shadowed(what, name, mine, theirs)
            elif not self.trusted:
                for dotted, said in theirs.items():
                    self._mark(dotted, said, host=False)
                continue
            values |= completed(table, name, mine or theirs)
        return values

    def _note_shadowed(self, what: str, name: str, mine: dict[str, Said], theirs: dict[str, Said]) -> None:
        if theirs and {k: v.value for k, v in mine.items()} != {k: v.value for k, v in theirs.items()}:
            first, other = next(iter(mine.values())), next(iter(theirs.values()))
            self.notes.append(f"{what} {name!r} is that of {first.origin}; the one of {other.origin} is not used")


def _build(values: Mapping[str, Said]) -> Config:
    sections: dict[str, Any] = {section: cls(**_fields(values, section)) for section, cls in SECTIONS}
    tables: dict[str, Any] = {table: _entries(values, table, cls) for table, cls in NAMED.items()}
    return Config(**sections, **tables)


def _entries(values: Mapping[str, Said], table: str, cls: type) -> dict[str, Any]:
    return {name: cls(**_fields(values, f"{table}.{name}")) for name in entry_names(values, table)}


def _fields(values: Mapping[str, Said], table: str) -> dict[str, Any]:
    return {
        dotted.rpartition(".")[2]: said.value for dotted, said in values.items() if dotted.startswith(f"{table}.")
    }
