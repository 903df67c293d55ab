"""The native agent: a thin loop that lets a model work with tools in the sandbox, every step of it recorded."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chargehand.agents._asking import Asking
from chargehand.agents._claims import (
    ASKED_AGAIN,
    addressed,
    asked_again,
    claimed,
    failure,
    read_finish,
    said_in,
)
from chargehand.agents._contract import (
    Abilities,
    Assignment,
    AttemptContext,
    Claim,
    EndpointModel,
    McpServer,
    Outcome,
)
from chargehand.agents._conversation import (
    ASK,
    FINISH,
    Said,
    unanswered,
)
from chargehand.agents._judged import action_of, not_in_role, refusal
from chargehand.agents._mcp_tools import McpTools
from chargehand.agents._model_client import (
    QUOTA,
    ModelClient,
    NotKeptError,
    load_client,
    open_client,
)
from chargehand.agents._prompts import (
    INSTRUCTION_FILES,
    SKILLS,
    first_message,
    is_from_person,
    no_tool_message,
    nudge_message,
    person_message,
    report_message,
    resumed_message,
    system_prompt,
)
from chargehand.agents._recorded import (
    OPENING,
    ToolCall,
    call_step,
    notes_step,
    parse_step,
    read_reply,
    reply_step,
    restore_step,
)
from chargehand.agents._skills import find_skills, skill_list
from chargehand.agents._stuck import Call, Ladder, Step, Turn
from chargehand.agents._tools import MUTATING, Toolbox, ToolResult, checked_call
from chargehand.agents._tools_model import ToolSpec
from chargehand.core.codec import convert_to
from chargehand.core.config import AgentKind
from chargehand.core.errors import ExhaustedError, MessageError, UpstreamError
from chargehand.core.messages import ClarificationRequest, ProgressReport

_TURNS = 300
"""Replies of one attempt at most: far more than work that gets anywhere needs."""
_ROLLED_BACK = "The files were set back to how they were before that began. Take another way."
_NOTED = "noted; the work goes on: call finish again, with status success or failure, at its end"
_LONGEST_REASON = 1000
_INSTRUCTION_BYTES = 20_000


class NativeAgent:
    """A model with tools: bash, read, edit, apply_patch, search, snippet, finish, ask, and those of MCP servers.

    The loop runs in the worker; only its tools run inside the sandbox, and every call to a model goes through the
    attempt's own gateway. `finish` is a claim: the verdict decides, and what was wrong comes back as the next
    attempt's opening of the same conversation.
    """

    kind: AgentKind = "native"
    driven = True
    abilities = Abilities(judged=True, asks=True, hears=True, resumes="step", acknowledges=True, mends=True)

    def __init__(self, name: str, *, models: tuple[str, ...], mcp: tuple[McpServer, ...] = ()) -> None:
        self.name = name
        self.models = models
        self._mcp = mcp

    def prepare(self) -> None:
        """Import the model library, which takes seconds; see `Agent.prepare`."""
        load_client()

    async def run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        """Work until the model finishes; see `Agent.run`."""
        outcome = await self._run(assignment, context)
        if outcome.message is not None:
            return outcome
        known = addressed(assignment, self.name, "end")
        return replace(outcome, message=failure(known, outcome.reason, outcome.code))

    async def _run(self, assignment: Assignment, context: AttemptContext) -> Outcome:
        assert context.endpoint is not None
        seconds = assignment.seconds
        try:
            async with context.limited(seconds), open_client(context.endpoint) as client:
                return await _Attempt(self.name, assignment, context, client, self._mcp).run()
        except TimeoutError:
            reason = f"the agent was stopped at its time limit after {seconds:.1f} s"
            return _outcome("timed_out", reason, code="time")
        except ExhaustedError as error:
            return _outcome("exhausted", error.message, code=error.code)
        except UpstreamError as error:
            return _outcome("failed", error.message, code=error.code)


def _outcome(claim: Claim, reason: str, *, code: str = "", output: str = "") -> Outcome:
    return Outcome(claim=claim, reason=reason, output=output.encode(), seconds=0.0, code=code)


@dataclass(slots=True, kw_only=True)
class _Turn:
    """One reply and what came of its calls."""

    number: int
    reply: Said
    problem: str | None = None
    results: list[Said] = field(default_factory=list)
    done: list[Call] = field(default_factory=list)
    changed: bool = False


class _Attempt:
    """The loop of one attempt; all of its state follows from what is recorded."""

    def __init__(
        self,
        name: str,
        assignment: Assignment,
        context: AttemptContext,
        client: ModelClient,
        mcp: tuple[McpServer, ...],
    ) -> None:
        assert context.endpoint is not None
        self._name = name
        self._misread = {"reply": 0, "finish": 0}
        self._assignment = assignment
        self._context = context
        self._asking = Asking(context, client, system=system_prompt(assignment.role))
        self._model = context.endpoint.models[0]
        self._tools = Toolbox(
            context.sandbox,
            keep=context.keep,
            on_output=context.on_output,
            snippets=context.snippets,
            may_use=assignment.role.may_use,
        )
        self._mcp = McpTools(mcp, context, bounded=self._tools.bounded)
        self._entries: list[Said] = []
        self._said = 0
        self._ladder = Ladder(others=len(self._asking.models) - 1)
        self._trees: list[str | None] = []
        self._tree: str | None = assignment.tree
        self._resumed = context.resumed

    async def run(self) -> Outcome:
        """Let the model work until it finishes; raises what `NativeAgent.run` makes outcomes of."""
        for number in range(1, self._assignment.number):
            self._recall(self._context.recorded(number))
        await self._open()
        for number in range(1, _TURNS + 1):
            turn = await self._reply(number)
            done = await self._carry_out(turn)
            if done is not None:
                return done
        return _outcome("failed", f"the agent did not finish within {_TURNS} replies", code="turns")

    # --- what was before

    def _recall(self, recorded: Sequence[tuple[str, Any]]) -> None:
        """Take the conversation of an earlier attempt over."""
        turn: _Turn | None = None
        for name, output in recorded:
            step = parse_step(name)
            if step is None:
                continue
            if step.kind == "opening":
                self._hear(output)
            elif step.kind == "reply":
                self._close(turn)
                turn = self._heard(step.turn, output)
            elif step.kind == "call" and turn is not None:
                self._result(turn, turn.reply.calls[step.index], output)
        self._close(turn)

    def _close(self, turn: _Turn | None) -> None:
        if turn is not None:
            self._entries += unanswered(turn.reply, turn.results)

    async def _open(self) -> None:
        async def opened() -> object:
            assignment, heard = self._assignment, list(self._context.heard())
            texts = [person_message(text) for text in heard[self._said :]]
            if assignment.report is None:
                files = [(path, text) for path in INSTRUCTION_FILES if (text := await self._file(path))]
                skills = skill_list(await find_skills(self._context.sandbox))
                files = [*([(SKILLS, skills)] if skills else []), *files]
                first = first_message(
                    assignment.request, allow=assignment.allow, forbid=assignment.forbid, instructions=files
                )
                texts.insert(0, first)
            else:
                texts.insert(0, report_message(assignment.report))
            return {"texts": texts, "said": len(heard)}

        self._hear(await self._context.step(OPENING, [self._assignment.number], opened))

    async def _file(self, path: str) -> str:
        limit = str(_INSTRUCTION_BYTES)
        result = await self._context.sandbox.exec(["head", "-c", limit, "--", path])
        return result.stdout.decode(errors="replace") if result.exit_code == 0 else ""

    def _hear(self, output: Any) -> None:
        self._said = output["said"]
        self._context.delivered(self._said, acknowledged=True)
        # Of several reports only the last is about the tree as it is.
        self._entries = [replace(entry, pinned=entry.pinned and entry.report is False) for entry in self._entries]
        report, *others = output["texts"] if self._entries else [None, *output["texts"]]
        if report is not None:
            self._entries.append(Said(kind="user", text=report, pinned=True, report=True))
        self._entries += [Said(kind="user", text=text, pinned=True) for text in others]

    # --- one turn

    async def _reply(self, number: int) -> _Turn:
        """Return the model's next reply, with whatever had to be done to get it out of a loop first."""
        name = reply_step(number)
        # What is due follows from the turns; for a recorded reply it was done, perhaps by another version.
        step = None if self._context.is_recorded(name) else self._ladder.due()
        notes = [*await self._mcp.refresh(number), *([] if step is None else [await self._climb(number, step)])]

        async def replied() -> object:
            switched = step is not None and step.kind == "switch"
            model = self._asking.other_than(self._model) if switched else self._model
            told = self._told(number)
            try:
                if self._resumed is None:
                    raise NotKeptError
                reply = await self._asked(model, told["notes"], kept=True)
            except NotKeptError:
                told = await self._tell(number, notes)
                reply = await self._replied(number, model, told["notes"])
            return {**told, "step": step, **reply}

        output = await self._context.step(name, [number], replied)
        if output["step"] is not None:
            taken = convert_to(output["step"], Step, from_attributes=True)
            self._ladder.take(taken)
            if taken.kind == "roll_back":
                self._tree = self._trees[taken.stuck.since] or self._tree
        self._trees.append(self._tree)
        return self._heard(number, output)

    async def _climb(self, number: int, step: Step) -> str:
        """Do what is due about an agent that goes in circles; return what it is told."""
        if step.kind == "ask":
            answer = await self._context.ask(f"turn/{number}/stuck", nudge_message(step.stuck), ())
            return person_message(answer)
        tree = self._trees[step.stuck.since]
        if step.kind == "roll_back" and tree is not None:
            await self._context.restore(restore_step(number), [tree], tree)
            self._tree = tree
            return f"{nudge_message(step.stuck)}\n\n{_ROLLED_BACK}"
        return nudge_message(step.stuck)

    def _told(self, number: int) -> dict[str, Any]:
        """Return what the model was told with a turn by a worker that died before it had recorded the reply."""
        for name, output in self._context.recorded(self._assignment.number) if self._resumed else ():
            if name == notes_step(number):
                return dict(output)
        return {"notes": [], "said": self._said}

    async def _tell(self, number: int, notes: Sequence[str]) -> dict[str, Any]:
        """Return what the model is told with a turn; recorded, so that the same request can be made again."""
        heard = list(self._context.heard())
        said = [*self._interruption(), *notes, *(person_message(text) for text in heard[self._said :])]
        told = {"notes": said, "said": len(heard)}

        async def noted() -> object:
            return told

        return dict(await self._context.step(notes_step(number), [told], noted)) if said else told

    def _interruption(self) -> list[str]:
        """Return what the model is told once when its work goes on after a crash or a question."""
        resumed, self._resumed = self._resumed, None
        return [resumed_message(ignored_lost=resumed == "lost")] if resumed is not None else []

    async def _replied(self, number: int, model: EndpointModel, notes: Sequence[str]) -> dict[str, Any]:
        """Return a reply; while no model has quota for it the mission waits, and its attempt goes on from here."""
        assert self._context.endpoint is not None
        try:
            return await self._asked(model, notes)
        except UpstreamError as error:
            rest = self._context.endpoint.meter().quota
            if error.code != QUOTA or rest is None:
                raise
            return await self._context.park(f"turn/{number}/quota", rest)

    async def _asked(self, model: EndpointModel, notes: Sequence[str], *, kept: bool = False) -> dict[str, Any]:
        return await self._asking.ask(model, [*self._entries, *map(_note, notes)], self._specs(), kept=kept)

    def _heard(self, number: int, output: Any) -> _Turn:
        """Take a recorded reply into the conversation."""
        self._said = output["said"]
        self._context.delivered(self._said, acknowledged=True)
        self._entries += map(_note, output["notes"])
        self._model = self._asking.models.get(output["model"], self._model)
        reply = read_reply(output)
        said = Said.by_model(reply, output["message"])
        self._entries.append(said)
        self._asking.learn(output)
        if reply.problem is not None:
            self._entries.append(Said(kind="user", text=reply.problem))
        elif not reply.calls:
            self._entries.append(Said(kind="user", text=no_tool_message()))
        return _Turn(number=number, reply=said, problem=reply.problem)

    async def _carry_out(self, turn: _Turn) -> Outcome | None:
        """Do what a reply asks for, one call after the other; return the end where it finishes."""
        if done := self._misunderstood("reply", turn.problem):
            return done
        for index, call in enumerate(turn.reply.calls):
            name = call_step(turn.number, index)
            if call.name == FINISH:
                done = await self._finish(turn, call, name)
                if done is not None:
                    return done
            else:
                await self._call(turn, call, name)
        self._ladder.add(Turn(text=turn.reply.text, calls=tuple(turn.done), changed=turn.changed))
        return None

    async def _call(self, turn: _Turn, call: ToolCall, name: str) -> None:
        async def called() -> object:
            if not self._assignment.role.may_use(call.name):
                return self._not_in_role(call)
            return await self._answer(name, call) if call.name == ASK else await self._judged(name, call)

        if call.name in MUTATING or self._mcp.mutates(call.name):
            output, tree = await self._context.act(name, [call.name, call.arguments], called)
            turn.changed |= tree != self._tree
            self._tree = tree
        else:
            output = await self._context.step(name, [call.name, call.arguments], called)
        self._result(turn, call, output)

    def _specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model is told of: the agent's own and its servers', of both the role's."""
        may_use = self._assignment.role.may_use
        return (*self._tools.specs, *(spec for spec in self._mcp.specs if may_use(spec.name)))

    def _not_in_role(self, call: ToolCall) -> dict[str, Any]:
        """Answer a call to a tool that the role does not have; nothing of it is carried out."""
        reason = not_in_role(self._assignment.role, call.name, [spec.name for spec in self._specs()])
        self._context.refused(call.name, reason)
        return {**_shown(ToolResult(text=f"not done: {reason}", failed=True)), "seconds": 0.0}

    async def _judged(self, name: str, call: ToolCall) -> dict[str, Any]:
        """Carry out a call that the rules allow; one that they deny is answered with the rule and its reason."""
        if self._mcp.knows(call.name):
            return await self._timed(self._mcp.call(name, call.name, call.arguments))
        action = action_of(call.name, call.arguments)
        if action is not None:
            judgement = await self._context.judge(name, action)
            if judgement.effect != "allow":
                return {**_shown(ToolResult(text=refusal(judgement), failed=True)), "seconds": 0.0}
        return await self._timed(self._tools.call(call.name, call.arguments))

    @staticmethod
    async def _timed(work: Awaitable[ToolResult]) -> dict[str, Any]:
        began = time.monotonic()
        result = await work
        return {**_shown(result), "seconds": time.monotonic() - began}

    async def _answer(self, name: str, call: ToolCall) -> dict[str, Any]:
        checked = checked_call(call.name, call.arguments)
        if isinstance(checked, ToolResult):
            return _shown(checked)
        answer = await self._context.ask(name, checked["question"], checked.get("options") or ())
        return {"text": person_message(answer), "failed": False, "artifact": None}

    async def _finish(self, turn: _Turn, call: ToolCall, name: str) -> Outcome | None:
        """Take the agent's end; one that is malformed is asked for again, one that asks waits for its answer."""
        calls = [each for each in turn.reply.calls if each.name == FINISH]
        try:
            message = read_finish(calls, addressed(self._assignment, self._name, f"{turn.number}/{call.index}"))
        except MessageError as error:
            await self._answered(turn, call, name, ToolResult(text=asked_again(error), failed=True))
            return self._misunderstood("finish", error.message) if call is calls[0] else None
        self._misunderstood("finish", None)
        if isinstance(message, ProgressReport):
            await self._answered(turn, call, name, ToolResult(text=_NOTED))
            return None
        if isinstance(message, ClarificationRequest):
            await self._clarify(turn, call, name, message)
            return None
        ended = _outcome("done", "", output=said_in(message))
        return claimed(ended, message)

    async def _clarify(self, turn: _Turn, call: ToolCall, name: str, message: ClarificationRequest) -> None:
        async def answered() -> object:
            answer = await self._context.ask(name, message.payload.question, message.payload.options)
            return {"text": person_message(answer), "failed": False, "artifact": None, "asked": True}

        self._result(turn, call, await self._context.step(name, [call.name, call.arguments], answered))

    async def _answered(self, turn: _Turn, call: ToolCall, name: str, result: ToolResult) -> None:
        async def answered() -> object:
            return _shown(result)

        self._result(turn, call, await self._context.step(name, [call.name, call.arguments], answered))

    def _misunderstood(self, what: str, problem: str | None) -> Outcome | None:
        """Count what was malformed in a row; return the end where it was asked for again often enough."""
        self._misread[what] = 0 if problem is None else self._misread[what] + 1
        if problem is None or self._misread[what] <= ASKED_AGAIN:
            return None
        reason = f"the agent's {what} was malformed {self._misread[what]} times in a row: {problem}"
        return _outcome("failed", reason[:_LONGEST_REASON], code="malformed_message")

    def _result(self, turn: _Turn, call: ToolCall, output: Any) -> None:
        output = output.get("output", output)
        result = Said(
            kind="result",
            call=call,
            text=output["text"],
            artifact=output["artifact"],
            failed=output["failed"],
            pinned=call.name == ASK or output.get("asked", False),
            image=output.get("image"),
        )
        turn.results.append(result)
        self._entries.append(result)
        turn.done.append(
            Call(
                name=call.name,
                arguments=call.arguments if isinstance(call.arguments, dict) else {"": str(call.arguments)},
                result=output["text"],
                failed=output["failed"] or _exited_badly(call, output["text"]),
                seconds=output.get("seconds", 0.0),
            )
        )


def _note(text: str) -> Said:
    """Return what is said between turns; what a person said is never left out."""
    return Said(kind="user", text=text, pinned=is_from_person(text))


def _exited_badly(call: ToolCall, text: str) -> bool:
    return call.name == "bash" and not text.endswith("[exit code 0]")


def _shown(result: ToolResult) -> dict[str, Any]:
    shown = {"text": result.text, "failed": result.failed, "artifact": result.artifact}
    return shown if result.image is None else {**shown, "image": result.image}
