"""Runs an agent's own program: redacts its output, watches its money, and turns its end into an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from chargehand.agents.contract import AgentOutcome, AttemptContext, Endpoint, MeteredUsage
from chargehand.agents.programs.events import SessionLog
from chargehand.core.redaction import Redactor
from chargehand.sandbox.contract import ExecResult, OnOutput, Stream

_T = TypeVar("_T")
# Time for a program to end by itself once its calls are refused for money.
_GRACE_SECONDS = 2.0
# The name of the waiting part when an attempt of a program is out of quota.
QUOTA_WAIT = "quota"
NO_USAGE = MeteredUsage()
_POLL_SECONDS = 0.25
_LONGEST_OUTPUT = 1_000_000


def never_started(result: ExecResult) -> bool:
    """Return whether a program could not be run; a script ends with the same codes for its own commands."""
    return result.exit_code in (126, 127) and result.seconds == 0.0


def redactor(endpoint: Endpoint | None) -> Callable[[str], str]:
    """Return a function that removes the attempt's token, and text that looks like a key, from a text."""
    return Redactor({"token": endpoint.token} if endpoint else {}).text


def redact_bytes(redact: Callable[[str], str], output: bytes) -> bytes:
    """Return redacted output; bytes that are not UTF-8 stay unchanged."""
    return redact(output.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def redacted_output(context: AttemptContext) -> OnOutput | None:
    """Return a callback that shows raw output without the token, or `None` without a viewer."""
    show = context.on_output
    redact = redactor(context.endpoint)
    if show is None:
        return None

    def show_redacted(stream: Stream, piece: bytes) -> None:
        show(stream, redact_bytes(redact, piece))

    return show_redacted


def text_output(context: AttemptContext) -> Callable[[str], None]:
    """Return a callback that shows a text to the viewer, if any."""

    def show(text: str) -> None:
        if context.on_output is not None:
            context.on_output("stdout", text.encode(errors="replace"))

    return show


def usage_so_far(endpoint: Endpoint | None) -> MeteredUsage:
    """Return the usage of the attempt's calls so far, empty without a gateway."""
    return endpoint.meter() if endpoint else NO_USAGE


async def run_while_paid(work: Coroutine[Any, Any, _T], endpoint: Endpoint | None) -> _T | None:
    """Run `work` to its end; return `None` if it was cancelled because its calls are refused for good.

    That is for lack of money or quota. Some programs repeat a refused call for minutes: they get two seconds.
    """

    def is_refused() -> bool:
        spent = usage_so_far(endpoint)
        return bool(spent.refused) or spent.quota is not None

    # Polled: the meter is a reading, and a refused program notifies no one.
    running = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([running], timeout=_POLL_SECONDS))[0]:
            if is_refused():
                await asyncio.wait([running], timeout=_GRACE_SECONDS)
                if is_refused():  # otherwise another model answered meanwhile
                    break
        return running.result() if running.done() else None
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])


async def outcome_of(
    context: AttemptContext,
    log: SessionLog,
    result: ExecResult | None,
    *,
    program: str,
    problem: str,
    malformed: int,
    seconds: float,
    since: MeteredUsage = NO_USAGE,
) -> AgentOutcome:
    """Return the outcome of a run; record its transcript, and its own token count next to the gateway's.

    `since` is the attempt's usage before this run. `result` is `None` if it was stopped for lack of money or
    quota; `problem` says why a run with exit code 0 failed. Raises `WaitingError` if it ended for lack of quota;
    see `AttemptContext.park`.
    """
    spent = usage_so_far(context.endpoint)
    transcript = log.transcript()
    told = log.document(spent.since(since), malformed=malformed)
    if transcript:
        told["artifact"] = context.keep(transcript)
    number = 1
    while context.is_recorded(f"told/{number}"):  # by a run that a crash cut off right after it
        number += 1

    async def report() -> object:
        return told

    await context.step(f"told/{number}", [], report)
    timed_out = result is not None and result.timed_out
    # Waiting for quota is not a failure of the agent: the attempt ends here and begins again by itself.
    if spent.quota is not None and not spent.refused and not timed_out:
        await context.park(QUOTA_WAIT, spent.quota, seconds=seconds)
    outcome = claim_of(log, result, spent, program=program, problem=problem)
    redact = redactor(context.endpoint)
    stderr = "" if result is None else result.stderr.decode(errors="replace")
    output = "\n".join(filter(None, (log.said, log.error, stderr)))
    return replace(
        outcome,
        reason=redact(outcome.reason),
        output=redact(output)[-_LONGEST_OUTPUT:].encode(errors="replace"),
        seconds=seconds,
        said=redact(log.said),
        exit_code=None if result is None else result.exit_code,
        truncated=False if result is None else result.truncated,
    )


def claim_of(
    log: SessionLog, result: ExecResult | None, spent: MeteredUsage, *, program: str, problem: str
) -> AgentOutcome:
    """Return claim, reason and code of a run."""
    if result is not None and result.timed_out:
        reason = f"the agent was stopped at its time limit after {result.seconds:.1f} s"
        return AgentOutcome(claim="timed_out", reason=reason, code="time")
    if spent.refused:  # before the exit code: some programs end with 0 and the refusal as their last word
        return out_of_money(spent)
    if result is None:
        return _failure_outcome(f"the agent {program!r} was stopped")
    if never_started(result):
        return _failure_outcome(
            f"the agent's program {program!r} cannot be run in the sandbox", code="agent_missing"
        )
    if result.exit_code == 0 and not log.error and not problem:
        first = next((line for line in log.said.splitlines() if line.strip()), "")
        return AgentOutcome(claim="done", reason=f"the agent says it is done: {first[:300]}")
    stderr = result.stderr.decode(errors="replace").splitlines()
    why = log.error or problem or next((line for line in reversed(stderr) if line.strip()), "")
    how = f"ended with exit code {result.exit_code}" if result.exit_code else "did not complete its run"
    return _failure_outcome(f"the agent {how}: {why[:300]}".rstrip(": "))


def out_of_money(spent: MeteredUsage) -> AgentOutcome:
    """Return the outcome of a run whose calls were refused for money."""
    reason = spent.refused.partition(": ")[2] or spent.refused
    if spent.refused.startswith("price_unknown"):
        return AgentOutcome(claim="exhausted", reason=reason, code="price_unknown")
    return AgentOutcome(claim="exhausted", reason=reason, code="budget")


def unable(reason: str) -> AgentOutcome:
    """Return the outcome of an agent that lacks something its work needs."""
    return AgentOutcome(claim="failed", reason=reason, code="agent_unable")


def _failure_outcome(reason: str, *, code: str = "agent_failed") -> AgentOutcome:
    return AgentOutcome(claim="failed", reason=reason, code=code)
