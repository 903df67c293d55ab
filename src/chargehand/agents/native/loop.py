"""The native agent: a loop that lets a model work with tools in the sandbox, with every step recorded.

The loop is a function of the record. A worker that takes over runs the same code from the start: recorded steps
return their outputs at once, and work continues at the first step that is not recorded. So a reply or a call must
have no effect before it is recorded, and all state below is derived from recorded outputs.

One turn (docs/inside.md, "One act of a native agent"):

1. `_begin_turn`: the conversation goes to the model, and the reply is recorded.
2. `_run_call`: its calls run one after the other, each judged first and recorded.
3. `AttemptContext.act`: a call that may change files ends with a checkpoint in the same record.
4. `EscalationLadder`: the turn is checked for loops; the response is carried out before the next request.

`_AttemptLoop.run` consists of these four; their parts follow it, in that order.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from chargehand.agents.contract import (
    ABILITIES,
    AgentOutcome,
    Assignment,
    AttemptContext,
    EndpointModel,
    McpServer,
)
from chargehand.agents.conversation import ASK, FINISH, ConversationEntry, missing_results
from chargehand.agents.messages import (
    ASKED_AGAIN,
    denial_text,
    failure_message,
    finish_rejection,
    message_address,
    message_text,
    outcome_of_message,
    read_finish,
)
from chargehand.agents.native.mcp.tools import McpTools
from chargehand.agents.native.model_client import (
    QUOTA,
    ModelClient,
    ModelRequester,
    NotKeptError,
    open_client,
)
from chargehand.agents.native.skills import find_skills, skill_list
from chargehand.agents.prompts import (
    INSTRUCTION_FILES,
    SKILLS,
    cut_message,
    first_message,
    is_from_person,
    no_tool_message,
    person_message,
    report_message,
    resumed_message,
    system_prompt,
)
from chargehand.agents.recorded import (
    OPENING,
    call_step,
    notes_step,
    parse_step,
    read_reply,
    reply_step,
    restore_step,
)
from chargehand.agents.stuck import EscalationLadder, LadderStep, ObservedCall, Turn, nudge_message, stuck_question
from chargehand.agents.tool_specs import MUTATING, ToolCall, ToolResult, ToolSpec
from chargehand.agents.toolbox import Toolbox, action_of, checked_call, role_refusal
from chargehand.core.codec import convert_to
from chargehand.core.errors import ExhaustedError, MessageError, UpstreamError
from chargehand.core.messages import ClarificationRequest, Message, ProgressReport

# Replies of one attempt: far more than productive work needs.
_MOST_TURNS = 300
_ROLLED_BACK = "The files were set back to how they were before that began. Take another way."
_PROGRESS_NOTED = "noted; the work continues: call finish again, with status success or failure, at its end"
_LONGEST_REASON = 1000
_INSTRUCTION_BYTES = 20_000


class NativeAgent:
    """A model with tools: bash, read, edit, apply_patch, search, snippet, finish, ask, and those of MCP servers.

    The loop runs in the worker; only its tools run inside the sandbox, and every call to a model goes through the
    attempt's own gateway. `finish` is a claim: the verdict decides, and its findings open the next attempt of the
    same conversation.
    """

    kind: str = "native"
    checkpoints_itself = True
    abilities = ABILITIES["native"]

    def __init__(self, name: str, *, models: tuple[str, ...], mcp: tuple[McpServer, ...] = ()) -> None:
        self.name = name
        self.models = models
        self._mcp = mcp

    def prepare(self) -> None:
        """Import the HTTP client; see `Agent.prepare`."""
        importlib.import_module("httpx")

    async def run(self, assignment: Assignment, context: AttemptContext) -> AgentOutcome:
        """Work until the model finishes; see `Agent.run`."""
        assert context.endpoint is not None
        try:
            async with context.limited(assignment.seconds), open_client(context.endpoint) as client:
                outcome = await _AttemptLoop(self.name, assignment, context, client, self._mcp).run()
        except TimeoutError:
            reason = f"the agent was stopped at its time limit after {assignment.seconds:.1f} s"
            outcome = AgentOutcome(claim="timed_out", reason=reason, code="time")
        except ExhaustedError as error:
            outcome = AgentOutcome(claim="exhausted", reason=error.message, code=error.code)
        except UpstreamError as error:
            outcome = AgentOutcome(claim="failed", reason=error.message, code=error.code)
        if outcome.message is not None:
            return outcome
        address = message_address(assignment, self.name, "end")
        return replace(outcome, message=failure_message(address, outcome.reason, outcome.code))


class _OpenTurn(Struct, kw_only=True):
    """A reply whose calls are being carried out, with their results so far."""

    number: int
    reply: ConversationEntry
    problem: str | None = None
    cut: str = ""
    results: list[ConversationEntry] = field(default_factory=list)
    calls: list[ObservedCall] = field(default_factory=list)
    changed: bool = False


class _AttemptLoop:
    """The loop of one attempt."""

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
        self._assignment = assignment
        self._context = context
        self._requester = ModelRequester(context, client, system=system_prompt(assignment.role))
        self._model = context.endpoint.models[0]
        self._tools = Toolbox(
            context.sandbox,
            keep=context.keep,
            on_output=context.on_output,
            snippets=context.snippets,
            may_use=assignment.role.may_use,
            in_plan=assignment.in_plan,
            ask_map=None if context.code_map is None else self._ask_map,
            has_library=context.code_map is not None and context.code_map.has_library,
        )
        self._mcp = McpTools(mcp, context, shorten=self._tools.shorten)
        self._entries: list[ConversationEntry] = []
        self._messages_seen = 0
        self._ladder = EscalationLadder(others=len(self._requester.models) - 1)
        self._trees: list[str | None] = []  # the tree before each turn: the target of a roll-back
        self._tree: str | None = assignment.tree
        self._resumed = context.resumed
        self._malformed = {"reply": 0, "finish": 0}
        self._silent = 0  # consecutive replies without a call
        self._last_call: ObservedCall | None = None

    async def run(self) -> AgentOutcome:
        """Let the model work until it finishes; `NativeAgent.run` turns the errors raised into outcomes."""
        # A repair continues the same conversation: a fresh one would pay for reading the project again.
        for earlier in range(1, self._assignment.number):
            self._replay_conversation(self._context.recorded(earlier))
        await self._open_conversation()
        for number in range(1, _MOST_TURNS + 1):
            # 1. The reply is recorded before it has any effect: a crash below finds it in the log.
            turn = await self._begin_turn(number)
            malformed = self._count_malformed("reply", turn.problem, said=turn.reply.text)
            if outcome := malformed or self._end_silent(turn):
                return outcome
            # 2. and 3. Its calls run in the order of the reply and one by one: each is recorded with its resulting
            # tree, so a crash in the third repeats neither of the first two.
            for index, call in enumerate(turn.reply.calls):
                name = call_step(number, index)
                if call.name != FINISH:
                    await self._run_call(turn, call, name)
                elif outcome := await self._finish(turn, call, name):
                    return outcome
            # 4. Checked after its calls, acted upon before the next request: the response is in that turn's
            # record, and a newer version with other rules resumes the response of this one.
            self._ladder.add(Turn(text=turn.reply.text, calls=tuple(turn.calls), changed=turn.changed))
        reason = f"the agent did not finish within {_MOST_TURNS} replies"
        return AgentOutcome(claim="failed", reason=reason, code="turns")

    # --- 0. The conversation so far, and the opening of this attempt

    def _replay_conversation(self, recorded: Sequence[tuple[str, Any]]) -> None:
        """Take over the conversation of an earlier attempt; none of it is executed again."""
        turn: _OpenTurn | None = None
        for name, output in recorded:
            step = parse_step(name)
            if step is None:
                continue
            if step.kind == "opening":
                self._apply_opening(output)
            elif step.kind == "reply":
                self._close_turn(turn)
                turn = self._apply_recorded_reply(step.turn, output)
            elif step.kind == "call" and turn is not None:
                self._add_result(turn, turn.reply.calls[step.index], output)
        self._close_turn(turn)

    def _close_turn(self, turn: _OpenTurn | None) -> None:
        if turn is not None:
            self._entries += missing_results(turn.reply, turn.results)

    async def _open_conversation(self) -> None:
        async def compose() -> object:
            assignment = self._assignment
            said = list(self._context.person_messages())
            texts = [person_message(text) for text in said[self._messages_seen :]]
            if assignment.report is not None:
                return {"texts": [report_message(assignment.report), *texts], "said": len(said)}
            # Read inside the step: the files may change while the agent works, the recorded opening must not.
            instructions: list[tuple[str, str]] = []
            sandbox = self._context.sandbox
            # From the top of the repository down to the agent's directory: nearer files come later.
            depth = len(assignment.directory.split("/")) if assignment.directory else 0
            ups = tuple("../" * up for up in range(depth, -1, -1))
            if skills := skill_list(await find_skills(sandbox, ups)):
                instructions.append((SKILLS, skills))
            for path in (up + name for up in ups for name in INSTRUCTION_FILES):
                head = await sandbox.exec(["head", "-c", str(_INSTRUCTION_BYTES), "--", path])
                if head.exit_code == 0 and head.stdout:
                    instructions.append((path, head.stdout.decode(errors="replace")))
            first = first_message(
                assignment.request,
                directory=assignment.directory,
                allow=assignment.allow,
                forbid=assignment.forbid,
                instructions=instructions,
                code_map=await self._render_map(),
                lessons=assignment.lessons,
            )
            return {"texts": [first, *texts], "said": len(said)}

        self._apply_opening(await self._context.step(OPENING, [self._assignment.number], compose))

    async def _render_map(self) -> str:
        """Return the repository map for the request, "" without one."""
        code_map, tree = self._context.code_map, self._assignment.tree
        if code_map is None or tree is None:
            return ""
        return await asyncio.to_thread(code_map.render, tree, self._assignment.request)

    async def _ask_map(self, question: str, words: Sequence[str]) -> str:
        """Return an answer of the repository map about the tree of the last recorded act."""
        assert self._context.code_map is not None
        assert self._tree is not None
        answer, directory = self._context.code_map.answer, self._assignment.directory
        return await asyncio.to_thread(answer, self._tree, question, words, directory=directory)

    def _apply_opening(self, output: Any) -> None:
        self._mark_messages_seen(output["said"])
        # Of several reports only the last is about the current tree.
        self._entries = [replace(entry, pinned=entry.pinned and not entry.report) for entry in self._entries]
        is_report = bool(self._entries)  # only the first attempt opens an empty conversation, with the request
        for index, text in enumerate(output["texts"]):
            report = is_report and index == 0
            self._entries.append(ConversationEntry(kind="user", text=text, pinned=True, report=report))

    def _mark_messages_seen(self, count: int) -> None:
        self._messages_seen = count
        self._context.mark_delivered(count, acknowledged=True)

    # --- 1. The reply

    async def _begin_turn(self, number: int) -> _OpenTurn:
        """Begin a turn: respond to a detected loop, request the model's next reply, and return the turn."""
        name = reply_step(number)
        # If the reply is recorded, the record says what was done before it; an older version may have had other
        # rules.
        step = None if self._context.is_recorded(name) else self._ladder.due()
        notes = list(await self._mcp.refresh(number))
        # Before the request, and announced in it: the model must know that its files changed.
        if step is not None and step.kind == "ask":
            question = stuck_question(step.stuck, self._last_call)
            notes.append(person_message(await self._context.ask(f"turn/{number}/stuck", question, ())))
        elif step is not None:
            nudge, tree = nudge_message(step.stuck), self._trees[step.stuck.since]
            if step.kind == "roll_back" and tree is not None:
                await self._context.restore(restore_step(number), [tree], tree)
                self._tree = tree
                nudge = f"{nudge}\n\n{_ROLLED_BACK}"
            notes.append(nudge)

        async def request() -> object:
            return await self._request_model(number, step, notes)

        output = await self._context.step(name, [number], request)
        if output["step"] is not None:
            taken = convert_to(output["step"], LadderStep, from_attributes=True)
            self._ladder.take(taken)
            if taken.kind == "roll_back":
                self._tree = self._trees[taken.stuck.since] or self._tree
        self._trees.append(self._tree)
        return self._apply_recorded_reply(number, output)

    async def _request_model(self, number: int, step: LadderStep | None, notes: Sequence[str]) -> dict[str, Any]:
        """Return the reply in recorded form, with the additional texts that the model got."""
        assert self._context.endpoint is not None
        switch = step is not None and step.kind == "switch"
        model = self._requester.other_than(self._model) if switch else self._model
        if self._resumed is not None:
            # The previous worker may have paid for this reply and died before recording it. The gateway returns it
            # for the same request, so the request is first repeated with exactly the same texts.
            recorded = dict(self._context.recorded(self._assignment.number))
            told = recorded.get(notes_step(number), {"notes": [], "said": self._messages_seen})
            try:
                return {**told, "step": step, **await self._send(model, told["notes"], kept=True)}
            except NotKeptError:
                pass
        # Announced once, with the first request after a crash or a question.
        resumed, self._resumed = self._resumed, None
        interruption = [] if resumed is None else [resumed_message(ignored_lost=resumed == "lost")]
        said = list(self._context.person_messages())
        texts = [*interruption, *notes, *(person_message(text) for text in said[self._messages_seen :])]
        told = fresh = {"notes": texts, "said": len(said)}

        async def tell() -> object:
            return fresh

        # Recorded before it is sent, so that after a crash the same request can be repeated.
        if texts:
            told = dict(await self._context.step(notes_step(number), [fresh], tell))
        try:
            return {**told, "step": step, **await self._send(model, told["notes"])}
        except UpstreamError as error:
            pause = self._context.endpoint.meter().quota
            if error.code != QUOTA or pause is None:
                raise
            return await self._context.park(f"turn/{number}/quota", pause)

    async def _send(self, model: EndpointModel, notes: Sequence[str], *, kept: bool = False) -> dict[str, Any]:
        entries = [*self._entries, *map(note_entry, notes)]
        return await self._requester.request(model, entries, self._offered_tools(), kept=kept)

    def _apply_recorded_reply(self, number: int, output: Any) -> _OpenTurn:
        """Add a recorded reply, and the texts that preceded it, to the conversation."""
        self._mark_messages_seen(output["said"])
        self._entries += map(note_entry, output["notes"])
        self._model = self._requester.models.get(output["model"], self._model)
        reply, cut = read_reply(output), self._describe_cut(output)
        entry = ConversationEntry(kind="reply", text=reply.text, message=output["message"], calls=reply.calls)
        self._entries.append(entry)
        self._requester.calibrate(output)
        if cut:  # a seemingly malformed reply was not finished
            reply = replace(reply, problem=None)
        told = reply.problem or (None if reply.calls else cut or no_tool_message())
        if told is not None:
            self._entries.append(ConversationEntry(kind="user", text=told))
        return _OpenTurn(number=number, reply=entry, problem=reply.problem, cut=cut)

    def _describe_cut(self, output: Any) -> str:
        """Return the text for a model whose reply was ended by its output limit, "" for any other reply."""
        message = output["message"]
        if message.get("finish_reason") != "length":
            return ""
        wrote = message["usage"].get("output_tokens") or 0
        model = self._requester.models.get(output["model"])
        most = model.max_output if model is not None else None
        # The gateway lowers the limit to an affordable one; a provider may have a lower limit itself.
        money = " The remaining budget may have lowered the limit." if most and 0 < wrote < most else ""
        return cut_message(wrote, lowered=money)

    # --- 2. and 3. Its calls

    async def _run_call(self, turn: _OpenTurn, call: ToolCall, name: str) -> None:
        """Carry out one call if role and rules allow it; otherwise answer it with the reason."""

        async def work() -> object:
            role = self._assignment.role
            if turn.cut:
                return _recorded_result(ToolResult(text=turn.cut, failed=True), seconds=0.0)
            if not role.may_use(call.name):
                reason = role_refusal(role, call.name, self._offered_tools())
                self._context.refused(call.name, reason)
                return _recorded_result(ToolResult(text=f"not done: {reason}", failed=True), seconds=0.0)
            if call.name == ASK:
                checked = checked_call(call.name, call.arguments)
                if isinstance(checked, ToolResult):
                    return _recorded_result(checked)
                answer = await self._context.ask(name, checked["question"], checked.get("options") or ())
                return _recorded_result(ToolResult(text=person_message(answer)))
            # Tools of MCP servers know best what a call means, so they judge it themselves as a separate action.
            is_own, sandbox = not self._mcp.knows(call.name), self._context.sandbox
            if is_own and (action := action_of(call.name, call.arguments, cwd=sandbox.cwd)) is not None:
                judgement = await self._context.judge(name, action)
                if judgement.effect != "allow":
                    return _recorded_result(ToolResult(text=denial_text(judgement), failed=True), seconds=0.0)
            began = time.monotonic()
            if is_own:
                result = await self._tools.call(call.name, call.arguments)
            else:
                result = await self._mcp.call(name, call.name, call.arguments)
            return _recorded_result(result, seconds=time.monotonic() - began)

        if call.name in MUTATING or self._mcp.mutates(call.name):
            # Output and tree are one line of the log: after a crash the files are set back to the last such tree,
            # and a call without its line runs again from the tree before it.
            output, tree = await self._context.act(name, [call.name, call.arguments], work)
            turn.changed |= tree != self._tree
            self._tree = tree
        else:
            output = await self._context.step(name, [call.name, call.arguments], work)
        self._add_result(turn, call, output)

    def _offered_tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools of the role: the agent's own and those of MCP servers."""
        may_use = self._assignment.role.may_use
        return (*self._tools.specs, *(spec for spec in self._mcp.specs if may_use(spec.name)))

    async def _finish(self, turn: _OpenTurn, call: ToolCall, name: str) -> AgentOutcome | None:
        """Return the outcome of a well-formed `finish`.

        A malformed one is asked for again, a progress report is noted, and a question waits for its answer.
        """
        if turn.cut:
            await self._run_call(turn, call, name)
            return None
        calls = [each for each in turn.reply.calls if each.name == FINISH]
        address = message_address(self._assignment, self._name, f"{turn.number}/{call.index}")
        message: Message | MessageError
        try:
            # All calls of finish in the reply, since two different ones are as malformed as one without a summary.
            message = read_finish(calls, address)
        except MessageError as error:
            message = error

        async def answer() -> object:
            match message:
                case MessageError():
                    return _recorded_result(ToolResult(text=finish_rejection(message), failed=True))
                case ClarificationRequest(payload=question):
                    said = await self._context.ask(name, question.question, question.options)
                    return {**_recorded_result(ToolResult(text=person_message(said))), "asked": True}
                case _:
                    return _recorded_result(ToolResult(text=_PROGRESS_NOTED))

        if not isinstance(message, MessageError | ProgressReport | ClarificationRequest):
            done = AgentOutcome(claim="done", reason="", output=message_text(message).encode())
            return outcome_of_message(done, message)
        self._add_result(turn, call, await self._context.step(name, [call.name, call.arguments], answer))
        # Several malformed calls in one reply are one mistake.
        if isinstance(message, MessageError) and call is not calls[0]:
            return None
        summary = call.arguments.get("summary") if isinstance(call.arguments, dict) else call.arguments
        said = "\n".join(filter(None, (turn.reply.text.strip(), str(summary or ""))))
        problem = message.message if isinstance(message, MessageError) else None
        return self._count_malformed("finish", problem, said=said)

    def _count_malformed(self, what: str, problem: str | None, *, said: str) -> AgentOutcome | None:
        """Count consecutive malformed messages; return the outcome if they were asked for again often enough."""
        self._malformed[what] = 0 if problem is None else self._malformed[what] + 1
        if problem is None or self._malformed[what] <= ASKED_AGAIN:
            return None
        reason = f"the agent's {what} was malformed {self._malformed[what]} times in a row: {problem}"
        return AgentOutcome(claim="failed", reason=reason[:_LONGEST_REASON], code="malformed_message", said=said)

    def _end_silent(self, turn: _OpenTurn) -> AgentOutcome | None:
        """Return the outcome if replies without a call are the last word on existing work.

        Some models end in prose despite all instructions. If no work was done yet, it is an ordinary loop.
        """
        called = bool(turn.reply.calls) or turn.problem is not None or bool(turn.cut)
        self._silent = 0 if called else self._silent + 1
        role = self._assignment.role
        worked = self._tree != self._assignment.tree if role.writes else bool(turn.reply.text.strip())
        if self._silent <= ASKED_AGAIN or not worked:
            return None
        if self._context.is_recorded(reply_step(turn.number + 1)):  # by a version that continued here
            return None
        reason = f"the agent's last {self._silent} replies called no tool, finish included"
        return AgentOutcome(claim="failed", reason=reason, code="no_finish", said=turn.reply.text)

    def _add_result(self, turn: _OpenTurn, call: ToolCall, output: Any) -> None:
        """Add a call's recorded output to the conversation and to the loop detection."""
        output = output.get("output", output)  # the record of an act holds its output next to the tree
        text = output["text"]
        failed = output["failed"]
        entry = ConversationEntry(
            kind="result",
            call=call,
            text=text,
            artifact=output["artifact"],
            failed=failed,
            pinned=call.name == ASK or output.get("asked", False),
            image=output.get("image"),
        )
        turn.results.append(entry)
        self._entries.append(entry)
        exited_badly = call.name == "bash" and not text.endswith("[exit code 0]")
        self._last_call = ObservedCall(
            name=call.name,
            arguments=call.arguments if isinstance(call.arguments, dict) else {"": str(call.arguments)},
            result=text,
            failed=failed or exited_badly,
            seconds=output.get("seconds", 0.0),
        )
        turn.calls.append(self._last_call)


def note_entry(text: str) -> ConversationEntry:
    """Return a text between turns as an entry; compaction never drops messages from a person."""
    return ConversationEntry(kind="user", text=text, pinned=is_from_person(text))


def _recorded_result(result: ToolResult, *, seconds: float | None = None) -> dict[str, Any]:
    # The log stores these documents: a missing key means the same to every version.
    document = {"text": result.text, "failed": result.failed, "artifact": result.artifact}
    more = {"image": result.image, "seconds": seconds}
    return document | {key: value for key, value in more.items() if value is not None}
