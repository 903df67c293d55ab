"""What the environment and the command line say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from chargehand.app._config_keys import ENTRY_NAME, NAMED, Key, entry_keys, find_key, known_names, section_keys
from chargehand.app._config_model import Option, Said
from chargehand.app._config_values import fail, parse_text, parse_value, shown
from chargehand.core.errors import ConfigError, nearest

PREFIX = "CHARGEHAND_"
RESERVED = frozenset(
    {"CHARGEHAND_HOME", "CHARGEHAND_REQUEST", "CHARGEHAND_ROLE", "CHARGEHAND_ROLE_PROMPT", "CHARGEHAND_USER"}
)
"""Variables of ours that are no configuration keys."""
EXTRA_CHECKS = "project.checks"
ONLY_CHECKS = "only_checks"
"""The command line's own key: checks that replace the project's gates."""


def variable(dotted: str) -> str:
    """Return the environment variable of a dotted key."""
    return PREFIX + re.sub(r"[.-]", "_", dotted).upper()


def read_environment(
    environ: Mapping[str, str], *, entries: Mapping[str, Collection[str]]
) -> tuple[dict[str, Said], tuple[str, ...]]:
    """Return what `CHARGEHAND_*` variables say, and notes on those that are no keys; an empty one is not set.

    `entries` are the names configured elsewhere by table, which variables may mean. Raises `ConfigError` for
    a bad value and for an unknown variable that looks like a key.
    """
    said: dict[str, Said] = {}
    notes: list[str] = []
    by_variable = {variable(name): name for name in section_keys()}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or not environ[name].strip():
            continue
        dotted = by_variable.get(name) or _entry_key(name, entries)
        key = find_key(dotted) if dotted else None
        if dotted and key:
            place = f"environment {name}"
            said[dotted] = Said(value=parse_text(key, environ[name], place), origin=place, place=place)
        elif _looks_like_a_key(name):
            raise _unknown_variable(name)
        else:
            notes.append(f"environment {shown(name)} is no configuration key and was not read")
    return said, tuple(notes)


def _entry_key(name: str, entries: Mapping[str, Collection[str]]) -> str | None:
    for table in NAMED:
        head = f"{PREFIX}{table.upper()}_"
        if name.startswith(head):
            return _key_of_entry(name.removeprefix(head), table, entries.get(table, ()))
    return None


def _key_of_entry(rest: str, table: str, names: Iterable[str]) -> str | None:
    for field in entry_keys(table):
        tail = f"_{field.upper()}"
        middle = rest.removesuffix(tail)
        if not rest.endswith(tail) or not ENTRY_NAME.fullmatch(middle):
            continue
        named = [known for known in names if known.upper().replace("-", "_") == middle]
        return f"{table}.{named[0] if named else middle.lower()}.{field}"
    return None


def _looks_like_a_key(name: str) -> bool:
    rest = name.removeprefix(PREFIX)
    sections = {key.section.upper() for key in section_keys().values()} | {table.upper() for table in NAMED}
    fields = {key.field.upper() for key in section_keys().values()}
    if rest.split("_")[0] in sections or rest in fields:
        return True
    known = [variable(name).removeprefix(PREFIX) for name in known_names()]
    return nearest(rest, known).startswith("did")


def _unknown_variable(name: str) -> ConfigError:
    rest = name.removeprefix(PREFIX)
    owners = [key.name for key in section_keys().values() if key.field.upper() == rest]
    hint = f"did you mean {variable(owners[0])!r}?" if owners else nearest(name, map(variable, known_names()))
    return fail(f"environment {name}", "no configuration key has this name", hint)


def read_options(options: Mapping[str, Option]) -> dict[str, Said]:
    """Return what the command line says, by dotted key; `only_checks` besides. Raises `ConfigError`."""
    said = {}
    for dotted, option in options.items():
        if option.value is None or option.value in ((), []):
            continue
        key = find_key(EXTRA_CHECKS if dotted == ONLY_CHECKS else dotted)
        if key is None:
            known = (*known_names(), ONLY_CHECKS)
            raise fail(option.name, f"unknown key {shown(dotted)}", nearest(dotted, known))
        said[dotted] = Said(value=_option(key, option), origin=option.name, place=option.name)
    return said


def _option(key: Key, option: Option) -> Any:
    if isinstance(option.value, str):
        return parse_text(key, option.value, option.name)
    return parse_value(key, option.value, option.name)
