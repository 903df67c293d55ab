"""The real Gitea for tests: one server for each process of a test run, on loopback, as a user without rights."""

from __future__ import annotations

import atexit
import base64
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chargehand.forges.contract import Forge, ForgeSetup, ReviewState, Right
from chargehand.forges.gitea import GiteaForge

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chargehand-test"
BUILT = CACHE / "gitea-1.26.0"
BUILD_SECONDS = 3_000  # of a machine that also runs the suite
PASSWORD = "Pw-123456789"
PAGE = 10
_INI = """
RUN_USER = {user}
RUN_MODE = prod
WORK_PATH = {root}
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = {port}
ROOT_URL = http://127.0.0.1:{port}/
STATIC_ROOT_PATH = {static}
DISABLE_SSH = false
START_SSH_SERVER = true
BUILTIN_SSH_SERVER_USER = git
SSH_DOMAIN = 127.0.0.1
SSH_LISTEN_HOST = 127.0.0.1
SSH_PORT = {ssh_port}
SSH_LISTEN_PORT = {ssh_port}
OFFLINE_MODE = true
[database]
DB_TYPE = sqlite3
PATH = {root}/gitea.db
SQLITE_JOURNAL_MODE = WAL
[security]
INSTALL_LOCK = true
SECRET_KEY = test-only-secret-key
INTERNAL_TOKEN = eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJuYmYiOjE3MDAwMDAwMDB9.\
0qk0S7kfMRlwmvnmKjWl4lqZBTwNzYRGGHzLrsvPIfA
PASSWORD_HASH_ALGO = pbkdf2$1000$50
[oauth2]
JWT_SECRET = dGVzdC1vbmx5LXRlc3Qtb25seS10ZXN0LW9ubHktMTI
[service]
DISABLE_REGISTRATION = true
[webhook]
ALLOWED_HOST_LIST = loopback
[actions]
ENABLED = false
[cron]
ENABLED = false
[indexer]
ISSUE_INDEXER_TYPE = db
[mailer]
ENABLED = false
[log]
MODE = file
LEVEL = Warn
ROOT_PATH = {root}/log
[session]
PROVIDER = memory
"""


def missing() -> str:
    """Return why Gitea cannot be used on this machine without a long build, or ""."""
    return "" if (BUILT / "gitea").exists() else "Gitea is not built: run scripts/gitea"


class GiteaServer:
    """A running server with the administrator `boss`."""

    def __init__(self, root: Path, port: int, process: subprocess.Popen[bytes], boss: str) -> None:
        self.root, self.process = root, process
        self.url = f"http://127.0.0.1:{port}"
        self.boss = boss

    def call(self, method: str, path: str, body: object = None, *, token: str = "", login: str = "") -> Any:
        """Call the interface as the administrator, with another token, or with a login's password."""
        request = urllib.request.Request(f"{self.url}/api/v1{path}", method=method)
        request.add_header("authorization", f"token {token or self.boss}")
        if login:
            request.add_header("authorization", _basic(login))
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from None
        return json.loads(content) if content else None

    def create_account(self, login: str) -> str:
        """Create an account and return a token with all scopes."""
        body = {"username": login, "password": PASSWORD, "email": f"{login}@example.test"}
        self.call("POST", "/admin/users", {**body, "must_change_password": False})
        return self.create_token(login, ["all"])

    def create_token(self, login: str, scopes: Sequence[str]) -> str:
        """Create another token of an account."""
        body = {"name": f"t{next(_NUMBERS)}", "scopes": list(scopes)}
        return str(self.call("POST", f"/users/{login}/tokens", body, login=login)["sha1"])

    def stop(self) -> None:
        """End the server and remove its files."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)


class GiteaHost:
    """An owner and a reader of new repositories at a server."""

    def __init__(self, server: GiteaServer) -> None:
        self.server = server
        self._opened: list[Forge] = []
        self.ada, self.bob = f"ada{next(_NUMBERS)}", f"bob{next(_NUMBERS)}"
        self.tokens = {login: server.create_account(login) for login in (self.ada, self.bob)}

    def close(self) -> None:
        """Close the connections of all forges that were opened."""
        while self._opened:
            self._opened.pop().close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the interface as the owner."""
        return self.server.call(method, path, body, token=self.tokens[self.ada])

    def create_issue(self, repository: str, title: str, body: str = "") -> int:
        return int(self.call("POST", f"/repos/{repository}/issues", {"title": title, "body": body})["number"])

    def lock_issue(self, repository: str, number: int) -> None:
        self.call("PUT", f"/repos/{repository}/issues/{number}/lock", {})

    def submit_review(
        self,
        repository: str,
        number: int,
        state: ReviewState,
        body: str,
        lines: Sequence[tuple[str, int, str]] = (),
    ) -> None:
        events = {"approved": "APPROVED", "changes": "REQUEST_CHANGES", "commented": "COMMENT"}
        comments = [{"path": path, "new_position": line, "body": text} for path, line, text in lines]
        review = {"event": events[state], "body": body, "comments": comments}
        path = f"/repos/{repository}/pulls/{number}/reviews"
        self.server.call("POST", path, review, token=self.tokens[self.bob])

    def set_right(self, repository: str, login: str, right: Right) -> None:
        self.call("PUT", f"/repos/{repository}/collaborators/{login}", {"permission": right})

    def protect(self, repository: str, check: str) -> None:
        rule = {"rule_name": "main", "enable_status_check": True, "status_check_contexts": [check]}
        self.call("POST", f"/repos/{repository}/branch_protections", rule)

    def archive(self, repository: str) -> None:
        self.call("PATCH", f"/repos/{repository}", {"archived": True})

    def rename(self, repository: str, name: str) -> None:
        self.call("PATCH", f"/repos/{repository}", {"name": name})

    def create_repository(self) -> str:
        name = self.call("POST", "/user/repos", {"name": f"demo{next(_NUMBERS)}", "private": True})["full_name"]
        self.set_right(name, self.bob, "read")
        return str(name)

    def open_forge(self, token: str) -> Forge:
        forge = GiteaForge(ForgeSetup(url=self.server.url, token=token, sleep=time.sleep), page=PAGE)
        self._opened.append(forge)
        return forge

    def weak_forge(self) -> Forge | None:
        return self.open_forge(self.server.create_token(self.ada, ["read:repository", "read:issue"]))


@functools.cache
def gitea() -> GiteaServer:
    """Return the server of this process, started now if it is not running; builds Gitea if it is missing."""
    if missing() and not os.environ.get("CI"):
        pytest.skip(missing())
    if problem := _build():
        pytest.fail(problem)
    server = _start()
    atexit.register(server.stop)
    return server


@functools.cache
def _build() -> str:
    """Build Gitea, or wait for the build that `scripts/bootstrap` started; return the problem, or ""."""
    command = [ROOT / "scripts/gitea"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    return f"scripts/gitea failed: {done.stderr}" if done.returncode else ""


_NUMBERS = itertools.count(1)


def _start() -> GiteaServer:
    # Not below pytest's directories, which only root may enter.
    root = Path(tempfile.mkdtemp(prefix="chargehand-gitea-"))
    root.chmod(0o755)
    program, static = BUILT / "gitea", Path((BUILT / "static").read_text().strip())
    options: dict[str, Any] = {}
    user = os.environ.get("USER") or "nobody"
    if os.geteuid() == 0:  # as root, Gitea refuses to start
        user, options = "nobody", {"user": "nobody", "group": "nogroup", "extra_groups": []}
        program, static = _readable_copy(program, root), _readable_copy(static, root)
    port = _free_port()
    (root / "app.ini").write_text(
        _INI.format(user=user, root=root, port=port, static=static, ssh_port=_free_port())
    )
    (root / "home").mkdir()
    if options:
        for path in (root, root / "app.ini", root / "home"):
            shutil.chown(path, "nobody", "nogroup")
    environment = {
        "HOME": str(root / "home"),
        "USER": user,
        "PATH": os.environ["PATH"],
        "GITEA_WORK_DIR": str(root),
    }
    options |= {"env": environment, "cwd": root}
    config = ["--config", str(root / "app.ini")]

    def run(*words: str) -> str:
        done = subprocess.run(
            [program, *words, *config], **options, capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            pytest.fail(f"gitea {' '.join(words[:3])}: {done.stdout[-1000:]} {done.stderr[-1000:]}")
        return str(done.stdout)

    run("migrate")
    account = ("--username", "boss", "--password", PASSWORD, "--email", "boss@example.test")
    run("admin", "user", "create", "--admin", *account, "--must-change-password=false")
    boss = run(
        *("admin", "user", "generate-access-token", "--username", "boss", "--token-name", "t"),
        *("--scopes", "all", "--raw"),
    ).split()[-1]
    with (root / "web.log").open("wb") as log:
        process = subprocess.Popen([program, "web", *config], **options, stdout=log, stderr=log)
    server = GiteaServer(root, port, process, boss)
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/api/healthz", timeout=5).close()
        except OSError:
            assert process.poll() is None, (root / "web.log").read_text()[-2000:]
            assert time.monotonic() < end, "Gitea does not answer"
            time.sleep(0.05)
        else:
            return server


def _readable_copy(path: Path, root: Path) -> Path:
    """Return the path, or a copy below `root` if other users cannot enter a directory above it."""
    if all(each.stat().st_mode & 0o001 for each in path.parents):
        return path
    copy = root / path.name
    if path.is_file():
        shutil.copy(path, copy)
        copy.chmod(0o755)
        return copy
    for part in ("templates", "options", "public"):
        shutil.copytree(path / part, copy / part)
    for each in (copy, *copy.rglob("*")):
        each.chmod(0o755)
    return copy


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(f"{login}:{PASSWORD}".encode()).decode()
