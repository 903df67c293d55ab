"""Use cases of sandboxes: run a snippet, run a command, run a project's formatters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from chargehand.checks.formatters import Formatter, detect_formatters, formatted_by
from chargehand.configuration.locations import load_user_file, user_config_path
from chargehand.configuration.records import OptionValue
from chargehand.configuration.resolve import resolve
from chargehand.core.errors import NotFoundError, UsageError
from chargehand.missions.checkpoints import CheckpointEditor, FormatResult, FormatRun, run_formatters
from chargehand.missions.missions import OutsideResult, OutsideTrial
from chargehand.missions.services import DepotReader
from chargehand.policy.actions import Effect, Run, Snippet, Surroundings
from chargehand.policy.judgement import denied, judge
from chargehand.reports.documents import Document
from chargehand.sandbox.snippet_pool import run_snippet
from chargehand.sandbox.snippets import ConsoleLine, SnippetError, SnippetSpec, language_of
from chargehand.workspace.checkout import AppliedFiles, apply_files, staged_tree
from chargehand.workspace.depot import Depot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from chargehand.app.composition import App
    from chargehand.app.wiring.session import Session
    from chargehand.sandbox.contract import ExecResult, Stream

    OnOutput = Callable[[Stream, bytes], None]


class SnippetJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's judgement of a snippet: effect, rule and reason."""

    effect: Effect
    rule: str
    reason: str


class SnippetRun(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a snippet: its value or an error; `peak_memory` in bytes, null if not measured."""

    value: Any
    console: tuple[ConsoleLine, ...]
    seconds: float
    peak_memory: int | None
    error: SnippetError | None
    language: str
    tier: str
    judged: SnippetJudgement


def plan_snippet(
    source: str, *, file: str, language: str | None, input: Any = None, time: str | None = None
) -> SnippetSpec:
    """Return a snippet to run; without a `language` it is derived from the file's name.

    `time` is a duration such as `30s`. Raises `UsageError`, `ConfigError`.
    """
    limits: dict[str, Any] = {}
    if time is not None:
        options = {"limits.time": OptionValue(value=time, name="--time")}
        limits["seconds"] = resolve(options=options).config.limits.time
    kind = language or language_of(file)
    return SnippetSpec(language=cast("Any", kind), source=source, input=input, **limits)


def judge_snippet(app: App, spec: SnippetSpec) -> SnippetJudgement:
    """Judge a snippet by the user's rules; raise `RefusedError` unless they allow it."""
    action = Snippet(language=spec.language, source=spec.source)
    judged = judge(action, Surroundings(purpose="exec", who="person"), app.preparation.rules())
    if judged.effect != "allow":
        raise denied("snippet", judged)
    return SnippetJudgement(effect=judged.effect, rule=judged.rule, reason=judged.reason)


async def run_judged_snippet(spec: SnippetSpec, judged: SnippetJudgement) -> SnippetRun:
    """Run an allowed snippet; raise `TierUnavailableError` if this machine cannot run it."""
    result = await run_snippet(spec)
    return SnippetRun(
        value=result.value,
        console=result.console,
        seconds=result.seconds,
        peak_memory=result.peak_memory,
        error=result.error,
        language=spec.language,
        tier="isolate",
        judged=judged,
    )


_OUTPUT_LIMIT_BYTES = 10_000_000


class ExecRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command and its place: a base of a repository, or a mission's result."""

    command: tuple[str, ...]
    repo: Path | None = None
    base: str | None = None
    mission: str | None = None
    time: str | None = None
    sandbox: str | None = None

    def check(self) -> None:
        """Raise `UsageError` for mutually exclusive options."""
        if self.sandbox == "isolate":
            raise UsageError(
                "the tier 'isolate' runs snippets, not commands",
                hint="chargehand exec --snippet FILE, or another --sandbox",
            )
        if self.mission is not None and any(each is not None for each in (self.base, self.repo, self.sandbox)):
            raise UsageError(
                "--mission has its own repository, base and tier", hint="leave out --base, --repo and --sandbox"
            )


class JudgementDocument(Document, frozen=True):
    """The policy's decision: effect, rule and reason."""

    effect: str
    rule: str
    reason: str


class ExecDocument(Document, frozen=True):
    """`exec`: the result of a command; `limit` is the sandbox limit that ended it, if any."""

    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    truncated: bool
    tier: str
    tier_reason: str
    limit: str | None
    judged: JudgementDocument


class FormatterDocument(Document, frozen=True):
    """A formatter, and the file in the project that selects it."""

    name: str
    why: str


class FormatDocument(Document, frozen=True, kw_only=True):
    """`format`: the tree before and after, the result of each formatter, and the files it changes.

    `mission` is set if a mission's result was formatted, and `checkpoint` if that changed anything.
    """

    source: Literal["staged", "mission"]
    mission: str | UnsetType = UNSET
    checkpoint: str | UnsetType = UNSET
    check: bool
    tree: str
    result: str
    formatters: tuple[FormatterDocument, ...]
    runs: tuple[FormatRun, ...]
    changed: tuple[str, ...]
    applied: AppliedFiles | None


class FormatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The files to format: the index of a repository, or a mission's result; `check` changes nothing."""

    paths: tuple[str, ...] = ()
    repo: Path | None = None
    mission: str | None = None
    check: bool = False
    staged: bool = False
    apply: bool = False
    time: str | None = None


async def execute(app: App, request: ExecRequest, on_output: OnOutput) -> tuple[ExecResult, ExecDocument]:
    """Run one command in a sandbox on a fresh workspace, and promote nothing.

    Raises `UsageError`, `RefusedError`.
    """
    request.check()
    if request.mission is None:
        options = {
            "limits.time": OptionValue(value=request.time, name="--time"),
            "sandbox.tier": OptionValue(value=request.sandbox, name="--sandbox"),
        }
        async with app.session(request.repo, revision=request.base, options=options) as session:
            seconds = session.resolved.config.limits.time
            return await _execute_in(session, request, on_output, seconds)
    mission = app.find_mission(request.mission)
    async with app.mission_session(mission) as (_, session):
        points = (await asyncio.to_thread(app.mission_reader.state, mission)).checkpoints
        seconds = session.resolved.config.limits.time
        if request.time is not None:
            options = {"limits.time": OptionValue(value=request.time, name="--time")}
            seconds = resolve(options=options).config.limits.time
        tree = points[-1].tree if points else None
        return await _execute_in(session, request, on_output, seconds, tree=tree, mission=mission)


async def _execute_in(
    session: Session,
    request: ExecRequest,
    on_output: OnOutput,
    seconds: float,
    *,
    tree: str | None = None,
    mission: str | None = None,
) -> tuple[ExecResult, ExecDocument]:
    action = Run(kind="exec", run=request.command, trusted=True)
    judged = await session.missions.admit(action, directory=session.start, mission=mission)
    async with session.open_workspace(tree=tree, directory=session.start) as (_, sandbox):
        result = await sandbox.exec(
            request.command, timeout=seconds, output_limit=_OUTPUT_LIMIT_BYTES, on_output=on_output
        )
    document = ExecDocument(
        exit_code=result.exit_code,
        stdout=result.stdout.decode(errors="replace"),
        stderr=result.stderr.decode(errors="replace"),
        seconds=result.seconds,
        truncated=result.truncated,
        tier=session.choice.tier,
        tier_reason=session.choice.reason,
        limit=result.limit,
        judged=JudgementDocument(effect=judged.effect, rule=judged.rule, reason=judged.reason),
    )
    return result, document


class OutsideJudge:
    """Judges trees over one base from another sandbox, for `open_outside_judge`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.base_tree = session.base.tree

    async def judge(self, trial: OutsideTrial, tree: str) -> OutsideResult:
        """Return the result of a trial of a tree; raise as `Missions.judge_outside` does."""
        session = self._session
        return await session.missions.judge_outside(
            session.base, trial, tree=tree, setup_directory=session.places.checks
        )

    async def make_tree(
        self, files: Mapping[str, tuple[bytes, bool] | None], *, script: str = "", seconds: float = 60.0
    ) -> str:
        """Return the base's tree with these files laid over it, after `script` of `sh` has run there, if given."""
        session = self._session
        tree = await asyncio.to_thread(session.depot.lay_over, session.base.tree, files)
        if not script:
            return tree
        async with session.open_workspace(tree=tree) as (workspace, sandbox):
            await sandbox.exec(["sh", "-c", script], timeout=seconds)
            return (await asyncio.to_thread(workspace.checkpoint, "command")).tree


@contextlib.asynccontextmanager
async def open_outside_judge(
    app: App, *, repository: Path | None = None, mission: str | None = None
) -> AsyncIterator[OutsideJudge]:
    """Open a judge of trees over a repository's HEAD, or over the base of a mission with its configuration."""
    if mission is None:
        async with app.session(repository) as session:
            yield OutsideJudge(session)
        return
    async with app.mission_session(mission, recorded=True) as (_, session):
        yield OutsideJudge(session)


class _FormatInput(msgspec.Struct, frozen=True, kw_only=True):
    """A tree, the formatters that it selects, and the files for each."""

    tree: str
    formatters: tuple[Formatter, ...]
    files: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, depot: Depot, tree: str, within: list[str], *, nothing: bool = False) -> _FormatInput:
        reader = DepotReader(depot)
        formatters = () if nothing else detect_formatters(reader, tree)
        return cls(tree=tree, formatters=formatters, files=formatted_by(reader, tree, formatters, within=within))

    def document(
        self, request: FormatRequest, done: FormatResult | None, applied: AppliedFiles | None = None
    ) -> FormatDocument:
        return FormatDocument(
            source="staged",
            check=request.check,
            tree=self.tree,
            result=done.tree if done else self.tree,
            formatters=tuple(FormatterDocument(name=each.name, why=each.why) for each in self.formatters),
            runs=done.runs if done else (),
            changed=tuple(change.path for change in done.changes) if done else (),
            applied=applied,
        )


async def format_files(app: App, request: FormatRequest) -> FormatDocument:
    """Run a project's formatters in a sandbox and return their changes.

    Raises `UsageError`, `NotFoundError`.
    """
    if request.mission is not None and (request.staged or request.apply or request.repo is not None):
        raise UsageError("--mission formats that mission's result", hint="leave out --staged, --apply and --repo")
    if request.check and request.apply:
        raise UsageError(
            "--check and --apply were given", hint="--check changes no file; leave out one of the two"
        )
    if request.mission is not None:
        return await _format_mission(app, app.find_mission(request.mission), request)
    found = await asyncio.to_thread(app.preparation.find, request.repo)
    staged = await asyncio.to_thread(staged_tree, found.depot, found.base)
    # Paths are relative to the person's current directory; formatters take them from the repository's top.
    root = found.depot.repository.path.resolve()
    within = []
    for path in request.paths:
        # The directory is resolved, not the path: for git a link below it is an entry itself.
        real = Path(os.path.normpath(app.cwd.resolve() / path))
        if not real.is_relative_to(root):
            raise UsageError(
                f"{path!r} is not in the repository {str(root)!r}", hint="name files of the repository"
            )
        within.append("" if real == root else str(real.relative_to(root)))
    if request.staged:
        below = tuple("" if each == "" else f"{each}/" for each in within)
        within = [path for path in staged.changed if not within or path in within or path.startswith(below)]
    # If nothing is staged, nothing is formatted: an empty `within` would mean the whole tree.
    given = _FormatInput.of(found.depot, staged.tree, within, nothing=request.staged and not within)
    # No sandbox if there is nothing to format: the hook calls this at every commit.
    if not any(given.files.values()):
        return given.document(request, None)
    async with app.session(request.repo, found=found) as session:
        done = await _run_formatters(app, session, given, request)
    applied = None
    if request.apply:
        applied = await asyncio.to_thread(apply_files, found.depot, done.changes, tree=staged.tree)
    return given.document(request, done, applied)


async def _format_mission(app: App, mission: str, request: FormatRequest) -> FormatDocument:
    points = (await asyncio.to_thread(app.mission_reader.state, mission)).checkpoints
    if not points:
        raise NotFoundError(f"mission {mission!r} has no checkpoint", hint=f"chargehand mission show {mission}")
    async with app.mission_session(mission) as (_, session):
        given = _FormatInput.of(session.depot, points[-1].tree, [path.strip("/") for path in request.paths])
        done = await _run_formatters(app, session, given, request) if any(given.files.values()) else None
        checkpoint: str | UnsetType = UNSET
        if done is not None and done.changes and not request.check:
            branching = CheckpointEditor(
                store=app.store, look=app.acting_reader, worker=app.member.id, clock=app.clock
            )
            keep = (session.depot, mission, done.tree)
            kept = await asyncio.to_thread(
                branching.keep, *keep, before=given.tree, trigger="formatted", stop=threading.Event()
            )
            checkpoint = kept.commit
    document = given.document(request, done)
    return msgspec.structs.replace(document, source="mission", mission=mission, checkpoint=checkpoint)


async def _run_formatters(app: App, session: Session, given: _FormatInput, request: FormatRequest) -> FormatResult:
    limits = {"actions.time": OptionValue(value=request.time, name="--time")}
    user = load_user_file(user_config_path(app.environ))
    seconds = resolve(user=user, environ=app.environ, options=limits).config.actions.time
    async with session.open_workspace(tree=given.tree) as (workspace, sandbox):
        return await run_formatters(
            session.depot, workspace, sandbox, given.formatters, given.files, tree=given.tree, seconds=seconds
        )
