"""Checks whether the chosen agent can start, before a mission is recorded, and says how to fix it."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Callable, Mapping

from msgspec import Struct

from chargehand.agents.clis import SPECS
from chargehand.app.providers.served import require_served
from chargehand.app.selection.agents import named_agent, patch_text
from chargehand.core.config import AgentConfig, Config
from chargehand.core.errors import UsageError
from chargehand.core.ports import KeySource
from chargehand.core.text import shown_path
from chargehand.sandbox.contract import WORKSPACE
from chargehand.sandbox.toolchain import Toolchain
from chargehand.workspace.depot import Depot

_OTHER_AGENT = "name another agent with --agent; `chargehand agent list` shows all"
_INSTALL = "install it on PATH, or show its directory: chargehand config set sandbox.toolchain '[\"/DIRECTORY\"]'"


class StartPlace(Struct, frozen=True, kw_only=True):
    """The place where an agent would start: a directory of a base's tree, with the programs of a toolchain.

    `setup_expected` returns whether a setup, which may install programs, runs before the agent.
    """

    depot: Depot
    tree: str
    directory: str
    toolchain: Callable[[], Toolchain]
    setup_expected: Callable[[], bool]

    def require_program(self, program: str, agent: AgentConfig) -> None:
        """Raise `UsageError` (`agent_missing`) if a sandbox would not find a program."""
        toolchain = self.toolchain()
        inside = program.startswith(f"{WORKSPACE}/")
        if "/" in program and (inside or not program.startswith("/")):
            path = posixpath.relpath(program, WORKSPACE) if inside else posixpath.join(self.directory, program)
            path = posixpath.normpath(path)
            entry = self.depot.lookup(self.tree, path)
            if entry is not None and stat.S_ISREG(entry.mode) and not entry.mode & stat.S_IXUSR:
                raise UsageError(
                    f"the agent's program {shown_path(program)!r} is not executable in the base",
                    code="agent_missing",
                    hint=f"run `git update-index --chmod=+x {shown_path(path)}` and commit, or {_OTHER_AGENT}",
                )
            found = entry is not None and not stat.S_ISDIR(entry.mode)
            where = "a file of the base"
            mend = "commit it first"
        else:
            # Every sandbox with `python3` also has `python`.
            name = "python3" if program == "python" else program
            found = bool(toolchain.find(program) or toolchain.find(name))
            where = "where sandboxes look for programs"
            mend = _INSTALL
        # A project's setup may install a configured command, but not a known CLI.
        if found or (agent.command and self.setup_expected()):
            return
        directory, _, base = program.rpartition("/")
        why = ""
        for hidden in toolchain.not_shown:
            if not why and base in hidden.names and directory in ("", hidden.directory):
                why = f" ({hidden.directory} is not shown to them: {hidden.problem})"
        raise UsageError(
            f"the agent's program {shown_path(program)!r} is not {where}{why}",
            code="agent_missing",
            hint=f"{mend}\nor {_OTHER_AGENT}",
        )


def require_ready(
    config: Config,
    name: str,
    models: tuple[str, ...],
    *,
    place: StartPlace,
    keys: KeySource,
    environ: Mapping[str, str],
) -> None:
    """Return if the agent with that name or short form, and the models it may call, can be started.

    Raises `UsageError`: `agent_missing` for a missing program, `agent_unable` for one that Chargehand cannot run,
    `no_model`, `file_unreadable` for a patch; `ConfigError` for a model without address, key or script
    (`no_base_url`, `no_key`, `no_script`).
    """
    agent = named_agent(config, name)
    if agent.kind == "patch" and agent.patch is not None:
        patch_text(agent.patch)
    for model in models:
        require_served(model, config, keys=keys, environ=environ)
    spec = SPECS[agent.cli] if agent.cli is not None else None
    if spec is not None:
        why = f"{spec.name} cannot be driven: {spec.outside}" if spec.outside else ""
        if agent.kind == "acp" and spec.acp is None:
            why = why or f"{spec.name} does not speak the Agent Client Protocol by itself"
        if why and not agent.command:
            raise UsageError(f"agent {name!r}: {why}", code="agent_unable", hint=_OTHER_AGENT)
        if not models and spec.dialects:
            raise UsageError(
                f"agent {name!r} needs a model, and no model was named",
                code="no_model",
                hint="add --model NAME, or --model anthropic:MODEL; `chargehand model list` shows all",
            )
    # "" for an agent that is not a separate program.
    program = agent.command[0] if agent.command else spec.program if spec is not None else ""
    # The programs of an image are known only once it runs.
    if program and not (config.sandbox.container_image and config.sandbox.tier in ("auto", "container")):
        place.require_program(program, agent)
