"""The key table, read off the sections' records."""

from __future__ import annotations

import re
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict

from chargehand.core.config import (
    ActionsConfig,
    AgentConfig,
    AlertsConfig,
    EngineConfig,
    LimitsConfig,
    LogConfig,
    McpConfig,
    ModelConfig,
    ProjectConfig,
    RoleConfig,
    SandboxConfig,
    ServerConfig,
    TracesConfig,
)

Shape = Literal["text", "list", "integer", "number", "flag", "seconds", "choice"]
SECTIONS: tuple[tuple[str, type[Struct]], ...] = (
    ("project", ProjectConfig),
    ("limits", LimitsConfig),
    ("sandbox", SandboxConfig),
    ("engine", EngineConfig),
    ("actions", ActionsConfig),
    ("server", ServerConfig),
    ("alerts", AlertsConfig),
    ("log", LogConfig),
    ("traces", TracesConfig),
)
AGENTS = "agents"
MODELS = "models"
ROLES = "roles"
MCP = "mcp"
# The tables of tables: `[agents.NAME]`, `[models.NAME]`, `[roles.NAME]`, `[mcp.NAME]`.
NAMED: dict[str, type] = {AGENTS: AgentConfig, MODELS: ModelConfig, ROLES: RoleConfig, MCP: McpConfig}
ENTRY_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# What stands for an entry's name in the table.
NAME = "NAME"


class ConfigKey(Struct, frozen=True, kw_only=True):
    """One row of the table; `section` is `agents.NAME` and the like for the keys of their entries."""

    section: str
    field: str
    doc: str
    meet: str
    form: str
    empty: str
    host: bool
    shape: Shape
    choices: tuple[str, ...]
    default: Any

    @property
    def name(self) -> str:
        """The dotted name."""
        return f"{self.section}.{self.field}"


_PLAIN: dict[type, Shape] = {str: "text", bool: "flag", int: "integer", float: "number"}


def _rows(section: str, cls: type[Struct]) -> tuple[ConfigKey, ...]:
    hints = get_type_hints(cls, include_extras=True)
    rows = []
    # Every key needs a default: with one missing the two tuples differ in length.
    for name, default in zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True):
        hint, spec = get_args(hints[name])
        kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
        kind, choices = kinds[0], ()
        shape: Shape
        if get_origin(kind) is Literal:
            shape, choices = "choice", get_args(kind)
        elif get_origin(kind) is tuple:
            shape = "list"
        else:
            shape = "seconds" if spec.form == "seconds" else _PLAIN[kind]
        rows.append(
            ConfigKey(section=section, field=name, shape=shape, choices=choices, default=default, **asdict(spec))
        )
    return tuple(rows)


# Not at import: evaluating the annotations is left to those who ask for a key.
@cache
def section_keys() -> dict[str, ConfigKey]:
    """Return the keys of the plain sections by dotted name, in the order they are documented."""
    return {key.name: key for section, cls in SECTIONS for key in _rows(section, cls)}


@cache
def entry_keys(table: str) -> dict[str, ConfigKey]:
    """Return the keys of the entries of `agents`, `models`, `roles` or `mcp` by field."""
    return {key.field: key for key in _rows(f"{table}.{NAME}", NAMED[table])}


def agent_keys() -> dict[str, ConfigKey]:
    """Return the keys of `[agents.NAME]` by field."""
    return entry_keys(AGENTS)


def section_names() -> tuple[str, ...]:
    """Return the names of all top-level tables."""
    return (*(name for name, _ in SECTIONS), *NAMED)


def find_key(dotted: str) -> ConfigKey | None:
    """Return the row of a dotted name such as `limits.time` or `agents.fixer.command`."""
    if dotted in section_keys():
        return section_keys()[dotted]
    table, _, field = dotted.rpartition(".")
    section, _, name = table.partition(".")
    if section in NAMED and ENTRY_NAME.fullmatch(name):
        return entry_keys(section).get(field)
    return None


def known_names() -> tuple[str, ...]:
    """Return every dotted name, with NAME for an entry's."""
    return (*section_keys(), *(key.name for table in NAMED for key in entry_keys(table).values()))
