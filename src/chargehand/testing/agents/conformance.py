"""The conformance suite of agents: the promises of every adapter, as checks that its author runs.

pytest collects them from a subclass with the fixture `open_case`, with `asyncio_mode = "auto"`.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from chargehand.agents.contract import AgentOutcome
from chargehand.core.errors import WaitingError
from chargehand.testing.agents.kit import ANSWER, AgentCase, OpenCase

# Only the exec server (process 1) and the counting program may be alive.
_NOBODY_ELSE = "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()) == ['1', str(os.getpid())])"


class AgentContract:
    """All promises of an agent's adapter, one test each; subclass it and provide the fixture `open_case`.

    `open_case(act, *, usd=None, effect="allow")` returns an `AgentCase`: an agent that will do `act`, with a
    context on a fresh sandbox. `usd` limits the cost of its model calls, `effect` is the rules' judgement. The
    acts:

    - `edit`: writes `made.txt` with the line `made`, and ends well;
    - `fail`: ends badly;
    - `hang`: starts other programs, writes `made.txt`, and never ends;
    - `malformed`: acts like `edit`, but sends malformed messages in between;
    - `garbage`: sends only such messages, and ends with exit code 0;
    - `ask`: asks a person a question, and writes the answer into `made.txt`;
    - `pay`: calls its model twice, then acts like `edit`; `insist`: calls it again and again, whatever the answer;
    - `leak`: prints its whole environment, then acts like `edit`;
    - `garble-once`, `garble-twice`, `garble-always`: writes `made.txt`, and ends with an unreadable message; asked
      again, it leaves a message of success after that many times.

    `left_out` names the acts that this agent cannot do by its nature, each with the reason.
    """

    left_out: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    async def open_case(self) -> OpenCase:
        """Return a function that sets up an agent for an act; a subclass provides it."""
        raise NotImplementedError("an adapter's test gives the factory")

    async def test_name_kind_and_abilities_are_declared(self, open_case: OpenCase) -> None:
        """Name, kind and abilities exist, and each missing ability is described in words."""
        agent = (await self._case(open_case, "edit")).agent
        assert agent.name
        assert agent.kind
        agent.prepare()
        lacks = (
            agent.abilities.judged,
            agent.abilities.asks,
            agent.abilities.hears,
            agent.abilities.acknowledges,
            agent.abilities.repairs,
            agent.abilities.resumes == "step",
        )
        assert len(agent.abilities.fallbacks()) == lacks.count(False)
        for act, needed in (("ask", agent.abilities.asks), ("malformed", agent.abilities.reports)):
            assert needed or act in self.left_out, f"an agent that cannot {act} says so in left_out"

    async def test_an_edit_ends_with_a_claim_of_success(self, open_case: OpenCase) -> None:
        """The written file exists, and the agent's end is a claim."""
        case = await self._case(open_case, "edit")
        outcome = await self._run(case)
        assert (outcome.claim, outcome.code) == ("done", ""), outcome
        assert outcome.reason
        assert case.context.made() == "made\n"
        assert not outcome.truncated
        assert outcome.seconds >= 0

    async def test_a_failure_has_a_code_and_a_reason(self, open_case: OpenCase) -> None:
        """A failed end never looks like a success."""
        case = await self._case(open_case, "fail")
        outcome = await self._run(case)
        assert outcome.claim == "failed", outcome
        assert outcome.code
        assert outcome.reason
        assert case.context.made() is None

    async def test_its_time_limit_ends_it_with_all_that_it_started(self, open_case: OpenCase) -> None:
        """No process of the agent outlives its time limit."""
        case = await self._case(open_case, "hang")
        outcome = await self._run(case, seconds=3.0)
        assert outcome.claim == "timed_out", outcome
        await self._nobody_lives(case)

    async def test_cancelling_ends_it_with_all_that_it_started(self, open_case: OpenCase) -> None:
        """No process of the agent outlives a cancelled call."""
        case = await self._case(open_case, "hang")
        running = asyncio.create_task(case.agent.run(case.assignment(), case.context))
        # For a machine under load: it only bounds a failure, and otherwise never delays.
        async with asyncio.timeout(60):
            # Cancelled in the middle of its work: the file shows that it got there.
            while case.context.made() is None and not running.done():  # noqa: ASYNC110 -- another process writes it
                await asyncio.sleep(0.01)
        # An agent that had already ended would pass the following checks without being cancelled.
        assert not running.done(), running
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await self._nobody_lives(case)

    async def test_malformed_messages_are_counted_and_ignored(self, open_case: OpenCase) -> None:
        """Malformed lines do not affect the others."""
        case = await self._case(open_case, "malformed")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.made() == "made\n"
        assert self._last_report(case)["malformed"] > 0

    async def test_only_malformed_messages_are_a_failure(self, open_case: OpenCase) -> None:
        """An exit code of 0 without any readable message is a failure."""
        case = await self._case(open_case, "garbage")
        outcome = await self._run(case)
        assert outcome.claim == "failed", outcome
        assert outcome.code in ("agent_failed", "end_unreadable"), outcome

    @pytest.mark.parametrize(("act", "repairs"), [("garble-once", 1), ("garble-twice", 2)])
    async def test_a_message_that_cannot_be_read_is_asked_for_again(
        self, open_case: OpenCase, act: str, repairs: int
    ) -> None:
        """Twice at most; an agent that cannot be asked fails, and says why it was not asked."""
        case = await self._case(open_case, act)
        outcome = await self._run(case)
        if not case.agent.abilities.repairs:
            assert (outcome.claim, outcome.code) == ("failed", "malformed_message"), outcome
            assert "was not asked for again" in outcome.reason
            return
        assert (outcome.claim, outcome.code) == ("done", ""), outcome
        assert case.context.made() == "made\n"
        assert self._asked_again(case) == repairs

    async def test_a_message_that_is_never_right_fails_after_two_repairs(self, open_case: OpenCase) -> None:
        """The message is asked for again exactly twice, and is not a success."""
        case = await self._case(open_case, "garble-always")
        if not case.agent.abilities.repairs:
            return
        outcome = await self._run(case)
        assert (outcome.claim, outcome.code) == ("failed", "malformed_message"), outcome
        assert "malformed 3 times in a row" in outcome.reason
        assert self._asked_again(case) == (3 if case.agent.checkpoints_itself else 2), (
            "the native loop answers the last one too, which is not read"
        )

    async def test_a_question_waits_for_its_answer(self, open_case: OpenCase) -> None:
        """The attempt ends at the question, and begins again with the answer."""
        case = await self._case(open_case, "ask")
        with pytest.raises(WaitingError):
            await self._run(case)
        assert case.context.made() is None
        ((question, (text, options)),) = case.context.asked.items()
        assert text
        assert not options or ANSWER in options
        case.context.answers[question] = ANSWER
        case.context.again()
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.made() == f"{ANSWER}\n"

    async def test_a_denied_action_is_not_executed(self, open_case: OpenCase) -> None:
        """An agent whose acts are judged writes nothing if the rules deny it."""
        case = await self._case(open_case, "edit", effect="deny")
        if not case.agent.abilities.judged:
            assert "judged one by one" in " ".join(case.agent.abilities.fallbacks())
            return
        await self._run(case)
        assert case.context.made() is None
        assert case.context.judged

    async def test_a_person_may_allow_an_action(self, open_case: OpenCase) -> None:
        """If the rules ask, the act waits for a yes, and is asked about once."""
        case = await self._case(open_case, "edit", effect="ask")
        if not case.agent.abilities.judged:
            return
        # Each act may need its own yes; the same act must not be asked about twice.
        while True:
            try:
                outcome = await self._run(case)
                break
            except WaitingError:
                assert case.context.answers or case.context.made() is None
                fresh = set(case.context.asked) - set(case.context.answers)
                assert fresh
                # A bound, since an adapter that names its acts differently each time would ask forever.
                assert len(case.context.answers) < 5, "it asks again for what was answered"
                case.context.answers.update(dict.fromkeys(fresh, "yes"))
                case.context.again()
        assert outcome.claim == "done", outcome
        assert case.context.made() == "made\n"

    async def test_an_attempt_resumes_after_a_crash(self, open_case: OpenCase) -> None:
        """A rerun with the record comes to the same end; an agent that resumes at a step does not repeat any."""
        case = await self._case(open_case, "edit")
        first = await self._run(case)
        done = list(case.context.done)
        case.context.again()
        second = await self._run(case)
        assert (second.claim, case.context.made()) == (first.claim, "made\n") == ("done", "made\n")
        if case.agent.abilities.resumes == "step":
            assert done
            assert case.context.done == []

    async def test_reported_usage_is_compared_with_the_metered_usage(self, open_case: OpenCase) -> None:
        """The agent's own token count is next to the gateway's, and they are compared."""
        case = await self._case(open_case, "pay")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.endpoint is not None
        assert case.context.endpoint.meter().calls == 2
        if case.agent.abilities.reports:
            told = self._last_report(case)
            # Limits use the gateway's count: an agent's own may be anything.
            assert told["metered"]["calls"] == 2
            assert told["agrees"] is True
            assert told["reported"] == {key: told["metered"][key] for key in ("input", "output")}

    async def test_an_exhausted_budget_ends_the_agent(self, open_case: OpenCase) -> None:
        """An agent that retries a refused call forever is stopped, and the booked amount is within its limit."""
        case = await self._case(open_case, "insist", usd=5.0)
        outcome = await self._run(case, seconds=120.0)
        assert (outcome.claim, outcome.code) == ("exhausted", "budget"), outcome
        assert "limit" in outcome.reason

    async def test_the_token_is_in_no_stored_output(self, open_case: OpenCase) -> None:
        """Its printed environment is kept and shown without the token."""
        case = await self._case(open_case, "leak")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.endpoint is not None
        everything = case.context.everything() + outcome.output + outcome.reason.encode()
        assert case.context.endpoint.token.encode() not in everything
        assert b"[redacted:token]" in everything, "it revealed nothing, so nothing was tried"

    async def _case(self, open_case: OpenCase, act: str, **options: object) -> AgentCase:
        if act in self.left_out:
            pytest.skip(self.left_out[act])
        return await open_case(act, **options)

    @staticmethod
    async def _run(case: AgentCase, *, seconds: float = 60.0) -> AgentOutcome:
        return await case.agent.run(case.assignment(seconds=seconds), case.context)

    @staticmethod
    def _last_report(case: AgentCase) -> Any:
        return [step for name, step in case.context.steps.items() if name.startswith("told/")][-1]

    @staticmethod
    def _asked_again(case: AgentCase) -> int:
        """Return how often the agent was asked for a readable message; the native loop asks in results."""
        told = "Nothing was finished" if case.agent.checkpoints_itself else "asked-again/"
        found = [name for name, step in case.context.steps.items() if told in name or told in str(step)]
        return len(found)

    @staticmethod
    async def _nobody_lives(case: AgentCase) -> None:
        result = await case.context.sandbox.exec(["python3", "-I", "-c", _NOBODY_ELSE])
        assert result.stdout == b"True\n", "a process of it lives on"
