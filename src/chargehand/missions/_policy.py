"""What an attempt's agent is about to do, judged by the rules in force and noted before it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from chargehand.core.attempt_events import ActionJudged
from chargehand.core.text import printable
from chargehand.missions._journal import Journal, Notes
from chargehand.missions._policy_scripts import scripts_of
from chargehand.missions._services import Services
from chargehand.models.redaction import Redactor
from chargehand.policy.actions import (
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
from chargehand.sandbox.contract import Sandbox

YES = frozenset({"yes", "y", "allow", "ok"})
"""The answers that let what was asked for happen, once; any other is a no."""
OPTIONS = ("yes", "no")
_LONGEST = 400
_SHOWN = 2_000
_REDACTOR = Redactor()


class Judge:
    """Judges the actions of one attempt; each judgement is an event.

    `ask` puts a question to a person, as `AttemptContext.ask` does; the scripts of `sandbox` are looked into.
    """

    def __init__(
        self,
        services: Services,
        journal: Journal,
        attempt: str,
        ask: Callable[[str, str, Sequence[str]], Awaitable[str]],
        sandbox: Sandbox,
    ) -> None:
        self._services = services
        self._journal = journal
        self._attempt = attempt
        self._ask = ask
        self._sandbox = sandbox

    async def judge(self, name: str, action: Action) -> Judgement:
        """Return whether an action is allowed or denied; see `AttemptContext.judge`."""
        rules = self._services.rules
        around = Surroundings(
            sandboxed=self._services.config.sandbox.tier != "none",
            hosts=self._services.config.sandbox.network,
            script=scripts_of(self._sandbox),
        )
        judgement = await asyncio.to_thread(judge, action, around, rules)
        asked = self._journal.state.questions.get(f"{self._attempt}/{name}")
        answered = asked is not None and asked.answer is not None
        if judgement.effect != "ask" or not answered:  # an answer is noted with what became of it
            self._note(action, judgement)
        if judgement.effect != "ask":
            return judgement
        answer = await self._ask(name, question(action, judgement), OPTIONS)
        decided = _decided(judgement, answer)
        self._note(action, decided, answer=answer)
        return decided

    def _note(self, action: Action, judgement: Judgement, answer: str = "") -> None:
        digest = self._services.rules.digest
        self._journal.note(judged(action, judgement, attempt=self._attempt, answer=answer, rules=digest))


async def admit(services: Services, journal: Notes, action: Action, *, purpose: Purpose) -> Judgement:
    """Judge and note what runs outside of an attempt, where nobody can be asked; return the judgement.

    Raises `RefusedError` (`policy_denied`) unless it is allowed.
    """
    around = Surroundings(
        sandboxed=services.config.sandbox.tier != "none",
        hosts=services.config.sandbox.network,
        purpose=purpose,
        who="person" if purpose == "exec" else "project",
    )
    judgement = await asyncio.to_thread(judge, action, around, services.rules)
    journal.note(judged(action, judgement, rules=services.rules.digest))
    if judgement.effect != "allow":
        raise denied(_kind(action), judgement)
    return judgement


def judged(
    action: Action, judgement: Judgement, *, rules: str, attempt: str = "", answer: str = ""
) -> ActionJudged:
    """Return the event of a judgement."""
    return ActionJudged(
        attempt=attempt,
        kind=_kind(action),
        text=_short(words(action)),
        effect=judgement.effect,
        rule=judgement.rule,
        reason=_short(judgement.reason),
        subject=_short(judgement.subject),
        parts=len(judgement.parts),
        overridden=judgement.overridden[:20],
        answer=_short(answer),
        rules=rules,
    )


def question(action: Action, judgement: Judgement) -> str:
    """Return what a person is asked."""
    what = printable(words(action))
    shown = what if len(what) <= _SHOWN else f"{what[:_SHOWN]} … ({len(what)} characters)"
    return f"May the agent do this? {shown}\n(rule {judgement.rule}: {judgement.reason})"


def words(action: Action) -> str:
    """Return an action as a person reads it."""
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
            return _named(action)
        case Several():
            return ", ".join(words(each) for each in action.actions)


def _named(action: Network | McpCall | Other) -> str:
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


def _decided(judgement: Judgement, answer: str) -> Judgement:
    if answer.strip().lower() in YES:
        return replace(judgement, effect="allow", reason="a person allowed it, this once")
    return replace(judgement, effect="deny", reason=f"a person was asked and said: {answer.strip()[:1000]}")


def _short(text: str) -> str:
    clean = _REDACTOR.text(printable(text))
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"
