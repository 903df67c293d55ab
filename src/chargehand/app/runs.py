"""Runs a mission, from a request with its options until the mission is settled.

`prepare_run` finds every error of a request before anything is recorded or started.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from chargehand.agents.roles import DEVELOPER, Role
from chargehand.app.providers.served import existing_keys
from chargehand.app.selection.agents import named_agent
from chargehand.app.selection.choice import AgentChoice, agent_choice, choose_for_request
from chargehand.app.selection.roles import RoleCatalogue, RoleFile
from chargehand.app.truths import look_quietly
from chargehand.app.wiring.session import ConfiguredBase, ProjectBase, Session, WorkPlaces
from chargehand.app.wiring.tiers import require_tier
from chargehand.configuration.areas import meet_areas
from chargehand.configuration.records import ResolvedConfig
from chargehand.configuration.run_options import RunRequest
from chargehand.configuration.trust import ConfirmTrust, add_stranger, require_trust, settle_trust
from chargehand.core.config import Config
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.core.events import Event, Payload
from chargehand.core.plan_events import PlanMade, PlanWanted
from chargehand.core.ports import ArtifactSink, KeySource
from chargehand.core.records import Base, ChoiceReason, IssueLink, MissionRequest, RedBase
from chargehand.core.state import MissionState
from chargehand.core.text import shown_path
from chargehand.decisions.decider import Decider
from chargehand.missions.breakpoints import parse_breakpoints
from chargehand.missions.journal import MissionSubmission, create_mission
from chargehand.reports.documents import to_json
from chargehand.reports.live_output import remove_settled_output, run_with_output
from chargehand.store.artifacts import Artifacts
from chargehand.workspace.export import check_prefix

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.sandbox.contract import Stream

_SLUG_CHARACTERS = 40
# A native agent may fix what the checks reject, twice; a program that failed once would only fail again.
_NATIVE_ATTEMPTS = 3
# The request reaches agents as one environment variable, which Linux limits to 128 KiB.
_LARGEST_REQUEST_BYTES = 100_000
_LARGEST_CHECK_FILE_BYTES = 64 << 20
_FILE_HINT = "name a file of UTF-8 text, or - for stdin"
_HOST_HINT = "name a file of this machine that you can read"


def request_text(options: RunRequest) -> str:
    """Return the text of the request: the argument, or the content of `--file`. Raises `UsageError`."""
    if options.text is not None and options.file is not None:
        raise UsageError("both TEXT and --file were given", hint="give one of them")
    if options.file is not None:
        try:
            # Bytes: text streams decode by the locale.
            content = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
            text = content.decode("utf-8")
        except OSError as error:
            message = f"--file: {options.file!r} cannot be read: {error.strerror}"
            raise UsageError(message, hint=_FILE_HINT) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"--file: {options.file!r} is not UTF-8 text", hint=_FILE_HINT) from error
    elif options.text is not None:
        text = options.text
    else:
        raise UsageError("no request was given", hint='chargehand run "TEXT", or --file F')
    if not text.strip():
        raise UsageError("the request is empty", hint="write a task for the agent")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8 arrive as surrogates
        raise UsageError("the request is not UTF-8 text", hint="give plain text") from error
    if "\0" in text:
        raise UsageError("the request contains a zero byte", hint="give plain text")
    if size > _LARGEST_REQUEST_BYTES:
        hint = "put the rest into a file of the repository"
        raise UsageError(
            f"the request has {size} bytes, more than {_LARGEST_REQUEST_BYTES}", code="request_too_long", hint=hint
        )
    return text


def branch_slug(text: str) -> str:
    """Return a branch-safe name from a request in any script: its first words in ASCII, at most 40 characters."""
    plain = text[:400]
    if not plain.isascii():
        from anyascii import anyascii

        plain = anyascii(plain)
    made = ""
    for word in re.findall(r"[a-z0-9]+", plain.lower()):
        longer = f"{made}-{word}" if made else word[:_SLUG_CHARACTERS]
        if len(longer) > _SLUG_CHARACTERS:
            break
        made = longer
    return made or "mission"


class RoleAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of a role: the role with its file as read, the agent with its model, and the reasons."""

    role: Role
    file: RoleFile
    choice: AgentChoice
    reasons: tuple[ChoiceReason, ...] = ()


def assign_role(
    resolved: ResolvedConfig,
    options: RunRequest,
    roles: RoleCatalogue,
    *,
    environ: Mapping[str, str],
    keys: KeySource,
    decider: Decider | None = None,
    project: str = "",
) -> RoleAssignment:
    """Return the requested role with its agent; raise as `RoleCatalogue.find` and `choose_for_request` do."""
    role, file = roles.find(options.role or DEVELOPER, resolved.config)
    chosen, reasons = choose_for_request(
        resolved.config,
        environ,
        keys,
        agent=options.agent,
        model=options.model,
        role=role,
        decider=decider,
        kind=project,
        explores=not options.no_explore,
    )
    return RoleAssignment(role=role, file=file, choice=agent_choice(chosen, reasons), reasons=reasons)


def keep_check_files(
    files: Sequence[str], artifacts: Artifacts, *, option: str = "--check-file"
) -> tuple[tuple[str, str], ...]:
    """Store the content of each `HOST:PATH` and return (artifact id, path). Raises `UsageError`."""
    hosts: dict[str, Path] = {}
    for text in files:
        # The last colon is the separator: a host path may contain one, the path inside may not.
        host, colon, path = text.rpartition(":")
        if not colon or not host or not path:
            raise UsageError(f"{option}: {text!r} is not HOST:PATH", hint="such as tests_new.py:tests/test_new.py")
        parts = path.split("/")
        # `.git` in any case: some file systems ignore it.
        if path.startswith("/") or {"", ".", ".."} & set(parts) or any(part.lower() == ".git" for part in parts):
            raise UsageError(
                f"{option}: {shown_path(path)!r} is not a path inside the repository",
                hint="give it relative to the top, without '..' and '.git'",
            )
        if path in hosts:
            raise UsageError(f"{option}: two files for {shown_path(path)!r}", hint="leave out one of them")
        hosts[path] = Path(host)
    kept = []
    for path, file in hosts.items():
        try:
            if not file.is_file():
                raise UsageError(f"{option}: {str(file)!r} is not a file", hint=_HOST_HINT)
            if file.stat().st_size > _LARGEST_CHECK_FILE_BYTES:
                raise UsageError(
                    f"{option}: {str(file)!r} has more than {_LARGEST_CHECK_FILE_BYTES} bytes",
                    hint="name a smaller file",
                )
            content = file.read_bytes()
        except OSError as error:
            message = f"{option}: {str(file)!r} cannot be read: {error.strerror}"
            raise UsageError(message, hint=_HOST_HINT) from error
        kept.append((artifacts.put(content, kind="check-file"), path))
    return tuple(kept)


def build_request(
    options: RunRequest,
    resolved: ResolvedConfig,
    *,
    text: str,
    assignment: RoleAssignment,
    artifacts: ArtifactSink,
    places: WorkPlaces,
    check_files: tuple[tuple[str, str], ...],
    outside_files: tuple[tuple[str, str], ...] = (),
) -> MissionRequest:
    """Return the request of a mission for recording; the current content of the role's file is stored.

    Raises `ConfigError` if role and mission leave no area that may be changed.
    """
    choice = assignment.choice
    config = resolved.config
    named = named_agent(config, choice.agent)
    return MissionRequest(
        text=text,
        agent=choice.agent,
        command=named.command,
        slug=branch_slug(text),
        only_checks=resolved.only_checks,
        extra_checks=resolved.extra_checks,
        check_files=check_files,
        outside_checks=options.outside_checks,
        outside_files=outside_files,
        allow=meet_areas(config.project.allow, assignment.role.areas),
        forbid=config.project.forbid,
        attempts=allowed_attempts(resolved, choice.agent),
        seconds=config.limits.time,
        # Only if a person limits this plan: the configuration's limit applies to each mission.
        plan_seconds=config.limits.time if options.plan is not None and options.time is not None else None,
        tier=config.sandbox.tier,
        partial=options.partial,
        apply=options.apply,
        red_base=_choose_red_base(options, config),
        model=choice.model,
        fallback=choice.fallback,
        why=choice.why,
        role=assignment.role.name,
        # The text, not the path: after a crash and in a fork the role has to be the same.
        role_text=artifacts.put(assignment.file.content, kind="role"),
        role_from=assignment.file.place,
        directory=places.agent,
        checks_directory=places.checks,
        break_at=parse_breakpoints(options.break_at),
        named=(*(("agent",) if options.agent else ()), *(("model",) if options.model else ())),
    )


def _choose_red_base(options: RunRequest, config: Config) -> RedBase:
    configured = config.project.red_base
    if options.red_base is not None:
        return options.red_base
    return "later" if configured == "ask" and not options.interactive else configured


def allowed_attempts(resolved: ResolvedConfig, agent: str) -> int:
    """Return the number of attempts for an agent: a native one may repair its work, unless a person set fewer."""
    # Only the default is raised: a person who writes 1 means it.
    repairs = resolved.origins.get("limits.attempts") == "default"
    native = named_agent(resolved.config, agent).kind == "native"
    return _NATIVE_ATTEMPTS if repairs and native else resolved.config.limits.attempts


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A validated request: its base, its text, and the files that only its checks see."""

    request: RunRequest
    found: ConfiguredBase
    text: str
    check_files: tuple[tuple[str, str], ...]
    outside_files: tuple[tuple[str, str], ...]


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """The facts shown to a person before work begins: mission, base, role, agent and sandbox."""

    mission: str
    base: Base
    places: WorkPlaces
    assignment: RoleAssignment
    tier: str
    driver: str
    only_checks: tuple[str, ...] | None
    notes: tuple[str, ...]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A mission's state once it is settled, and an error during the run.

    `start` is `None` for a mission that was recorded before; `interrupted` says that a signal stopped it.
    """

    state: MissionState
    start: RunStart | None = None
    failure: ChargehandError | None = None
    interrupted: bool = False


class RunObserver(Protocol):
    """Observes a run; called on the event loop."""

    def begin(self, start: RunStart, /) -> None:
        """Handle that the mission is recorded and its work begins."""
        ...

    def watch(self, event: Event, payload: Payload, /) -> None:
        """Handle an event."""
        ...

    def output(self, stream: Stream, piece: bytes, /) -> None:
        """Handle a piece of the agent's output."""
        ...

    def check_output(self, stream: Stream, piece: bytes, /) -> None:
        """Handle a piece of a check's output; a piece `$ COMMAND` begins each check."""
        ...


def prepare_run(app: App, request: RunRequest, *, confirm_trust: ConfirmTrust | None = None) -> PreparedRun:
    """Validate a request without starting anything.

    Raises `UsageError`, `ConfigError`, `RepositoryError`, `WaitingError` (`trust_needed`), `TierUnavailableError`.
    """
    text = request_text(request)
    found = app.preparation.configured(
        request.repo, revision=request.base, directory=request.directory, options=request.configuration()
    )
    look_quietly(app, found.project.id)  # first: the choice learns from what it finds
    choice = _assign_ready(app, found, found.resolved, request).choice
    require_tier(found.resolved.config.sandbox.tier)
    # Before anything is paid: the result could not be exported.
    check_prefix(found.depot, found.resolved.config.project.branch_prefix)
    if request.apply:
        found.depot.check_can_apply()
        branch = found.depot.repository.branch
        if found.base.branch != branch:
            base = found.base.revision
            raise UsageError(
                f"--apply moves the branch that is checked out, {branch!r}, and the base is {base!r}",
                code="apply_base",
                hint="leave out --base or --apply",
            )
    check_files = _keep_mountable(app, found, request.check_files, option="--check-file")
    outside_files = _keep_mountable(app, found, request.outside_files, option="--outside-file")
    if outside_files and not found.resolved.config.project.outside_checks:
        raise UsageError(
            "--outside-file: no outside check would see it",
            hint="give --outside-check CMD, or write project.outside_checks",
        )
    # Last, so that no person is asked to trust a repository for a request that cannot be carried out.
    settle_trust(
        add_stranger(found.resolved, choice.agent, choice.model),
        confirm_trust,
        lambda digest: app.store.trust.grant(found.project.id, digest, identity=app.identity()),
    )
    return PreparedRun(
        request=request, found=found, text=text, check_files=check_files, outside_files=outside_files
    )


def _keep_mountable(
    app: App, found: ConfiguredBase, files: Sequence[str], *, option: str
) -> tuple[tuple[str, str], ...]:
    """Store files to be mounted in a base; raise `UsageError`."""
    kept = keep_check_files(files, app.store.artifacts, option=option)
    for _, path in kept:
        obstacle = found.depot.find_obstacle(found.base.tree, path)
        if obstacle is not None:
            raise UsageError(
                f"{option}: nothing can be mounted at {shown_path(path)!r}: {obstacle} in the base",
                hint="name the path of a file, or a path that does not exist",
            )
    return kept


def record_mission(
    app: App,
    request: RunRequest,
    *,
    confirm_trust: ConfirmTrust | None = None,
    mission: str | None = None,
    noted: Mapping[str, object] | None = None,
    plan: PlanMade | PlanWanted | None = None,
    issue: IssueLink | None = None,
    check: Callable[[ConfiguredBase, MissionRequest], None] = lambda found, request: None,
) -> str:
    """Record a mission for a worker and return its id; `mission` and `plan` as in `create_mission`.

    `issue` is the issue of a forge.
    `noted` is stored with the configuration in the mission's first event; an error raised by `check` prevents
    recording. Raises the errors of `prepare_run`, and `TierUnavailableError` if no worker of this machine could
    open its sandboxes. Not for a thread with a running loop.
    """
    prepared = prepare_run(app, request, confirm_trust=confirm_trust)
    found = prepared.found
    # Resolved again: a person may just have trusted the repository's file, so that more of it applies.
    resolved = app.preparation.configuration(found, options=request.configuration(), head=request.base is None)
    assignment = _assign_ready(app, found, resolved, request)
    asked = _recorded_request(app, prepared, resolved, assignment, app.preparation.places(found, resolved))
    asked = replace(asked, issue=issue)
    check(replace(found, resolved=resolved), asked)
    asyncio.run(app.sandboxes.prove_tier(found, resolved))
    return create_mission(
        app.store,
        MissionSubmission(
            project=found.project.id,
            request=asked,
            repository=str(found.project.path),
            base=found.base,
            config=_recorded_configuration(resolved) | dict(noted or {}),
            user=app.user,
            plan=plan,
            chosen=assignment.reasons,
        ),
        mission=mission,
    )


async def run_mission(app: App, prepared: PreparedRun, *, observer: RunObserver) -> RunOutcome:
    """Run one mission until it is settled.

    A cancellation before the mission exists raises `CancelledError`; after that it settles the mission.
    """
    request = prepared.request
    async with app.session(
        request.repo,
        revision=request.base,
        options=request.configuration(),
        found=prepared.found,
        watch=observer.watch,
    ) as session:
        resolved = session.resolved
        assignment = _assign_ready(app, prepared.found, resolved, request)
        # Checked again: the session re-reads the repository's file, which may have changed since a person saw it.
        require_trust(add_stranger(resolved, assignment.choice.agent, assignment.choice.model))
        recording = session.missions.created(
            _recorded_request(app, prepared, resolved, assignment, session.places),
            repository=str(session.project.path),
            base=session.base,
            config=_recorded_configuration(resolved),
            chosen=assignment.reasons,
        )
        with recording as mission:
            start = RunStart(
                mission=mission,
                base=session.base,
                places=session.places,
                assignment=assignment,
                tier=resolved.config.sandbox.tier,
                driver=session.driver,
                only_checks=resolved.only_checks,
                notes=resolved.notes,
            )
            observer.begin(start)
            state, failure = await _run_to_rest(app, session, mission, observer)
    return RunOutcome(state=state, start=start, failure=failure)


async def continue_mission(app: App, mission: str, *, observer: RunObserver) -> RunOutcome:
    """Run a recorded mission from its current state until it is settled."""
    async with app.mission_session(mission, recorded=True, watch=observer.watch) as (found, session):
        state, failure = await _run_to_rest(app, session, found, observer)
    return RunOutcome(state=state, failure=failure)


def cancel_running(app: App) -> bool:
    """Cancel every mission that this process runs; return whether there was any."""
    return app.controls.stop_all("cancel", identity=app.identity())


def release_running(app: App) -> bool:
    """Release every mission that this process runs, for any worker to resume; return whether there was any."""
    return app.controls.stop_all("release")


async def _run_to_rest(
    app: App, session: Session, mission: str, observer: RunObserver
) -> tuple[MissionState, ChargehandError | None]:
    """Return the mission's state once it is settled, and the error that ended the run, if any."""
    try:
        return await run_with_output(
            app, session.missions, mission, also=observer.output, also_checks=observer.check_output
        ), None
    except asyncio.CancelledError:
        # A signal, or an order from `mission cancel`: either way the mission is settled by now.
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        state = session.missions.look.state(mission)
        remove_settled_output(app.home, state)
        return state, None
    except ChargehandError as error:
        # At rest: on a full disk nothing could record that this process released the mission.
        state = session.missions.look.at_rest(mission)
        # The log already says that the mission waits for space: a later failure for the same reason adds nothing.
        waits = state.status == "waiting" and any(reason.code == "no_space" for reason in state.reasons)
        return state, None if waits and error.code in ("no_space", "store_full") else error


def _assign_ready(app: App, found: ProjectBase, resolved: ResolvedConfig, request: RunRequest) -> RoleAssignment:
    """Return an assignment ready to start; raise as `assign_role` and `require_ready_agent` do."""
    assignment = assign_role(
        resolved,
        request,
        app.preparation.roles(found),
        environ=app.environ,
        keys=existing_keys(app.credentials, found.project),
        decider=app.decider,
        project=found.project.id,
    )
    choice = assignment.choice
    models = (*((choice.model,) if choice.model else ()), *choice.fallback)
    app.preparation.require_ready_agent(found, resolved, choice.agent, models)
    return assignment


def _recorded_request(
    app: App, prepared: PreparedRun, resolved: ResolvedConfig, assignment: RoleAssignment, places: WorkPlaces
) -> MissionRequest:
    return build_request(
        prepared.request,
        resolved,
        text=prepared.text,
        assignment=assignment,
        artifacts=app.store.artifacts,
        places=places,
        check_files=prepared.check_files,
        outside_files=prepared.outside_files,
    )


def _recorded_configuration(resolved: ResolvedConfig) -> dict[str, object]:
    recorded: dict[str, object] = to_json(
        {
            "values": resolved.config,
            "origins": dict(resolved.origins),
            "digest": resolved.digest,
            "notes": resolved.notes,
        }
    )
    return recorded
