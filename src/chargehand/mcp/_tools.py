"""The tools of the MCP server: arguments, results, implementation and hints of each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from chargehand.app.composition import App
from chargehand.configuration.client_options import client_arguments
from chargehand.core.codec import convert_to
from chargehand.core.errors import RefusedError
from chargehand.mcp import _missions
from chargehand.mcp import _records as records
from chargehand.mcp._records import McpArguments, McpResult, MissionView, PromoteMission, WaitMission
from chargehand.mcp._watcher import MissionWatcher
from chargehand.operations.commands import known_operations

Progress = Callable[[float, float, str], Awaitable[None]]
"""Reports the progress of a call to the client: elapsed seconds, maximum seconds, and a text."""
_Takes = TypeVar("_Takes", bound=McpArguments)
_Gives = TypeVar("_Gives", bound=McpResult)
# Concurrent calls with an open state directory: fewer than asyncio's threads (5 on one core), to leave one for the
# watcher.
_AT_ONCE = 4
_BEAT_SECONDS = 5.0
_HOUR = 3600.0


class ToolContext:
    """The context of tools: environment and directory of the server's owner, and the missions they wait for."""

    def __init__(self, *, environ: Mapping[str, str], cwd: Path, watcher: MissionWatcher) -> None:
        self.environ = environ
        self.cwd = cwd
        self.watcher = watcher
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._promoting: dict[str, asyncio.Task[None]] = {}

    async def do(self, work: Callable[[App, _Takes], _Gives], call: _Takes) -> _Gives:
        """Do work in a thread, with a newly opened app."""

        def opened() -> _Gives:
            with App.open(environ=self.environ, cwd=self.cwd) as app:
                return work(app, call)

        async with self._free:
            return await asyncio.to_thread(opened)

    async def status(self, mission: str) -> MissionView:
        """Return the state of a mission."""
        return await self.do(_missions.mission_status, records.OneMission(mission=mission))

    async def wait(self, call: WaitMission, progress: Progress) -> MissionView:
        """Wait until a mission is settled, or as long as the client requests; return its state then."""
        begun = time.monotonic()
        view = await self.status(call.mission)
        with self.watcher.following(view.mission) as changed:
            while not view.settled:
                passed = time.monotonic() - begun
                if passed >= call.seconds:
                    return view
                attempts = f"{len(view.attempts)} attempt{'' if len(view.attempts) == 1 else 's'}"
                await progress(passed, call.seconds, f"{view.status}, {attempts}, event {view.last_seq}")
                # Woken by the next event, or after a beat, so that the client sees that its call is alive.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_BEAT_SECONDS, call.seconds - passed)):
                        await changed.wait()
                changed.clear()
                view = await self.status(view.mission)
        return view

    async def promote(self, call: PromoteMission, progress: Progress) -> MissionView:
        """Promote a mission's result; the work continues if the client leaves, and a repeated call joins it."""
        # Read first, so that an unknown mission is an error before a task is created.
        mission = (await self.do(_missions.check_promote, call)).mission
        task = self._promoting.get(mission)
        if task is None:

            async def work() -> None:
                with App.open(environ=self.environ, cwd=self.cwd) as app:
                    async with app.mission_session(mission) as (found, session):
                        await session.missions.promote(found, identity=app.identity(), reason=call.reason)

            # A separate task: a client that leaves cancels its call, but never a promotion half-way.
            task = asyncio.create_task(work())
            self._promoting[mission] = task
            task.add_done_callback(lambda _: self._promoting.pop(mission, None))
        begun = time.monotonic()
        while not task.done():
            await progress(time.monotonic() - begun, _HOUR, "judging the tree and promoting it")
            # Awaiting the task itself would cancel it together with this call; `wait` leaves it running.
            await asyncio.wait({task}, timeout=_BEAT_SECONDS)
        if task.cancelled():
            raise RefusedError(
                f"the promotion of mission {mission!r} was stopped", code="cancelled", hint="promote it again"
            )
        # Raises the error of the promotion to every client that joined it.
        task.result()
        return await self.status(mission)

    async def close(self) -> None:
        """Cancel running promotions: their journals show the next session how far they got."""
        tasks = list(self._promoting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class McpToolSpec(Struct, frozen=True, kw_only=True):
    """One tool: the name of its operation, arguments, result, hints for clients, and implementation."""

    name: str
    operation: str
    title: str
    description: str
    takes: type[McpArguments] = records.OneMission
    gives: type[McpResult] = MissionView
    call: Callable[[ToolContext, Any, Progress], Awaitable[McpResult]]
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False

    @property
    def read_only(self) -> bool:
        """Whether the operation changes nothing."""
        return known_operations()[self.operation].method == "GET"

    def arguments(self, given: Mapping[str, Any]) -> McpArguments:
        """Return the arguments as a record; raise `msgspec.ValidationError`."""
        return convert_to(given, self.takes)


def _on_app(
    work: Callable[[App, Any], McpResult], *, wakes: bool = False
) -> Callable[[ToolContext, Any, Progress], Awaitable[McpResult]]:
    """Return a tool's call that does one thing without progress reports; `wakes`: it leaves work to a worker."""

    async def call(context: ToolContext, arguments: Any, progress: Progress) -> McpResult:
        done = await context.do(work, arguments)
        # Not left to the watcher's next check: the work would wait up to three seconds.
        if wakes:
            await context.watcher.keep_going()
        return done

    return call


TOOLS = (
    McpToolSpec(
        name="mission_status",
        operation="get_missions_mission",
        title="Look at a mission",
        description="State of a mission: status, branch, attempts, cost, reasons, open question.",
        call=_on_app(_missions.mission_status),
    ),
    McpToolSpec(
        name="wait_mission",
        operation="get_missions_mission",
        title="Wait for a mission",
        description="Wait until a mission is settled, at most for the time given, and return its status; "
        "`settled` is false if the time ran out.",
        takes=WaitMission,
        call=ToolContext.wait,
    ),
    McpToolSpec(
        name="list_missions",
        operation="get_missions",
        title="List missions",
        description="Missions, the newest first, page by page.",
        takes=records.ListMissions,
        gives=records.MissionList,
        call=_on_app(_missions.list_missions),
    ),
    McpToolSpec(
        name="show_diff",
        operation="get_missions_mission_diff",
        title="Show the difference",
        description="A mission's changes against its base, as a patch, page by page.",
        takes=records.ShowDiff,
        gives=records.DiffView,
        call=_on_app(_missions.show_diff),
    ),
    McpToolSpec(
        name="show_log",
        operation="get_missions_mission_events",
        title="Show the log",
        description="The events of a mission after a sequence number.",
        takes=records.ShowLog,
        gives=records.LogView,
        call=_on_app(_missions.show_log),
    ),
    McpToolSpec(
        name="forecast_mission",
        operation="get_missions_mission_forecast",
        title="Forecast a mission",
        description="Chance, cost and time of a mission, of all unfinished tasks if it has a plan, or how a "
        "forecast compares with what happened; needs `[decisions] learned = true`.",
        gives=records.ForecastView,
        call=_on_app(_missions.forecast),
    ),
    McpToolSpec(
        name="run_mission",
        operation="post_missions",
        title="Run a mission",
        description="Let an agent carry out a request in a sandbox, and promote the result to a branch if it "
        "passes every check. Returns at once; wait_mission waits for the end.",
        takes=client_arguments(records.RunMission, "mcp"),
        gives=records.Started,
        call=_on_app(_missions.run_mission, wakes=True),
        open_world=True,
    ),
    McpToolSpec(
        name="answer_question",
        operation="post_missions_mission_answer",
        title="Answer a question",
        description="Answer the question of a waiting mission's agent, which then continues. A request for "
        "permission must be answered by a person (see promote).",
        takes=records.AnswerQuestion,
        call=_on_app(_missions.answer_question, wakes=True),
    ),
    McpToolSpec(
        name="send_message",
        operation="post_missions_mission_send",
        title="Send a message",
        description="Send a message to a mission's agent, which gets it with its next attempt.",
        takes=records.SendMessage,
        call=_on_app(_missions.send_message),
    ),
    McpToolSpec(
        name="give_feedback",
        operation="post_missions_mission_feedback",
        title="Judge a result",
        description="Record your person's word on a result, good or bad, or retract it; later choices of agents "
        "and models learn from it. A person's decision, as promote is.",
        takes=records.GiveFeedback,
        gives=records.FeedbackGivenView,
        call=_on_app(_missions.give_feedback),
    ),
    McpToolSpec(
        name="promote",
        operation="post_missions_mission_promote",
        title="Promote a mission",
        description="Approve a result that only a person may approve (changed tests or checks, protected areas): "
        "its checks run once more, then it is promoted. Cannot override a failed check. Refused (person_needed) "
        "unless your person's own configuration says `[server] may_decide = true`; else ask them to promote it.",
        takes=PromoteMission,
        call=ToolContext.promote,
    ),
    McpToolSpec(
        name="discard",
        operation="post_missions_mission_discard",
        title="Discard a mission",
        description="Settle a mission as not wanted; its checkpoints stay until they are collected. A person's "
        "decision, as promote is.",
        call=_on_app(_missions.discard),
        destructive=True,
        idempotent=True,
    ),
    McpToolSpec(
        name="cancel",
        operation="post_missions_mission_cancel",
        title="Cancel a mission",
        description="Stop a mission that runs, or close one whose agent asks; closing one whose result waits for "
        "a person is a person's decision, as promote is.",
        call=_on_app(_missions.cancel),
        destructive=True,
    ),
)
