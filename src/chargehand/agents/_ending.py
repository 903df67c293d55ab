"""How a run of an agent's own program is ended and what its end means, whatever language it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from chargehand.agents._contract import AttemptContext, Endpoint, Metered, Outcome
from chargehand.agents._session_log import SessionLog
from chargehand.models.redaction import Redactor
from chargehand.sandbox._contract import ExecResult, OnOutput, Stream

_T = TypeVar("_T")
GRACE_SECONDS = 2.0
"""What a program gets to end by itself once its calls are refused for money."""
QUOTA_WAIT = "quota"
"""What an attempt of a program waits for, by its own name for it."""
NOTHING = Metered()
_LOOK_SECONDS = 0.25
_LONGEST_OUTPUT = 1_000_000
_MISSING, _NOT_EXECUTABLE = 127, 126


def redactor(endpoint: Endpoint | None) -> Callable[[str], str]:
    """Return what takes the attempt's token, and all that looks like a key, out of a text."""
    return Redactor({"token": endpoint.token} if endpoint else {}).text


def clean_output(context: AttemptContext) -> OnOutput | None:
    """Return what shows raw output piece by piece, without the token."""
    show, clean = context.on_output, redactor(context.endpoint)
    if show is None:
        return None

    def shown(stream: Stream, piece: bytes) -> None:
        show(stream, cleaned(clean, piece))

    return shown


def cleaned(clean: Callable[[str], str], output: bytes) -> bytes:
    """Return bytes of any encoding after `clean`."""
    return clean(output.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def metered(endpoint: Endpoint | None) -> Metered:
    """Return what was called so far, nothing where there is no gateway."""
    return endpoint.meter() if endpoint else Metered()


async def paid(
    work: Coroutine[Any, Any, _T], endpoint: Endpoint | None, *, grace: float = GRACE_SECONDS
) -> _T | None:
    """Run `work` to its end, or return `None`: it was cancelled some seconds after a call was refused for good.

    That is for money or want of quota; some programs try a refused call again for minutes.
    """
    running = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([running], timeout=_LOOK_SECONDS))[0]:
            if _no_more(endpoint):
                await asyncio.wait([running], timeout=grace)
                if _no_more(endpoint):  # else another model answered meanwhile
                    break
        return running.result() if running.done() else None
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])


def _no_more(endpoint: Endpoint | None) -> bool:
    spent = metered(endpoint)
    return bool(spent.refused) or spent.quota is not None


def unable(reason: str) -> Outcome:
    """Return the end of an agent that lacks what its work needs."""
    return Outcome(claim="failed", reason=reason, output=b"", seconds=0.0, code="agent_unable")


async def outcome_of(
    context: AttemptContext,
    log: SessionLog,
    result: ExecResult | None,
    *,
    program: str,
    problem: str,
    malformed: int,
    seconds: float,
    since: Metered = NOTHING,
) -> Outcome:
    """Return what a run means, and keep what it told: its transcript, and its count of tokens beside ours.

    `since` is what the attempt had called before this run. `result` is `None` where it was stopped for money or
    want of quota; `problem` says what is wrong with an exit code of 0. Raises `WaitingError` where it ended for
    want of quota; see `AttemptContext.park`.
    """
    spent = metered(context.endpoint)
    transcript = log.transcript()
    told = log.document(_of_run(spent, since), malformed=malformed)
    if transcript:
        told["artifact"] = context.keep(transcript)
    number = 1
    while context.is_recorded(f"told/{number}"):  # by a run that a crash cut off right after it
        number += 1

    async def noted() -> object:
        return told

    await context.step(f"told/{number}", [], noted)
    if spent.quota is not None and not spent.refused and not (result is not None and result.timed_out):
        await context.park(QUOTA_WAIT, spent.quota, seconds=seconds)
    ended = _ended(log, result, spent, program=program, problem=problem)
    clean = redactor(context.endpoint)
    return replace(
        ended,
        reason=clean(ended.reason),
        output=clean(_shown(log, result))[-_LONGEST_OUTPUT:].encode(errors="replace"),
        seconds=seconds,
        said=clean(log.said),
        exit_code=None if result is None else result.exit_code,
        truncated=False if result is None else result.truncated,
    )


def _of_run(spent: Metered, since: Metered) -> Metered:
    return replace(
        spent,
        calls=spent.calls - since.calls,
        input=spent.input - since.input,
        output=spent.output - since.output,
        unknown=spent.unknown - since.unknown,
    )


def no_money(spent: Metered) -> Outcome:
    """Return the end for want of money, without what the agent wrote."""
    reason = spent.refused.partition(": ")[2] or spent.refused
    if spent.refused.startswith("price_unknown"):
        return Outcome(claim="exhausted", reason=reason, output=b"", seconds=0.0, code="price_unknown")
    return Outcome(claim="exhausted", reason=reason, output=b"", seconds=0.0, code="budget")


def _ended(log: SessionLog, result: ExecResult | None, spent: Metered, *, program: str, problem: str) -> Outcome:
    if result is not None and result.timed_out:
        reason = f"the agent was stopped at its time limit after {result.seconds:.1f} s"
        return Outcome(claim="timed_out", reason=reason, output=b"", seconds=0.0, code="time")
    good = result is not None and result.exit_code == 0 and not log.error and not problem
    if spent.refused:  # some end with 0 and the refusal as their last word
        return no_money(spent)
    if result is None:
        return _failed(f"the agent {program!r} was stopped")
    if result.exit_code in (_MISSING, _NOT_EXECUTABLE) and not log.counts:
        reason = f"the agent's program {program!r} cannot be run in the sandbox"
        return Outcome(claim="failed", reason=reason, output=b"", seconds=0.0, code="agent_missing")
    if good:
        first = next((line for line in log.said.splitlines() if line.strip()), "")
        return Outcome(claim="done", reason=f"the agent says it is done: {first[:300]}", output=b"", seconds=0.0)
    why = log.error or problem or _last_line(result.stderr)
    how = f"ended with exit code {result.exit_code}" if result.exit_code else "did not end well"
    return _failed(f"the agent {how}: {why[:300]}".rstrip(": "))


def _failed(reason: str) -> Outcome:
    return Outcome(claim="failed", reason=reason, output=b"", seconds=0.0, code="agent_failed")


def _last_line(output: bytes) -> str:
    return next((line for line in reversed(output.decode(errors="replace").splitlines()) if line.strip()), "")


def _shown(log: SessionLog, result: ExecResult | None) -> str:
    parts = [log.said, log.error, result.stderr.decode(errors="replace") if result is not None else ""]
    return "\n".join(part for part in parts if part)
