"""Resolves all sources to the configuration in force, with the origin of every key.

Lowest to highest: defaults, the user's file, `CHARGEHAND_*`, the command line. The repository's file joins each
key as its row of the key table says: it can narrow, and can widen only after trust of its exact content; the
user's own settings take precedence over it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from chargehand.configuration.areas import meet_areas
from chargehand.configuration.extensions import enable_extensions
from chargehand.configuration.keys import (
    AGENTS,
    FORGES,
    MCP,
    MODELS,
    NAMED,
    REPOSITORIES,
    ROLES,
    ROLLOUTS,
    SECRET_KEYS,
    SECRET_SOURCES,
    SECTIONS,
    SIGN_IN,
    ConfigKey,
    config_error,
    entry_keys,
    find_key,
    format_key_value,
    format_value,
    is_short_form,
    model_hint,
    section_keys,
)
from chargehand.configuration.locations import UserFile
from chargehand.configuration.records import (
    OptionValue,
    RepositoryFile,
    ResolvedConfig,
    SourcedValue,
    UntrustedKey,
    content_digest,
    trust_nothing,
)
from chargehand.configuration.sources import (
    EXTRA_CHECKS,
    ONLY_CHECKS,
    check_agent,
    read_enabled,
    read_environment,
    read_options,
    read_toml,
    require_own_file,
)
from chargehand.core.config import Config
from chargehand.core.errors import ConfigError, nearest
from chargehand.core.limits import LOCAL_SOURCES
from chargehand.core.registry import registry_of
from chargehand.network.allow_list import meet_rules, without_grants

DEFAULT = "default"
# The largest repository file that is read, in bytes: the file is untrusted.
LARGEST_FILE = 1 << 20
# Tables whose entries in a repository's file need trust as a whole: they spend keys or start servers.
_OWNED = {
    MODELS: "model",
    ROLES: "role",
    MCP: "MCP server",
    ROLLOUTS: "roll-out",
    FORGES: "account at a forge",
    REPOSITORIES: "repository",
    SIGN_IN: "provider of sign-in",
    SECRET_SOURCES: "source of secrets",
    SECRET_KEYS: "secret",
}


def default_value(key: ConfigKey) -> SourcedValue:
    """Return the key's default as a source."""
    return SourcedValue(value=key.default, origin=DEFAULT, place=DEFAULT)


def join_sources(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue | None, *, trusted: bool
) -> SourcedValue:
    """Return the value in force of one key, with all its contributors; `None` is a source without a value.

    `trusted=False` gives the value without trust, `trusted=True` the value that the repository's file requests: if
    they differ, the file needs trust.
    """
    if repository is None:
        return user or default_value(key)
    if key.meet == "min":
        theirs: Any = repository.value
        if user is not None:
            ours: Any = user.value
            return _join_values(user, repository, min(ours, theirs))
        # Without a default there is no limit, so any number narrows.
        return repository if trusted or key.default is None or theirs <= key.default else default_value(key)
    if key.meet == "intersect":
        return _intersect(key, user, repository, trusted=trusted)
    if user is None:
        # A file that repeats the default requests nothing.
        free = key.meet != "user" or trusted or repository.value == key.default
        return repository if free else default_value(key)
    if key.meet == "union":
        return _join_values(user, repository, tuple(dict.fromkeys((*_items(user), *_items(repository)))))
    return user


def _join_values(user: SourcedValue, repository: SourcedValue, value: Any) -> SourcedValue:
    return SourcedValue(value=value, origin=f"{user.origin} + {repository.origin}", place=repository.place)


def _items(said: SourcedValue) -> tuple[str, ...]:
    value: Any = said.value
    return tuple(value)


def _intersect(
    key: ConfigKey, user: SourcedValue | None, repository: SourcedValue, *, trusted: bool
) -> SourcedValue:
    if key.empty == "all":
        if user is None:
            return repository
        try:
            return _join_values(user, repository, meet_areas(_items(user), _items(repository)))
        except ConfigError as error:
            raise config_error(f"{user.place} and {repository.place}", error.message, error.hint) from error
    if user is not None:
        return _join_values(user, repository, meet_rules(_items(user), _items(repository)))
    # Even trusted it allows only public hosts: only the user's own setting opens a private network.
    repository = replace(repository, value=without_grants(_items(repository)))
    return repository if trusted or not repository.value else default_value(key)


def entry_names(said: Mapping[str, SourcedValue], table: str) -> list[str]:
    """Return the names of a table's entries, in order of first occurrence."""
    start = f"{table}."
    names = [dotted.removeprefix(start).partition(".")[0] for dotted in said if dotted.startswith(start)]
    return list(dict.fromkeys(names))


def entry_values(said: Mapping[str, SourcedValue], table: str, name: str) -> dict[str, SourcedValue]:
    """Return the values of one entry, by dotted key in the order of the key table."""
    names = [f"{table}.{name}.{field}" for field in entry_keys(table)]
    return {dotted: said[dotted] for dotted in names if dotted in said}


def fill_defaults(table: str, name: str, said: Mapping[str, SourcedValue]) -> dict[str, SourcedValue]:
    """Return every key of one entry, with the default for missing values."""
    return {f"{table}.{name}.{field}": default_value(key) for field, key in entry_keys(table).items()} | dict(said)


def complete_agent(name: str, said: Mapping[str, SourcedValue]) -> dict[str, SourcedValue]:
    """Return every key of an agent; raise `ConfigError` if its kind and command contradict each other."""
    whole = fill_defaults(AGENTS, name, said)
    has = {dotted.rpartition(".")[2] for dotted, value in whole.items() if value.value}
    place = next(iter(said.values())).place
    check_agent(name, whole[f"{AGENTS}.{name}.kind"].value, has=has, place=place)
    return whole


def check_references(said: Mapping[str, SourcedValue], known: Mapping[str, SourcedValue]) -> None:
    """Raise `ConfigError` for references of agents and roles to entries that `known` does not have."""
    names = entry_names(known, MODELS)
    servers = entry_names(known, MCP)
    for server in entry_names(said, MCP):
        if f"{MCP}.{server}.command" not in known:
            place = next(iter(entry_values(said, MCP, server).values())).place
            message = f"the MCP server {server!r} has no command"
            raise config_error(place, message, 'add command = ["program", "argument", …]')
    _check_rollouts(said, known)
    _check_repositories(said, known)
    _check_secrets(said, known)
    for dotted, value in said.items():
        section, *_, field = dotted.split(".")
        referred: Any = (value.value,) if isinstance(value.value, str) else value.value
        if section in (AGENTS, ROLES) and field in {"model", "fallback"}:
            for model in referred or ():
                if model not in names and not is_short_form(model):
                    message = f"{field}: no model named {format_value(model)}"
                    raise config_error(value.place, message, model_hint(model, names))
        if section == AGENTS and field == "mcp":
            for server in referred or ():
                if server not in servers:
                    hint = f"{nearest(server, servers)}; configure one with [{MCP}.NAME]"
                    raise config_error(value.place, f"{field}: no MCP server named {format_value(server)}", hint)


def _check_rollouts(said: Mapping[str, SourcedValue], known: Mapping[str, SourcedValue]) -> None:
    for name in entry_names(said, ROLLOUTS):
        has = {dotted.rpartition(".")[2]: each for dotted, each in entry_values(known, ROLLOUTS, name).items()}
        if ("model" in has) == ("policy" in has) or ("agent" in has and "model" not in has):
            message = f"the roll-out {name!r} needs either a model, for which an agent may be named, or a policy"
            raise config_error(next(iter(has.values())).place, message, 'add model = "…" or policy = "learned"')


def _check_repositories(said: Mapping[str, SourcedValue], known: Mapping[str, SourcedValue]) -> None:
    for name in entry_names(said, REPOSITORIES):
        if f"{REPOSITORIES}.{name}.repository" not in known:
            place = next(iter(entry_values(said, REPOSITORIES, name).values())).place
            message = f"[{REPOSITORIES}.{name}] does not say which repository it is for"
            raise config_error(place, message, 'add repository = "OWNER/NAME"')


def _check_secrets(said: Mapping[str, SourcedValue], known: Mapping[str, SourcedValue]) -> None:
    """Raise `ConfigError` for entries of [secrets] that could never give a secret."""
    if not any(dotted.startswith("secrets.") for dotted in said):
        return
    registered = registry_of("key_sources")
    plain = [*LOCAL_SOURCES, *(each for each in registered if each not in registered.built_in())]
    names = [*entry_names(known, SECRET_SOURCES), *plain]
    for source in entry_names(said, SECRET_SOURCES):
        entry = entry_values(said, SECRET_SOURCES, source)
        values = {dotted.rpartition(".")[2]: each.value for dotted, each in entry.items()}
        kind = values.get("kind", "vault")
        needed = {"vault": "address", "command": "command"}.get(str(kind))
        problem = f"has no {needed}" if needed and needed not in values else ""
        problem = f"is of the kind {kind}, which needs no entry" if kind in plain else problem
        if problem or source in plain:
            problem = problem or "takes the name of a built-in source"
            place = next(iter(entry.values())).place
            raise config_error(place, f"the source {source!r} of secrets {problem}", "change or remove it")
    for name in entry_names(said, SECRET_KEYS):
        entry = entry_values(said, SECRET_KEYS, name)
        if f"{SECRET_KEYS}.{name}.name" not in entry and not re.fullmatch(r"[A-Z][A-Z0-9_]{1,63}", name):
            place = next(iter(entry.values())).place
            raise config_error(place, f"[{SECRET_KEYS}.{name}] names no secret", 'add name = "OPENAI_API_KEY"')
    lists = ["secrets.order", *(f"{SECRET_KEYS}.{name}.sources" for name in entry_names(said, SECRET_KEYS))]
    for dotted in lists:
        for source in _items(said[dotted]) if dotted in said else ():
            if source not in names:
                hint = f"{nearest(source, names)}; add [{SECRET_SOURCES}.NAME]"
                raise config_error(said[dotted].place, f"no source of secrets named {format_value(source)}", hint)


# Commands of a repository's file: they run in the directory of the file.
_COMMANDS = frozenset({"project.checks", "project.outside_checks", "project.setup"})
_SETUP_NETWORK = "project.setup_network"
# Recorded in place of a file's digest if a person allows a project's setup to reach the registries.
REGISTRIES = "registries"


def allow_registries(resolved: ResolvedConfig) -> ResolvedConfig:
    """Return `resolved` with the network that a person allowed for its setup, unless a setting denies it."""
    if resolved.origins.get(_SETUP_NETWORK) != "default":
        return resolved
    project = replace(resolved.config.project, setup_network=True)
    return replace(
        resolved,
        config=replace(resolved.config, project=project),
        origins={**resolved.origins, _SETUP_NETWORK: "you allowed it for this project"},
    )


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

    `machine` has defaults from the machine's profile, below everything else. `options` is by dotted key:
    `project.checks` adds to the gates, `only_checks` replaces them, `project.allow` and `project.forbid` narrow.
    `is_trusted` is called with the digest of the repository's file. Keys that need trust are ignored and listed;
    callers that act on the result ask for trust first (`require_trust`). Raises `ConfigError` for any error in any
    source, trusted or not.
    """
    # First: the files below may use the names that extensions add.
    enable_extensions(read_enabled(user.text, name=str(user.path)) if user else None)
    theirs = _read_repository(repository)
    own = read_toml(user.text, name=str(user.path), origin=str(user.path)) if user else {}
    entries = {table: entry_names(own, table) + entry_names(theirs, table) for table in NAMED}
    environment, notes = read_environment(environ or {}, entries=entries)
    said = read_options(options or {})
    extra = said.pop(EXTRA_CHECKS, None)
    only = said.pop(ONLY_CHECKS, None)
    mine = {**(machine or {}), **own, **environment}
    for dotted, option in said.items():
        key = find_key(dotted)
        lower = mine.get(dotted)
        # Options can only narrow lists of areas.
        if key and lower and (key.meet == "union" or (key.meet == "intersect" and key.empty == "all")):
            option = join_sources(key, lower, option, trusted=True)
        mine[dotted] = option
    # The user's values must be valid without the repository, whose entries may be left out for lack of trust; the
    # repository's file may refer to both.
    check_references(mine, mine)
    check_references(theirs, mine | theirs)
    digest = content_digest(repository.content) if repository else ""
    trusted = repository is not None and is_trusted(digest)
    merge = _Merge(mine, theirs, trusted=trusted)
    values = merge.values()
    origins = {dotted: value.origin for dotted, value in values.items()}
    origins |= {name: one.origin for name, one in (("extra_checks", extra), (ONLY_CHECKS, only)) if one}
    if repository is not None and repository.commit is None:
        read = f"{repository.path} is not committed: it was read from the checkout (sha256 {digest[:12]}…)"
        notes = (read, *notes)
    return ResolvedConfig(
        config=_build_config(values),
        origins=MappingProxyType(origins),
        untrusted=tuple(merge.untrusted),
        strangers=MappingProxyType(merge.strangers),
        notes=(*notes, *merge.notes),
        digest=digest,
        extra_checks=_items(extra) if extra else (),
        only_checks=_items(only) if only else None,
        commands_from=repository.directory if repository and not _COMMANDS.isdisjoint(theirs) else None,
    )


def _read_repository(repository: RepositoryFile | None) -> dict[str, SourcedValue]:
    if repository is None:
        return {}
    if len(repository.content) > LARGEST_FILE:
        message = f"the file has {len(repository.content)} bytes, more than {LARGEST_FILE}"
        raise config_error(repository.path, message, "make it shorter")
    try:
        text = repository.content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = repository.content.count(b"\n", 0, error.start) + 1
        message = "not valid TOML: the file is not UTF-8"
        raise config_error(f"{repository.path}:{line}", message, "save it as UTF-8") from error
    said = read_toml(text, name=repository.path, origin=repository.origin)
    for dotted, value in said.items():
        require_own_file(dotted, value.place)
    # A person who types `--agent claude` means that program, not a stranger's.
    named = entry_names(said, AGENTS)
    for name in {"native", "cursor-agent", *registry_of("clis")}.intersection(named) if named else ():
        entry = {dotted.rpartition(".")[2]: value for dotted, value in entry_values(said, AGENTS, name).items()}
        kind, cli = (entry[key].value if key in entry else None for key in ("kind", "cli"))
        if "command" in entry or not (kind == name == "native" or (kind in ("cli", "acp") and cli == name)):
            raise config_error(
                next(iter(entry.values())).place,
                f"the agent name {name!r} is reserved: a repository may not put another program behind it",
                f"choose another name, such as [{AGENTS}.my-{name}], or configure it in your own file",
            )
    return said


def _build_config(values: Mapping[str, SourcedValue]) -> Config:
    def fields(table: str) -> dict[str, Any]:
        parts = {dotted: dotted.rpartition(".") for dotted in values}
        return {parts[dotted][2]: said.value for dotted, said in values.items() if parts[dotted][0] == table}

    tables: dict[str, Any] = {
        table: {name: cls(**fields(f"{table}.{name}")) for name in entry_names(values, table)}
        for table, cls in NAMED.items()
    }
    built: dict[str, Any] = {table: entries for table, entries in tables.items() if "." not in table}
    for section, cls in SECTIONS:
        inner = {table.partition(".")[2]: tables[table] for table in tables if table.startswith(f"{section}.")}
        built[section] = cls(**fields(section), **inner)
    return Config(**built)


class _Merge:
    """Merges the user's sources (`mine`) with the repository's file (`theirs`), collecting what to report."""

    def __init__(self, mine: dict[str, SourcedValue], theirs: dict[str, SourcedValue], *, trusted: bool) -> None:
        self._mine = mine
        self._theirs = theirs
        self._trusted = trusted
        self.untrusted: list[UntrustedKey] = []
        self.strangers: dict[str, UntrustedKey] = {}
        self.notes: list[str] = []
        tier = "sandbox.tier"
        in_force = join_sources(section_keys()[tier], mine.get(tier), theirs.get(tier), trusted=trusted)
        # Without a sandbox, a program that the repository names would run as the user.
        self._on_host = in_force.value == "none"

    def values(self) -> dict[str, SourcedValue]:
        """Return every key's value in force."""
        values = {name: self._join_key(name, key) for name, key in section_keys().items()}
        for name in self._names(AGENTS):
            values |= self._merge_agent(name)
        for table, what in _OWNED.items():
            for name in self._names(table):
                mine = entry_values(self._mine, table, name)
                theirs = entry_values(self._theirs, table, name)
                if mine:
                    self._note_shadowed(what, name, mine, theirs)
                elif not self._trusted:
                    for dotted, said in theirs.items():
                        self._mark_untrusted(dotted, said, host=False)
                    continue
                values |= fill_defaults(table, name, mine or theirs)
        return values

    def _names(self, table: str) -> list[str]:
        return sorted({*entry_names(self._mine, table), *entry_names(self._theirs, table)})

    def _join_key(self, name: str, key: ConfigKey) -> SourcedValue:
        user = self._mine.get(name)
        theirs = self._theirs.get(name)
        given = asked = join_sources(key, user, theirs, trusted=True)
        if not self._trusted:
            unusable = self._on_host and key.host and theirs and theirs.value
            given = join_sources(key, user, None if unusable else theirs, trusted=False)
        if theirs is not None and given.value != asked.value:
            self._mark_untrusted(name, theirs, host=key.host)
        if key.meet == "min" and user is not None and given.value != user.value:
            before = format_key_value(key, user.value)
            after = format_key_value(key, given.value)
            self.notes.append(f"{name}: {before} ({user.origin}) is lowered to {after} by {given.place}")
        return given

    def _mark_untrusted(self, name: str, theirs: SourcedValue, *, host: bool = False, reason: str = "") -> None:
        reason = reason or ("runs on the host: there is no sandbox" if host else "is wider than you allow")
        value = format_value(theirs.value)
        self.untrusted.append(UntrustedKey(key=name, value=value, place=theirs.place, reason=reason))

    def _merge_agent(self, name: str) -> dict[str, SourcedValue]:
        mine = entry_values(self._mine, AGENTS, name)
        theirs = entry_values(self._theirs, AGENTS, name)
        if mine:
            self._note_shadowed("agent", name, mine, theirs)
            return complete_agent(name, mine)
        if self._trusted:
            return complete_agent(name, theirs)
        kind = theirs.get(f"{AGENTS}.{name}.kind")
        if kind is not None and kind.value not in registry_of("agents").built_in():
            self._mark_untrusted(f"{AGENTS}.{name}.kind", kind, reason="runs an extension outside of the sandbox")
            return {}
        if self._on_host:
            command = f"{AGENTS}.{name}.command"
            dotted = command if command in theirs else next(iter(theirs))
            self._mark_untrusted(dotted, theirs[dotted], host=True)
            return {}
        # The sandbox bounds the agent's program; keys that spend the user's money are left out until they are
        # trusted.
        kept = dict(theirs)
        for dotted, said in theirs.items():
            key = find_key(dotted)
            if key and key.meet == "user" and said.value != key.default:
                self._mark_untrusted(dotted, kept.pop(dotted), host=False)
        program = theirs.get(f"{AGENTS}.{name}.command")
        if program is not None:
            self.strangers[name] = UntrustedKey(
                key=f"{AGENTS}.{name}",
                value=format_value(program.value),
                place=program.place,
                reason="would work with your models and at your cost",
            )
        return complete_agent(name, kept)

    def _note_shadowed(
        self, what: str, name: str, mine: dict[str, SourcedValue], theirs: dict[str, SourcedValue]
    ) -> None:
        if theirs and {k: v.value for k, v in mine.items()} != {k: v.value for k, v in theirs.items()}:
            first = next(iter(mine.values()))
            other = next(iter(theirs.values()))
            self.notes.append(
                f"{what} {name!r} is taken from {first.origin}; the one from {other.origin} is ignored"
            )
