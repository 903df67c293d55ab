"""Missions whose sandboxes may reach a host: which sandboxes do, the log and the figures, the end of access."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import write_files
from tests.contract._places import needs_bwrap
from tests.integration.command_line import Cli, repository, shell
from tests.integration.test_egress_sandbox import served

from chargehand.app.composition import App
from chargehand.core.attempt_events import NetworkRequested
from chargehand.core.events import decode

pytestmark = needs_bwrap
HOST = "127.0.0.2"  # of this machine, but not excluded by NO_PROXY


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a host that serves one file."""
    root = tmp_path / "served"
    root.mkdir()
    (root / "file").write_text("hello\n")
    with served(root, HOST) as found:
        yield found


def cli_with(place: Path, **keys: object) -> Cli:
    """Return a command line with these sandbox settings in the user's configuration."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
    write_files(place, {".config/chargehand/config.toml": "\n".join(["[sandbox]", *lines, ""])})
    return Cli(place)


def requested(cli: Cli, mission: str) -> list[NetworkRequested]:
    """Return the network requests in a mission's log."""
    with App.open(environ=cli.environ, cwd=cli.place) as app:
        found = [decode(one.type, one.payload) for one in app.store.log.read(mission) if one.payload]
    return [payload for payload in found if isinstance(payload, NetworkRequested)]


def test_an_agent_reaches_only_the_allowed_host_and_requests_are_logged(tmp_path: Path, port: int) -> None:
    cli = cli_with(tmp_path, network=[f"{HOST}:{port}"])
    made = repository(tmp_path / "repo")
    script = f"curl -sS http://{HOST}:{port}/file?key=s3cret > f.txt; curl -s http://other.test/ > g.txt; true"
    result = cli.run(made, agent=shell(script))
    assert result.document["status"] == "promoted", result
    mission = str(result.document["mission"])
    allowed, refused = requested(cli, mission)
    attempt = cli.state(result).attempts[0].id
    assert (allowed.host, allowed.port, allowed.allowed, allowed.status) == (HOST, port, True, 200)
    assert (refused.host, refused.allowed, refused.status) == ("other.test", False, 403)
    assert {allowed.attempt, refused.attempt} == {attempt}
    assert "s3cret" not in repr([allowed, refused])
    shown = cli.say("mission", "show", mission, cwd=made).document["network"]
    assert (shown["allowed"], shown["refused"], shown["hosts_refused"]) == (1, 1, {"other.test:80": 1})
    assert cli.say("stats", cwd=made).document["network"] == {
        "allowed": 1,
        "refused": 1,
        "bytes_out": shown["bytes_out"],
        "bytes_in": shown["bytes_in"],
    }


@pytest.mark.parametrize("also", [False, True])
def test_checks_have_no_network_by_default(tmp_path: Path, port: int, also: bool) -> None:
    cli = cli_with(tmp_path, network=[f"{HOST}:{port}"], network_checks=also)
    made = repository(tmp_path / "repo")
    check = f"curl -sSf --max-time 20 http://{HOST}:{port}/file"
    agent = "command:sed -i s/a/b/ f.txt"
    result = cli.say("run", "mend", "--agent", agent, "--only-check", check, cwd=made)
    assert (result.document["status"] == "promoted") is also, result
    purposes = {one.purpose for one in requested(cli, str(result.document["mission"]))}
    assert purposes == ({"checks"} if also else set())


def test_setup_and_exec_reach_the_host_too(tmp_path: Path, port: int) -> None:
    cli = cli_with(tmp_path, network=[f"{HOST}:{port}"])
    setup = f"curl -sSf http://{HOST}:{port}/file > made.txt"
    files = {
        "f.txt": "a\n",
        ".gitignore": "made.txt\n",
        "chargehand.toml": f"[project]\nsetup = {json.dumps(setup)}\n",
    }
    made = repository(tmp_path / "repo", files)
    result = cli.say("exec", "--", "sh", "-c", f"cat made.txt; curl -sSf http://{HOST}:{port}/file", cwd=made)
    assert result.document["stdout"] == "hello\nhello\n", result


def test_a_repository_narrows_and_never_grants(tmp_path: Path, port: int) -> None:
    cli = cli_with(tmp_path, network=[f"{HOST}:{port}", "*.example.org"])
    toml = '[sandbox]\nnetwork = ["api.example.org:443", "127.0.0.3", "private:db.test"]\n'
    made = repository(tmp_path / "repo", {"f.txt": "a\n", "chargehand.toml": toml})
    shown = cli.say("config", "show", cwd=made)
    assert '"api.example.org:443"' in shown.stdout
    assert "127.0.0" not in json.dumps(shown.document.get("sandbox", shown.document).get("network", ""))
    result = cli.say("exec", "--", "curl", "-s", f"http://{HOST}:{port}/file", cwd=made)
    assert "is not allowed" in result.document["stdout"]


_TUNNEL = """
import pathlib, socket, sys, time
held = socket.create_connection(("127.0.0.1", 8872))
place = sys.argv[1].encode()
held.sendall(b"CONNECT " + place + b" HTTP/1.1\\r\\nHost: " + place + b"\\r\\n\\r\\n")
if b"200" in held.recv(1000):
    pathlib.Path("up").touch()
time.sleep(300)
"""


def test_the_network_of_leftover_agent_processes_is_closed(tmp_path: Path, port: int) -> None:
    """Its tunnel is cut before the sandbox is frozen: no data arrives after the last scan."""
    cli = cli_with(tmp_path, network=[f"{HOST}:{port}"])
    made = repository(tmp_path / "repo", {"f.txt": "a\n", "tunnel.py": _TUNNEL})
    held = f"python3 tunnel.py {HOST}:{port} >/dev/null 2>&1 &"
    result = cli.run(
        made, agent=shell(f"{held} while [ ! -e up ]; do sleep 0.1; done; rm up; sed -i s/a/b/ f.txt")
    )
    assert result.document["status"] == "promoted", result
    (cut,) = requested(cli, str(result.document["mission"]))
    assert (cut.method, cut.allowed, cut.reason) == ("CONNECT", True, "the sandbox's network was closed")
