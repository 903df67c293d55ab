"""Real agent CLIs and ACP agents mend a repository through the attempt's gateway, inside the sandbox.

They have to be on PATH; `scripts/agents-real` installs them and runs this file.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.workshop import CHECK
from tests.native_kit import NativeShop, call, says, scripted

from chargehand.agents import SPECS
from chargehand.app import probe_agent
from chargehand.cli._result import result_document
from chargehand.core import ActionJudged, AgentConfig, AttemptFinished, CliName, MissionState, ModelCalled, decode
from chargehand.models import ScriptedReply, Usage

pytestmark = [pytest.mark.agents_real, pytest.mark.needs_bwrap, pytest.mark.timeout(300)]
CANARY = "sk-canary-0123456789abcdef0123456789"
FILE = "/workspace/calc/core.py"
MENDS: dict[CliName, Any] = {
    "claude": (
        call("Read", file_path=FILE),
        call("Edit", file_path=FILE, old_string="a - b", new_string="a + b"),
    ),
    "opencode": (
        call("read", filePath=FILE),
        call("edit", filePath=FILE, oldString="a - b", newString="a + b"),
    ),
    "qwen": (
        call("read_file", file_path=FILE),
        call("edit", file_path=FILE, old_string="a - b", new_string="a + b"),
    ),
}
WAYS: list[tuple[str, CliName]] = [
    ("cli", "claude"),
    ("cli", "opencode"),
    ("cli", "qwen"),
    ("acp", "opencode"),
    ("acp", "qwen"),
]


def replies(name: CliName) -> tuple[ScriptedReply, ...]:
    read, edit = MENDS[name]
    return (says("I look at it.", read), says("I mend it.", edit), says("Mended: it adds now."))


def installed(name: CliName) -> None:
    if shutil.which(name) is None and not os.environ.get("CHARGEHAND_AGENTS_REAL"):
        pytest.skip(f"{name} is not installed")
    assert shutil.which(name), f"{name} is not on PATH"


class RealShop(NativeShop):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.environ["OPENAI_API_KEY"] = self.environ["ANTHROPIC_API_KEY"] = CANARY

    def agent(self, kind: str, name: CliName, more: str = "") -> MissionState:
        self.write(f'[agents.real]\nkind = "{kind}"\ncli = "{name}"\nmodel = "scripted"\n', more)
        wanted: dict[str, Any] = {"agent": "real", "model": "scripted", "only_checks": (CHECK,), "attempts": 1}
        return self.work(lambda session: self.create(session, **wanted))

    def payloads(self, state: MissionState) -> list[Any]:
        with self.opened() as app:
            return [decode(line.type, line.payload) for line in app.store.log.read(state.id) if line.payload]

    def told(self, state: MissionState) -> Any:
        with self.opened() as app:
            from chargehand.missions._journal import recalled

            steps = [step for step in state.steps.values() if "/told/" in step.step]
            return recalled(app.store, steps[-1])


@pytest.fixture
def shop(tmp_path: Path) -> RealShop:
    return RealShop(tmp_path)


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_it_mends_a_repository_and_its_count_is_that_of_the_gateway(
    shop: RealShop, kind: str, name: CliName
) -> None:
    installed(name)
    shop.model("scripted", scripted(replies(name)))
    state = shop.agent(kind, name)
    events = shop.payloads(state)
    assert state.status == "promoted", (state.reasons, [e for e in events if isinstance(e, AttemptFinished)])
    calls = [event for event in events if isinstance(event, ModelCalled)]
    told = shop.told(state)
    assert [each.status for each in calls] == ["ok"] * 3
    assert told["malformed"] == 0
    assert told["metered"] == {"calls": 3, "input": 3000, "output": 300}
    if kind == "cli":  # by ACP opencode counts its last call alone, and qwen tells nothing
        assert told["agrees"] is True
    else:
        assert {"write"} <= {event.kind for event in events if isinstance(event, ActionJudged)}
    assert result_document(state)["cost_known"] is True
    held = [path for path in shop.home.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert held == []


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_it_never_spends_more_than_it_may(shop: RealShop, kind: str, name: CliName) -> None:
    installed(name)
    path = "filePath" if name == "opencode" else "file_path"
    dear = Usage(input=20_000, output=1_000)
    reads = [call(MENDS[name][0].name, **{path: FILE, "offset": 1, "limit": number}) for number in range(1, 41)]
    shop.model("scripted", scripted([says("Again.", read, usage=dear) for read in reads]))
    state = shop.agent(kind, name, "[limits]\nbudget_usd = 1.5")
    assert (state.status, state.reasons[0].code) == ("exhausted", "budget"), state.reasons
    with shop.opened() as app:
        assert app.store.spending.total(mission=state.id).booked_usd <= 1.5


@pytest.mark.parametrize(("kind", "name"), WAYS)
def test_a_probe_starts_it_inside_a_sandbox(shop: RealShop, kind: str, name: CliName) -> None:
    installed(name)
    with shop.opened() as app:
        shop.home.mkdir(exist_ok=True)
        config = AgentConfig(kind="cli" if kind == "cli" else "acp", cli=SPECS[name].name)
        seen = asyncio.run(probe_agent(config, app.toolchain(), scratch=shop.home))
    assert (seen.problem, bool(seen.version)) == ("", True), seen
