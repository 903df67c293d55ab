"""Decisions that an MCP client may not make: it is an agent, and only its person may consent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import pytest
from mcp.client.client import Client
from test_native_terminal import TerminalKit
from tests.conftest import git
from tests.mcp_kit import Service, call, in_process, over_stdio, refused
from tests.native_kit import FINISH, says
from tests.native_kit import call as tool_call

pytestmark = pytest.mark.needs_bwrap


@contextmanager
def connecting(kit: TerminalKit, face: str) -> Iterator[AbstractAsyncContextManager[Client]]:
    """Serve the kit's person; the environment holds a setting that is allowed only in the person's file."""
    environ = {**kit.environ, "CHARGEHAND_SERVER_MAY_DECIDE": "true"}
    if face != "http":
        connect = over_stdio if face == "stdio" else in_process
        yield connect(environ, kit.repository)
        return
    service = Service(environ=environ, cwd=kit.repository, token_file=kit.place / "token")
    service.start()
    try:
        yield service.client()
    finally:
        service.stop()


async def waiting(client: Client) -> str:
    """Run a mission that no check covers; return its id."""
    started = await call(client, "run_mission", request="write it", agent="command:touch made.txt")
    mission: str = started["mission"]["mission"]
    view = await call(client, "wait_mission", mission=mission, seconds=60)
    assert (view["status"], view["question"]) == ("waiting", None), view
    return mission


# Both transports pass the same environment to the same server; the suite takes the one whose process it can fork.
@pytest.mark.parametrize("face", ["http", pytest.param("stdio", marks=pytest.mark.soak)])
async def test_a_client_may_not_decide_by_default(tmp_path: Path, face: str) -> None:
    kit = TerminalKit(tmp_path, {"note.txt": "a\n"}, project="[server]\nmay_decide = true\n")
    assert kit.say("project", "trust", "--yes").code == 0
    with connecting(kit, face) as connection:
        async with connection as client:
            mission = await waiting(client)
            for tool in ("promote", "discard", "cancel"):
                error = await refused(client, tool, mission=mission)
                assert error["code"] == "person_needed", (tool, error)
                assert f"chargehand mission {tool} {mission}" in error["hint"]
                assert "may_decide" in error["hint"]
            view = await call(client, "mission_status", mission=mission)
            assert view["status"] == "waiting"
            # The client may stop a mission that it started.
            sleeper = await call(client, "run_mission", request="sleep", agent="command:sleep 60")
            view = await call(client, "cancel", mission=sleeper["mission"]["mission"])
            assert view["status"] == "cancelled"
    assert git(kit.repository, "branch", "--list", "chargehand/*") == ""


@pytest.mark.parametrize(
    "face", ["in-process", *(pytest.param(x, marks=pytest.mark.soak) for x in ("http", "stdio"))]
)
async def test_the_user_configuration_lets_clients_decide(tmp_path: Path, face: str) -> None:
    kit = TerminalKit(tmp_path, {"note.txt": "a\n"}, project="")
    kit.write("[server]\nmay_decide = true")
    with connecting(kit, face) as connection:
        async with connection as client:
            for tool, status in (("promote", "promoted"), ("discard", "discarded"), ("cancel", "cancelled")):
                view = await call(client, tool, mission=await waiting(client))
                assert view["status"] == status


async def test_an_act_that_needs_permission_is_not_a_clients_to_allow(tmp_path: Path) -> None:
    kit = TerminalKit(tmp_path)
    kit.script(says("", tool_call("bash", command="git branch -D gone")), FINISH)
    async with in_process(kit.environ, kit.repository) as client:
        started = await call(client, "run_mission", request="tidy up", model="scripted")
        view = await call(client, "wait_mission", mission=started["mission"]["mission"], seconds=60)
        assert view["status"] == "waiting", view
        assert "git branch" in view["question"]["text"]
        error = await refused(client, "answer_question", mission=view["mission"], text="yes")
        assert error["code"] == "person_needed"
        kit.write("[server]\nmay_decide = true")
        await call(client, "answer_question", mission=view["mission"], text="no")
