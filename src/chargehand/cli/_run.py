"""`chargehand run`: one mission from its request to its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from chargehand.app import App, Found, Resolved, Session, require_tier, require_trust
from chargehand.cli._failures import INTERRUPTED, show_failure
from chargehand.cli._interrupt import Stop, run_async
from chargehand.cli._output import Output, to_json
from chargehand.cli._prepare import base_line, check_apply, prepare, settle_trust
from chargehand.cli._progress import progress
from chargehand.cli._request import RunOptions, build_request, choose_agent, keep_check_files, request_text
from chargehand.cli._result import exit_code, result_document, show_result
from chargehand.core import ChargehandError, MissionState
from chargehand.sandbox import OnOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a mission ended, what of our own failed meanwhile, and whether a signal stopped it."""

    state: MissionState
    notes: tuple[str, ...] = ()
    failure: ChargehandError | None = None
    interrupted: bool = False


def run(out: Output, options: RunOptions) -> int:
    """Run one mission and show its result; return the exit code."""
    with App.open() as app:
        ended = run_mission(app, out, options)
        return show_ended(out, ended)


def run_mission(app: App, out: Output, options: RunOptions) -> Ended:
    """Run one mission to where it is settled. Raises for whatever was wrong before there was a mission."""
    text = request_text(options)
    prepared = prepare(app, options.repo, revision=options.base, options=options.configuration())
    choose_agent(prepared.resolved, options.agent)
    require_tier(prepared.resolved.config.sandbox.tier)
    if options.apply:
        check_apply(prepared)
    check_files = keep_check_files(options.check_files, app.store.artifacts)
    settle_trust(app, out, prepared, ask=not options.yes)
    return run_async(lambda stop: _run(stop, app, out, options, prepared, text, check_files))


async def _run(
    stop: Stop,
    app: App,
    out: Output,
    options: RunOptions,
    found: Found,
    text: str,
    check_files: tuple[tuple[str, str], ...],
) -> Ended:
    with progress(out) as shown:
        async with app.session(
            options.repo,
            revision=options.base,
            options=options.configuration(),
            found=found,
            watch=shown.watch,
        ) as session:
            require_trust(session.resolved)
            agent, why = choose_agent(session.resolved, options.agent)
            request = build_request(options, session.resolved, text=text, agent=agent, check_files=check_files)
            mission = session.missions.create(
                request,
                repository=str(session.project.path),
                base=session.base,
                config=_recorded(session.resolved),
            )
            notes = _beginning(session, mission, f"{agent} ({why})")
            for line in notes:
                shown.note(line)
            state, failure = await _settled(stop, session, mission, shown.output)
    notes = () if out.shows_progress else notes
    return Ended(state=state, notes=notes, failure=failure, interrupted=stop.asked)


async def _settled(
    stop: Stop, session: Session, mission: str, on_output: OnOutput
) -> tuple[MissionState, ChargehandError | None]:
    """Return how the mission stands once it is settled, however that came."""
    try:
        return await session.missions.run(mission, on_output=on_output), None
    except asyncio.CancelledError:
        # A signal, or an order from `mission cancel`: either way the mission is settled by now.
        stop.survive()
        return session.missions.look.state(mission), None
    except ChargehandError as error:
        return session.missions.look.state(mission), error


def _recorded(resolved: Resolved) -> dict[str, object]:
    recorded = {
        "values": resolved.config,
        "origins": dict(resolved.origins),
        "digest": resolved.digest,
        "notes": resolved.notes,
    }
    document: dict[str, object] = to_json(recorded)
    return document


def _beginning(session: Session, mission: str, agent: str) -> tuple[str, ...]:
    """Return what a person is told before work begins."""
    resolved = session.resolved
    lines = [
        f"mission   {mission}",
        f"base      {base_line(session.base)}",
        f"agent     {agent}",
        f"sandbox   {resolved.config.sandbox.tier}, workspace by {session.driver}",
    ]
    if resolved.only_checks is not None:
        lines.append(f"checks    only {', '.join(resolved.only_checks)} (--only-check)")
    return (*lines, *(f"note      {note}" for note in resolved.notes))


def show_ended(out: Output, ended: Ended) -> int:
    """Write the result, and the error behind it if there is one; return the exit code."""
    out.document(result_document(ended.state))
    for line in ended.notes:
        out.text(line)
    show_result(out, ended.state)
    if ended.interrupted:
        return INTERRUPTED
    if ended.failure is not None:
        return show_failure(ended.failure, as_json=out.as_json)
    return exit_code(ended.state)
