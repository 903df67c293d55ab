"""The configuration's sections: one documented line per key, with its unit; unknown keys are errors."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from chargehand.core.limits import KeySpec as KeySpec
from chargehand.core.limits import LimitsConfig as LimitsConfig
from chargehand.core.limits import SandboxConfig as SandboxConfig
from chargehand.core.own_config import (
    AlertsConfig,
    LogConfig,
    SecretsConfig,
    ServerConfig,
    SignInConfig,
    TracesConfig,
)
from chargehand.core.records import FlakyPolicy

Strategy = Literal["shadow", "direct"]


class ProjectConfig(Struct, frozen=True, kw_only=True):
    """[project]: the repository's checks, setup and areas of change."""

    # A union, so that neither the user nor the repository can remove a check of the other.
    checks: Annotated[
        tuple[str, ...] | None,
        KeySpec(
            "commands that must all pass on the exact tree; absent: detected; []: no checks",
            meet="union",
            form="command",
            host=True,
        ),
    ] = None
    outside_checks: Annotated[
        tuple[str, ...],
        KeySpec(
            "commands that must pass in another sandbox than the tree, on the base's files; `under-test CMD` in "
            "them runs a command on the tree",
            meet="union",
            form="command",
            host=True,
        ),
    ] = ()
    setup: Annotated[
        str | None,
        KeySpec(
            "command whose result becomes the environment layer; absent: detected if checks need it; '': no setup",
            meet="repo",
            form="setup",
            host=True,
        ),
    ] = None
    setup_inputs: Annotated[
        tuple[str, ...],
        KeySpec("paths added to the default inputs of the environment layer's key", meet="union", form="area"),
    ] = ()
    setup_network: Annotated[
        bool,
        KeySpec("whether setup may reach the package registries for a tree that an agent changed; false: offline"),
    ] = False
    warm_checks: Annotated[
        bool, KeySpec("whether checks start from the compiler caches of the base's checks", meet="repo")
    ] = True
    allow: Annotated[
        tuple[str, ...],
        KeySpec(
            "areas (patterns as in .gitignore) a mission may change; empty: all",
            meet="intersect",
            form="area",
            empty="all",
        ),
    ] = ()
    forbid: Annotated[
        tuple[str, ...], KeySpec("areas no mission may change; wins over allow", meet="union", form="area")
    ] = ()
    protect: Annotated[
        tuple[str, ...],
        KeySpec("areas where a change needs a person's approval; wins over allow", meet="union", form="area"),
    ] = ()
    include: Annotated[
        tuple[str, ...], KeySpec("ignored paths that belong to the tree", meet="repo", form="area")
    ] = ()
    union: Annotated[
        tuple[str, ...],
        KeySpec("text files of which merges keep the conflicting lines of both sides", meet="repo", form="area"),
    ] = ()
    red_base: Annotated[
        Literal["ask", "accept_known", "stop"],
        KeySpec("if checks fail on the base: ask, accept_known (these may still fail) or stop", meet="repo"),
    ] = "ask"
    flaky: Annotated[
        FlakyPolicy,
        KeySpec(
            "a test that passes and fails on one tree, and does not on the base: ask, accept or refuse",
            meet="repo",
        ),
    ] = "ask"
    strategy: Annotated[Strategy, KeySpec("shadow (overlay) or direct (own worktree)", meet="repo")] = "shadow"
    branch_prefix: Annotated[str, KeySpec("beginning of branch names", meet="repo", form="prefix")] = "chargehand/"


class AgentConfig(Struct, frozen=True, kw_only=True):
    """[agents.NAME]: an agent: a program, a model with tools (native), or a patch."""

    kind: Annotated[
        str,
        KeySpec(
            "kind of agent: command, native, cli (a known agent CLI), acp (Agent Client Protocol) or patch",
            meet="repo",
            names="agents",
        ),
    ] = "command"
    command: Annotated[
        tuple[str, ...],
        KeySpec(
            "program and arguments, never given to a shell; of cli: instead of the program by its own name",
            meet="repo",
            form="argv",
            host=True,
        ),
    ] = ()
    cli: Annotated[
        str | None,
        KeySpec("the CLI of a cli agent; of acp: the CLI whose settings it gets", meet="repo", names="clis"),
    ] = None
    patch: Annotated[str | None, KeySpec("file that a patch agent applies; absent: the request", form="path")] = (
        None
    )
    model: Annotated[
        str | None,
        KeySpec(
            "the entry of [models] it works with, or provider:model; a program gets it as an endpoint", form="name"
        ),
    ] = None
    fallback: Annotated[
        tuple[str, ...], KeySpec("entries of [models] to switch to when it is stuck", form="name")
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        KeySpec("of native: entries of [mcp] whose tools it gets, inside its sandbox", form="name"),
    ] = ()
    offers: Annotated[
        tuple[str, ...],
        KeySpec("abilities that tasks of a plan may need, in your own words: browser, gpu", form="name"),
    ] = ()


# Nothing here has a `meet`: the address decides where requests, and the key, are sent.
class ModelConfig(Struct, frozen=True, kw_only=True):
    """[models.NAME]: a model and its endpoint; only from the user or a trusted repository."""

    provider: Annotated[str, KeySpec("provider of the model", names="providers")] = "openai-compatible"
    model: Annotated[str | None, KeySpec("the provider's name for it; absent: the entry's", form="model")] = None
    base_url: Annotated[str | None, KeySpec("the provider's address; absent: its usual one", form="http")] = None
    key: Annotated[
        str | None,
        KeySpec(
            "name of the secret or environment variable that holds the API key; absent: the provider's usual one, "
            "and only for its own address",
            form="secret",
        ),
    ] = None
    script: Annotated[str | None, KeySpec("file of a script or recording that answers instead", form="path")] = (
        None
    )
    price: Annotated[float | None, KeySpec("USD per million tokens, in and out; 0 for free", form="money")] = None
    price_in: Annotated[float | None, KeySpec("USD per million tokens read", form="money")] = None
    price_out: Annotated[float | None, KeySpec("USD per million tokens written", form="money")] = None
    context: Annotated[int | None, KeySpec("tokens that fit into its context", form="tokens")] = None
    max_output: Annotated[int | None, KeySpec("tokens of one reply at most", form="tokens")] = None
    tools: Annotated[
        bool | None,
        KeySpec(
            "whether it takes tools; false: they are described in text; absent: as the catalogue says, else yes"
        ),
    ] = None
    images: Annotated[
        bool | None,
        KeySpec(
            "whether it takes pictures and files; false: such calls go to its fallback; absent: as the catalogue "
            "says, else it does"
        ),
    ] = None
    modalities: Annotated[
        tuple[str, ...],
        KeySpec(
            "accepted input other than text: image, pdf, audio, video; empty: as the catalogue says",
            form="modality",
        ),
    ] = ()
    reasoning: Annotated[bool | None, KeySpec("whether it reasons first; absent: as the catalogue says")] = None
    fallback: Annotated[tuple[str, ...], KeySpec("models that answer if it cannot, in order", form="name")] = ()
    concurrency: Annotated[int | None, KeySpec("calls to its provider at once; absent: any", form="tokens")] = None
    per_minute: Annotated[int | None, KeySpec("calls started per minute; absent: any", form="tokens")] = None


class RoleConfig(Struct, frozen=True, kw_only=True):
    """[roles.NAME]: agent and models of a role; [roles.default] applies to roles without a setting."""

    agent: Annotated[str | None, KeySpec("the agent that works in the role", form="agent")] = None
    model: Annotated[
        str | None, KeySpec("the entry of [models] that works in the role, or provider:model", form="name")
    ] = None
    fallback: Annotated[
        tuple[str, ...],
        KeySpec("entries of [models], or provider:model, to switch to when it is stuck or fails", form="name"),
    ] = ()


class McpConfig(Struct, frozen=True, kw_only=True):
    """[mcp.NAME]: an MCP server whose tools native agents get; only from the user or a trusted repository."""

    command: Annotated[
        tuple[str, ...],
        KeySpec(
            "program and arguments, run in /workspace inside the attempt's sandbox and spoken to by its streams",
            form="argv",
        ),
    ] = ()
    environment: Annotated[
        tuple[str, ...],
        KeySpec("variables that it is started with; never a secret: the agent can read them", form="variable"),
    ] = ()
    tools: Annotated[tuple[str, ...], KeySpec("its tools that are offered; empty: all", form="name")] = ()
    time: Annotated[float, KeySpec("time for one call, the server's start included", form="seconds")] = 60.0


class EngineConfig(Struct, frozen=True, kw_only=True):
    """[engine]: the scheduler of missions and its workers."""

    url: Annotated[
        str | None, KeySpec("PostgreSQL that workers of several machines share; absent: a file", form="url")
    ] = None
    # For workers that share PostgreSQL: on one machine a lock reveals a dead worker at once.
    lease: Annotated[
        float, KeySpec("time without a sign of life after which a worker counts as dead", form="seconds")
    ] = 20.0
    attempts_at_once: Annotated[int, KeySpec("agents that work at the same time, in all processes together")] = 5
    memory_mb: Annotated[
        int | None,
        KeySpec(
            "memory of all sandboxes together in MiB: the machine's profile makes of it the defaults of "
            "sandbox.memory_mb, tmp_mb, attempts_at_once and checks_at_once; absent: four fifths of the machine's"
        ),
    ] = None
    checks_at_once: Annotated[
        int | None,
        KeySpec("verdicts whose checks run at the same time, in all processes together; absent: one per core"),
    ] = None
    hold_collisions: Annotated[
        bool,
        KeySpec(
            "start a mission to be applied only after the earlier ones on its branch that touch its declared paths"
        ),
    ] = True
    checks_ahead: Annotated[
        bool, KeySpec("while a plan's result is merged, run the next one's checks if a place for them is free")
    ] = True


class ActionsConfig(Struct, frozen=True, kw_only=True):
    """[actions]: git and `exec` by hand, recorded with an id."""

    git_at_once: Annotated[int, KeySpec("git actions at the same time, in all processes together; more wait")] = 4
    time: Annotated[float, KeySpec("time for one action once it began", form="seconds")] = 60.0
    protocols: Annotated[
        tuple[str, ...], KeySpec("how remotes may be reached: file, https, ssh, http, git", form="name")
    ] = ("file", "https", "ssh")


class ExtensionsConfig(Struct, frozen=True, kw_only=True):
    """[extensions]: installed distributions whose implementations are used; their code runs in our process."""

    enabled: Annotated[
        tuple[str, ...], KeySpec("distributions whose entry points add names", meet="file", form="name")
    ] = ()


class DecisionsConfig(Struct, frozen=True, kw_only=True):
    """[decisions]: choices of agent and model that are learned from the outcomes of earlier missions."""

    learned: Annotated[bool, KeySpec("choose agents and models by earlier outcomes")] = False
    worth_usd: Annotated[float, KeySpec("what a solved task is worth in USD", form="budget")] = 5.0
    person_usd: Annotated[float, KeySpec("what asking a person costs in USD", form="money")] = 2.0
    review_percent: Annotated[
        int,
        KeySpec(
            "probability of a wrong change from which a person reviews it though all checks pass; 0: never",
            form="percent",
        ),
    ] = 0
    explore: Annotated[bool, KeySpec("also try agents and models to learn more of them")] = True
    survival_days: Annotated[int, KeySpec("days on its branch after which a promoted change counts as right")] = 7


class KnowledgeConfig(Struct, frozen=True, kw_only=True):
    """[knowledge]: what agents are given: facts about the repository, and lessons from earlier missions."""

    map: Annotated[
        bool,
        KeySpec("whether agents get the repository map; needs the optional part knowledge", meet="repo"),
    ] = True
    library: Annotated[
        bool, KeySpec("whether agents with the map can search the reference library", meet="repo")
    ] = True
    lessons: Annotated[
        Literal["off", "on", "experiment"],
        KeySpec("lessons of earlier missions: not kept, always shown, or withheld from some to measure them"),
    ] = "experiment"


class RolloutConfig(Struct, frozen=True, kw_only=True):
    """[rollouts.NAME]: a model or policy for a part of the projects; only your own configuration counts."""

    model: Annotated[str | None, KeySpec("the entry of [models] that missions get", form="name")] = None
    agent: Annotated[
        str | None, KeySpec("the agent that works with the model; absent: as without the roll-out", form="agent")
    ] = None
    policy: Annotated[
        Literal["learned", "fixed"] | None,
        KeySpec("instead of a model: choose by earlier outcomes (learned) or by the fixed rules"),
    ] = None
    percent: Annotated[float, KeySpec("share of the projects in it, 0 to 100; 0: off", form="percent")] = 0.0
    by: Annotated[Literal["project"], KeySpec("the unit that is in it or not")] = "project"
    shadow: Annotated[bool, KeySpec("only record the choice that it would make")] = False
    loss: Annotated[float, KeySpec("drop of the success rate that stops it; 0.1 is ten points", form="share")] = (
        0.1
    )
    error_rate: Annotated[
        float, KeySpec("chance at most to stop one that is not worse, however often it is judged", form="share")
    ] = 0.05


class ForgeConfig(Struct, frozen=True, kw_only=True):
    """[forges.NAME]: an account at a forge, and which of its issues become missions; only your own file counts."""

    kind: Annotated[
        str, KeySpec("kind of forge: github, gitlab, gitea (also Forgejo) or local", names="forges")
    ] = "github"
    url: Annotated[
        str | None, KeySpec("address of its pages; absent: the usual one of the kind", form="forge")
    ] = None
    api: Annotated[str | None, KeySpec("address of its API; absent: the usual one", form="http")] = None
    token: Annotated[
        str | None, KeySpec("name of the secret with the token; absent: NAME_TOKEN", form="secret")
    ] = None
    app: Annotated[
        str | None,
        KeySpec("id or client id of the GitHub App that it signs in as, instead of a token", form="login"),
    ] = None
    app_key: Annotated[str | None, KeySpec("file of the App's private key, mode 0600", form="path")] = None
    installation: Annotated[
        int | None, KeySpec("id of the App's installation; absent: that of the repository")
    ] = None
    git_key: Annotated[
        str | None,
        KeySpec("private key by which git reads and writes over ssh; absent: git uses the token", form="path"),
    ] = None
    git_known_hosts: Annotated[
        str | None, KeySpec("file of host keys that ssh accepts with git_key; absent: its usual ones", form="path")
    ] = None
    webhook_secret: Annotated[
        str | None, KeySpec("name of the secret that signs its webhooks; absent: none is accepted", form="secret")
    ] = None
    authority: Annotated[
        str | None, KeySpec("file of certificates to trust for it in addition to the system's", form="path")
    ] = None
    repositories: Annotated[
        tuple[str, ...], KeySpec("repositories that `forge watch` takes issues from, as OWNER/NAME", form="name")
    ] = ()
    label: Annotated[str, KeySpec("label that an issue must have to be taken; '': any", form="label")] = (
        "chargehand"
    )
    assignee: Annotated[str, KeySpec("account that it must be assigned to; '': any", form="label")] = ""
    assign: Annotated[bool, KeySpec("whether an issue is assigned to the account while it is worked on")] = False
    authors: Annotated[
        Literal["write", "anyone"], KeySpec("whose issues are taken: of people with write right, or of anyone")
    ] = "write"
    target: Annotated[str | None, KeySpec("branch of requests; absent: the default branch", form="name")] = None
    reviewers: Annotated[tuple[str, ...], KeySpec("people who are asked to review each request", form="name")] = ()
    rounds: Annotated[int, KeySpec("how often review comments and red checks of a request start work again")] = 5
    update: Annotated[
        Literal["moved", "conflict", "never"],
        KeySpec(
            "when the target branch is merged into an open request: if it moved, if the two conflict, or never"
        ),
    ] = "moved"
    merge: Annotated[
        Literal["person", "approved"],
        KeySpec("who merges: a person, or Chargehand once a person approved and all checks are green"),
    ] = "person"
    merge_method: Annotated[Literal["merge", "squash", "rebase"], KeySpec("how it merges")] = "merge"
    delete_branch: Annotated[
        bool, KeySpec("whether the branch of a merged request is deleted, unless it has other commits")
    ] = False


# An absent value is `None`, so that an empty one of [repositories.NAME] counts.
class RequestsConfig(Struct, frozen=True, kw_only=True):
    """[requests]: how missions of issues name their branches and requests."""

    branch: Annotated[
        str | None,
        KeySpec(
            "name of the branch, with {number} and {slug}; absent: chargehand/issue-{number}-{slug}", form="branch"
        ),
    ] = None
    title: Annotated[
        str | None,
        KeySpec("title of the request, with fields as in body; absent: {title} (#{number})", form="template"),
    ] = None
    body: Annotated[
        str | None,
        KeySpec(
            "text above the evidence of a request, with {number}, {title}, {author}, {url} and {repository} of the"
            " issue",
            form="template",
        ),
    ] = None
    labels: Annotated[tuple[str, ...] | None, KeySpec("labels of the request", form="label")] = None
    reviewers: Annotated[
        tuple[str, ...] | None, KeySpec("people asked to review it; absent: forges.NAME.reviewers", form="name")
    ] = None
    merge_method: Annotated[
        Literal["merge", "squash", "rebase"] | None,
        KeySpec("how it is merged, if Chargehand may; absent: forges.NAME.merge_method"),
    ] = None
    stack: Annotated[
        bool | None,
        KeySpec("true: each task of a plan becomes a request on top of the one before it; absent: one request"),
    ] = None
    role: Annotated[str | None, KeySpec("role of the mission; absent: developer", form="optional")] = None
    team: Annotated[str | None, KeySpec("team of the mission; absent: none", form="optional")] = None


# Read from the user's own configuration alone, since `label` decides what is worked on.
class RepositoryConfig(RequestsConfig, frozen=True, kw_only=True):
    """[repositories.NAME]: settings of one repository, before those of [requests]; only your own file counts."""

    repository: Annotated[str | None, KeySpec("the repository at the forge, as OWNER/NAME", form="name")] = None
    forge: Annotated[str | None, KeySpec("the account of [forges]; absent: any", form="name")] = None
    label: Annotated[
        str | None, KeySpec("label that its issues must have to be taken; absent: forges.NAME.label", form="label")
    ] = None


class Config(Struct, frozen=True, kw_only=True):
    """The complete resolved configuration; `app` defines the order of the sources."""

    project: ProjectConfig = ProjectConfig()
    agents: dict[str, AgentConfig] = {}
    models: dict[str, ModelConfig] = {}
    roles: dict[str, RoleConfig] = {}
    mcp: dict[str, McpConfig] = {}
    rollouts: dict[str, RolloutConfig] = {}
    forges: dict[str, ForgeConfig] = {}
    requests: RequestsConfig = RequestsConfig()
    repositories: dict[str, RepositoryConfig] = {}
    secrets: SecretsConfig = SecretsConfig()
    limits: LimitsConfig = LimitsConfig()
    sandbox: SandboxConfig = SandboxConfig()
    engine: EngineConfig = EngineConfig()
    decisions: DecisionsConfig = DecisionsConfig()
    knowledge: KnowledgeConfig = KnowledgeConfig()
    actions: ActionsConfig = ActionsConfig()
    server: ServerConfig = ServerConfig()
    sign_in: dict[str, SignInConfig] = {}
    alerts: AlertsConfig = AlertsConfig()
    log: LogConfig = LogConfig()
    traces: TracesConfig = TracesConfig()
    extensions: ExtensionsConfig = ExtensionsConfig()
