"""Readers of the configuration sources: a TOML file, the environment, the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from chargehand.configuration.keys import (
    AGENTS,
    ENTRY_NAME,
    FORGES,
    MCP,
    MODELS,
    NAMED,
    REPOSITORIES,
    ROLES,
    ROLLOUTS,
    SECRET_KEYS,
    SECRET_SOURCES,
    SIGN_IN,
    ConfigKey,
    config_error,
    entry_keys,
    find_key,
    format_value,
    known_names,
    parse_text,
    parse_value,
    section_keys,
    section_names,
)
from chargehand.configuration.lines import key_lines
from chargehand.configuration.records import OptionValue, SourcedValue
from chargehand.core.errors import nearest
from chargehand.core.text import printable

PREFIX = "CHARGEHAND_"
# Variables of Chargehand that are not configuration keys.
RESERVED = frozenset(
    {"CHARGEHAND_HOME", "CHARGEHAND_REQUEST", "CHARGEHAND_ROLE", "CHARGEHAND_ROLE_PROMPT", "CHARGEHAND_USER"}
    | {"CHARGEHAND_SERVER", "CHARGEHAND_TOKEN"}
)
EXTRA_CHECKS = "project.checks"
# A key of the command line only: checks that replace the project's gates.
ONLY_CHECKS = "only_checks"


def variable_name(dotted: str) -> str:
    """Return the environment variable of a dotted key."""
    return PREFIX + re.sub(r"[.-]", "_", dotted).upper()


def read_environment(
    environ: Mapping[str, str], *, entries: Mapping[str, Collection[str]]
) -> tuple[dict[str, SourcedValue], tuple[str, ...]]:
    """Read `CHARGEHAND_*` variables; return values, and notes about unknown ones. An empty variable is not set.

    `entries` are the names configured elsewhere, by table, to which variables may refer. Raises `ConfigError` for
    a bad value and for an unknown variable that looks like a key.
    """
    said: dict[str, SourcedValue] = {}
    notes: list[str] = []
    by_variable = {variable_name(name): name for name in section_keys()}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or not environ[name].strip():
            continue
        dotted = by_variable.get(name) or _find_entry_key(name, entries)
        key = find_key(dotted) if dotted else None
        if dotted and key:
            place = f"environment {name}"
            require_own_file(dotted, place)
            said[dotted] = SourcedValue(value=parse_text(key, environ[name], place), origin=place, place=place)
        else:
            rest = name.removeprefix(PREFIX)
            sections = {each.section.upper() for each in section_keys().values()}
            sections |= {table.partition(".")[0].upper() for table in NAMED}
            owners = [each.name for each in section_keys().values() if each.field.upper() == rest]
            known = [variable_name(each) for each in known_names()]
            guess = nearest(rest, [each.removeprefix(PREFIX) for each in known])
            # A typo must be reported; a name unlike any key may belong to another program.
            if rest.split("_")[0] in sections or owners or guess.startswith("did"):
                hint = f"did you mean {variable_name(owners[0])!r}?" if owners else nearest(name, known)
                raise config_error(f"environment {name}", "no configuration key has this name", hint)
            notes.append(f"environment {format_value(name)} is not a configuration key and was ignored")
    return said, tuple(notes)


def _find_entry_key(name: str, entries: Mapping[str, Collection[str]]) -> str | None:
    """Return the dotted key for `CHARGEHAND_TABLE_NAME_FIELD`; a name may itself contain `_`."""
    for table in NAMED:
        rest = name.removeprefix(f"{variable_name(table)}_")
        if rest == name:
            continue
        for field in entry_keys(table):
            middle = rest.removesuffix(f"_{field.upper()}")
            if middle == rest or not ENTRY_NAME.fullmatch(middle):
                continue
            # Capitals and `_` lose case and `-`: a configured name that matches is the intended one.
            named = [known for known in entries.get(table, ()) if known.upper().replace("-", "_") == middle]
            return f"{table}.{named[0] if named else middle.lower()}.{field}"
        return None
    return None


def read_options(options: Mapping[str, OptionValue]) -> dict[str, SourcedValue]:
    """Return the command line's values, by dotted key, and `only_checks`. Raises `ConfigError`."""
    said = {}
    for dotted, option in options.items():
        if option.value is None or option.value in ((), []):
            continue
        key = find_key(EXTRA_CHECKS if dotted == ONLY_CHECKS else dotted)
        if key is None:
            known = (*known_names(), ONLY_CHECKS)
            raise config_error(option.name, f"unknown key {format_value(dotted)}", nearest(dotted, known))
        require_own_file(dotted, option.name)
        read = parse_text if isinstance(option.value, str) else parse_value
        value: Any = option.value
        said[dotted] = SourcedValue(value=read(key, value, option.name), origin=option.name, place=option.name)
    return said


def require_own_file(dotted: str, place: str) -> None:
    """Raise `ConfigError` for a key that only the user's own file may set, found at another place."""
    key = find_key(dotted)
    if key is not None and key.meet == "file":
        what = "who gets your keys" if dotted.startswith("secrets.") else "which code runs as you"
        message = f"{dotted} counts only in your own configuration file: it decides {what}"
        raise config_error(place, message, "remove it there, and write it into your file if you trust it")


_LINE = re.compile(r"\(at line (\d+), column \d+\)")


class _Document(Struct, frozen=True):
    name: str
    origin: str
    lines: Mapping[tuple[str, ...], int]

    def place(self, *path: str) -> str:
        line = self.lines.get(path)
        return f"{self.name}:{line}" if line else self.name


def read_toml(text: str, *, name: str, origin: str) -> dict[str, SourcedValue]:
    """Return every key of a file, parsed, by dotted name.

    `name` is the file's name in errors, `origin` its name in `config show --origin`. Raises `ConfigError`.
    """
    data = parse_toml(text, name=name)
    document = _Document(name, origin, key_lines(text))
    said: dict[str, SourcedValue] = {}
    for section, table in data.items():
        if section not in section_names():
            place = document.place(section)
            owners = [key.section for key in section_keys().values() if key.field == section]
            if owners:
                message = f"unknown key {format_value(section)} outside of any table"
                raise config_error(place, message, f"it belongs under [{owners[0]}]")
            message = f"unknown key or table {format_value(section)}"
            raise config_error(place, message, nearest(section, section_names()))
        if not isinstance(table, dict):
            raise config_error(
                document.place(section),
                f"[{section}] is a table, not {format_value(table)}",
                f"write [{section}] and its keys below",
            )
        if section in NAMED:
            said |= _read_entries(document, section, table)
        else:
            inner = {field: entries for field, entries in table.items() if f"{section}.{field}" in NAMED}
            for field, entries in inner.items():
                if not isinstance(entries, dict):
                    place = document.place(section, field)
                    raise config_error(
                        place, f"[{section}.{field}] is a table of tables, not {format_value(entries)}"
                    )
                said |= _read_entries(document, f"{section}.{field}", entries)
            keys = {key.field: key for key in section_keys().values() if key.section == section}
            own = {field: value for field, value in table.items() if field not in inner}
            said |= _read_table(document, (section,), own, keys)
    return said


def read_enabled(text: str, *, name: str) -> tuple[str, ...]:
    """Return the extensions that the user's file enables; raise `ConfigError`."""
    # Most files have none, and need not be parsed twice.
    if "extensions" not in text:
        return ()
    table = parse_toml(text, name=name).get("extensions")
    found = table.get("enabled", ()) if isinstance(table, dict) else ()
    enabled: tuple[str, ...] = parse_value(section_keys()["extensions.enabled"], found, name)
    return enabled


def parse_toml(text: str, *, name: str) -> dict[str, Any]:
    """Return the parsed text; raise `ConfigError` with the line for invalid TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise config_error(name, "not valid TOML: nested too deeply", "nest less") from error
    # Not only TOMLDecodeError: Python refuses integers of thousands of digits with a plain ValueError.
    except ValueError as error:
        match = _LINE.search(str(error))
        # For a text that ends too early, tomllib says "at end of document" without a line.
        line = int(match[1]) if match else text.count("\n") + 1
        message = f"not valid TOML: {printable(str(error))}"
        raise config_error(f"{name}:{line}", message, "fix it there; https://toml.io has the rules") from error


def _read_table(
    document: _Document, path: tuple[str, ...], table: dict[str, Any], keys: Mapping[str, ConfigKey]
) -> dict[str, SourcedValue]:
    said = {}
    for name, value in table.items():
        place = document.place(*path, name)
        if name not in keys:
            raise config_error(
                place, f"unknown key {format_value(name)} in [{'.'.join(path)}]", nearest(name, keys)
            )
        dotted = ".".join((*path, name))
        said[dotted] = SourcedValue(
            value=parse_value(keys[name], value, place), origin=document.origin, place=place
        )
    return said


_ENTRY_KINDS = {
    AGENTS: ("an agent", 'command = ["program", …]'),
    MODELS: ("a model", 'model = "…"'),
    ROLES: ("a role", 'model = "…"'),
    MCP: ("an MCP server", 'command = ["program", …]'),
    ROLLOUTS: ("a roll-out", 'model = "…"'),
    FORGES: ("an account at a forge", 'kind = "github"'),
    REPOSITORIES: ("a repository", 'repository = "OWNER/NAME"'),
    SIGN_IN: ("a provider of sign-in", 'client = "…"'),
    SECRET_SOURCES: ("a source of secrets", 'kind = "vault"'),
    SECRET_KEYS: ("a secret", 'sources = ["NAME"]'),
}


def _read_entries(document: _Document, section: str, entries: dict[str, Any]) -> dict[str, SourcedValue]:
    said: dict[str, SourcedValue] = {}
    what, first = _ENTRY_KINDS[section]
    top = tuple(section.split("."))
    for name, table in entries.items():
        place = document.place(*top, name)
        if not ENTRY_NAME.fullmatch(name):
            raise config_error(
                place,
                f"{format_value(name)} is not a valid name for {what}",
                "letters, digits, '-' and '_', at most 64",
            )
        if not isinstance(table, dict):
            raise config_error(
                place,
                f"[{section}.{name}] is a table, not {format_value(table)}",
                f"write [{section}.{name}] with {first} below",
            )
        keys = entry_keys(section)
        if section == AGENTS and table.keys() <= keys.keys():
            check_agent(name, table.get("kind", "command"), has=table.keys(), place=place)
        elif not table:
            raise config_error(place, f"[{section}.{name}] is empty", f"add {first}")
        said |= _read_table(document, (*top, name), table, keys)
    return said


def check_agent(name: str, kind: object, *, has: Collection[str], place: str) -> None:
    """Raise `ConfigError` if an agent's kind and its other keys (`has`) contradict each other."""
    if kind in ("native", "patch") and "command" in has:
        hint = 'remove the command, or write kind = "command"'
        raise config_error(place, f"agent {name!r} is {kind} and has a command", hint)
    if kind == "cli" and "cli" not in has:
        raise config_error(place, f"agent {name!r} does not name its CLI", 'add cli = "claude", or another')
    if kind == "acp" and not {"command", "cli"} & set(has):
        hint = 'add command = ["program", "argument", …], or cli = "opencode" for a known one'
        raise config_error(place, f"agent {name!r} has no command", hint)
    if kind == "command" and "command" not in has:
        hint = 'add command = ["program", "argument", …], or kind = "native" for a model with tools'
        raise config_error(place, f"agent {name!r} has no command", hint)
    for key, kinds in (("cli", ("cli", "acp")), ("patch", ("patch",)), ("mcp", ("native",))):
        if key in has and kind not in kinds:
            raise config_error(
                place, f"agent {name!r} is {kind} and has {key}", f'write kind = "{kinds[0]}", or remove it'
            )
