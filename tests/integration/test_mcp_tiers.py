"""MCP servers in the sandboxes of the other tiers: started, called, hung, killed and dead as in a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests import container_kit
from tests.contract._places import toolchain, workspace
from tests.mcp_table import Table, served

from chargehand.sandbox.container_tier import ContainerTier
from chargehand.testing.sandbox.kit import OpenedSandbox

pytestmark = pytest.mark.needs_container
WORKS = """
def work(message):
    asked = message["params"]["arguments"]
    if asked.get("sleep"): time.sleep(601)
    if asked.get("end"): sys.exit("enough")
    open("told.txt", "a").write("called\\n")
    answer(message, content=[{"type": "text", "text": f"{os.getpid()} in {os.getcwd()}"}])
serve(work)
"""


@pytest.fixture(params=["podman", pytest.param("docker", marks=pytest.mark.soak)])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenedSandbox]:
    """Open a container with an empty workspace."""
    engine = container_kit.engine(request.param)
    place = tmp_path / "place"
    async with AsyncExitStack() as stack:
        made = ContainerTier(toolchain(), engine=engine, environ=container_kit.environment())
        tier = await stack.enter_async_context(made)
        sandbox = await tier.open(stack.enter_context(workspace(place, plain=not engine.stages, processes=64)))
        stack.push_async_callback(sandbox.close)
        yield OpenedSandbox(sandbox, place / ("upper" if engine.stages else "base"), lambda: None)


async def test_a_server_lives_between_calls_and_restarts_after_a_hang_or_exit(
    opened: OpenedSandbox,
) -> None:
    table = Table(opened, served(WORKS, seconds=4.0))
    assert await table.tools.refresh(1) == ()
    first = await table.call("mcp_odd_t")
    assert first.text.endswith(" in /workspace")
    assert (await table.call("mcp_odd_t")).text == first.text
    assert (opened.written / "told.txt").read_text() == "called\n" * 2
    assert "no answer within 4 s" in (await table.call("mcp_odd_t", sleep=True)).text
    alive = await table.context.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | grep -c 'sleep(60[1])'"])
    assert alive.stdout == b"0\n"
    again = await table.call("mcp_odd_t")
    assert not again.failed
    assert again.text != first.text
    assert "ended with exit code 1: enough" in (await table.call("mcp_odd_t", end=True)).text
    assert not (await table.call("mcp_odd_t")).failed
