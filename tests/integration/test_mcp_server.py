"""Other agents and orchestrators use `chargehand mcp`: the official client, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli, repository
from mcp.shared.exceptions import MCPError
from mcp_types import ResourceUpdatedNotification
from test_native_terminal import ASKS, TerminalKit
from tests.conftest import git
from tests.crash_kit import wait_until
from tests.mcp_kit import Service, call, orchestrator, over_stdio, refused

from chargehand.app.composition import App
from chargehand.core.state import MissionState

pytestmark = pytest.mark.needs_bwrap
WAIT = 300.0
EVIL = r"printf 'a\033[2Jb\033]0;evil\007c\n' > evil.txt"


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[TerminalKit]:
    made = TerminalKit(tmp_path)
    yield made
    wait_until(lambda: not made.workers())


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    wait_until(lambda: not members(made))


def members(cli: Cli) -> list[str]:
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        return [member.id for member in app.workers.members()]


async def test_over_stdio_a_mission_is_run_watched_answered_and_promoted(kit: TerminalKit, tmp_path: Path) -> None:
    kit.script(*ASKS)
    kit.write("[server]\nmay_decide = true")
    plain = repository(tmp_path / "plain")
    told: list[tuple[float, str]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        assert total == 60
        told.append((done, message or ""))

    async with over_stdio(kit.environ, kit.repository) as client:
        asked = {"request": "mend add()", "model": "scripted", "key": "one"}
        started = await call(client, "run_mission", **asked)
        assert started["created"]
        mission = started["mission"]["mission"]
        again = await call(client, "run_mission", **asked)
        assert (again["created"], again["mission"]["mission"]) == (False, mission)
        done = await client.call_tool(
            "wait_mission", {"mission": mission, "seconds": 60}, progress_callback=progress
        )
        view = done.structured_content
        assert [at for at, _ in told] == sorted(at for at, _ in told)
        assert told[-1][1].startswith(("planned", "running"))
        assert (view["status"], view["settled"], view["question"]["text"]) == ("waiting", True, "Which way?")

        other = await refused(client, "answer_question", mission=mission, text="2", question="q-other")
        assert other["code"] == "no_question"
        await call(client, "answer_question", mission=mission, text="2", question=view["question"]["id"])
        view = await call(client, "wait_mission", mission=mission, seconds=60)
        assert (view["status"], view["branch"]) == ("promoted", "chargehand/mend-add"), view
        diff = await call(client, "show_diff", mission=mission)
        assert "+    return a + b" in diff["patch"]
        assert diff["exact"]
        log = await call(client, "show_log", mission=mission, after=2, limit=3)
        assert [event["seq"] for event in log["events"]] == [3, 4, 5]
        assert log["next_after"] == 5
        resource = await client.read_resource(f"mission://{mission}")
        assert json.loads(resource.contents[0].text)["status"] == "promoted"

        # No check covers this one: only a person promotes it, with a reason.
        agent = f'command:sh -c "{EVIL}"'
        started = await call(client, "run_mission", request="write it", agent=agent, repo=str(plain))
        view = await call(client, "wait_mission", mission=started["mission"]["mission"], seconds=60)
        assert (view["status"], view["question"]) == ("waiting", None), view
        diff = await call(client, "show_diff", mission=view["mission"])
        assert "+abc\n" in diff["patch"]
        assert not diff["exact"]
        pages, at = "", 0
        while at is not None:
            page = await call(client, "show_diff", mission=view["mission"], offset=at, limit=50)
            pages, at = pages + page["patch"], page["next_offset"]
        assert pages == diff["patch"]
        view = await call(client, "promote", mission=view["mission"], reason="read it")
        assert view["status"] == "promoted"
        twice = await refused(client, "promote", mission=view["mission"])
        assert twice["code"] == "promoted"
        listed = await call(client, "list_missions", limit=1)
        assert [(line["mission"], line["parent"], line["task"]) for line in listed["missions"]] == [
            (view["mission"], None, None)
        ]
        listed = await call(client, "list_missions", limit=1, cursor=listed["next_cursor"])
        assert ([line["mission"] for line in listed["missions"]], listed["next_cursor"]) == ([mission], None)
    assert git(plain, "show", f"{view['branch']}:evil.txt").startswith("a")


@pytest.mark.filterwarnings("ignore:resources/")
async def test_a_client_cannot_promote_a_failed_result_and_gets_notifications(cli: Cli, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    own = cli.place / ".config/chargehand/config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[server]\nmay_decide = true\n")
    service = Service(environ=cli.environ, cwd=repo, token_file=tmp_path / "token")
    service.start()
    try:
        updated: set[str] = set()

        async def tell(message: object) -> None:
            if isinstance(message, ResourceUpdatedNotification):
                updated.add(message.params.uri)

        async with service.client(mode="legacy", message_handler=tell) as client:
            started = await call(client, "run_mission", request="no", agent="command:touch x", checks=["false"])
            uri = f"mission://{started['mission']['mission']}"
            await client.subscribe_resource(uri)
            view = await call(client, "wait_mission", mission=started["mission"]["mission"], seconds=60)
            assert view["status"] == "refused"
            async with asyncio.timeout(WAIT):
                while uri not in updated:
                    await asyncio.sleep(0.05)
            await client.unsubscribe_resource(uri)
            assert (await refused(client, "promote", mission=view["mission"]))["code"] == "not_green"
            assert (await call(client, "discard", mission=view["mission"]))["status"] == "discarded"
            assert (await refused(client, "cancel", mission=view["mission"]))["code"] == "not_cancellable"
            sleeper = await call(client, "run_mission", request="sleep", agent="command:sleep 60")
            view = await call(client, "cancel", mission=sleeper["mission"]["mission"])
            assert view["status"] == "cancelled"
            with pytest.raises(MCPError, match="there is no mission"):
                await client.read_resource("mission://m-none/diff")
            plan = tmp_path / "plan.json"
            plan.write_text(json.dumps({"tasks": [{"id": name, "text": name} for name in ("a", "b")]}))
            words = ("run", "both", "--plan", str(plan), "--agent", "command:true", "--only-check", "true")
            result = await asyncio.to_thread(cli.say, *words, cwd=repo)
            listed = (await call(client, "list_missions", limit=3))["missions"]
            parents = {line["task"]: line["parent"] for line in listed}
            assert parents == {None: None, "a": result.document["mission"], "b": result.document["mission"]}
    finally:
        assert service.stop(signal.SIGINT) == 0


def test_the_http_server_exits_cleanly_on_signals(cli: Cli, tmp_path: Path) -> None:
    service = Service(environ=cli.environ, cwd=repository(tmp_path / "repo"), token_file=tmp_path / "token")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        service.start()
        assert service.stop(number) == 0


def run_orchestrated(cli: Cli, tmp_path: Path, count: int) -> None:
    """Let an orchestrator assign tasks, and kill it and the server meanwhile; each task is done exactly once."""
    repo = repository(tmp_path / "repo")
    service = Service(environ=cli.environ, cwd=repo, token_file=tmp_path / "token")
    service.start()
    results = tmp_path / "results"

    def lines() -> list[dict[str, str]]:
        return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []

    def until(some: int) -> None:
        deadline = time.monotonic() + WAIT + count
        while len(lines()) < some:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    working = orchestrator(service, repo, count, results)
    until(count // 4)
    working.kill()  # with the server: only the store and the results are left
    working.wait()
    service.stop(signal.SIGKILL)
    service.start()
    working = orchestrator(service, repo, count, results)
    until(count // 2)
    service.stop(signal.SIGKILL)  # under the running orchestrator, which asks again with the same keys
    service.start()
    assert working.wait(WAIT + 2 * count) == 0
    assert service.stop() == 0

    found = lines()
    assert sorted(line["key"] for line in found) == sorted(f"task-{number}" for number in range(count))
    assert {line["status"] for line in found} == {"promoted"}
    states = cli.missions(repo)
    assert len(states) == count
    assert {state.id for state in states} == {line["mission"] for line in found}
    assert sorted(map(_text, states)) == sorted(f"do task {number}" for number in range(count))
    assert set(git(repo, "branch", "--list", "chargehand/*").split()) == {
        f"chargehand/do-task-{number}" for number in range(count)
    }


def _text(state: MissionState) -> str:
    return state.request.text if state.request else ""


@pytest.mark.timeout(900)
def test_an_orchestrator_and_the_server_are_killed_and_each_task_is_done_once(cli: Cli, tmp_path: Path) -> None:
    run_orchestrated(cli, tmp_path, 4)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [12, 100])
def test_many_tasks_are_done_once(cli: Cli, tmp_path: Path, count: int) -> None:
    run_orchestrated(cli, tmp_path, count)
