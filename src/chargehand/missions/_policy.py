"""Judges actions of agents and missions, and records each judgement before the action happens."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chargehand.core.attempt_events import ActionJudged
from chargehand.core.redaction import Redactor
from chargehand.core.state import PERMISSION
from chargehand.core.text import printable
from chargehand.missions.journal import EventSink, Journal
from chargehand.missions.services import Services
from chargehand.policy.actions import (
    LARGEST_SCRIPT,
    Action,
    Command,
    FileRead,
    FileWrite,
    GitAction,
    Judgement,
    McpCall,
    Network,
    Other,
    Purpose,
    Run,
    Several,
    Shell,
    Snippet,
    Surroundings,
)
from chargehand.policy.judgement import denied, judge
from chargehand.sandbox.contract import WORKSPACE, Sandbox

_SECONDS = 10.0
# A link that leads out of the workspace is not followed; only regular files are opened.
_READ = r"""
root=$(pwd -P)
real=$(readlink -f -- "$1"; echo x); real=${real%?x}
case $real in "$root"/* | /tmp/*) ;; *) exit 1 ;; esac
[ -f "$real" ] || exit 1
exec head -c "$2" -- "$real"
"""


async def read_script(sandbox: Sandbox, path: str) -> str | None:
    """Return a file's text from the workspace or `/tmp`; `None` if it is not a regular file, too large or binary.

    Bytes that are not UTF-8 become surrogates. Raises `SandboxDiedError`.
    """
    if "\0" in path or not path.startswith("/"):
        return None
    # One byte more than the limit, to tell a script of exactly that size from a longer one.
    result = await sandbox.exec(
        ["/bin/sh", "-c", _READ, "sh", path, str(LARGEST_SCRIPT + 1)],
        timeout=_SECONDS,
        cwd=WORKSPACE,
        output_limit=LARGEST_SCRIPT + 1,
    )
    found = result.stdout
    if result.exit_code != 0 or result.timed_out or len(found) > LARGEST_SCRIPT or b"\0" in found:
        return None
    return found.decode("utf-8", "surrogateescape")


def scripts_of(sandbox: Sandbox) -> Callable[[str], str | None]:
    """Return a function that reads a sandbox's scripts from another thread while the event loop runs."""
    # `judge` is synchronous and runs in a thread; only the event loop may use sandboxes.
    loop = asyncio.get_running_loop()
    known: dict[str, str | None] = {}

    def read(path: str) -> str | None:
        if path not in known:
            known[path] = asyncio.run_coroutine_threadsafe(read_script(sandbox, path), loop).result()
        return known[path]

    return read


# The answers that allow the requested action, once; any other is a no.
YES = frozenset({"yes", "y", "allow", "ok"})
NO = "no"
OPTIONS = ("yes", NO)
_LONGEST = 400
_SHOWN = 2_000
_REDACTOR = Redactor()


class Judge(Struct, eq=False):
    """Judges the actions of one attempt; each judgement is an event.

    `ask` puts a question to a person, as `AttemptContext.ask` does; scripts in `sandbox` are inspected.
    """

    services: Services
    journal: Journal
    attempt: str
    ask: Callable[[str, str, Sequence[str]], Awaitable[str]]
    sandbox: Sandbox

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action is allowed or denied; see `AttemptContext.judge`."""
        rules = self.services.rules
        around = Surroundings(
            sandboxed=self.services.config.sandbox.tier != "none",
            hosts=self.services.config.sandbox.network,
            cwd=self.sandbox.cwd,
            script=scripts_of(self.sandbox),
        )
        # In a thread: a long shell line takes time to parse, and reading its scripts waits for the sandbox.
        judgement = await asyncio.to_thread(judge, action, around, rules)
        asked = self.journal.state.questions.get(f"{self.attempt}/{name}")
        answered = asked is not None and asked.answer is not None
        if judgement.effect != "ask" or not answered:  # an answer is recorded with the resulting decision
            self._record(action, judgement)
        if judgement.effect != "ask":
            return judgement
        shown = printable(describe(action))
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]} … ({len(shown)} characters)"
        question = f"{PERMISSION}{shown}\n(rule {judgement.rule}: {judgement.reason})"
        answer = await self.ask(name, question, OPTIONS)
        known = self.journal.state.questions.get(f"{self.attempt}/{name}")
        if answer.strip().lower() in YES:
            decided = replace(judgement, effect="allow", reason="a person allowed it, this once")
        elif known is not None and known.expired:
            decided = replace(judgement, effect="deny", reason=f"it was not allowed before {known.expires}")
        else:
            decided = replace(judgement, effect="deny", reason=f"a person answered: {answer.strip()[:1000]}")
        self._record(action, decided, answer=answer)
        return decided

    def _record(self, action: Action, judgement: Judgement, answer: str = "") -> None:
        digest = self.services.rules.digest
        self.journal.record(judgement_event(action, judgement, attempt=self.attempt, answer=answer, rules=digest))


async def admit(
    services: Services, journal: EventSink, action: Action, *, purpose: Purpose, directory: str = ""
) -> Judgement:
    """Judge and record an action outside an attempt, where no person can be asked; return the judgement.

    The action starts in `directory` of the workspace. Raises `RefusedError` (`policy_denied`) unless it is
    allowed.
    """
    around = Surroundings(
        sandboxed=services.config.sandbox.tier != "none",
        hosts=services.config.sandbox.network,
        cwd=posixpath.join(WORKSPACE, directory).rstrip("/"),
        purpose=purpose,
        who="person" if purpose == "exec" else "project",
    )
    judgement = await asyncio.to_thread(judge, action, around, services.rules)
    journal.record(judgement_event(action, judgement, rules=services.rules.digest))
    if judgement.effect != "allow":
        raise denied(_kind(action), judgement)
    return judgement


def judgement_event(
    action: Action, judgement: Judgement, *, rules: str, attempt: str = "", answer: str = ""
) -> ActionJudged:
    """Return the event of a judgement."""
    return ActionJudged(
        attempt=attempt,
        kind=_kind(action),
        text=_short(describe(action)),
        effect=judgement.effect,
        rule=judgement.rule,
        reason=_short(judgement.reason),
        subject=_short(judgement.subject),
        parts=len(judgement.parts),
        overridden=judgement.overridden[:20],
        answer=_short(answer),
        rules=rules,
    )


def describe(action: Action) -> str:
    """Return a description of an action for a person."""
    match action:
        case Shell():
            return action.text
        case Command():
            return " ".join(action.argv)
        case GitAction():
            return " ".join(("git", *action.words))
        case FileRead() | FileWrite():
            return action.path
        case Run():
            return action.run if isinstance(action.run, str) else " ".join(action.run)
        case Snippet():
            return f"{action.language}: {action.source}"
        case Network() | McpCall() | Other():
            return _describe_remote(action)
        case Several():
            return ", ".join(describe(each) for each in action.actions)


def _describe_remote(action: Network | McpCall | Other) -> str:
    match action:
        case Network():
            return f"{action.host}:{action.port}"
        case McpCall():
            return f"{action.server}/{action.tool} {action.arguments}"
        case Other():
            return f"{action.kind} {action.name}"


def _kind(action: Action) -> str:
    match action:
        case Shell():
            return "shell"
        case Command() | GitAction():
            return "command"
        case FileRead():
            return "read"
        case FileWrite():
            return "delete" if action.removal else "write"
        case Network():
            return "network"
        case Run() | Other():
            return action.kind
        case Snippet():
            return "snippet"
        case McpCall():
            return "mcp.call"
        case Several():
            return _kind(action.actions[0]) if action.actions else "nothing"


def _short(text: str) -> str:
    # Redacted before truncation: half a key would not be recognised.
    clean = _REDACTOR.text(printable(text))
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"
