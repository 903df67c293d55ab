"""What an agent is to a mission, whatever program or model stands behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from chargehand.agents._roles import NO_ROLE, Role
from chargehand.agents._tools_snippet import Snippets
from chargehand.core.config import AgentKind
from chargehand.core.messages import Message
from chargehand.models.contract import Dialect, QuotaRest
from chargehand.policy._actions import Action, Judgement
from chargehand.sandbox._contract import OnOutput, Sandbox

Claim = Literal["done", "failed", "timed_out", "exhausted"]
"""What the agent says of its own work. "done" is a claim: only a verdict decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run of an agent: the request, the report on the attempt before it (JSON), and its seconds.

    `messages` is what persons have said to the mission so far; `allow` and `forbid` are areas of paths,
    `tree` is what the attempt began at, however often it goes on. `role` bounds what the agent is given.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended; `output` is what the agent printed, bounded; money is `None` where not known.

    `code` says why where the claim is not "done"; `limit` names the limit that ended its program, if one did.
    `said` is its last word by itself: what a role that changes nothing is for.
    `message` is the agent's end as a message, its own where it gave one.
    """

    claim: Claim
    reason: str
    output: bytes
    seconds: float
    exit_code: int | None = None
    truncated: bool = False
    code: str = ""
    limit: str | None = None
    said: str = ""
    message: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointModel:
    """A model that an attempt may call; `context` and `max_output` in tokens, `None` where not known.

    `dialect` is what it is best called in; the gateway translates from every other. `images`: whether it, or one
    that answers in its place, takes pictures.
    """

    name: str
    dialect: Dialect
    context: int | None = None
    max_output: int | None = None
    tools: bool = True
    images: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """What the calls of an attempt took so far by the gateway's count; tokens are of those whose use is known.

    `unknown` counts calls whose use is not known; `refused` says why the latest call was refused for money, ""
    where it was not. `quota` is set where no model answered since one was refused for want of quota: the rest that
    ends first.
    """

    calls: int = 0
    input: int = 0
    output: int = 0
    unknown: int = 0
    refused: str = ""
    quota: QuotaRest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The attempt's own gateway: a unix socket on the host, and the token that is valid on it.

    `environment` is what tells clients inside a sandbox of it; the first model is the one to begin with. `meter`
    tells at any time what was called so far.
    """

    socket: Path
    token: str
    models: tuple[EndpointModel, ...]
    environment: Mapping[str, str]
    revoke: Callable[[], None]
    meter: Callable[[], Metered] = Metered


_BEGINS_ANEW = {
    "step": "",
    "start": "after a crash its attempt begins anew",
    "replay": "after a crash its attempt begins anew, with the replies it had, as long as it asks the same",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What an agent can do besides editing; what it cannot falls back to the weaker form, and people are told.

    `judged`: its acts come to the rules before they happen, else only the sandbox and the verdict bound them.
    `asks`: it can put questions to a person. `hears`: it is told what a person says while it works, else with
    its next attempt. `resumes`: where it goes on after a crash: at its last step, or from the start, with `replay`
    given again the replies that it had, as long as it asks the same. `reports`: it tells its own use of tokens,
    which is held against the gateway's count. `acknowledges`: it is known when a message entered its work, else
    what is critical stops it at once. `mends`: it is asked again for a last message that cannot be read.
    """

    judged: bool = False
    asks: bool = False
    hears: bool = False
    resumes: Literal["step", "replay", "start"] = "start"
    reports: bool = False
    acknowledges: bool = False
    mends: bool = False

    def fallbacks(self) -> tuple[str, ...]:
        """Return in words what happens instead of what it cannot do."""
        said = (
            (self.judged, "its acts are not judged one by one: the sandbox bounds them, the verdict decides"),
            (self.asks, "it asks nobody: what it does not know it guesses"),
            (self.hears, "what you tell it while it works reaches it with its next attempt"),
            (self.acknowledges, "a critical message freezes it at once, and a person decides"),
            (self.mends, "a last message of it that cannot be read fails its attempt: it is not asked again"),
            (self.resumes == "step", _BEGINS_ANEW[self.resumes]),
        )
        return tuple(words for able, words in said if not able)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """A server of the Model Context Protocol that an agent is given: a program that runs inside its sandbox.

    `tools` are those that are offered, none named: all. `seconds` is what one call may take.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    tools: tuple[str, ...] = ()
    seconds: float = 60.0


Resumed = Literal["kept", "lost"]
"""What became of ignored files where an attempt goes on after an interruption."""


class AttemptContext(Protocol):
    """What an agent works with besides its assignment: a place, a memory, money, and people.

    Steps are recorded: when a worker dies, another one runs the agent again with the same assignment, and every
    step whose end is in the log returns its output instead of being done again. Names are unique in the attempt.
    """

    sandbox: Sandbox
    on_output: OnOutput | None
    endpoint: Endpoint | None
    resumed: Resumed | None
    snippets: Snippets | None

    async def step(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> Any:
        """Run a recorded step; `input` and output are JSON."""
        ...

    async def act(self, name: str, input: object, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        """Run a recorded step that may change files; return its output and the tree it left, kept as a checkpoint.

        A worker that goes on finds the workspace at the tree of the last recorded act.
        """
        ...

    async def restore(self, name: str, input: object, tree: str) -> None:
        """Set the workspace back to a tree of this attempt, as a recorded step; what was there is kept."""
        ...

    def is_recorded(self, name: str) -> bool:
        """Tell whether a step of this attempt is in the log already."""
        ...

    def recorded(self, attempt: int) -> Sequence[tuple[str, Any]]:
        """Return names and outputs of the recorded steps of an attempt of this mission, in order."""
        ...

    def keep(self, content: bytes) -> str:
        """Keep what is too large for the log; return its artifact id."""
        ...

    def artifact(self, id: str) -> bytes:
        """Return what `keep` kept under that id; raises `NotFoundError`."""
        ...

    def heard(self) -> Sequence[str]:
        """Return what persons have said to the mission up to now."""
        ...

    def delivered(self, count: int, *, acknowledged: bool) -> None:
        """Note that the first `count` of what was heard lie before the agent; `acknowledged`: are in its work.

        What is noted already is not noted again.
        """
        ...

    async def ask(self, question: str, text: str, options: Sequence[str]) -> str:
        """Return a person's answer to the question of that id within the attempt.

        Raises `WaitingError` while there is none: the attempt ends here and begins again with the answer.
        """
        ...

    async def park(self, name: str, rest: QuotaRest, *, seconds: float = 0.0) -> NoReturn:
        """Let the mission wait until there is quota again; `name` is what of the attempt waits.

        Raises `WaitingError` (`quota_exhausted`): the attempt ends here and begins again by itself at that moment,
        or earlier where a person says so. `seconds` is what it worked outside of recorded steps.
        """
        ...

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action may happen, `allow` or `deny`; to be asked before it, and noted by this.

        `name` is the step that it is part of. Raises `WaitingError` while a person has to be asked, as `ask` does.
        """
        ...

    def refused(self, tool: str, reason: str) -> None:
        """Note that a call to a tool which the role does not have was not carried out."""
        ...

    def limited(self, seconds: float) -> AbstractAsyncContextManager[None]:
        """Bound a block by `seconds`, pauses not counted; raises `TimeoutError`."""
        ...


class Agent(Protocol):
    """What does the work of an attempt inside its sandbox.

    `models` names the entries of [models] that it may call, the first one to begin with; `driven` says that it
    makes checkpoints after its own actions (`AttemptContext.act`), so that nobody has to look regularly.
    `abilities` says what it can do besides.
    """

    name: str
    kind: AgentKind
    models: tuple[str, ...]
    driven: bool
    abilities: Abilities

    def prepare(self) -> None:
        """Load what the work will need, ahead of time; may take seconds, runs in a thread."""
        ...

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Work on the workspace mounted in the sandbox until done, failed or out of time or money.

        Raises `SandboxDiedError` when the sandbox ends under it, `WaitingError` where a person is asked.
        Cancelling the call kills what runs.
        """
        ...
