"""Real agent CLIs and ACP agents mend a repository through the attempt's gateway, inside the sandbox.

They have to be on PATH; `scripts/agents-real` installs them and runs this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.integration.mission_kit import CHECK
from tests.native_kit import ModelServer, NativeKit, call, says, scripted

from chargehand.agents.clis import SPECS
from chargehand.app.selection.agents import probe_agent
from chargehand.core.attempt_events import ActionJudged, ModelCalled
from chargehand.core.config import AgentConfig
from chargehand.core.events import decode
from chargehand.core.mission_events import AttemptFinished
from chargehand.core.state import MissionState
from chargehand.missions.transcript import TranscriptEntry, read_transcript
from chargehand.models.contract import Dialect, Usage
from chargehand.models.scripted_replies import ScriptedReply
from chargehand.models.scripts import Script
from chargehand.reports.documents import mission_document

pytestmark = [pytest.mark.agents_real, pytest.mark.needs_bwrap, pytest.mark.timeout(300)]
CANARY = "sk-canary-0123456789abcdef0123456789"
UNKNOWN = (
    "Model metadata for `scripted` not found. Defaulting to fallback metadata; this can degrade performance and"
    " cause issues."
)
"""What codex says of every model but its vendor's; its adapter puts it before the model's own words."""
LAST = "Mended: it adds now, as the tests of this repository say that it should."
FILE = "calc/core.py"
MENDS = (call("read", path=FILE), call("edit", path=FILE, old="a - b", new="a + b"))
"""In the words of scripts, as `chargehand.models` fits them to each client."""
WAYS: list[tuple[str, str]] = [
    ("cli", "claude"),
    ("cli", "opencode"),
    ("cli", "qwen"),
    ("cli", "codex"),
    ("cli", "gemini"),
    ("acp", "opencode"),
    ("acp", "qwen"),
    ("acp", "gemini"),
    ("acp", "codex"),
    ("acp", "claude"),
]
ADAPTERS: dict[tuple[str, str], str] = {("acp", "codex"): "codex-acp", ("acp", "claude"): "claude-agent-acp"}
"""Programs of others that speak ACP for a CLI that does not."""
TELL_ACP: tuple[str, ...] = ("claude",)
"""Who tells the tokens of all its work by ACP: opencode counts its last call alone, the others tell nothing."""
OTHERS: list[tuple[str, Dialect]] = [
    ("claude", "openai"),
    ("codex", "openai"),
    ("codex", "anthropic"),
    ("gemini", "openai"),
    ("gemini", "anthropic"),
    ("qwen", "anthropic"),
]


MAP_TOOLS: dict[tuple[str, str], tuple[str, str | None]] = {
    ("cli", "claude"): ("mcp__chargehand__who_calls", None),
    ("acp", "claude"): ("mcp__chargehand__who_calls", None),
    ("cli", "qwen"): ("mcp__chargehand__who_calls", "tool_search"),
    ("acp", "qwen"): ("mcp__chargehand__who_calls", "tool_search"),
    ("cli", "gemini"): ("mcp_chargehand_who_calls", None),
    ("acp", "gemini"): ("mcp_chargehand_who_calls", None),
    ("cli", "opencode"): ("chargehand_who_calls", None),
    ("acp", "opencode"): ("chargehand_who_calls", None),
}
"""The name of one query in each agent, and the tool that finds it first if it is not offered at once."""
REPLIES = (says("I look at it.", MENDS[0]), says("I mend it.", MENDS[1]), says(LAST))
WORDS = [each.text for each in REPLIES]
"""All that the model says; claude's adapter adds warnings of its own beside it."""


def neutral(replies: Sequence[ScriptedReply]) -> Script:
    """Return a script that every client understands."""
    return replace(scripted(replies), neutral=True)


def installed(kind: str, name: str) -> None:
    program = ADAPTERS.get((kind, name), SPECS[name].program)
    if shutil.which(program) is None and not os.environ.get("CHARGEHAND_AGENTS_REAL"):
        pytest.skip(f"{program} is not installed")
    assert shutil.which(program), f"{program} is not on PATH"


def command(kind: str, name: str) -> tuple[str, ...]:
    return (ADAPTERS[kind, name],) if (kind, name) in ADAPTERS else ()


def children() -> dict[tuple[int, str], str]:
    """Return the living descendants of this process: pid and start time to name."""
    parents: dict[int, int] = {}
    found: dict[int, tuple[str, str, str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            head, _, rest = (place / "stat").read_text().rpartition(")")
            fields = rest.split()
            parents[int(place.name)] = int(fields[1])
            found[int(place.name)] = (fields[0], fields[19], head.partition("(")[2])
    below: set[int] = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    return {
        (number, found[number][1]): found[number][2] for number in below - {os.getpid()} if found[number][0] != "Z"
    }


def started(seen: Mapping[tuple[int, str], str]) -> set[tuple[int, str]]:
    """Return the processes that are still alive, whatever their parent is now."""
    alive = set()
    for number, begun in seen:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and fields[19] == begun:
                alive.add((number, begun))
    return alive


class RealKit(NativeKit):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.environ["OPENAI_API_KEY"] = self.environ["ANTHROPIC_API_KEY"] = CANARY

    def agent(self, kind: str, name: str, more: str = "", meanwhile: Any = None) -> MissionState:
        words = command(kind, name)
        named = f"command = {json.dumps(words)}\n" if words else ""
        self.write(f'[agents.real]\nkind = "{kind}"\ncli = "{name}"\n{named}model = "scripted"\n', more)
        wanted: dict[str, Any] = {"agent": "real", "model": "scripted", "only_checks": (CHECK,), "attempts": 1}
        return self.work(lambda session: self.create(session, **wanted), meanwhile)

    def payloads(self, state: MissionState) -> list[Any]:
        with self.opened() as app:
            return [decode(line.type, line.payload) for line in app.store.log.read(state.id) if line.payload]

    def transcript(self, state: MissionState) -> list[TranscriptEntry]:
        with self.opened() as app:
            return list(read_transcript(app.store, state))

    def told(self, state: MissionState) -> Any:
        with self.opened() as app:
            from chargehand.missions.journal import load_step_output

            steps = [step for step in state.steps.values() if "/told/" in step.step]
            return load_step_output(app.store, steps[-1])


@pytest.fixture
def kit(tmp_path: Path) -> RealKit:
    return RealKit(tmp_path)


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_an_agent_fixes_a_repository_and_its_token_count_matches_the_gateway(
    kit: RealKit, kind: str, name: str
) -> None:
    installed(kind, name)
    kit.model("scripted", neutral(REPLIES))
    state = kit.agent(kind, name)
    events = kit.payloads(state)
    assert state.status == "promoted", (state.reasons, [e for e in events if isinstance(e, AttemptFinished)])
    calls = [event for event in events if isinstance(event, ModelCalled) and event.status == "ok"]
    work = [each for each in calls if not each.bare]
    told = kit.told(state)
    assert [(each.input_tokens, each.output_tokens) for each in work] == [(1000, 100)] * 3
    assert (kind, name) == ("acp", "claude") or calls == work  # it also asks for a title
    assert told["malformed"] == 0
    tokens = (sum(each.input_tokens or 0 for each in calls), sum(each.output_tokens or 0 for each in calls))
    assert told["metered"] == {"calls": len(calls), "input": tokens[0], "output": tokens[1]}
    said = [line.text for line in kit.transcript(state) if line.speaker == "agent"]
    assert [text for text in (each.removeprefix(UNKNOWN) for each in said) if text in WORDS] == WORDS
    if kind == "cli":
        assert told["agrees"] is True
    elif name in TELL_ACP:
        assert told["reported"] == {"input": 3000, "output": 300}
    if kind == "acp" and name != "codex":  # codex edits by shell
        assert {"write"} <= {event.kind for event in events if isinstance(event, ActionJudged)}
    assert mission_document(state).cost_known is True
    held = [path for path in kit.home.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert held == []


@pytest.mark.parametrize(("kind", "name"), MAP_TOOLS)
def test_an_agent_asks_the_repository_map(kit: RealKit, kind: str, name: str) -> None:
    """The queries are tools of an MCP server; one agent keeps such tools back until it searches for them."""
    installed(kind, name)
    asks, finds = MAP_TOOLS[kind, name]
    replies = [says("I ask.", call(asks, symbol="add")), *REPLIES]
    if finds is not None:
        replies.insert(0, says("I find it.", call(finds, query=f"select:{asks}")))
    before = [says("never asked")] if name == "qwen" else []
    dialect: Dialect = "anthropic" if name == "claude" else "openai"
    server = ModelServer([*before, *replies], dialect, neutral=True)
    with server.running() as address:
        kit.model("scripted", provider=f"{dialect}-compatible", base_url=address, model="words")
        state = kit.agent(kind, name)
    assert state.status == "promoted", [e for e in kit.payloads(state) if isinstance(e, AttemptFinished)]
    assert "call in CoreTest.test_add uses add" in json.dumps(server.bodies[-1]["messages"])


@pytest.mark.parametrize("kind", ["cli", "acp"])
def test_codex_offers_the_repository_map_to_models_of_its_dialect(kit: RealKit, kind: str) -> None:
    """It offers the tools of a server as a group, which no other dialect has."""
    installed(kind, "codex")
    server = ModelServer(REPLIES, "responses", neutral=True)
    with server.running() as address:
        kit.model("scripted", provider="openai-responses", base_url=address, model="words")
        state = kit.agent(kind, "codex")
    assert state.status == "promoted", [e for e in kit.payloads(state) if isinstance(e, AttemptFinished)]
    (group,) = (
        tool for tool in server.bodies[0]["tools"] if tool["type"] == "namespace" and "chargehand" in tool["name"]
    )
    assert {tool["name"] for tool in group["tools"]} >= {"who_calls", "search_code"}


@pytest.mark.parametrize(("name", "other"), OTHERS)
def test_an_agent_works_with_a_model_of_another_dialect(kit: RealKit, name: str, other: Dialect) -> None:
    """The model is a server on loopback that knows one dialect; the gateway translates calls and replies."""
    installed("cli", name)
    before = [says("never asked")] if name == "qwen" else []  # its first request has an invented reply
    server = ModelServer([*before, *REPLIES], other, neutral=True)
    with server.running() as address:
        kit.model("scripted", provider=f"{other}-compatible", base_url=address, model="words")
        state = kit.agent("cli", name)
    assert state.status == "promoted", [e for e in kit.payloads(state) if isinstance(e, AttemptFinished)]
    assert server.asked == [len(before) + turn for turn in (1, 2, 3)]
    told = kit.told(state)
    assert (told["agrees"], told["metered"]) == (True, {"calls": 3, "input": 3000, "output": 300})


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_an_agent_stays_within_its_budget(kit: RealKit, kind: str, name: str) -> None:
    installed(kind, name)
    dear = Usage(input=20_000, output=1_000)
    looks = [call("bash", command=f"sed -n {number}p {FILE}") for number in range(1, 41)]
    kit.model("scripted", neutral([says("Again.", look, usage=dear) for look in looks]))
    state = kit.agent(kind, name, "[limits]\nbudget_usd = 1.5")
    assert (state.status, state.reasons[0].code) == ("exhausted", "budget"), state.reasons
    with kit.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd <= 1.5


@pytest.mark.parametrize(("kind", "name"), [way for way in WAYS if way != ("acp", "claude")])
def test_an_unreadable_message_is_requested_again_in_the_same_session(kit: RealKit, kind: str, name: str) -> None:
    """claude's adapter is left out: it asks the model about such a command, which breaks the script's order."""
    installed(kind, name)
    told = json.dumps({"type": "task_completion", "status": "success", "payload": {"summary": "I mended it."}})
    leaves = [
        call("bash", command=f"printf '%s' '{text}' > \"$CHARGEHAND_MESSAGE\"") for text in (told[:30], told)
    ]
    kit.model(
        "scripted", neutral((*REPLIES[:2], says("", leaves[0]), says("Done."), says("", leaves[1]), says(LAST)))
    )
    state = kit.agent(kind, name)
    events = kit.payloads(state)
    assert state.status == "promoted", (state.reasons, [e for e in events if isinstance(e, AttemptFinished)])
    assert [each.status for each in events if isinstance(each, ModelCalled)] == ["ok"] * 6
    assert sum("/asked-again/" in step for step in state.steps) == 1
    assert state.received[-1].message["payload"]["summary"] == "I mended it."
    if kind == "cli":
        assert kit.told(state)["metered"]["calls"] == (6 if SPECS[name].sums else 2)
        assert kit.told(state)["agrees"] is True, kit.told(state)


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_a_probe_starts_the_agent_in_a_sandbox(kit: RealKit, kind: str, name: str) -> None:
    installed(kind, name)
    with kit.opened() as app:
        kit.home.mkdir(exist_ok=True)
        config = AgentConfig(
            kind="cli" if kind == "cli" else "acp", cli=SPECS[name].name, command=command(kind, name)
        )
        seen = asyncio.run(probe_agent(config, app.preparation.toolchain(), scratch=kit.home))
    assert (seen.problem, bool(seen.version)) == ("", True), seen


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_background_processes_of_an_agent_end_with_its_attempt(kit: RealKit, kind: str, name: str) -> None:
    """The agent's shell leaves two background processes, one of them in a new session."""
    installed(kind, name)
    before, seen = children(), dict[tuple[int, str], str]()
    # Some agents wait until every process has closed the output; claude refuses a command that only sleeps.
    quiet = "timeout 1000 sleep 1000 </dev/null >/dev/null 2>&1 &"
    leave = call("bash", command=f"{quiet} setsid {quiet} timeout 9 sleep 1")
    kit.model("scripted", neutral((says("I leave something.", leave), says(LAST))))

    async def look(_app: Any, _mission: str) -> None:
        deadline = time.monotonic() + 60
        while list(seen.values()).count("sleep") < 2 and time.monotonic() < deadline:
            seen.update({each: called for each, called in children().items() if each not in before})
            await asyncio.sleep(0.05)

    kit.agent(kind, name, meanwhile=look)
    assert list(seen.values()).count("sleep") >= 2, sorted(set(seen.values()))
    assert started(seen) == set()
