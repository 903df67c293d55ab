"""What a role is: what an agent is told, which tools it has, where it may write, and what it has to leave."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal, get_args

RoleOutput = Literal["change", "report", "plan"]
"""What a role's work ends with: a changed tree, or a text and the tree as it was."""
ROLE_OUTPUTS: tuple[RoleOutput, ...] = get_args(RoleOutput)
MustAdd = Literal["failing_test", "decision_record"]
"""What a change in the role has to hold, checked by the machine."""
MUST_ADD: tuple[MustAdd, ...] = get_args(MustAdd)
DEVELOPER = "developer"
"""The role of whoever names none."""
FINISH_TOOL = "finish"
"""Every role has it, whatever its list says: there would be no end without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role as its file says it; `tools` are names or `mcp_*` patterns, `areas` patterns as in .gitignore.

    An empty `areas` is everything the mission may change. `models` is a chain, the first one to begin with, and
    `agent` is what `--agent` would name; both may be left to the configuration.
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
        """Tell whether a tool is in the role's list."""
        return tool == FINISH_TOOL or any(fnmatchcase(tool, pattern) for pattern in self.tools)


NO_ROLE = Role(name="", summary="", prompt="", tools=("*",), writes=True)
"""The role of missions that were asked for before there were roles: nothing is told, nothing is kept from it."""


def role_digest(text: str) -> str:
    """Return the hex SHA-256 of a role's file, by which the log tells one version from another."""
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def shipped_roles() -> dict[str, str]:
    """Return the text of every role file that comes with the program, by name."""
    directory = resources.files("chargehand.agents") / "roles"
    files = sorted((each for each in directory.iterdir() if each.name.endswith(".toml")), key=lambda f: f.name)
    return {each.name.removesuffix(".toml"): each.read_text("utf-8") for each in files}
