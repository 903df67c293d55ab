"""From the text of a configuration file to what it says, key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chargehand.app._config_keys import AGENT_NAME, AGENTS, Key, agent_keys, section_keys, section_names
from chargehand.app._config_lines import key_lines
from chargehand.app._config_model import Said
from chargehand.app._config_values import fail, parse_value, shown
from chargehand.core import nearest, printable

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
        if section == AGENTS:
            said |= _agents(document, table)
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


def _agents(document: _Document, agents: dict[str, Any]) -> dict[str, Said]:
    said: dict[str, Said] = {}
    for name, table in agents.items():
        place = document.place(AGENTS, name)
        if not AGENT_NAME.fullmatch(name):
            hint = "letters, digits, '-' and '_', at most 64"
            raise fail(place, f"{shown(name)} is no name for an agent", hint)
        if not isinstance(table, dict):
            hint = f'write [agents.{name}] with command = ["program", …] below'
            raise fail(place, f"[agents.{name}] is a table, not {shown(table)}", hint)
        if "command" not in table and table.keys() <= agent_keys().keys():
            hint = 'add command = ["program", "argument", …]'
            raise fail(place, f"agent {name!r} has no command", hint)
        said |= _table(document, (AGENTS, name), table, agent_keys())
    return said
