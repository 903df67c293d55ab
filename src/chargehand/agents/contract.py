"""The contract between a mission and its agents, whatever program or model works behind them.

An `Agent` receives an `Assignment` and an `AttemptContext`, and returns an `AgentOutcome`. This module is light to
import: a mission with one kind of agent must not load the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from msgspec import Struct
from msgspec.structs import replace

from chargehand.agents.roles import NO_ROLE, Role
from chargehand.core.config import AgentConfig
from chargehand.core.messages import Message
from chargehand.core.ports import CodeMap
from chargehand.models.contract import Dialect, QuotaRest
from chargehand.policy.actions import Action, Judgement
from chargehand.sandbox.contract import OnOutput, Sandbox
from chargehand.sandbox.snippets import SnippetResult, SnippetSpec

# Closed sets: they decide how a mission continues, the text of an agent never does. The agent's statement about
# its own work. "done" is a claim: only a verdict decides.
Claim = Literal["done", "failed", "timed_out", "exhausted"]
# Codes of ends that say nothing about the work: if there is any, the verdict decides, not how it ended.
ENDS_WITHOUT_A_WORD = frozenset({"malformed_message", "no_finish", "end_unreadable", "calls_failed"})
# What happened to ignored files if an attempt resumes after an interruption.
Resumed = Literal["kept", "lost"]


class Assignment(Struct, frozen=True, kw_only=True):
    """One run of an agent: the request, the previous attempt's report (JSON), and its time limit in seconds.

    `number` counts the attempts of the mission from 1. `messages` are all messages of persons to the mission so
    far. `allow` and `forbid` are path patterns that bound the change; `tree` is the tree at which the attempt
    began, however often it is resumed. `role` bounds the agent's tools. It starts in `directory` of the workspace.
    With `in_plan`, others work on tasks of the same plan. `lessons` are untrusted texts from earlier missions.
    """

    mission: str
    attempt: str
    number: int
    request: str
    report: bytes | None
    seconds: float
    messages: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    tree: str | None = None
    role: Role = NO_ROLE
    directory: str = ""
    in_plan: bool = False
    lessons: tuple[str, ...] = ()


class AgentOutcome(Struct, frozen=True, kw_only=True):
    """How the run ended; `output` is the agent's printed output, bounded; `exit_code` is `None` without a program.

    `code` is a stable reason if the claim is not "done"; `limit` names the sandbox limit that ended its program.
    `said` is its last text alone: the whole result of a role that changes nothing. `message` is the agent's end as
    a message, its own if it sent one.
    """

    claim: Claim
    reason: str
    output: bytes = b""
    seconds: float = 0.0
    exit_code: int | None = None
    truncated: bool = False
    code: str = ""
    limit: str | None = None
    said: str = ""
    message: Message | None = None


class EndpointModel(Struct, frozen=True, kw_only=True):
    """A model that an attempt may call; `context` and `max_output` in tokens, `None` if unknown.

    `dialect` is the best dialect to call it in; the gateway translates from every other. `images`: whether it, or
    a fallback behind the same name, accepts pictures.
    """

    name: str
    dialect: Dialect
    context: int | None = None
    max_output: int | None = None
    tools: bool = True
    images: bool = True


class MeteredUsage(Struct, frozen=True, kw_only=True):
    """Usage of an attempt's model calls so far, as metered by the gateway; `input` and `output` in tokens.

    `unknown` counts calls whose usage the provider did not report. `refused` says why the latest call was refused
    for money, "" if it was not, and `fault` how it failed at its provider. `quota` is set while every model is out
    of quota: the pause that ends first.
    """

    calls: int = 0
    input: int = 0
    output: int = 0
    unknown: int = 0
    refused: str = ""
    fault: str = ""
    quota: QuotaRest | None = None

    def since(self, earlier: MeteredUsage) -> MeteredUsage:
        """Return the usage after an earlier reading of the same meter."""
        return replace(
            self,
            calls=self.calls - earlier.calls,
            input=self.input - earlier.input,
            output=self.output - earlier.output,
            unknown=self.unknown - earlier.unknown,
        )


class Endpoint(Struct, frozen=True, kw_only=True):
    """The attempt's own gateway: a unix socket on the host, and the token that is valid on it.

    `environment` configures clients inside a sandbox for it; the first model is the one to begin with. `meter`
    returns the usage so far at any time. With `tools` an MCP server is at `/mcp`.
    """

    socket: Path
    token: str
    models: tuple[EndpointModel, ...]
    environment: Mapping[str, str]
    revoke: Callable[[], None]
    meter: Callable[[], MeteredUsage] = MeteredUsage
    tools: bool = False


_AFTER_A_CRASH = {
    "step": "",
    "start": "after a crash its attempt starts over",
    "replay": "after a crash its attempt starts over, with its recorded replies while its requests are the same",
}


class Abilities(Struct, frozen=True, kw_only=True):
    """An agent's abilities other than editing; each missing one has a weaker fallback, which people are shown.

    - `judged`: the rules judge its acts before they happen; else only the sandbox and the verdict bound them.
    - `asks`: it can put questions to a person.
    - `hears`: it gets a person's messages while it works; else with its next attempt.
    - `resumes`: where it continues after a crash: at its last step, or from the start; with `replay` it gets the
      recorded replies again, as long as it sends the same requests.
    - `reports`: it counts its own tokens, and the count is compared with the gateway's.
    - `acknowledges`: it is known when a message reached its work; else a critical message stops it at once.
    - `repairs`: it is asked again for an unreadable last message.
    """

    judged: bool = False
    asks: bool = False
    hears: bool = False
    resumes: Literal["step", "replay", "start"] = "start"
    reports: bool = False
    acknowledges: bool = False
    repairs: bool = False

    def fallbacks(self) -> tuple[str, ...]:
        """Return one sentence for people about each missing ability, with its fallback."""
        sentences = (
            (self.judged, "its actions are not judged one by one: the sandbox limits them, the verdict decides"),
            (self.asks, "it cannot ask a person: it must guess instead"),
            (self.hears, "messages that you send while it works are delivered with its next attempt"),
            (self.acknowledges, "a critical message freezes it at once, and a person decides how it continues"),
            (self.repairs, "an unreadable last message is not asked for again: its work is judged without one"),
            (self.resumes == "step", _AFTER_A_CRASH[self.resumes]),
        )
        return tuple(sentence for able, sentence in sentences if not able)


# Of our own kinds. A table instead of class attributes: `agent list` must not import every adapter.
ABILITIES: Mapping[str, Abilities] = {
    "command": Abilities(),
    "cli": Abilities(resumes="replay", reports=True, repairs=True),
    "acp": Abilities(
        judged=True, asks=True, hears=True, resumes="replay", reports=True, acknowledges=True, repairs=True
    ),
    "patch": Abilities(judged=True, asks=True, resumes="step"),
    "native": Abilities(judged=True, asks=True, hears=True, resumes="step", acknowledges=True, repairs=True),
}


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server for an agent: a program that runs inside its sandbox.

    `tools` names the offered tools; empty means all. `seconds` bounds one call.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    tools: tuple[str, ...] = ()
    seconds: float = 60.0


class Snippets(Protocol):
    """Runs snippets in the tier `isolate`, for example a `SnippetPool`."""

    async def run(self, spec: SnippetSpec, /) -> SnippetResult:
        """Run one snippet to its end; raises as `SnippetPool.run` does."""
        ...


class AttemptContext(Protocol):
    """An agent's environment in addition to its assignment: a sandbox, a record of steps, money, and people.

    Steps are recorded: when a worker dies, another one runs the agent again with the same assignment, and every
    step whose end is in the log returns its output instead of running again. Names are unique in the attempt.
    """

    sandbox: Sandbox
    on_output: OnOutput | None
    endpoint: Endpoint | None
    resumed: Resumed | None
    snippets: Snippets | None
    code_map: CodeMap | None

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step; `input` and output are JSON."""
        ...

    async def act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        """Run a recorded step that may change files; return its output and the resulting tree, a checkpoint.

        A worker that resumes the attempt finds the workspace at the tree of the last recorded act.
        """
        ...

    async def restore(self, name: str, input: object, tree: str) -> None:
        """Set the workspace back to a tree of this attempt, as a recorded step; its current content is kept."""
        ...

    def is_recorded(self, name: str) -> bool:
        """Return whether a step of this attempt is already in the log."""
        ...

    def recorded(self, attempt: int) -> Sequence[tuple[str, Any]]:
        """Return names and outputs of the recorded steps of an attempt of this mission, in order."""
        ...

    def keep(self, content: bytes) -> str:
        """Store content that is too large for the log; return its artifact id."""
        ...

    def artifact(self, id: str) -> bytes:
        """Return the content that `keep` stored under that id; raises `NotFoundError`."""
        ...

    def person_messages(self) -> Sequence[str]:
        """Return all messages of persons to the mission so far."""
        ...

    def mark_delivered(self, count: int, *, acknowledged: bool) -> None:
        """Record that the agent got the first `count` person messages; `acknowledged`: they reached its work.

        Existing records are not repeated.
        """
        ...

    async def ask(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return a person's answer to the question with that id within the attempt.

        Raises `WaitingError` while there is no answer: the attempt ends here and begins again with the answer.
        """
        ...

    async def park(self, name: str, rest: QuotaRest, *, seconds: float = 0.0) -> NoReturn:
        """Suspend the mission until quota is available again; `name` is the waiting part of the attempt.

        Raises `WaitingError` (`quota_exhausted`): the attempt ends here and begins again by itself at that moment,
        or earlier if a person says so. `seconds` is the time it worked outside recorded steps.
        """
        ...

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action may happen, `allow` or `deny`, and record that; call it before the action.

        `name` is the step that it is part of. Raises `WaitingError` while a person must be asked, as `ask` does.
        """
        ...

    def refused(self, tool: str, reason: str) -> None:
        """Record that a call to a tool outside the role was not carried out."""
        ...

    def limited(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Bound a block by `seconds`, not counting pauses; raises `TimeoutError`."""
        ...


class Agent(Protocol):
    """An agent that does the work of an attempt inside its sandbox.

    `models` names the entries of [models] that it may call, the first one to begin with. `checkpoints_itself`: it
    makes a checkpoint after each of its acts (`AttemptContext.act`), so no timer is needed.
    """

    name: str
    kind: str
    models: tuple[str, ...]
    checkpoints_itself: bool
    abilities: Abilities

    def prepare(self) -> None:
        """Load everything the work needs, ahead of time; may take seconds, runs in a thread."""
        ...

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Work on the workspace mounted in the sandbox until done, failed or out of time or money.

        Raises `SandboxDiedError` if the sandbox ends during the run, `WaitingError` while a person is asked.
        Cancelling the call kills all running programs.
        """
        ...


class AgentSetup(Struct, frozen=True, kw_only=True):
    """The parameters of opening an agent: name, section, and the models it may call, the first to begin with.

    `read` returns the text of a patch's file; `mcp` are the servers of [mcp] that the section names.
    """

    name: str
    config: AgentConfig
    models: tuple[str, ...] = ()
    read: Callable[[str], str] | None = None
    mcp: tuple[McpServer, ...] = ()


class AgentAdapter(Struct, frozen=True):
    """The implementation of a kind of agent, registered in `AGENTS`: its abilities, and a function that opens one.

    `open` raises `UsageError` for a setup that is not enough.
    """

    abilities: Abilities
    open: Callable[[AgentSetup], Agent]
