"""The repository map's queries for agents in other programs: asked from inside the sandbox, over MCP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.mission_kit import CHECK
from tests.native_kit import NativeKit, says, scripted
from tests.workspace_kit import git

from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
PROGRAM = """
import json, os, pathlib, urllib.request

def ask(method, **params):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(os.environ["CHARGEHAND_MCP"], body, headers)) as answer:
        return json.load(answer)["result"]

def who_calls(symbol):
    return ask("tools/call", name="who_calls", arguments={"symbol": symbol})["content"][0]["text"]

core = pathlib.Path("calc/core.py")
core.write_text(core.read_text().replace("a - b", "a + b"))
said = []
if "CHARGEHAND_MCP" in os.environ:
    said = [tool["name"] for tool in ask("tools/list")["tools"]] + [who_calls("add")]
    more = pathlib.Path("calc/more.py")
    for name in ("first", "second"):
        more.write_text(f"def {name}():\\n    return twice(2)\\n\\n\\ndef twice(a):\\n    return 2 * a\\n")
        said.append(who_calls("twice"))
pathlib.Path("said.json").write_text(json.dumps(said))
"""


@pytest.fixture
def kit(tmp_path: Path) -> NativeKit:
    return NativeKit(tmp_path)


def run(kit: NativeKit, more: str = "") -> MissionState:
    kit.model("scripted", scripted([says("never asked")]))
    command = json.dumps(["python3", "-c", PROGRAM])
    kit.write(f'[agents.other]\nkind = "command"\ncommand = {command}\nmodel = "scripted"\n', more)
    wanted: dict[str, Any] = {"agent": "other", "model": "scripted", "only_checks": (CHECK,), "attempts": 1}
    return kit.work(lambda session: kit.create(session, **wanted))


def said(kit: NativeKit, state: MissionState) -> Any:
    return json.loads(git(kit.repository, "show", f"{state.commit}:said.json"))


def test_a_program_in_the_sandbox_asks_about_the_code_as_it_is_then(kit: NativeKit) -> None:
    state = run(kit)
    assert state.status == "promoted", state.reasons
    *names, text, first, second = said(kit, state)
    assert names == ["search_code", "who_calls", "impact_of", "tests_for"]
    assert "tests/test_core.py:8: call in CoreTest.test_add uses add" in text
    assert [first, second] == [f"calc/more.py:2: call in {name} uses twice" for name in ("first", "second")]


def test_nothing_is_offered_if_the_map_is_switched_off(kit: NativeKit) -> None:
    state = run(kit, "[knowledge]\nmap = false")
    assert state.status == "promoted", state.reasons
    assert said(kit, state) == []
