"""The MCP conformance suite against `chargehand mcp --http`, and against its fixtures on the same HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import Cli, repository
from tests.mcp_kit import Service

pytestmark = [pytest.mark.mcp_conformance, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
NEEDS_NO_FIXTURE = {
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
}
"""Scenarios that need no tool, resource or prompt of the suite itself, nor a feature that we lack."""
MUTE = {"server-sse-polling"}
"""Scenarios that only recommend, and check nothing if a server has no replay of events."""
SCENARIOS = 32


def results(url: str, token: str, place: Path) -> Mapping[str, tuple[int, int]]:
    """Run all server scenarios; return the numbers of passed and failed checks of each."""
    prefix = Path(os.environ["CHARGEHAND_MCP_PREFIX"], "node_modules")
    suite = prefix / "@modelcontextprotocol/conformance"
    command = [
        str(prefix / "node/bin/node"),
        *("--import", str(ROOT / "tests/mcp_token.mjs"), str(suite / "dist/index.js")),
        *("server", "--url", url, "--suite", "all", "-o", str(place / "results")),
    ]
    environ = os.environ | {"MCP_SUITE": str(suite), "MCP_TOKEN": token}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    summary = done.stdout.rpartition("=== SUMMARY ===")[2]
    print(summary)
    found = re.findall(r"^. ([\w-]+): (\d+) passed, (\d+) failed", summary, re.MULTILINE)
    assert len(found) == SCENARIOS, done
    return {name: (int(passed), int(failed)) for name, passed, failed in found}


def test_the_server_passes_all_scenarios_that_need_no_fixture(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    service = Service(environ=cli.environ, cwd=repository(tmp_path / "repo"), token_file=tmp_path / "token")
    service.start()
    try:
        found = results(service.url, service.token, tmp_path)
    finally:
        assert service.stop() == 0
    assert {name for name, (passed, failed) in found.items() if passed and not failed} == NEEDS_NO_FIXTURE


def test_fixtures_on_our_http_pass_everything(tmp_path: Path) -> None:
    token = tmp_path / "token"
    command = [sys.executable, "-m", "tests.mcp_fixtures", str(token)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            found = results(url, token.read_text().strip(), tmp_path)
        finally:
            process.terminate()
    assert process.returncode == 0
    assert {name for name, (passed, failed) in found.items() if failed or not passed} == MUTE
