"""From the text of a role's file to the role; what is wrong is told with file, key and value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from chargehand.agents._roles import MUST_ADD, ROLE_OUTPUTS, MustAdd, Role, RoleOutput
from chargehand.agents._tools_specs import MUTATING, SPECS
from chargehand.core.errors import ConfigError, nearest
from chargehand.core.text import printable

ROLE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RESERVED = "default"
"""No name of a role: [roles.default] is for all of them."""
LONGEST_PROMPT = 20_000
_LONGEST_SUMMARY = 200
_KEYS = ("summary", "prompt", "tools", "writes", "areas", "models", "agent", "output", "must_add")
_REQUIRED = ("summary", "prompt", "tools", "writes")
_MCP = re.compile(r"mcp_[A-Za-z0-9_.*?-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WRITERS = MUTATING - {"bash"}
_C = TypeVar("_C", bound=str)


def check_role_name(name: str, *, place: str) -> None:
    """Raise `ConfigError` (`role_invalid`) for what cannot name a role."""
    if not ROLE_NAME.fullmatch(name) or name == RESERVED:
        why = "it stands for every role in the configuration" if name == RESERVED else "it is no name of a role"
        hint = "small letters, digits, '-' and '_', at most 64; not 'default'"
        raise ConfigError(f"{place}: {_shown(name)}: {why}", code="role_invalid", hint=hint)


def parse_role(name: str, text: str, *, place: str) -> Role:
    """Return the role that a file says; raises `ConfigError` (`role_invalid`) naming `place`, key and value."""
    check_role_name(name, place=place)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{place}: not valid TOML: {printable(str(error)) or 'nested too deeply'}"
        raise ConfigError(message, code="role_invalid", hint="mend the file") from error
    return _File(place, data).role(name)


class _File:
    """A role's table, read key by key."""

    def __init__(self, place: str, data: Mapping[str, Any]) -> None:
        self._place = place
        self._data = data

    def role(self, name: str) -> Role:
        for key, value in self._data.items():
            if key not in _KEYS:
                raise self._wrong(key, value, "there is no such key", nearest(key, _KEYS))
        for key in _REQUIRED:
            if key not in self._data:
                raise ConfigError(
                    f"{self._place}: key {key!r} is missing",
                    code="role_invalid",
                    hint="`chargehand role show developer` is an example",
                )
        output: RoleOutput = self._choice("output", ROLE_OUTPUTS) or "change"
        must_add: MustAdd | None = self._choice("must_add", MUST_ADD)
        role = Role(
            name=name,
            summary=self._line("summary", most=_LONGEST_SUMMARY),
            prompt=self._text("prompt", most=LONGEST_PROMPT).strip(),
            tools=self._tools(),
            writes=self._flag("writes"),
            output=output,
            areas=self._areas(),
            models=self._lines("models"),
            agent=self._line("agent", most=1_000) if "agent" in self._data else None,
            must_add=must_add,
        )
        self._check(role)
        return role

    def _check(self, role: Role) -> None:
        """Refuse what contradicts itself: a role that is let write only in its list of tools, or the other way."""
        if role.writes and role.output != "change":
            raise self._wrong("output", role.output, "a role that writes ends with a change", "writes = false")
        if role.writes:
            return
        if role.output == "change":
            hint = 'output = "report", or "plan"; or writes = true'
            raise self._wrong("output", role.output, "a role that does not write leaves no change", hint)
        for tool in sorted(_WRITERS.intersection(role.tools)):
            raise self._wrong("tools", tool, "the tool writes, and the role does not", "take it out of the list")
        for key in ("areas", "must_add"):
            if self._data.get(key):
                raise self._wrong(key, self._data[key], "it is for roles that write", "take it out")

    def _wrong(self, key: str, value: object, why: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._place}: key {key!r}: {_shown(value)}: {why}", code="role_invalid", hint=hint)

    def _text(self, key: str, *, most: int) -> str:
        value = self._data[key]
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(key, value, "it is a text that is not empty", f'write {key} = "…"')
        if len(value) > most:
            raise self._wrong(key, value, f"it has {len(value)} characters, more than {most}", "make it shorter")
        if "\0" in value:
            raise self._wrong(key, value, "it holds a zero byte", "take it out")
        return value

    def _line(self, key: str, *, most: int) -> str:
        value = self._text(key, most=most)
        if _CONTROL.search(value):
            raise self._wrong(key, value, "it is one line without control characters", "write it on one line")
        return value.strip()

    def _flag(self, key: str) -> bool:
        value = self._data[key]
        if not isinstance(value, bool):
            raise self._wrong(key, value, "it is true or false", "write it without quotes")
        return value

    def _choice(self, key: str, known: tuple[_C, ...]) -> _C | None:
        if key not in self._data:
            return None
        for each in known:
            if self._data[key] == each:
                return each
        raise self._wrong(key, self._data[key], "there is no such value", "one of: " + ", ".join(known))

    def _lines(self, key: str) -> tuple[str, ...]:
        value = self._data.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value, "it is a list of texts", 'write ["a", "b"]')
        for each in value:
            if not isinstance(each, str) or not each.strip() or _CONTROL.search(each):
                raise self._wrong(key, each, "it is a list of texts, each one line", 'write ["a", "b"]')
        return tuple(dict.fromkeys(each.strip() for each in value))

    def _tools(self) -> tuple[str, ...]:
        names = [spec.name for spec in SPECS]
        tools = self._lines("tools")
        for tool in tools:
            if tool not in names and not _MCP.fullmatch(tool):
                hint = f"{nearest(tool, names)}; patterns begin with mcp_"
                raise self._wrong("tools", tool, "there is no such tool", hint)
        return tools

    def _areas(self) -> tuple[str, ...]:
        areas = self._lines("areas")
        for area in areas:
            parts = area.strip("/").split("/")
            if area.startswith(("!", "#")) or {"", ".", ".."} & set(parts):
                hint = "write 'docs/**' or '*.md', as in .gitignore; what is not meant is not listed"
                raise self._wrong("areas", area, "it is no plain pattern below the repository", hint)
        return areas


def _shown(value: object) -> str:
    text = repr(value)
    return printable(text if len(text) <= 100 else text[:97] + "…")
