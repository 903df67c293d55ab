"""`chargehand run`: one mission from its request to its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chargehand.app.composition import App
from chargehand.app.config.records import ResolvedConfig
from chargehand.app.runs import (
    RoleAssignment,
    RunRequest,
    assign_role,
    build_request,
    keep_check_files,
    request_text,
)
from chargehand.app.trust import require_trust
from chargehand.app.wiring.session import ConfiguredBase as Prepared
from chargehand.app.wiring.session import ProjectBase, Session
from chargehand.app.wiring.tiers import require_tier
from chargehand.app.worker import ensure_worker
from chargehand.cli._prepare import base_line, check_apply, prepare, settle_trust
from chargehand.cli._questions import go_on_with_answers
from chargehand.cli.failures import INTERRUPTED, show_failure
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output, to_json
from chargehand.cli.progress import progress
from chargehand.cli.rendering import exit_code, result_document, show_result
from chargehand.core.errors import ChargehandError
from chargehand.core.events import Event, Payload
from chargehand.core.state import MissionState
from chargehand.missions._journal import Watch, ignore
from chargehand.missions._missions import create_mission
from chargehand.sandbox._contract import OnOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a mission ended, what of our own failed meanwhile, and whether a signal stopped it."""

    state: MissionState
    notes: tuple[str, ...] = ()
    failure: ChargehandError | None = None
    interrupted: bool = False


def run(out: Output, options: RunRequest) -> int:
    """Run one mission and show its result; return the exit code."""
    with App.open() as app:
        if options.detach:
            return _detach(app, out, options)
        ended = run_mission(app, out, options)
        code = show_ended(out, answered(app, out, ended) if not options.yes else ended)
        if ended.failure is None and app.has_work() and ensure_worker(app):
            out.notice("a worker was started for missions that were left to go on with")
        return code


def run_mission(app: App, out: Output, options: RunRequest, *, watch: Watch = ignore) -> Ended:
    """Run one mission to where it is settled; `watch` sees its events beside the progress.

    Raises for whatever was wrong before there was a mission.
    """
    wanted = _wanted(app, out, options)
    return run_async(lambda stop: _run(stop, app, out, options, wanted, watch))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What is asked for, found to be possible before anything begins."""

    prepared: Prepared
    text: str
    check_files: tuple[tuple[str, str], ...]


def answered(app: App, out: Output, ended: Ended) -> Ended:
    """Put what a mission waits for to the person at the terminal, and go on with what they say."""
    if ended.failure is not None or ended.interrupted:
        return ended
    last = [ended]

    def proceed(mission: str) -> MissionState:
        last.append(go_on(app, out, mission))
        return last[-1].state

    def promote(mission: str) -> MissionState:
        async def work(stop: Stop) -> MissionState:
            with progress(out) as shown:
                async with app.mission_session(mission, watch=shown.watch) as (found, session):
                    return await session.missions.promote(found, identity=app.identity())

        last.append(Ended(state=run_async(work)))
        return last[-1].state

    go_on_with_answers(app, out, ended.state, go_on=proceed, promote=promote)
    return replace(last[-1], notes=ended.notes)


def both(first: Watch, second: Watch) -> Watch:
    """Return what tells two."""

    def tell(event: Event, payload: Payload) -> None:
        first(event, payload)
        second(event, payload)

    return tell


def go_on(app: App, out: Output, mission: str, *, watch: Watch = ignore) -> Ended:
    """Run a recorded mission from where it stands to where it is settled; `watch` as in `run_mission`."""

    async def work(stop: Stop) -> Ended:
        with progress(out) as shown:
            seen = both(shown.watch, watch)
            async with app.mission_session(mission, recorded=True, watch=seen) as (found, session):
                stop.end = lambda: app.controls.stop_all("cancel", identity=app.identity())
                state, failure = await _settled(stop, session, found, shown.output)
        return Ended(state=state, failure=failure, interrupted=stop.asked)

    return run_async(work)


def _wanted(app: App, out: Output, options: RunRequest) -> _Wanted:
    text = request_text(options)
    prepared = prepare(app, options.repo, revision=options.base, options=options.configuration())
    _cast(app, prepared, prepared.resolved, options)
    require_tier(prepared.resolved.config.sandbox.tier)
    if options.apply:
        check_apply(prepared)
    check_files = keep_check_files(options.check_files, app.store.artifacts)
    settle_trust(app, out, prepared, ask=not options.yes)
    return _Wanted(prepared=prepared, text=text, check_files=check_files)


def _detach(app: App, out: Output, options: RunRequest) -> int:
    """Record the mission and leave it to a worker."""
    mission = record_mission(app, out, options)
    ensure_worker(app)
    state = app.look.state(mission)
    out.document(result_document(state))
    out.text(f"mission   {mission}")
    out.text(f"a worker goes on with it; chargehand mission watch {mission} shows how")
    return 0


def _cast(app: App, found: ProjectBase, resolved: ResolvedConfig, options: RunRequest) -> RoleAssignment:
    return assign_role(resolved, options, app.roles(found), environ=app.environ, keys=app.credentials)


def record_mission(
    app: App,
    out: Output,
    options: RunRequest,
    *,
    mission: str | None = None,
    noted: Mapping[str, object] | None = None,
) -> str:
    """Record a mission for a worker and return its id; `mission` as in `create_mission`.

    `noted` is kept beside the configuration in the mission's first event. Raises for whatever is wrong.
    """
    wanted = _wanted(app, out, options)
    found = wanted.prepared
    resolved = app.configuration(
        found.project, found.depot, found.base, options=options.configuration(), head=options.base is None
    )
    cast = _cast(app, found, resolved, options)
    return create_mission(
        app.store,
        project=found.project.id,
        request=build_request(
            options,
            resolved,
            text=wanted.text,
            cast=cast,
            artifacts=app.store.artifacts,
            check_files=wanted.check_files,
        ),
        repository=str(found.project.path),
        base=found.base,
        config=_recorded(resolved) | dict(noted or {}),
        mission=mission,
        user=app.user,
    )


async def _run(
    stop: Stop,
    app: App,
    out: Output,
    options: RunRequest,
    wanted: _Wanted,
    watch: Watch,
) -> Ended:
    with progress(out) as shown:
        async with app.session(
            options.repo,
            revision=options.base,
            options=options.configuration(),
            found=wanted.prepared,
            watch=both(shown.watch, watch),
        ) as session:
            require_trust(session.resolved)
            cast = _cast(app, wanted.prepared, session.resolved, options)
            request = build_request(
                options,
                session.resolved,
                text=wanted.text,
                cast=cast,
                artifacts=app.store.artifacts,
                check_files=wanted.check_files,
            )
            mission = session.missions.create(
                request,
                repository=str(session.project.path),
                base=session.base,
                config=_recorded(session.resolved),
            )
            notes = _beginning(session, mission, cast)
            for line in notes:
                shown.note(line)
            stop.end = lambda: app.controls.stop_all("cancel", identity=app.identity())
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
        # At rest: a full disk may have kept us from writing that we let go of it.
        return session.missions.look.at_rest(mission), error


def _recorded(resolved: ResolvedConfig) -> dict[str, object]:
    recorded = {
        "values": resolved.config,
        "origins": dict(resolved.origins),
        "digest": resolved.digest,
        "notes": resolved.notes,
    }
    document: dict[str, object] = to_json(recorded)
    return document


def _beginning(session: Session, mission: str, cast: RoleAssignment) -> tuple[str, ...]:
    """Return what a person is told before work begins."""
    resolved, choice = session.resolved, cast.choice
    bounds = "" if cast.role.writes else f", changes nothing, ends with a {cast.role.output}"
    lines = [
        f"mission   {mission}",
        f"base      {base_line(session.base)}",
        f"role      {cast.role.name} ({cast.file.place}{bounds})",
        f"agent     {choice.agent} ({choice.why})",
        *([f"model     {choice.model}"] if choice.model else []),
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
