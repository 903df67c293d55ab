"""Read-only commands load few modules; the limits on their number may only fall."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from chargehand import __version__

MISSIONS = 86
"""71 when this was written; the aim is at most a hundred."""
SERVED = 86
"""For a command that a server executes; it loaded 368 modules with the table of routes."""
SCRIPT = """
import sys
from chargehand.cli.main import main
sys.argv = ["chargehand", *{words!r}]
try:
    main()
except SystemExit:
    pass
names = [name for name in sys.modules if name.startswith("chargehand")]
print(len(names), *sorted({{name.split(".")[0] for name in sys.modules}}), file=sys.stderr)
"""


class EmptyServer(BaseHTTPRequestHandler):
    """Replies that there are no missions."""

    def do_GET(self) -> None:
        content = b'{"missions": []}'
        self.send_response(200)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Chargehand-Version", __version__),
            ("Content-Length", str(len(content))),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def loaded(tmp_path: Path, *words: str) -> tuple[int, set[str]]:
    """Return the number of product modules that a command loads, and the top-level packages."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(words=words)],
        cwd=tmp_path,
        env={**os.environ, "CHARGEHAND_HOME": str(tmp_path / "state"), "CHARGEHAND_TOKEN": "chg_any"},
        capture_output=True,
        text=True,
        check=True,
    )
    count, *packages = done.stderr.splitlines()[-1].split()
    return int(count), set(packages)


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--help",), 7),
        (("mission", "--help"), 8),
        (("mission", "list"), MISSIONS),
        (("mission", "list", "--json"), MISSIONS),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_reading_command_loads_little(tmp_path: Path, words: tuple[str, ...], most: int) -> None:
    count, _ = loaded(tmp_path, *words)
    assert count <= most


@pytest.mark.parametrize("form", [(), ("--json",)], ids=("text", "json"))
def test_a_command_that_a_server_does_loads_no_server(tmp_path: Path, form: tuple[str, ...]) -> None:
    with HTTPServer(("127.0.0.1", 0), EmptyServer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        count, packages = loaded(tmp_path, "--server", url, "mission", "list", *form)
        thread.join()
    assert not packages & {"fastapi", "starlette", "granian", "sqlalchemy", "dbos", "pydantic", "pygit2"}
    assert count <= SERVED


@pytest.mark.parametrize("words", [("knowledge", "list"), ("knowledge", "show", "failure-cause"), ("stats",)])
def test_only_commands_that_calculate_load_numpy(tmp_path: Path, words: tuple[str, ...]) -> None:
    _, packages = loaded(tmp_path, *words)
    assert "numpy" not in packages
    _, packages = loaded(tmp_path, "knowledge", "query", "failure-cause", "cause")
    assert "numpy" in packages


def test_the_reading_facade_imports_no_module_that_runs_missions(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, chargehand.app.missions; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = (
        "chargehand.sandbox",
        "chargehand.models",
        "chargehand.checks",
        "chargehand.agents",
        "pygit2",
        "httpx",
    )
    assert [name for name in heavy if name in done.stdout.split()] == []
