"""Every adapter keeps the contract of an agent; the product's own fakes play the programs that adapters drive."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest
from _places import needs_bwrap, toolchain, workspace
from msgspec.structs import replace
from tests.native_kit import call, says, scripted

from chargehand.agents.clis import SPECS, CliLaunch
from chargehand.agents.contract import Agent, AgentOutcome
from chargehand.agents.opening import open_agent
from chargehand.agents.programs.last_message import ENDS, MESSAGE, MessageRepairs, ReadMessage
from chargehand.agents.programs.launching import launch_of
from chargehand.core.config import AgentConfig
from chargehand.core.messages import Addressed
from chargehand.models.contract import Dialect, Usage
from chargehand.models.scripted_replies import ScriptedReply
from chargehand.policy.actions import Effect
from chargehand.sandbox.process_tier import ProcessTier
from chargehand.sandbox.toolchain import Toolchain
from chargehand.testing.agents import fake_agent as _fake_agent
from chargehand.testing.agents.conformance import AgentContract
from chargehand.testing.agents.kit import AgentCase, MemoryAttemptContext, OpenCase, scripted_endpoint
from chargehand.testing.sandbox.kit import OpenedSandbox

pytestmark = [pytest.mark.needs_bwrap, needs_bwrap]
MODELS = ("scripted",)
Seat = Callable[..., Awaitable[MemoryAttemptContext]]


def fake(*words: str) -> tuple[str, ...]:
    return ("python3", "-I", "-c", inspect.getsource(_fake_agent), *words)


PAID = [says("go on", usage=Usage(input=200, output=300))] * 80


@functools.cache
def programs() -> Toolchain:
    return toolchain()


@pytest.fixture
async def seat(tmp_path: Path) -> AsyncIterator[Seat]:
    """Return a function that opens an attempt's context on a fresh sandbox with a scripted gateway."""
    async with AsyncExitStack() as stack:
        tier = await stack.enter_async_context(ProcessTier(programs()))

        async def sit(
            replies: Sequence[ScriptedReply] = PAID, *, usd: float | None = None, effect: Effect = "allow"
        ) -> MemoryAttemptContext:
            socket = tmp_path / "gateway.sock"
            opened = scripted_endpoint(scripted(replies), socket, usd=usd)
            endpoint = await stack.enter_async_context(opened)
            spec = stack.enter_context(workspace(tmp_path / "place"))
            sandbox = await tier.open(replace(spec, gateway=socket))
            stack.push_async_callback(sandbox.close)
            place = OpenedSandbox(sandbox, tmp_path / "place" / "upper", lambda: None)
            return MemoryAttemptContext(place, endpoint=endpoint, effect=effect)

        yield sit


def cases(seat: Seat, agent: Callable[[str], Agent]) -> OpenCase:
    async def open_case(act: str, **options: Any) -> AgentCase:
        return AgentCase(agent=agent(act), context=await seat(**options))

    return open_case


def opened(
    kind: str, command: tuple[str, ...] = (), *, cli: str | None = None, models: tuple[str, ...] = ()
) -> Agent:
    return open_agent("stand-in", AgentConfig(kind=kind, command=command, cli=cli), models=models)


class TestCli(AgentContract):
    """The other forms are tested in tests/unit/test_agent_cli_forms.py."""

    left_out: ClassVar = {"ask": "it works without a person, so it asks nobody"}

    @pytest.fixture
    async def open_case(self, seat: Seat) -> OpenCase:
        return cases(seat, lambda act: opened("cli", fake("claude", act), cli="claude", models=MODELS))


class TestAcp(AgentContract):
    @pytest.fixture
    async def open_case(self, seat: Seat) -> OpenCase:
        return cases(seat, lambda act: opened("acp", fake("acp", act), models=MODELS))


class TestCommand(AgentContract):
    left_out: ClassVar = dict.fromkeys(
        ("ask", "malformed", "garbage"), "it tells nothing but its exit code, so it can tell nothing wrong"
    )

    @pytest.fixture
    async def open_case(self, seat: Seat) -> OpenCase:
        return cases(seat, lambda act: opened("command", fake("claude", act), models=MODELS))


ADDS = "*** Begin Patch\n*** Add File: made.txt\n+made\n*** End Patch\n"
MISSES = "*** Begin Patch\n*** Update File: none.txt\n@@\n-a\n+b\n*** End Patch\n"


class TestPatch(AgentContract):
    left_out: ClassVar = dict.fromkeys(
        (
            "hang",
            "malformed",
            "garbage",
            "ask",
            "pay",
            "insist",
            "leak",
            "garble-once",
            "garble-twice",
            "garble-always",
        ),
        "it runs no program and calls no model",
    )

    @pytest.fixture
    async def open_case(self, seat: Seat) -> OpenCase:
        patch = AgentConfig(kind="patch", patch="x.patch")
        return cases(
            seat, lambda act: open_agent("p", patch, models=(), read=lambda _: ADDS if act == "edit" else MISSES)
        )


HANGS = (
    "for n in 1 2 3; do setsid sh -c 'setsid sleep 1000 & setsid sleep 1000 & wait' & done; "
    "echo hung > made.txt; sleep 1000"
)
DONE = says("", call("finish", summary="done", evidence=["it is there"]))
MAKES = says("I make it", call("bash", command="echo made > made.txt"))
GARBLED = says("", call("finish", summary="done"))
NATIVE = {
    "edit": (MAKES, DONE),
    "pay": (MAKES, DONE),
    "fail": (),
    "hang": (says("", call("bash", command=HANGS, timeout=600)),),
    "ask": (
        says("", call("ask", question="Which?", options=["red", "green"])),
        says("", call("bash", command="echo green > made.txt")),
        DONE,
    ),
    "insist": (says("", call("bash", command="true")),) * 80,
    "garble-once": (MAKES, GARBLED, DONE),
    "garble-twice": (MAKES, GARBLED, GARBLED, DONE),
    "garble-always": (MAKES, *[GARBLED] * 9),
}


class TestNative(AgentContract):
    left_out: ClassVar = {
        "malformed": "what its model says wrongly is answered, not passed over: tests of the native agent",
        "garbage": "as above",
        "leak": "its sandbox has no token: tests of the gateway hold that",
    }

    @pytest.fixture
    async def open_case(self, seat: Seat) -> OpenCase:
        async def open_case(act: str, **options: Any) -> AgentCase:
            return AgentCase(agent=opened("native", models=MODELS), context=await seat(NATIVE[act], **options))

        return open_case


async def test_a_cli_agent_without_a_model_fails(seat: Seat) -> None:
    context = await seat()
    assert context.endpoint is not None
    context.endpoint = replace(context.endpoint, models=())
    case = AgentCase(agent=opened("cli", cli="claude", models=MODELS), context=context)
    outcome = await case.agent.run(case.assignment(), context)
    assert (outcome.claim, outcome.code) == ("failed", "agent_unable")
    assert outcome.reason == "claude needs a model: name one of [models] in the agent's `model`"


@pytest.mark.parametrize(
    ("cli", "models", "spoken"),
    [
        ("opencode", "anthropic", "anthropic"),
        ("opencode", "openai", "openai"),
        ("opencode", "gemini", "openai"),
        ("claude", "openai", "anthropic"),
        ("codex", "openai", "responses"),
        ("cursor", "openai", ""),
    ],
)
async def test_a_cli_agent_uses_the_dialect_of_its_model_if_supported(
    seat: Seat, cli: str, models: Dialect, spoken: str
) -> None:
    context = await seat()
    assert context.endpoint is not None
    context.endpoint = replace(
        context.endpoint, models=tuple(replace(each, dialect=models) for each in context.endpoint.models)
    )
    assignment = AgentCase(agent=opened("cli", cli=cli, models=MODELS), context=context).assignment()
    launch = launch_of(SPECS[cli], assignment, context, stand_in=True)
    assert isinstance(launch, CliLaunch)
    assert (launch.model, launch.dialect) == ("scripted", spoken)


@pytest.mark.parametrize(
    ("agent", "code", "words"),
    [
        (opened("cli", cli="cursor"), "agent_unable", "its vendor's own service"),
        (opened("cli", ("no-such-program",), cli="qwen"), "agent_missing", "no-such-program"),
        (opened("acp", cli="claude"), "agent_unable", "does not speak ACP"),
        (opened("acp", ("no-such-program",)), "agent_missing", "no-such-program"),
        (opened("acp", fake("acp", "old")), "agent_failed", "version 99"),
        (opened("acp", ("sh", "-c", "echo worse >&2; exit 3")), "agent_failed", "exit code 3"),
        *(
            (opened(kind, ("sh", "-c", "no-such-inner"), cli=cli), "agent_failed", "exit code 127")
            for kind, cli in (("command", None), ("cli", "qwen"), ("acp", None))
        ),
        (opened("command", ("no-such-program",)), "agent_missing", "no-such-program"),
    ],
)
async def test_an_unusable_agent_fails_with_a_reason(seat: Seat, agent: Agent, code: str, words: str) -> None:
    case = AgentCase(agent=agent, context=await seat())
    outcome = await agent.run(case.assignment(), case.context)
    assert (outcome.claim, outcome.code) == ("failed", code), outcome
    assert words in outcome.reason


async def test_a_terminal_of_an_acp_agent_runs_in_its_sandbox(seat: Seat) -> None:
    case = AgentCase(agent=opened("acp", fake("acp", "terminal")), context=await seat())
    outcome = await case.agent.run(case.assignment(), case.context)
    assert (outcome.claim, case.context.made()) == ("done", "made\n"), outcome
    assert [repr(each) for each in case.context.judged if "echo made" in repr(each)]


async def test_a_message_during_the_work_reaches_an_acp_agent(seat: Seat) -> None:
    case = AgentCase(agent=opened("acp", fake("acp", "edit")), context=await seat())
    case.context.words.append("Make it once more.")
    outcome = await case.agent.run(case.assignment(), case.context)
    assert outcome.claim == "done"
    transcript = [json.loads(line) for line in case.context.kept[-1].splitlines()]
    assert [each["text"] for each in transcript if each["kind"] == "text"] == ["I begin.", "It is made."] * 2


KNOWN = Addressed(id="a-suite/end", mission="m-suite", attempt="a-suite", sender="it")


def leaves(content: bytes | None) -> ReadMessage:
    async def look() -> bytes | None:
        return content

    return look


async def test_a_repair_request_names_the_error_the_schema_and_the_message(seat: Seat) -> None:
    context = await seat()
    repairs = MessageRepairs(context, KNOWN)
    assert await repairs.again(read_file=leaves(None)) is None
    right = b'{"type": "information_report", "status": "success", "payload": {"text": "a"}}'
    assert await repairs.again(read_file=leaves(right)) is None
    assert context.steps == {}
    wrong = b'{"type": "error_report", "status": "failure", "payload": {"summary": 3}}'
    words = await repairs.again(read_file=leaves(wrong))
    assert words is not None
    assert "$.payload.summary" in words
    assert '"type": "error_report", "status": "failure", "payload": {"summary": TEXT, "code"?: TEXT' in words
    assert "task_completion" not in words
    assert '"summary": 3' in words
    every = await MessageRepairs(context, KNOWN).again(read_file=leaves(b"{" * 5_000))
    assert every is not None
    assert all(f'"type": "{kind.__struct_config__.tag}"' in every for kind in ENDS)
    assert len(every) < 4_000
    assert "\0" not in (await MessageRepairs(context, KNOWN).again(read_file=leaves(b"{\0")) or "\0")


async def test_repairs_are_counted_over_the_runs_of_an_attempt_and_through_a_crash(seat: Seat) -> None:
    context, wrong = await seat(), leaves(b"{")
    for _ in range(2):  # the second is the same run, restarted after a crash
        repairs = MessageRepairs(context, KNOWN)
        assert await repairs.again(read_file=wrong)
    assert list(context.steps) == ["asked-again/0/1"]
    later = MessageRepairs(context, KNOWN, run=1)
    assert await later.again(read_file=wrong)
    assert await later.again(read_file=wrong) is None, "one was asked for before the question"
    assert sorted(context.steps) == ["asked-again/0/1", "asked-again/1/1"]


async def test_a_message_that_was_taken_away_is_no_success(seat: Seat) -> None:
    context = await seat()
    repairs = MessageRepairs(context, KNOWN)
    assert await repairs.again(read_file=leaves(b"{"))
    ended = await repairs.conclude(AgentOutcome(claim="done", reason="it is done", output=b"", seconds=1.0))
    assert (ended.claim, ended.code) == ("failed", "malformed_message")
    assert "removed and not replaced" in ended.reason
    assert (await MessageRepairs(context, KNOWN).conclude(replace(ended, claim="done", code=""))).claim == "done"


async def test_a_program_without_a_resumable_session_is_not_restarted(seat: Seat) -> None:
    context = await seat()
    repairs = MessageRepairs(context, KNOWN)
    assert await repairs.again(read_file=leaves(b"{"), why_not="it reported no session to resume") is None
    assert context.steps == {}
    await context.sandbox.exec(["sh", "-c", f"mkdir -p {Path(MESSAGE).parent}; echo '{{' > {MESSAGE}"])
    ended = await repairs.conclude(AgentOutcome(claim="done", reason="it is done", output=b"", seconds=1.0))
    assert "is malformed, and was not asked for again (it reported no session to resume)" in ended.reason
