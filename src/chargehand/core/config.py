"""The configuration's sections: one documented line per key, with its unit; unknown keys are errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

AgentKind = Literal["command", "native", "cli", "acp", "patch"]
CliName = Literal["claude", "codex", "cursor", "gemini", "opencode", "qwen"]
Provider = Literal[
    "openai",
    "openai-responses",
    "anthropic",
    "gemini",
    "ollama",
    "resetdata",
    "openai-compatible",
    "anthropic-compatible",
    "script",
]
Tier = Literal["process", "container", "vm", "none", "auto"]
Strategy = Literal["shadow", "direct"]


def _key(
    doc: str,
    *,
    default: Any = None,
    default_factory: Any = None,
    meet: str = "user",
    form: str = "",
    empty: str = "none",
    host: bool = False,
) -> Any:
    """Declare a key: its documentation, what its values look like and how a repository's own file joins.

    `meet` is `min` (numbers), `intersect` or `union` (lists), `repo` (the repository may simply say it) or
    `user` (only the user's file, the environment or the command line may; the repository's needs trust).
    `form` is what a text or number must be: `command`, `argv`, `area`, `path`, `host`, `url`, `http`, `name`,
    `secret` (the name of one), `variable` (NAME=value), `model`, `agent` (as after --agent), `seconds`, `tokens`,
    `money` (0 is free) or `budget` (more than 0).
    `empty` says what an empty list of an `intersect` key allows: `all` or `none`. `host` marks a program
    that runs on the host where there is no sandbox: the repository's then needs trust.
    """
    metadata = {"doc": doc, "meet": meet, "form": form, "empty": empty, "host": host}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectConfig:
    """[project]: what the repository says of itself."""

    checks: tuple[str, ...] | None = _key(
        "commands that must all pass on the exact tree; absent: detected, []: none wanted",
        meet="union",
        form="command",
        host=True,
    )
    setup: str | None = _key(
        "command whose result becomes the environment layer", meet="repo", form="command", host=True
    )
    setup_inputs: tuple[str, ...] = _key(
        "paths added to the default inputs of the environment layer's key", default=(), meet="union", form="area"
    )
    allow: tuple[str, ...] = _key(
        "areas (patterns as in .gitignore) a mission may change; empty: all",
        default=(),
        meet="intersect",
        form="area",
        empty="all",
    )
    forbid: tuple[str, ...] = _key(
        "areas no mission may change; wins over allow", default=(), meet="union", form="area"
    )
    protect: tuple[str, ...] = _key(
        "areas only a person may let changes into; wins over allow", default=(), meet="union", form="area"
    )
    include: tuple[str, ...] = _key("ignored paths that belong to the tree", default=(), meet="repo", form="area")
    strategy: Strategy = _key("shadow (overlay) or direct (a private worktree)", default="shadow", meet="repo")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """[agents.NAME]: what does the work: a program, a model that is given tools (native), or a patch."""

    kind: AgentKind = _key(
        "kind of agent: command, native, cli (a known agent CLI), acp (Agent Client Protocol) or patch",
        default="command",
        meet="repo",
    )
    command: tuple[str, ...] = _key(
        "program and arguments, never given to a shell; of cli: instead of the program by its own name",
        default=(),
        meet="repo",
        form="argv",
        host=True,
    )
    cli: CliName | None = _key("which CLI a cli agent is; of acp: whose settings it is given", meet="repo")
    patch: str | None = _key("file that a patch agent applies; absent: the request is the patch", form="path")
    model: str | None = _key(
        "the entry of [models] it works with, or provider:model; a program gets it as an endpoint",
        form="name",
    )
    fallback: tuple[str, ...] = _key("entries of [models] to switch to when it is stuck", default=(), form="name")
    mcp: tuple[str, ...] = _key(
        "of native: entries of [mcp] whose tools it is given, inside its sandbox", default=(), form="name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """[models.NAME]: a model and where it is reached: the user's own word, or that of a trusted repository."""

    provider: Provider = _key("what serves the model", default="openai-compatible")
    model: str | None = _key("the provider's name for the model; absent: the entry's own name", form="model")
    base_url: str | None = _key("where the provider is reached; absent: its own address", form="http")
    key: str | None = _key(
        "name of the secret or environment variable that holds the API key; absent: the provider's usual one, "
        "and only for its own address",
        form="secret",
    )
    script: str | None = _key("file of a script or recording that answers instead of a provider", form="path")
    price: float | None = _key("USD per million tokens, in and out; 0 for free", form="money")
    price_in: float | None = _key("USD per million tokens read", form="money")
    price_out: float | None = _key("USD per million tokens written", form="money")
    context: int | None = _key("tokens that fit into its context", form="tokens")
    max_output: int | None = _key("tokens of one reply at most", form="tokens")
    tools: bool | None = _key(
        "whether it takes tools; false: they are described in text; absent: as the catalogue says, else it does"
    )
    images: bool | None = _key(
        "whether it takes pictures and files; false: such calls go to its fallback; absent: as the catalogue "
        "says, else it does"
    )
    modalities: tuple[str, ...] = _key(
        "what it takes beside text: image, pdf, audio, video; empty: as the catalogue says",
        default=(),
        form="modality",
    )
    reasoning: bool | None = _key("whether it reasons before it replies; absent: as the catalogue says")
    fallback: tuple[str, ...] = _key(
        "models that answer in its place where it cannot, in order", default=(), form="name"
    )
    concurrency: int | None = _key("calls to its provider at once; absent: as many as come", form="tokens")
    per_minute: int | None = _key(
        "calls to its provider begun in a minute; absent: as many as come", form="tokens"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig:
    """[roles.NAME]: who works in a role; [roles.default] is for every role that says nothing itself."""

    agent: str | None = _key("the agent that works in the role", form="agent")
    model: str | None = _key("the entry of [models] that works in the role, or provider:model", form="name")
    fallback: tuple[str, ...] = _key(
        "entries of [models], or provider:model, to switch to when it is stuck or fails", default=(), form="name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class McpConfig:
    """[mcp.NAME]: a server whose tools native agents get: the user's own word, or that of a trusted repository."""

    command: tuple[str, ...] = _key(
        "program and arguments, run in /workspace inside the attempt's sandbox and spoken to by its streams",
        default=(),
        form="argv",
    )
    environment: tuple[str, ...] = _key(
        "variables that it is started with; never a secret: the agent can read them",
        default=(),
        form="variable",
    )
    tools: tuple[str, ...] = _key("its tools that are offered; empty: all", default=(), form="name")
    time: float = _key("time for one call, and for its start with it", default=60.0, form="seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """[limits]: what a mission may use at most."""

    time: float = _key("time for a whole mission", default=1800.0, meet="min", form="seconds")
    check_time: float = _key("time for one check", default=900.0, meet="min", form="seconds")
    attempts: int = _key("runs of the agent at most", default=1, meet="min")
    budget_usd: float = _key("money for a whole mission in USD", default=5.0, meet="min", form="budget")
    attempt_usd: float | None = _key(
        "money for one attempt in USD; absent: the mission's", meet="min", form="budget"
    )
    task_usd: float | None = _key(
        "money for one task of a mission in USD, all attempts together; absent: the mission's",
        meet="min",
        form="budget",
    )
    user_usd: float | None = _key(
        "money for all that one user starts in a day (UTC), in all projects, in USD; absent: no limit",
        form="budget",
    )
    day_usd: float | None = _key("money for all calls of a day (UTC) in USD; absent: no limit", form="budget")
    assume_usd_per_mtok: float | None = _key(
        "price assumed for remote models of unknown price, in USD per million tokens; absent: they are refused",
        form="money",
    )
    state_mb: int = _key(
        "disk of all projects' depots, bases, layers and workspaces together in MiB; the user's own word",
        default=10240,
    )
    workspace_age: float = _key(
        "age at which a workspace that no mission needs is removed; the user's own word",
        default=86400.0,
        form="seconds",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """[sandbox]: where agents and checks run."""

    tier: Tier = _key(
        "process, container, vm, auto (by sensitivity), or none (no sandbox: your own risk)", default="process"
    )
    container_program: str | None = _key(
        "container engine, podman or docker, by name or path; absent: the first that works", form="name"
    )
    container_image: str | None = _key(
        "image that the engine has, with python3, sh and the project's programs; absent: the host's own /usr",
        form="name",
    )
    network: tuple[str, ...] = _key(
        "hosts that agents, setup and `exec` may reach, `private:` before one that is not public; empty: none",
        default=(),
        meet="intersect",
        form="host",
    )
    network_checks: bool = _key("whether checks may reach the hosts of network too", default=False)
    network_mb_in: int = _key("what one sandbox gets from hosts in MiB", default=2048, meet="min")
    network_mb_out: int = _key("what one sandbox sends to hosts in MiB", default=256, meet="min")
    network_requests: int = _key("requests to hosts per second; more wait", default=50, meet="min")
    network_connections: int = _key("connections to hosts at once", default=64, meet="min")
    network_idle: float = _key(
        "time without a byte after which one is cut", default=120.0, meet="min", form="seconds"
    )
    toolchain: tuple[str, ...] = _key("host directories shown read-only, first on PATH", default=(), form="path")
    memory_mb: int = _key("memory in MiB", default=4096, meet="min")
    processes: int = _key("processes and threads", default=512, meet="min")
    tmp_mb: int = _key("size of /tmp, and of the home, in MiB each", default=1024, meet="min")
    open_files: int = _key("files that one process has open", default=4096, meet="min")
    file_mb: int | None = _key("size of one file in MiB; absent: disk_mb", meet="min")
    output_mb: int = _key("what one command writes to its two streams in MiB", default=256, meet="min")
    cpu_percent: int | None = _key(
        "share of processor time in percent, 100 for one processor; absent: all there are", meet="min"
    )
    cpu_time: float | None = _key(
        "processor time of everything in one sandbox; absent: no limit", meet="min", form="seconds"
    )
    disk_mb: int = _key("files that one attempt writes in MiB, ignored ones too", default=1024, meet="min")
    files: int = _key("files that one attempt writes, ignored ones too", default=100_000, meet="min")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """[engine]: what schedules missions over workers."""

    url: str | None = _key("PostgreSQL that workers of several machines share; absent: a file", form="url")
    lease: float = _key("time after which a worker that says nothing is given up", default=20.0, form="seconds")
    attempts_at_once: int = _key("agents that work at the same time, in all processes together", default=5)
    memory_mb: int | None = _key(
        "memory of all sandboxes together in MiB: the machine's profile makes the defaults of sandbox.memory_mb, "
        "sandbox.tmp_mb, attempts_at_once and checks_at_once of it; absent: four fifths of the machine's"
    )
    checks_at_once: int | None = _key(
        "verdicts whose checks run at the same time, in all processes together; absent: one per core"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsConfig:
    """[actions]: git and `exec` by hand, as records with an id."""

    git_at_once: int = _key("git actions at the same time, in all processes together; more wait", default=4)
    time: float = _key("time for one action once it began", default=60.0, form="seconds")
    protocols: tuple[str, ...] = _key(
        "how remotes may be reached: file, https, ssh, http, git", default=("file", "https", "ssh"), form="name"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All that is configured, resolved; see `app` for the order of the sources."""

    project: ProjectConfig = field(default_factory=ProjectConfig)
    agents: dict[str, AgentConfig] = field(default_factory=dict)
    models: dict[str, ModelConfig] = field(default_factory=dict)
    roles: dict[str, RoleConfig] = field(default_factory=dict)
    mcp: dict[str, McpConfig] = field(default_factory=dict)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    actions: ActionsConfig = field(default_factory=ActionsConfig)
