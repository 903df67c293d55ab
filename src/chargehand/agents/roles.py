"""Roles: an agent's prompt, its tools, the paths it may write, and its required output."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct

from chargehand.agents.tool_specs import MAP_TOOLS, MUTATING, SPECS
from chargehand.core.errors import ConfigError, nearest
from chargehand.core.text import late_pattern, printable

# The result of a role's work: a changed tree, or a text and an unchanged tree.
RoleOutput = Literal["change", "report", "plan"]
ROLE_OUTPUTS: tuple[RoleOutput, ...] = get_args(RoleOutput)
# A required part of a change in the role, checked by the machine.
MustAdd = Literal["failing_test", "decision_record"]
MUST_ADD: tuple[MustAdd, ...] = get_args(MustAdd)
# The default role.
DEVELOPER = "developer"
# Every role has it, regardless of its list: otherwise an agent could not finish.
FINISH_TOOL = "finish"


class Role(Struct, frozen=True, kw_only=True):
    """One role as its file defines it; `tools` are names or `mcp_*` patterns, `areas` patterns as in .gitignore.

    An empty `areas` is everything that the mission may change. `models` is a chain, the first one to begin with,
    and `agent` is a value of `--agent`; both may be left to the configuration.
    """

    name: str
    summary: str
    prompt: str
    tools: tuple[str, ...]
    writes: bool
    output: RoleOutput = "change"
    areas: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    agent: str | None = None
    must_add: MustAdd | None = None

    def may_use(self, tool: str) -> bool:
        """Return whether a tool is in the role's list."""
        if tool in MAP_TOOLS and tool not in self.tools:
            tool = "search"
        return tool == FINISH_TOOL or any(fnmatchcase(tool, pattern) for pattern in self.tools)


# The role of missions from before roles existed: it adds no prompt and restricts nothing.
NO_ROLE = Role(name="", summary="", prompt="", tools=("*",), writes=True)


@cache
def shipped_roles() -> dict[str, str]:
    """Return the text of every role file that ships with the program, by name."""
    directory = resources.files("chargehand.agents") / "roles"
    files = sorted((each for each in directory.iterdir() if each.name.endswith(".toml")), key=lambda f: f.name)
    return {each.name.removesuffix(".toml"): each.read_text("utf-8") for each in files}


ROLE_NAME = late_pattern(r"[a-z0-9][a-z0-9_-]{0,63}")
# Not a name of a role: [roles.default] is for all of them.
RESERVED = "default"
LONGEST_PROMPT = 20_000
_LONGEST_SUMMARY = 200
_KEYS = ("summary", "prompt", "tools", "writes", "areas", "models", "agent", "output", "must_add")
_REQUIRED = ("summary", "prompt", "tools", "writes")
_MCP = late_pattern(r"mcp_[A-Za-z0-9_.*?-]*")
_CONTROL = late_pattern(r"[\x00-\x1f\x7f]")
# bash is left out: a role that only reads may run commands, since its workspace is mounted read-only.
_WRITERS = MUTATING - {"bash"}
_C = TypeVar("_C", bound=str)


def check_role_name(name: str, *, place: str) -> None:
    """Raise `ConfigError` (`role_invalid`) for an invalid role name."""
    # It becomes a file name and a key of the configuration.
    if not ROLE_NAME.fullmatch(name) or name == RESERVED:
        why = "means all roles in the configuration" if name == RESERVED else "is not a valid role name"
        hint = "use lower-case letters, digits, '-' and '_', at most 64; not 'default'"
        raise ConfigError(f"{place}: {_quote_value(name)} {why}", code="role_invalid", hint=hint)


def parse_role(name: str, text: str, *, place: str) -> Role:
    """Parse a role file; raises `ConfigError` (`role_invalid`) naming `place`, key and value."""
    check_role_name(name, place=place)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{place}: not valid TOML: {printable(str(error)) or 'nested too deeply'}"
        raise ConfigError(message, code="role_invalid", hint="fix the syntax of the file") from error
    return _RoleTable(place, data).role(name)


class _RoleTable:
    """The table of a role's file, read key by key; each problem names file, key and value."""

    def __init__(self, place: str, data: Mapping[str, Any]) -> None:
        self._place = place
        self._data = data

    def role(self, name: str) -> Role:
        """Return the role; raises `ConfigError` (`role_invalid`)."""
        for key, value in self._data.items():
            if key not in _KEYS:
                raise self._invalid(key, value, "is not a known key", nearest(key, _KEYS))
        for key in _REQUIRED:
            if key not in self._data:
                raise ConfigError(
                    f"{self._place}: key {key!r} is missing",
                    code="role_invalid",
                    hint="see `chargehand role show developer` for an example",
                )
        output: RoleOutput = self._read_choice("output", ROLE_OUTPUTS) or "change"
        must_add: MustAdd | None = self._read_choice("must_add", MUST_ADD)
        writes = self._data["writes"]
        if not isinstance(writes, bool):
            raise self._invalid("writes", writes, "must be true or false", "write it without quotes")
        summary = self._read_line("summary", most=_LONGEST_SUMMARY)
        prompt = self._read_text("prompt", most=LONGEST_PROMPT).strip()
        tools, names = self._read_lines("tools"), [spec.name for spec in SPECS]
        for tool in tools:
            if tool not in names and not _MCP.fullmatch(tool):
                hint = f"{nearest(tool, names)}; patterns begin with mcp_"
                raise self._invalid("tools", tool, "names an unknown tool", hint)
        areas = self._read_lines("areas")
        for area in areas:
            parts = area.strip("/").split("/")
            if area.startswith(("!", "#")) or {"", ".", ".."} & set(parts):
                hint = "write 'docs/**' or '*.md', as in .gitignore; exclusions are not supported"
                raise self._invalid("areas", area, "must be a plain pattern below the repository", hint)
        role = Role(
            name=name,
            summary=summary,
            prompt=prompt,
            tools=tools,
            writes=writes,
            output=output,
            areas=areas,
            models=self._read_lines("models"),
            agent=self._read_line("agent", most=1_000) if "agent" in self._data else None,
            must_add=must_add,
        )
        self._check_consistency(role)
        return role

    def _check_consistency(self, role: Role) -> None:
        """Refuse a role that contradicts itself, for example one with writing tools that does not write."""
        if role.writes and role.output != "change":
            raise self._invalid(
                "output", role.output, "must be 'change' in a role that writes", "set writes = false"
            )
        if role.writes:
            return
        if role.output == "change":
            hint = 'set output = "report" or "plan", or writes = true'
            raise self._invalid("output", role.output, "needs a role that writes", hint)
        for tool in sorted(_WRITERS.intersection(role.tools)):
            raise self._invalid("tools", tool, "has a tool that writes, but writes = false", "remove the tool")
        for key in ("areas", "must_add"):
            if self._data.get(key):
                raise self._invalid(key, self._data[key], "is only for roles that write", "remove the key")

    def _invalid(self, key: str, value: object, why: str, hint: str) -> ConfigError:
        message = f"{self._place}: key {key!r} {why}, got {_quote_value(value)}"
        return ConfigError(message, code="role_invalid", hint=hint)

    def _read_text(self, key: str, *, most: int) -> str:
        value = self._data[key]
        if not isinstance(value, str) or not value.strip():
            raise self._invalid(key, value, "must be a text that is not empty", f'write {key} = "…"')
        if len(value) > most:
            raise self._invalid(key, value, f"has {len(value)} characters, more than {most}", "make it shorter")
        if "\0" in value:
            raise self._invalid(key, value, "must not contain a zero byte", "remove it")
        return value

    def _read_line(self, key: str, *, most: int) -> str:
        value = self._read_text(key, most=most)
        if _CONTROL.search(value):
            raise self._invalid(key, value, "must be one line without control characters", "write it on one line")
        return value.strip()

    def _read_choice(self, key: str, known: tuple[_C, ...]) -> _C | None:
        if key not in self._data:
            return None
        for each in known:
            if self._data[key] == each:
                return each
        raise self._invalid(key, self._data[key], "has an unknown value", "use one of: " + ", ".join(known))

    def _read_lines(self, key: str) -> tuple[str, ...]:
        value = self._data.get(key, [])
        if not isinstance(value, list):
            raise self._invalid(key, value, "must be a list of texts", 'write ["a", "b"]')
        for each in value:
            if not isinstance(each, str) or not each.strip() or _CONTROL.search(each):
                raise self._invalid(key, each, "must be a list of texts of one line each", 'write ["a", "b"]')
        return tuple(dict.fromkeys(each.strip() for each in value))


def _quote_value(value: object) -> str:
    text = repr(value)
    return printable(text if len(text) <= 100 else text[:97] + "…")
