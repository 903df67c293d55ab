"""From the text of a configuration file to what it says, key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.app._config_keys import (
    AGENTS,
    ENTRY_NAME,
    MCP,
    MODELS,
    NAMED,
    ROLES,
    Key,
    entry_keys,
    section_keys,
    section_names,
)
from chargehand.app._config_lines import key_lines
from chargehand.app._config_model import Said
from chargehand.app._config_values import fail, parse_value, shown
from chargehand.core.errors import nearest
from chargehand.core.text import printable

_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True)
class _Document:
    name: str
    origin: str
    lines: Mapping[tuple[str, ...], int]

    def place(self, *path: str) -> str:
        line = self.lines.get(path)
        return f"{self.name}:{line}" if line else self.name


def read_toml(text: str, *, name: str, origin: str) -> dict[str, Said]:
    """Return every key a file says, parsed, by dotted name.

    `name` is how errors call the file, `origin` how `config show --origin` does. Raises `ConfigError`.
    """
    data = parse_toml(text, name=name)
    document = _Document(name, origin, key_lines(text))
    said: dict[str, Said] = {}
    for section, table in data.items():
        if section not in section_names():
            raise _unknown_section(document, section)
        if not isinstance(table, dict):
            raise fail(
                document.place(section),
                f"[{section}] is a table, not {shown(table)}",
                f"write [{section}] and its keys below",
            )
        if section in NAMED:
            said |= _entries(document, section, table)
        else:
            said |= _table(document, (section,), table, _fields(section))
    return said


def parse_toml(text: str, *, name: str) -> dict[str, Any]:
    """Return the parsed text; raises `ConfigError` with the line for what is not TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise fail(name, "not valid TOML: nested too deeply", "nest less") from error
    except ValueError as error:
        match = _LINE.search(str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        message = f"not valid TOML: {printable(str(error))}"
        raise fail(f"{name}:{line}", message, "mend it there; https://toml.io has the rules") from error


def _fields(section: str) -> dict[str, Key]:
    return {key.field: key for key in section_keys().values() if key.section == section}


def _unknown_section(document: _Document, name: str) -> Exception:
    owners = [key.section for key in section_keys().values() if key.field == name]
    if owners:
        message = f"unknown key {shown(name)} outside of any table"
        return fail(document.place(name), message, f"it belongs under [{owners[0]}]")
    message = f"unknown key or table {shown(name)}"
    return fail(document.place(name), message, nearest(name, section_names()))


def _table(
    document: _Document, path: tuple[str, ...], table: dict[str, Any], keys: Mapping[str, Key]
) -> dict[str, Said]:
    said = {}
    for name, value in table.items():
        place = document.place(*path, name)
        if name not in keys:
            raise fail(place, f"unknown key {shown(name)} in [{'.'.join(path)}]", nearest(name, keys))
        dotted = ".".join((*path, name))
        said[dotted] = Said(value=parse_value(keys[name], value, place), origin=document.origin, place=place)
    return said


_WHAT = {
    AGENTS: ("an agent", 'command = ["program", …]'),
    MODELS: ("a model", 'model = "…"'),
    ROLES: ("a role", 'model = "…"'),
    MCP: ("an MCP server", 'command = ["program", …]'),
}


def _entries(document: _Document, section: str, entries: dict[str, Any]) -> dict[str, Said]:
    said: dict[str, Said] = {}
    what, first = _WHAT[section]
    for name, table in entries.items():
        place = document.place(section, name)
        if not ENTRY_NAME.fullmatch(name):
            raise fail(place, f"{shown(name)} is no name for {what}", "letters, digits, '-' and '_', at most 64")
        if not isinstance(table, dict):
            raise fail(
                place,
                f"[{section}.{name}] is a table, not {shown(table)}",
                f"write [{section}.{name}] with {first} below",
            )
        keys = entry_keys(section)
        if section == AGENTS and table.keys() <= keys.keys():
            check_agent(name, table.get("kind", "command"), has=table.keys(), place=place)
        elif not table:
            raise fail(place, f"[{section}.{name}] says nothing", f"add {first}")
        said |= _table(document, (section, name), table, keys)
    return said


def check_agent(name: str, kind: object, *, has: Collection[str], place: str) -> None:
    """Raise `ConfigError` where an agent's kind and its other keys (`has`) contradict each other."""
    if kind in ("native", "patch") and "command" in has:
        hint = 'take the command out, or write kind = "command"'
        raise fail(place, f"agent {name!r} is {kind} and has a command", hint)
    if kind == "cli" and "cli" not in has:
        raise fail(place, f"agent {name!r} does not say which CLI it is", 'add cli = "claude", or another')
    if kind == "acp" and not {"command", "cli"} & set(has):
        hint = 'add command = ["program", "argument", …], or cli = "opencode" for a known one'
        raise fail(place, f"agent {name!r} has no command", hint)
    if kind not in ("native", "cli", "acp", "patch") and "command" not in has:
        hint = 'add command = ["program", "argument", …], or kind = "native" for a model with tools'
        raise fail(place, f"agent {name!r} has no command", hint)
    for key, kinds in (("cli", ("cli", "acp")), ("patch", ("patch",)), ("mcp", ("native",))):
        if key in has and kind not in kinds:
            raise fail(
                place, f"agent {name!r} is {kind} and has {key}", f'write kind = "{kinds[0]}", or take it out'
            )
