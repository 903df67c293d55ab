"""The conformance suite of agents: what every adapter must keep, as checks that its author runs.

pytest collects them from a subclass that gives the fixture `open_case`, with `asyncio_mode = "auto"`.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from chargehand.agents.contract import AgentOutcome
from chargehand.core.errors import WaitingError
from chargehand.testing.agents.kit import ANSWER, AgentCase, OpenCase

# Only the exec server (process 1) and the program that counts may be alive.
_NOBODY_ELSE = "import os; print(sorted(p for p in os.listdir('/proc') if p.isdigit()) == ['1', str(os.getpid())])"


class AgentContract:
    """All that an agent's adapter promises, one test each; subclass it and give the fixture `open_case`.

    `open_case(act, *, usd=None, effect="allow")` returns an `AgentCase`: an agent that will do `act`, with a
    context on a fresh sandbox. `usd` is what its model calls may cost, `effect` what the rules say. The acts:

    - `edit`: writes `made.txt` with the line `made`, and ends well;
    - `fail`: ends badly;
    - `hang`: starts programs of its own, writes `made.txt`, and never ends;
    - `malformed`: does as `edit`, and tells in between what no client understands;
    - `garbage`: tells nothing but such things, and ends with exit code 0;
    - `ask`: asks a person something, and writes the answer into `made.txt` where the first person says it;
    - `pay`: calls its model twice, then does as `edit`; `insist`: calls it again and again, whatever is answered;
    - `leak`: tells its whole environment, then does as `edit`;
    - `garble-once`, `garble-twice`, `garble-always`: writes `made.txt`, and ends with a message that cannot be
      read; asked again, it leaves one of success after so many.

    `left_out` names the acts that this agent cannot do by its nature, each with the reason.
    """

    left_out: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    async def open_case(self) -> OpenCase:
        """Return how to set an agent up for an act; a subclass gives it."""
        raise NotImplementedError("an adapter's test gives the factory")

    async def test_it_says_what_it_is(self, open_case: OpenCase) -> None:
        """Name, kind and abilities are there, and what it lacks is said in words."""
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
            assert needed or act in self.left_out, f"what cannot {act} says so in left_out"

    async def test_it_edits_and_says_that_it_is_done(self, open_case: OpenCase) -> None:
        """What it wrote is there, and its end is a claim."""
        case = await self._case(open_case, "edit")
        outcome = await self._run(case)
        assert (outcome.claim, outcome.code) == ("done", ""), outcome
        assert outcome.reason
        assert case.context.made() == "made\n"
        assert not outcome.truncated
        assert outcome.seconds >= 0

    async def test_a_failure_has_a_code_and_a_reason(self, open_case: OpenCase) -> None:
        """An end that is no success never looks like one."""
        case = await self._case(open_case, "fail")
        outcome = await self._run(case)
        assert outcome.claim == "failed", outcome
        assert outcome.code
        assert outcome.reason
        assert case.context.made() is None

    async def test_its_time_limit_ends_it_with_all_that_it_started(self, open_case: OpenCase) -> None:
        """No process of it outlives its time."""
        case = await self._case(open_case, "hang")
        outcome = await self._run(case, seconds=3.0)
        assert outcome.claim == "timed_out", outcome
        await self._nobody_lives(case)

    async def test_cancelling_ends_it_with_all_that_it_started(self, open_case: OpenCase) -> None:
        """No process of it outlives a cancelled call."""
        case = await self._case(open_case, "hang")
        running = asyncio.create_task(case.agent.run(case.assignment(), case.context))
        # For a machine under load: it bounds a failure, and is never waited for otherwise.
        async with asyncio.timeout(60):
            # Cancelled in the middle of its work: the file says that it got there.
            while case.context.made() is None and not running.done():  # noqa: ASYNC110 -- another process writes it
                await asyncio.sleep(0.01)
        # One that had ended by itself would make what follows pass without having cancelled anything.
        assert not running.done(), running
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await self._nobody_lives(case)

    async def test_what_it_tells_wrongly_is_counted_and_passed_over(self, open_case: OpenCase) -> None:
        """Lines that nobody understands lose nothing of the others."""
        case = await self._case(open_case, "malformed")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.made() == "made\n"
        assert self._last_report(case)["malformed"] > 0

    async def test_nothing_but_wrong_lines_is_no_success(self, open_case: OpenCase) -> None:
        """An exit code of 0 without a word that can be understood is a failure."""
        case = await self._case(open_case, "garbage")
        outcome = await self._run(case)
        assert outcome.claim == "failed", outcome
        assert outcome.code in ("agent_failed", "end_unreadable"), outcome

    @pytest.mark.parametrize(("act", "repairs"), [("garble-once", 1), ("garble-twice", 2)])
    async def test_a_message_that_cannot_be_read_is_asked_for_again(
        self, open_case: OpenCase, act: str, repairs: int
    ) -> None:
        """Twice at most; who cannot be asked fails, and says why it was not."""
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
        """It is asked for again exactly twice, and is no success."""
        case = await self._case(open_case, "garble-always")
        if not case.agent.abilities.repairs:
            return
        outcome = await self._run(case)
        assert (outcome.claim, outcome.code) == ("failed", "malformed_message"), outcome
        assert "malformed 3 times in a row" in outcome.reason
        assert self._asked_again(case) == (3 if case.agent.checkpoints_itself else 2), (
            "the native loop answers the last one too, and nobody reads that"
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

    async def test_what_is_denied_does_not_happen(self, open_case: OpenCase) -> None:
        """An agent whose acts are judged writes nothing where the rules deny it."""
        case = await self._case(open_case, "edit", effect="deny")
        if not case.agent.abilities.judged:
            assert "judged one by one" in " ".join(case.agent.abilities.fallbacks())
            return
        await self._run(case)
        assert case.context.made() is None
        assert case.context.judged

    async def test_a_person_may_allow_what_it_does(self, open_case: OpenCase) -> None:
        """Where the rules ask, its act waits for a yes, and is asked for once."""
        case = await self._case(open_case, "edit", effect="ask")
        if not case.agent.abilities.judged:
            return
        # Each act may need a yes of its own; the same one must not be asked for twice.
        while True:
            try:
                outcome = await self._run(case)
                break
            except WaitingError:
                assert case.context.answers or case.context.made() is None
                fresh = set(case.context.asked) - set(case.context.answers)
                assert fresh
                # A bound, since an adapter that names its acts anew each time would ask for ever.
                assert len(case.context.answers) < 5, "it asks again for what was answered"
                case.context.answers.update(dict.fromkeys(fresh, "yes"))
                case.context.again()
        assert outcome.claim == "done", outcome
        assert case.context.made() == "made\n"

    async def test_an_attempt_goes_on_after_a_crash(self, open_case: OpenCase) -> None:
        """Run again with what is recorded, it comes to the same end; who resumes at a step does none twice."""
        case = await self._case(open_case, "edit")
        first = await self._run(case)
        done = list(case.context.done)
        case.context.again()
        second = await self._run(case)
        assert (second.claim, case.context.made()) == (first.claim, "made\n") == ("done", "made\n")
        if case.agent.abilities.resumes == "step":
            assert done
            assert case.context.done == []

    async def test_what_it_used_is_told_beside_what_was_metered(self, open_case: OpenCase) -> None:
        """Its own count of tokens stands beside the gateway's, and they are compared."""
        case = await self._case(open_case, "pay")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.endpoint is not None
        assert case.context.endpoint.meter().calls == 2
        if case.agent.abilities.reports:
            told = self._last_report(case)
            # The gateway's count is the one that limits go by: an agent's own may be anything.
            assert told["metered"]["calls"] == 2
            assert told["agrees"] is True
            assert told["reported"] == {key: told["metered"][key] for key in ("input", "output")}

    async def test_no_money_ends_it_soon(self, open_case: OpenCase) -> None:
        """One that tries a refused call for ever is stopped, and what was booked is within its limit."""
        case = await self._case(open_case, "insist", usd=5.0)
        outcome = await self._run(case, seconds=120.0)
        assert (outcome.claim, outcome.code) == ("exhausted", "budget"), outcome
        assert "limit" in outcome.reason

    async def test_its_token_gets_into_nothing_that_is_kept(self, open_case: OpenCase) -> None:
        """What it tells of its environment is kept and shown without the token."""
        case = await self._case(open_case, "leak")
        outcome = await self._run(case)
        assert outcome.claim == "done", outcome
        assert case.context.endpoint is not None
        everything = case.context.everything() + outcome.output + outcome.reason.encode()
        assert case.context.endpoint.token.encode() not in everything
        assert b"[redacted:token]" in everything, "it told nothing, so nothing was tried"

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
        """Return how often it was told that its message cannot be read; the native loop says it in results."""
        told = "Nothing was finished" if case.agent.checkpoints_itself else "asked-again/"
        found = [name for name, step in case.context.steps.items() if told in name or told in str(step)]
        return len(found)

    @staticmethod
    async def _nobody_lives(case: AgentCase) -> None:
        result = await case.context.sandbox.exec(["python3", "-I", "-c", _NOBODY_ELSE])
        assert result.stdout == b"True\n", "a process of it lives on"
