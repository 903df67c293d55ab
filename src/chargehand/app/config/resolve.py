"""From all sources to the configuration in force, with the origin of every key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from chargehand.app.config.areas import meet_areas
from chargehand.app.config.keys import (
    AGENTS,
    MCP,
    MODELS,
    NAMED,
    ROLES,
    SECTIONS,
    ConfigKey,
    entry_keys,
    find_key,
    section_keys,
)
from chargehand.app.config.records import (
    REPOSITORY_FILE,
    OptionValue,
    RepositoryFile,
    ResolvedConfig,
    SourcedValue,
    UntrustedKey,
    content_digest,
)
from chargehand.app.config.sources import (
    EXTRA_CHECKS,
    ONLY_CHECKS,
    check_agent,
    read_environment,
    read_options,
    read_toml,
)
from chargehand.app.config.values import config_error, format_key_value, format_value
from chargehand.app.locations import UserFile
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError, nearest
from chargehand.sandbox._egress_rules import meet_rules, without_grants

DEFAULT = "default"


def join_sources(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue | None, *, trusted: bool
) -> SourcedValue:
    """Return the value in force of one key, with all who contributed to it; `None` is a silent source."""
    if repository is None:
        return user or default_value(key)
    return _MEETS[key.meet](key, user, repository, trusted)


def narrow_by_option(key: ConfigKey, lower: SourcedValue, option: SourcedValue) -> SourcedValue:
    """Return what an option makes of what the user's other sources say: lists of areas only get narrower."""
    if key.meet == "union" or (key.meet == "intersect" and key.empty == "all"):
        return join_sources(key, lower, option, trusted=True)
    return option


def default_value(key: ConfigKey) -> SourcedValue:
    """Return the key's default as a source of its own."""
    return SourcedValue(value=key.default, origin=DEFAULT, place=DEFAULT)


def _both(user: SourcedValue, repository: SourcedValue, value: Any) -> SourcedValue:
    return SourcedValue(value=value, origin=f"{user.origin} + {repository.origin}", place=repository.place)


def _minimum(key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, trusted: bool) -> SourcedValue:
    if user is not None:
        return _both(user, repository, min(_number(user), _number(repository)))
    narrower = key.default is None or _number(repository) <= key.default
    return repository if trusted or narrower else default_value(key)


def _number(said: SourcedValue) -> float:
    assert isinstance(said.value, int | float)
    return said.value


def _intersection(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, trusted: bool
) -> SourcedValue:
    if key.empty == "all":
        return _areas(user, repository) if user is not None else repository
    if user is not None:
        return _both(user, repository, meet_rules(_items(user), _items(repository)))
    # Even trusted it grants nothing that is not public: only the user's own word can.
    repository = replace(repository, value=without_grants(_items(repository)))
    return repository if trusted or not repository.value else default_value(key)


def _areas(user: SourcedValue, repository: SourcedValue) -> SourcedValue:
    try:
        return _both(user, repository, meet_areas(_items(user), _items(repository)))
    except ConfigError as error:
        raise config_error(f"{user.place} and {repository.place}", error.message, error.hint) from error


def _items(said: SourcedValue) -> tuple[str, ...]:
    value: Any = said.value
    return tuple(value)


def _union(key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, trusted: bool) -> SourcedValue:
    if user is None:
        return repository
    return _both(user, repository, _unique((*_items(user), *_items(repository))))


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _said_by_repository(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, trusted: bool
) -> SourcedValue:
    return user or repository


def _said_by_user(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, trusted: bool
) -> SourcedValue:
    if user is not None:
        return user
    return repository if trusted or repository.value == key.default else default_value(key)


_MEETS: dict[str, Callable[[ConfigKey, SourcedValue | None, SourcedValue, bool], SourcedValue]] = {
    "min": _minimum,
    "intersect": _intersection,
    "union": _union,
    "repo": _said_by_repository,
    "user": _said_by_user,
}


SHORT = ("openai", "openai-responses", "anthropic", "gemini", "ollama", "resetdata")
"""The providers whose address is known, so that `provider:model` says everything."""


def entry_names(said: Mapping[str, SourcedValue], table: str) -> list[str]:
    """Return the names of a table's entries, in the order they are first said."""
    names = [dotted.split(".")[1] for dotted in said if dotted.startswith(f"{table}.")]
    return list(dict.fromkeys(names))


def entry_values(said: Mapping[str, SourcedValue], table: str, name: str) -> dict[str, SourcedValue]:
    """Return what is said of one entry, by dotted key in the order of the key table."""
    names = [f"{table}.{name}.{field}" for field in entry_keys(table)]
    return {dotted: said[dotted] for dotted in names if dotted in said}


def fill_defaults(table: str, name: str, said: Mapping[str, SourcedValue]) -> dict[str, SourcedValue]:
    """Return every key of one entry, with the default where nothing is said."""
    return {f"{table}.{name}.{field}": default_value(key) for field, key in entry_keys(table).items()} | dict(said)


def complete_agent(name: str, said: Mapping[str, SourcedValue]) -> dict[str, SourcedValue]:
    """Return every key of an agent; raises `ConfigError` where its kind and command contradict each other."""
    whole = fill_defaults(AGENTS, name, said)
    has = {dotted.rpartition(".")[2] for dotted, value in whole.items() if value.value}
    place = next(iter(said.values())).place
    check_agent(name, whole[f"{AGENTS}.{name}.kind"].value, has=has, place=place)
    return whole


def is_short_form(model: str) -> bool:
    """Return whether a text names provider and model, such as `ollama:qwen3:8b`."""
    provider, colon, rest = model.partition(":")
    return bool(colon and rest) and provider in SHORT


def check_references(said: Mapping[str, SourcedValue], known: Mapping[str, SourcedValue]) -> None:
    """Raise `ConfigError` for what an agent or a role refers to and `known` has no entry of."""
    names, servers = entry_names(known, MODELS), entry_names(known, MCP)
    for server in entry_names(said, MCP):
        if f"{MCP}.{server}.command" not in known:
            place = next(iter(entry_values(said, MCP, server).values())).place
            raise config_error(
                place, f"the MCP server {server!r} has no command", 'add command = ["program", "argument", …]'
            )
    for dotted, value in said.items():
        section, *_, field = dotted.split(".")
        if section in (AGENTS, ROLES) and field in {"model", "fallback"}:
            for model in _models(value):
                if model not in names and not is_short_form(model):
                    raise config_error(
                        value.place, f"{field}: no model named {format_value(model)}", model_hint(model, names)
                    )
        if section == AGENTS and field == "mcp":
            for server in _models(value):
                if server not in servers:
                    hint = f"{nearest(server, servers)}; configure one with [{MCP}.NAME]"
                    raise config_error(value.place, f"{field}: no MCP server named {format_value(server)}", hint)


def _models(said: SourcedValue) -> tuple[str, ...]:
    if isinstance(said.value, str):
        return (said.value,)
    return said.value if isinstance(said.value, tuple) else ()


def model_hint(model: str, names: list[str]) -> str:
    """Return what a person may have meant by the name of a model, and how to name one."""
    forms = "or write " + " or ".join(f"{provider}:MODEL" for provider in SHORT)
    guess = nearest(model, names)
    known = f"{guess} known: {', '.join(sorted(names))}" if guess.startswith("did") else guess
    return f"{known}; configure one with [{MODELS}.NAME], {forms}"


LARGEST_FILE = 1 << 20
"""The largest repository file that is read, in bytes."""


def trust_nothing(digest: str) -> bool:
    """Trust nothing."""
    return False


def resolve(
    *,
    user: UserFile | None = None,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, OptionValue] | None = None,
    repository: RepositoryFile | None = None,
    is_trusted: Callable[[str], bool] = trust_nothing,
    machine: Mapping[str, SourcedValue] | None = None,
) -> ResolvedConfig:
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
    return ResolvedConfig(
        config=_build(values),
        origins=MappingProxyType(origins | _check_origins(extra, only)),
        untrusted=tuple(joining.untrusted),
        notes=(*_file_notes(repository), *notes, *joining.notes),
        digest=digest,
        extra_checks=_texts(extra) or (),
        only_checks=_texts(only),
    )


def _read_repository(repository: RepositoryFile | None) -> dict[str, SourcedValue]:
    if repository is None:
        return {}
    if len(repository.content) > LARGEST_FILE:
        message = f"the file has {len(repository.content)} bytes, more than {LARGEST_FILE}"
        raise config_error(REPOSITORY_FILE, message, "make it shorter")
    try:
        text = repository.content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = repository.content.count(b"\n", 0, error.start) + 1
        raise config_error(
            f"{REPOSITORY_FILE}:{line}", "not valid TOML: the file is not UTF-8", "save it as UTF-8"
        ) from error
    return read_toml(text, name=REPOSITORY_FILE, origin=repository.origin)


def _file_notes(repository: RepositoryFile | None) -> Iterator[str]:
    if repository is not None and repository.commit is None:
        digest = content_digest(repository.content)[:12]
        yield f"{REPOSITORY_FILE} is not committed: it was read from the checkout (sha256 {digest}…)"


def _check_origins(extra: SourcedValue | None, only: SourcedValue | None) -> dict[str, str]:
    named = {"extra_checks": extra, ONLY_CHECKS: only}
    return {name: said.origin for name, said in named.items() if said is not None}


def _texts(said: SourcedValue | None) -> tuple[str, ...] | None:
    value: Any = said.value if said else None
    return None if value is None else tuple(value)


def _layered(lower: dict[str, SourcedValue], options: dict[str, SourcedValue]) -> dict[str, SourcedValue]:
    mine = dict(lower)
    for dotted, option in options.items():
        key = find_key(dotted)
        mine[dotted] = narrow_by_option(key, mine[dotted], option) if key and dotted in mine else option
    return mine


@dataclass(slots=True)
class _Joining:
    """One meet of the user's word (`mine`) and the repository's (`theirs`), with what came up on the way."""

    mine: dict[str, SourcedValue]
    theirs: dict[str, SourcedValue]
    trusted: bool
    untrusted: list[UntrustedKey]
    notes: list[str]
    on_host: bool

    def __init__(self, *, mine: dict[str, SourcedValue], theirs: dict[str, SourcedValue], trusted: bool) -> None:
        self.mine, self.theirs, self.trusted = mine, theirs, trusted
        self.untrusted, self.notes = [], []
        tier = join_sources(
            section_keys()["sandbox.tier"], mine.get("sandbox.tier"), theirs.get("sandbox.tier"), trusted=trusted
        )
        self.on_host = tier.value == "none"

    def all(self) -> dict[str, SourcedValue]:
        """Return every key's value in force."""
        values = {name: self._one(name, key) for name, key in section_keys().items()}
        owned = self._owned(MODELS, "model") | self._owned(ROLES, "role") | self._owned(MCP, "MCP server")
        return values | self._agents() | owned

    def _one(self, name: str, key: ConfigKey) -> SourcedValue:
        user, theirs = self.mine.get(name), self.theirs.get(name)
        asked = join_sources(key, user, theirs, trusted=True)
        given = asked if self.trusted else join_sources(key, user, self._without_trust(key, theirs), trusted=False)
        if theirs is not None and given.value != asked.value:
            self._mark(name, theirs, host=key.host)
        self._note_lowered(name, key, user, given)
        return given

    def _without_trust(self, key: ConfigKey, theirs: SourcedValue | None) -> SourcedValue | None:
        # Where there is no sandbox, a program the repository names would run as the user.
        return None if self.on_host and key.host and theirs and theirs.value else theirs

    def _mark(self, name: str, theirs: SourcedValue, *, host: bool) -> None:
        reason = "runs on the host: there is no sandbox" if host else "is wider than what you allow"
        self.untrusted.append(
            UntrustedKey(key=name, value=format_value(theirs.value), place=theirs.place, reason=reason)
        )

    def _note_lowered(self, name: str, key: ConfigKey, user: SourcedValue | None, given: SourcedValue) -> None:
        if key.meet == "min" and user is not None and given.value != user.value:
            before, after = format_key_value(key, user.value), format_key_value(key, given.value)
            self.notes.append(f"{name}: {before} ({user.origin}) is lowered to {after} by {given.place}")

    def _agents(self) -> dict[str, SourcedValue]:
        values: dict[str, SourcedValue] = {}
        for name in self._names(AGENTS):
            values |= self._agent(name)
        return values

    def _names(self, table: str) -> list[str]:
        return sorted({*entry_names(self.mine, table), *entry_names(self.theirs, table)})

    def _agent(self, name: str) -> dict[str, SourcedValue]:
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

    def _without_models(self, theirs: dict[str, SourcedValue]) -> dict[str, SourcedValue]:
        """Return a repository's agent without what spends the user's keys, unless that is trusted."""
        if self.trusted:
            return theirs
        kept = dict(theirs)
        for dotted, said in theirs.items():
            key = find_key(dotted)
            if key and key.meet == "user" and said.value != key.default:
                self._mark(dotted, kept.pop(dotted), host=False)
        return kept

    def _owned(self, table: str, what: str) -> dict[str, SourcedValue]:
        """Return a table whose entries in the repository's file need trust as a whole."""
        values: dict[str, SourcedValue] = {}
        for name in self._names(table):
            mine, theirs = entry_values(self.mine, table, name), entry_values(self.theirs, table, name)
            if mine:
                self._note_shadowed(what, name, mine, theirs)
            elif not self.trusted:
                for dotted, said in theirs.items():
                    self._mark(dotted, said, host=False)
                continue
            values |= fill_defaults(table, name, mine or theirs)
        return values

    def _note_shadowed(
        self, what: str, name: str, mine: dict[str, SourcedValue], theirs: dict[str, SourcedValue]
    ) -> None:
        if theirs and {k: v.value for k, v in mine.items()} != {k: v.value for k, v in theirs.items()}:
            first, other = next(iter(mine.values())), next(iter(theirs.values()))
            self.notes.append(f"{what} {name!r} is that of {first.origin}; the one of {other.origin} is not used")


def _build(values: Mapping[str, SourcedValue]) -> Config:
    sections: dict[str, Any] = {section: cls(**_fields(values, section)) for section, cls in SECTIONS}
    tables: dict[str, Any] = {table: _entries(values, table, cls) for table, cls in NAMED.items()}
    return Config(**sections, **tables)


def _entries(values: Mapping[str, SourcedValue], table: str, cls: type) -> dict[str, Any]:
    return {name: cls(**_fields(values, f"{table}.{name}")) for name in entry_names(values, table)}


def _fields(values: Mapping[str, SourcedValue], table: str) -> dict[str, Any]:
    return {
        dotted.rpartition(".")[2]: said.value for dotted, said in values.items() if dotted.startswith(f"{table}.")
    }
