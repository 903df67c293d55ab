"""The work of each kind of action: judgement, execution and result."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from chargehand.configuration.records import OptionValue
from chargehand.core.actions import ActionKind, ActionState
from chargehand.core.attempt_events import ActionJudged
from chargehand.core.config import ActionsConfig
from chargehand.core.errors import ChargehandError, RefusedError, RepositoryError, UsageError
from chargehand.core.events import Payload
from chargehand.core.records import Reason
from chargehand.core.text import printable
from chargehand.durable.supervisor import LineSplitter, OutputStream, run_supervised
from chargehand.missions.checkpoints import CheckpointEditor, EditedCheckpoints, EditStoppedError
from chargehand.missions.reading import mission_ref
from chargehand.missions.task_rollback import check_whole
from chargehand.policy.actions import Other, Run, Surroundings
from chargehand.policy.judgement import judge
from chargehand.workspace.depot import Depot
from chargehand.workspace.remotes import (
    HostCommand,
    Remote,
    fetch_command,
    find_remote,
    find_tip,
    push_command,
    remote_branches,
    remote_tip_command,
)

if TYPE_CHECKING:
    from chargehand.app.composition import App
    from chargehand.app.wiring.session import Session

_T = TypeVar("_T")
# Branches in a result: it is one line of the log, and a first fetch may move thousands of branches.
_LISTED_BRANCHES = 50
_HEADS = "refs/heads/"


class ActionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an action's work; without `reasons` it succeeded."""

    result: dict[str, Any] = msgspec.field(default_factory=dict)
    exit_code: int | None = None
    reasons: tuple[Reason, ...] = ()
    timed_out: bool = False


class ApprovalNeededError(Exception):
    """A rule requires a person's approval of exactly this `subject` first; nothing was done yet."""

    def __init__(self, text: str, *, rule: str, subject: dict[str, Any]) -> None:
        super().__init__(text)
        self.text = text
        self.rule = rule
        self.subject = subject


class ActionContext(msgspec.Struct, frozen=True, kw_only=True):
    """A running action: `tell` records a line of output, `note` an event in the log."""

    app: App
    state: ActionState
    config: ActionsConfig
    tell: Callable[[OutputStream, str], None]
    note: Callable[[Payload], None]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the action."""
        return self.state.arguments

    @property
    def mission(self) -> str:
        """The mission that the action is about."""
        assert self.state.mission is not None
        return self.state.mission

    def depot(self) -> Depot:
        """Open the project's depot, with a time limit for its git commands."""
        project = self.app.store.projects.find(self.state.project)
        depot = self.app.projects.depot(project)
        # Git in a worker thread cannot be cancelled with its action, so each command gets its own limit.
        depot.git = depot.git.limited(self.state.limit_seconds)
        return depot

    def judge(self, text: str, *, subject: Mapping[str, Any], **facts: str) -> None:
        """Judge the action by the rules, and record the judgement.

        Raises `ApprovalNeededError` if a person has to approve and was not asked about this exact subject, and
        `RefusedError` (`action_denied`).
        """
        state = self.state
        rules = self.app.preparation.rules()
        assert state.kind is not None
        # A separate kind: rules for agents need no exceptions for a person's manual actions.
        action = Other(kind="action", name=state.kind, facts=facts)
        found = judge(action, Surroundings(who="person", sandboxed=False), rules)
        # An approval is valid for the subject shown: if the remote has moved since, the person is asked again.
        asked = state.question is not None and state.question.subject == dict(subject)
        granted = found.effect == "ask" and asked and state.answer is True
        # Before anything is raised: the log has to record refusals as well.
        self.note(
            ActionJudged(
                attempt="",
                action=state.id,
                kind="action",
                text=printable(text),
                effect="allow" if granted else found.effect,
                rule=found.rule,
                reason="approved once by a person" if granted else found.reason,
                subject=found.subject,
                parts=len(found.parts),
                overridden=found.overridden,
                answer="yes" if granted else "",
                rules=rules.digest,
            )
        )
        if found.effect == "deny":
            raise RefusedError(
                f"denied by rule {found.rule!r}: {found.reason}",
                code="action_denied",
                hint="see chargehand policy show; `policy allow` overrides a shipped rule",
            )
        if found.effect == "ask" and not granted:
            raise ApprovalNeededError(f"{text}? ({found.reason})", rule=found.rule, subject=dict(subject))

    async def host(
        self, command: HostCommand, *, on_line: Callable[[OutputStream, str], None] | None = None
    ) -> int:
        """Run git on the host, forward its output, and return its exit code once all its processes have ended."""
        kept = await run_supervised(
            command.argv, environment=command.environment, cwd=Path("/"), on_line=on_line or self.tell
        )
        return kept.exit_code


async def fetch(work: ActionContext) -> ActionResult:
    """Fetch the branches of a remote into the depot; the user's repository is only read."""
    name = work.arguments["remote"]
    depot = await asyncio.to_thread(work.depot)
    remote = await asyncio.to_thread(find_remote, depot.repository, name, work.config.protocols)
    work.judge(f"fetch from {remote.shown_url}", subject={"remote": name}, remote=name, protocol=remote.protocol)
    before = await asyncio.to_thread(remote_branches, depot, name)
    code = await work.host(fetch_command(depot, remote))
    # Compare the refs, not git's output, which is meant for people.
    after = await asyncio.to_thread(remote_branches, depot, name)
    moved = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
    branches = [{"branch": name, "old": before.get(name), "new": after.get(name)} for name in moved]
    result = {
        "remote": name,
        "url": remote.shown_url,
        "moved": len(moved),
        "branches": branches[:_LISTED_BRANCHES],
    }
    return ActionResult(result=result, exit_code=code, reasons=_git_failure(code, "fetch"))


async def push(work: ActionContext) -> ActionResult:
    """Push a promoted branch to a remote, or delete one there; losing commits needs a person's approval."""
    name = work.arguments["remote"]
    commit = promoted_commit(work)
    depot = await asyncio.to_thread(work.depot)
    remote = await asyncio.to_thread(find_remote, depot.repository, name, work.config.protocols, push=True)
    # The branch's name on the remote: the named one, otherwise the exported one.
    state = await asyncio.to_thread(work.app.mission_reader.state, work.mission)
    exported = state.export.ref.removeprefix(_HEADS) if state.export else ""
    branch = str(work.arguments.get("branch") or exported)
    # Git accepts `@` as a branch name here, although it means HEAD elsewhere.
    if not branch or depot.git.run("check-ref-format", "--branch", branch).code or branch.startswith("@"):
        raise UsageError(f"{branch!r} is not a branch name", hint="--branch NAME")
    deletes = bool(work.arguments.get("delete"))
    # Asked of the remote itself: the last fetch may be out of date, and the lease names this commit.
    old = await _find_remote_tip(work, depot, remote, branch)
    new = None if deletes else commit
    where = {"remote": name, "url": remote.shown_url, "branch": branch, "old": old, "new": new}
    # This includes deleting a branch that does not exist.
    if old == new:
        return ActionResult(result={**where, "changed": False})
    overwrites = False
    if not deletes and old is not None:
        # Git also fails for an `old` that was never fetched: it counts as a commit that would be lost.
        overwrites = not await asyncio.to_thread(depot.contains, commit, old)
    if overwrites and not work.arguments.get("force"):
        raise RefusedError(
            f"branch {branch!r} of {name!r} has commits that the mission's does not: {old!r}",
            code="push_rejected",
            hint=f"chargehand git fetch {name}, then `git merge` and promote; --force asks to overwrite it",
        )
    what = f"remove branch {branch!r} at {old}" if deletes else f"set branch {branch!r} from {old} to {new}"
    text = f"{'overwrite: ' if overwrites else ''}{what} on {name} ({remote.shown_url})"
    facts = {"overwrites": "yes" if overwrites else "no", "deletes": "yes" if deletes else "no"}
    work.judge(text, subject=where, remote=name, branch=branch, protocol=remote.protocol, **facts)
    code = await work.host(push_command(depot, remote, branch, commit=new, old=old, force=overwrites))
    return ActionResult(result={**where, "changed": code == 0}, exit_code=code, reasons=_git_failure(code, "push"))


def promoted_commit(work: ActionContext) -> str:
    """Return the commit promoted by the mission of an action.

    Raises `RefusedError` if the mission promoted nothing, and the errors of `check_whole`.
    """
    state = work.app.mission_reader.state(work.mission)
    check_whole(state)
    if state.commit is None or state.ref != mission_ref(work.mission):
        raise RefusedError(
            f"mission {work.mission!r} has promoted nothing, and only promoted work is pushed",
            code="not_promoted",
            hint=f"chargehand mission show {work.mission}",
        )
    return state.commit


async def _find_remote_tip(work: ActionContext, depot: Depot, remote: Remote, branch: str) -> str | None:
    found: list[str] = []

    def take(stream: OutputStream, line: str) -> None:
        if stream == "stdout":
            found.append(line)
        else:
            work.tell(stream, line)

    if await work.host(remote_tip_command(depot, remote, branch), on_line=take):
        raise RepositoryError(
            f"remote {remote.name!r} at {remote.shown_url!r} did not answer",
            code="remote_unreachable",
            hint="the action's log has git's output",
        )
    # ls-remote matches the end of a ref: `refs/x/refs/heads/main` is listed too.
    tips = (line.partition("\t") for line in found)
    return next((commit for commit, _, ref in tips if ref == f"{_HEADS}{branch}"), None)


def _git_failure(code: int, verb: str) -> tuple[Reason, ...]:
    return (Reason(code="git_failed", message=f"git {verb} ended with exit code {code}"),) if code else ()


async def merge(work: ActionContext) -> ActionResult:
    """Merge a mission's result with a tip, or rebase it onto one."""
    depot = await asyncio.to_thread(work.depot)
    named = work.arguments.get("tip")
    # By default the branch that the mission started from, at its current commit.
    if named is None:
        state = await asyncio.to_thread(work.app.mission_reader.state, work.mission)
        # Not the current base: an earlier merge moved that to its own tip.
        base = state.first_base
        if base is None or base.branch is None:
            raise UsageError(
                f"mission {work.mission!r} started from no branch", hint="name the branch to merge: REMOTE/BRANCH"
            )
        named = f"{_HEADS}{base.branch}"
    tip = await asyncio.to_thread(find_tip, depot, str(named))
    work.judge(f"{work.state.kind} with {tip.revision} ({tip.commit})", subject={"tip": tip.commit})
    branching = _open_editor(work)
    message = str(work.arguments.get("message") or "")

    def run(stop: threading.Event) -> EditedCheckpoints:
        if work.state.kind == "rebase":
            return branching.rebase(depot, work.mission, tip, stop=stop)
        return branching.merge(depot, work.mission, tip, message=message, stop=stop)

    made = await _run_in_thread(run)
    return ActionResult(result={"tip": tip.commit, "revision": tip.revision, **msgspec.to_builtins(made)})


async def commit(work: ActionContext) -> ActionResult:
    """Give a mission's result a commit message."""
    depot = await asyncio.to_thread(work.depot)
    message = str(work.arguments["message"])
    work.judge("commit", subject={"message": message})
    branching = _open_editor(work)
    made = await _run_in_thread(lambda stop: branching.commit(depot, work.mission, message, stop=stop))
    return ActionResult(result=msgspec.to_builtins(made))


def _open_editor(work: ActionContext) -> CheckpointEditor:
    app = work.app
    return CheckpointEditor(store=app.store, look=app.acting_reader, worker=app.member.id, clock=app.clock)


async def _run_in_thread(run: Callable[[threading.Event], _T]) -> _T:
    """Run in a thread. After a cancellation the thread changes nothing more, and its earlier changes stay."""
    stop = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(run, stop))
    try:
        # Shielded: a thread cannot be cancelled. It gets a stop signal and is awaited until it has released its
        # claim.
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(EditStoppedError, ChargehandError):
            return await running
        raise


async def execute(work: ActionContext) -> ActionResult:
    """Run a command in a sandbox, as `chargehand exec` does; its time limit starts with the command."""
    given = work.arguments
    work.judge(f"exec {' '.join(given['command'])}", subject={"command": given["command"]})
    if work.state.mission is not None:
        points = (await asyncio.to_thread(work.app.mission_reader.state, work.mission)).checkpoints
        async with work.app.mission_session(work.mission) as (_, session):
            return await _execute_in(work, session, points[-1].tree if points else None)
    repository = Path(given["repository"])
    options = {"sandbox.tier": OptionValue(value=given.get("sandbox"), name="--sandbox")}
    async with work.app.session(repository, revision=given.get("base"), options=options) as session:
        return await _execute_in(work, session, None)


async def _execute_in(work: ActionContext, session: Session, tree: str | None) -> ActionResult:
    cutters = {name: LineSplitter(name, work.tell) for name in ("stdout", "stderr")}
    command = tuple(work.arguments["command"])
    # Trusted, no matter who wrote the repository: a person typed this command.
    action = Run(kind="exec", run=command, trusted=True)
    await session.missions.admit(action, directory=session.start, mission=work.state.mission)
    async with session.open_workspace(tree=tree, directory=session.start) as (_, sandbox):
        result = await sandbox.exec(
            command,
            timeout=work.state.limit_seconds,
            on_output=lambda stream, piece: cutters[stream].feed(piece),
        )
        tier = sandbox.tier
    for cutter in cutters.values():
        cutter.end()
    message = f"the command ended with exit code {result.exit_code}"
    reasons = (Reason(code="command_failed", message=message),) if result.exit_code else ()
    return ActionResult(
        result={"tier": tier, "base": session.base.commit},
        exit_code=result.exit_code,
        reasons=reasons,
        timed_out=result.timed_out,
    )


WORK: Mapping[ActionKind, Callable[[ActionContext], Awaitable[ActionResult]]] = {
    "fetch": fetch,
    "push": push,
    "merge": merge,
    "rebase": merge,
    "commit": commit,
    "exec": execute,
}
