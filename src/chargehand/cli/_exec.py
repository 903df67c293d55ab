"""`chargehand exec`: one command in a sandbox, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chargehand.app.composition import App
from chargehand.app.config.records import OptionValue
from chargehand.app.config.resolve import resolve
from chargehand.app.wiring.session import Session
from chargehand.cli._prepare import find_mission
from chargehand.cli.failures import show_failure
from chargehand.cli.interrupt import Stop, run_async
from chargehand.cli.output import Output
from chargehand.core.errors import ChargehandError, UsageError
from chargehand.core.tiers import TierChoice
from chargehand.policy._actions import Judgement, Run
from chargehand.sandbox._contract import ExecResult, Stream

_NOT_RUN = 125
_OUTPUT_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecOptions:
    """What stands on the command line of `exec`."""

    command: tuple[str, ...]
    repo: Path | None = None
    base: str | None = None
    mission: str | None = None
    time: str | None = None
    sandbox: str | None = None


def exec_command(out: Output, options: ExecOptions) -> int:
    """Run the command, its output as it comes; return its exit code, or 125 where it could not be run."""
    try:
        with App.open() as app:
            result, choice, judged = run_async(lambda stop: _run(stop, app, out, options))
    except ChargehandError as error:
        show_failure(error, as_json=out.as_json)
        return _NOT_RUN
    out.document(
        {
            "exit_code": result.exit_code,
            "stdout": result.stdout.decode(errors="replace"),
            "stderr": result.stderr.decode(errors="replace"),
            "seconds": result.seconds,
            "truncated": result.truncated,
            "tier": choice.tier,
            "tier_reason": choice.reason,
            "limit": result.limit,
            "judged": {"effect": judged.effect, "rule": judged.rule, "reason": judged.reason},
        }
    )
    if result.timed_out:
        out.notice(f"stopped at its time limit after {result.seconds:.0f} s")
    elif result.limit is not None:
        out.notice(f"ended by the limit of {result.limit}; chargehand config show names what is in force")
    return result.exit_code


def require_commands(tier: str | None) -> None:
    """Raise `UsageError` for the tier of snippets."""
    if tier == "isolate":
        raise UsageError(
            "the tier 'isolate' runs snippets, not commands",
            hint="chargehand exec --snippet FILE, or another --sandbox",
        )


async def _run(
    stop: Stop, app: App, out: Output, options: ExecOptions
) -> tuple[ExecResult, TierChoice, Judgement]:
    require_commands(options.sandbox)
    if options.mission is None:
        limit = {
            "limits.time": OptionValue(value=options.time, name="--time"),
            "sandbox.tier": OptionValue(value=options.sandbox, name="--sandbox"),
        }
        async with app.session(options.repo, revision=options.base, options=limit) as session:
            return await _run_in(session, out, options, None, session.resolved.config.limits.time)
    if options.base is not None or options.repo is not None or options.sandbox is not None:
        raise UsageError(
            "--mission has its own repository, base and tier", hint="leave out --base, --repo and --sandbox"
        )
    mission = find_mission(app, options.mission)
    async with app.mission_session(mission) as (_, session):
        points = app.look.state(mission).checkpoints
        tree = points[-1].tree if points else None
        return await _run_in(session, out, options, tree, _seconds(session, options.time), mission)


def _seconds(session: Session, time: str | None) -> float:
    if time is None:
        return session.resolved.config.limits.time
    return resolve(options={"limits.time": OptionValue(value=time, name="--time")}).config.limits.time


async def _run_in(
    session: Session,
    out: Output,
    options: ExecOptions,
    tree: str | None,
    seconds: float,
    mission: str | None = None,
) -> tuple[ExecResult, TierChoice, Judgement]:
    def show(stream: Stream, piece: bytes) -> None:
        if not out.as_json:
            out.raw(piece, err=stream == "stderr")

    action = Run(kind="exec", run=options.command, trusted=True)
    judged = await session.missions.admit(action, mission=mission)
    async with session.missions.open_place(session.base, tree=tree) as sandbox:
        result = await sandbox.exec(options.command, timeout=seconds, output_limit=_OUTPUT_LIMIT, on_output=show)
        return result, session.choice, judged
