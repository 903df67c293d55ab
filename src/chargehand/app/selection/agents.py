"""Available agents: configured ones and the short forms of `--agent`."""

from __future__ import annotations

import shlex
from pathlib import Path

from chargehand.agents.contract import Agent, McpServer
from chargehand.agents.kinds import AGENTS
from chargehand.agents.opening import open_agent
from chargehand.agents.probe import AgentIdentity, identify_agent
from chargehand.configuration.keys import agent_keys, format_value, parse_text, parse_value
from chargehand.configuration.records import ResolvedConfig
from chargehand.core.config import AgentConfig, Config
from chargehand.core.errors import ConfigError, NotFoundError, UsageError, nearest
from chargehand.core.records import MissionRequest
from chargehand.sandbox.contract import SandboxLimits, SandboxSpec
from chargehand.sandbox.probe import scratch_plan
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain

# The built-in agent: a model with tools.
NATIVE = "native"
_CONFIGURE_HINT = (
    'configure one with [agents.NAME] and command = ["program", "argument"], or use --agent "command:PROGRAM ARG"'
)
_SHORT_FORMS = ("command:PROGRAM ARG…", "native:MODEL", "cli:NAME", "acp:PROGRAM ARG…", "patch:FILE")


def agent_from_option(text: str) -> AgentConfig:
    """Return the agent of a short form.

    The forms are `command:PROGRAM ARG…` (words split as a shell splits them), `native:MODEL`, `cli:NAME`,
    `acp:PROGRAM ARG…` (or `acp:` and the name of a CLI) and `patch:FILE`. Raises `ConfigError` for another kind,
    unbalanced quotes or a missing program.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in agent_keys()["kind"].choices:
        forms = ", ".join(_SHORT_FORMS)
        raise ConfigError(
            f"--agent: unknown agent kind {format_value(kind)} in {format_value(text)}",
            hint=AGENTS.explain(kind) or f"known: {forms}",
        )
    keys = agent_keys()
    match kind:
        case "native":
            return AgentConfig(kind="native", model=parse_text(keys["model"], rest, "--agent"))
        case "cli":
            return AgentConfig(kind="cli", cli=parse_text(keys["cli"], rest, "--agent"))
        case "patch" if rest and not Path(rest).expanduser().is_absolute():
            # A worker in any directory reads it.
            here = Path(rest).absolute()
            hint = f"write --agent {shlex.quote(f'patch:{here}')}" if here.is_file() else "write its full path"
            raise ConfigError(f"--agent: {format_value(rest)} is not the full path of a patch", hint=hint)
        case "patch":
            return AgentConfig(kind="patch", patch=parse_text(keys["patch"], rest, "--agent") if rest else None)
        case "acp" if rest in keys["cli"].choices:
            return AgentConfig(kind="acp", cli=parse_text(keys["cli"], rest, "--agent"))
    try:
        words = shlex.split(rest)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(
            f"--agent: {format_value(text)} cannot be split into words: {reason}", hint=_CONFIGURE_HINT
        ) from error
    # Only our own kinds of programs need one: what an extension's kind needs, it checks itself.
    own = kind in ("command", "acp")
    command = parse_value(keys["command"], words, "--agent") if words or own else ()
    return AgentConfig(kind=kind, command=command)


def patch_text(file: str) -> str:
    """Return the text of a patch agent's file; raise `UsageError` (`file_unreadable`)."""
    path = Path(file).expanduser()
    try:
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"the patch {str(path)!r} cannot be read: {why}",
            code="file_unreadable",
            hint="name a file with --agent patch:FILE",
        ) from error


def find_agent(config: Config, name: str) -> AgentConfig:
    """Return the configured agent with that name; `native` exists without configuration.

    Raises `NotFoundError` with the nearest name, the list and a hint for configuring one.
    """
    agent = config.agents.get(name)
    if agent is not None:
        return agent
    if name == NATIVE:
        return AgentConfig(kind="native")
    names = {*config.agents, NATIVE}
    guess = nearest(name, names)
    known = "known: " + ", ".join(sorted(names))
    hint = f"{guess} {known}" if guess.startswith("did") else known
    if name in agent_keys()["cli"].choices:
        hint = f"to run the program {name}: --agent cli:{name} --model MODEL; {hint}"
    raise NotFoundError(f"no agent named {format_value(name)}", hint=f"{hint}; {_CONFIGURE_HINT}")


def named_agent(config: Config, option: str) -> AgentConfig:
    """Return the agent with that name or short form; raise `NotFoundError` or `ConfigError`."""
    return agent_from_option(option) if ":" in option else find_agent(config, option)


def requested_agent(resolved: ResolvedConfig, request: MissionRequest) -> Agent:
    """Return the agent of a mission, with the models it may call; raise as `named_agent` and `open_agent` do."""
    models = (*([request.model] if request.model else ()), *request.fallback)
    agent = named_agent(resolved.config, request.agent)
    servers = ((name, resolved.config.mcp[name]) for name in agent.mcp if name in resolved.config.mcp)
    return open_agent(
        request.agent,
        agent,
        models=tuple(dict.fromkeys(models)),
        read=patch_text,
        mcp=tuple(
            McpServer(
                name=name,
                command=each.command,
                environment=dict(variable.split("=", 1) for variable in each.environment),
                tools=each.tools,
                seconds=each.time,
            )
            for name, each in servers
        ),
    )


_LIMITS = SandboxLimits(memory_mb=4096, processes=256, tmp_mb=256)


async def probe_agent(config: AgentConfig, toolchain: Toolchain, *, scratch: Path) -> AgentIdentity:
    """Start a `cli` or `acp` agent in a sandbox below `scratch` to identify it; it has no access to models.

    Raises `TierUnavailableError` if no sandbox is available.
    """
    async with ProcessTier(toolchain) as tier:
        with scratch_plan(scratch, "worktree") as plan:
            sandbox = await tier.open(SandboxSpec(mounts=plan, limits=_LIMITS))
            try:
                return await identify_agent(config, sandbox)
            finally:
                await sandbox.close()
