"""A provider's key stays in the worker: it is in no file, no prompt, no output and in no sandbox.

The key is random; its provider is a real server on loopback, which receives it with each call.
"""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import git
from tests.crash_kit import wait_until
from tests.integration.command_line import Cli, Completed, repository
from tests.native_kit import FINISH, ModelServer, call, edit, says

from chargehand.app.composition import App

LOOK = "id; env; cat {secrets}; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
CLIENT = """
import json, os, subprocess, urllib.error, urllib.request
os.system(%r)
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": "hi"}]}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
try:
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
        said, head = reply.read().decode(), str(reply.headers)
except urllib.error.HTTPError as error:
    with error:
        said, head = error.read().decode(), str(error.headers)
open("reply.txt", "w").write(said + head)
print(said, head)
"""


class Echo(ModelServer):
    """A provider; for its model `closed` it answers 401, and repeats the key that it was sent in the error."""

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        answered = super()._answer(body, headers)
        if body["model"] != "closed":
            return answered
        given = lower(headers)["authorization"]
        encoded = base64.b64encode(given.encode()).decode()
        error = {"message": f"bad header {given!r}, or {encoded}", "param": {given: encoded}}
        return 401, "application/json", json.dumps({"error": error}).encode()

    @property
    def keys(self) -> set[str]:
        """Return the keys that it was sent."""
        return {lower(headers)["authorization"].removeprefix("Bearer ") for headers in self.headers}


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class Canary:
    """A key that can be found wherever it is written, also as base64."""

    def __init__(self) -> None:
        self.text = f"canary{secrets.token_hex(24)}"
        content = self.text.encode()
        shifted = (base64.b64encode(b"x" * before + content)[4:-4] for before in range(3))
        self.forms = (content, content.hex().encode(), *shifted)

    def inside(self, content: bytes) -> bool:
        """Return whether the key is in the content."""
        return any(form in content for form in self.forms)

    def below(self, place: Path) -> set[str]:
        """Return the files below a directory that hold the key, packed ones and git objects included."""
        found = {str(path) for path, content in contents(place) if self.inside(content)}
        for head in place.rglob("HEAD"):
            directory = head.parent
            if (directory / "objects").is_dir() and self.inside(objects(directory)):
                found.add(str(directory))
        return found


def contents(place: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files below a directory as they are and, if compressed, also uncompressed."""
    for path in place.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        yield path, content
        try:
            yield path, zlib.decompress(content)
        except zlib.error:
            continue


def objects(directory: Path) -> bytes:
    """Return all objects of a git directory."""
    words = ["git", "--git-dir", str(directory), "cat-file", "--batch-all-objects", "--batch"]
    return subprocess.run(words, capture_output=True, check=True).stdout


class Office(Cli):
    """A person with two keys, one in the environment and one in a file, and agents of both kinds."""

    def __init__(self, place: Path, address: str) -> None:
        self.exported, self.kept = Canary(), Canary()
        super().__init__(place, CANARY_KEY=self.exported.text)
        self.config = place / ".config" / "chargehand"
        self.config.mkdir(parents=True)
        models = {
            "served": ("words", "CANARY_KEY"),
            "filed": ("words", "KEPT_KEY"),
            "closed": ("closed", "CANARY_KEY"),
            "shut": ("closed", "KEPT_KEY"),
        }
        tables = [
            f'[models.{name}]\nbase_url = "{address}"\nmodel = "{model}"\nkey = "{key}"\nprice = 1.0\n'
            for name, (model, key) in models.items()
        ]
        self.secrets = self.config / "secrets.json"
        self.look = LOOK.format(secrets=self.secrets)
        command = json.dumps(["python3", "-c", CLIENT % self.look])
        tables += [f'[agents.{name}]\ncommand = {command}\nmodel = "{name}"\n' for name in ("filed", "closed")]
        (self.config / "config.toml").write_text("\n".join(tables))
        self.secrets.write_text(json.dumps({"secrets": {"KEPT_KEY": self.kept.text}, "keyring": []}))
        self.secrets.chmod(0o600)
        self.repository = repository(place / "repo")
        self.heard: list[Completed] = []

    def hear(self, *words: str) -> Completed:
        """Run the program with `--json` and keep its output."""
        result = self.say(*words, cwd=self.repository)
        self.heard.append(result)
        return result

    def tell(self, *words: str) -> str:
        """Run the program as for a person and return all its output."""
        argv = [word for word in self.argv(*words) if word != "--json"]
        done = subprocess.run(
            argv, cwd=self.repository, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        self.heard.append(Completed(code=done.returncode, stdout=done.stdout, stderr=done.stderr))
        return done.stdout + done.stderr

    def workers(self) -> list[str]:
        """Return the living workers."""
        with App.open(environ=self.environ, cwd=self.place) as app:
            return [member.id for member in app.workers.members()]

    def at_rest(self) -> None:
        """Wait until no worker is left."""
        wait_until(lambda: not self.workers())

    def leaks(self, server: Echo) -> list[object]:
        """Return every place that holds a key."""
        found: list[object] = []
        for canary in (self.exported, self.kept):
            found += [path for path in canary.below(self.place) if path != str(self.secrets)]
            found += [result for result in self.heard if canary.inside((result.stdout + result.stderr).encode())]
            found += [body for body in server.bodies if canary.inside(json.dumps(body).encode())]
        return found


@pytest.fixture
def server() -> Echo:
    return Echo([says("", edit("aaa", "bbb", "f.txt")), FINISH])


@pytest.fixture
def office(tmp_path: Path, server: Echo) -> Iterator[Office]:
    with server.running() as address:
        made = Office(tmp_path, address)
        server.replies.insert(0, says("I look", call("bash", command=made.look)))
        yield made
        made.at_rest()


@pytest.mark.needs_bwrap
def test_the_keys_of_missions_that_work_are_nowhere(office: Office, server: Echo) -> None:
    detached = office.hear(
        "run", "mend", "--model", "served", "--agent", "native", "--only-check", "true", "--detach"
    )
    assert detached.code == 0, detached
    mission = detached.document["mission"]
    wait_until(lambda: office.state(detached).status == "promoted")
    by_program = office.hear("run", "ask", "--agent", "filed", "--only-check", "true")
    assert by_program.document["status"] == "promoted", by_program
    assert server.keys == {office.exported.text, office.kept.text}
    office.at_rest()
    assert office.hear("mission", "log", mission).code == 0
    assert "CHARGEHAND_REQUEST=ask" in looked(office, by_program)
    assert "uid=" in office.tell("mission", "log", mission, "--transcript")
    assert {path.name for path in office.home.iterdir()} >= {
        "store.db",
        "engine.db",
        "artifacts",
        "logs",
        "projects",
    }
    assert office.leaks(server) == []


@pytest.mark.needs_bwrap
def test_a_provider_that_sends_the_key_back_in_an_error(office: Office, server: Echo) -> None:
    """The error is passed on, without the key in any form."""
    by_model = office.hear("run", "mend", "--agent", "native", "--model", "shut", "--only-check", "true")
    assert (by_model.code, by_model.reasons) == (3, {"key_refused"})
    assert "redacted" in by_model.document["reasons"][0]["message"]
    by_program = office.hear("run", "mend", "--agent", "closed", "--only-check", "true")
    assert by_program.document["status"] == "promoted", by_program
    assert "[redacted:CANARY_KEY]" in git(office.repository, "show", f"{by_program.document['branch']}:reply.txt")
    assert server.keys == {office.exported.text, office.kept.text}
    assert office.leaks(server) == []


def test_a_probe_of_a_provider_that_sends_the_key_back(office: Office, server: Echo) -> None:
    assert "the key is not accepted" in office.tell("model", "probe", "closed")
    assert office.hear("model", "probe", "shut").code == 1
    assert server.keys == {office.exported.text, office.kept.text}
    assert office.leaks(server) == []


def looked(office: Office, result: Completed) -> str:
    """Return the output of a command agent's program."""
    with App.open(environ=office.environ, cwd=office.place) as app:
        rows = app.store.artifacts.list(result.document["mission"])
        return "".join(
            app.store.artifacts.get(row.id).decode(errors="replace") for row in rows if row.kind == "agent"
        )


def test_the_search_finds_a_planted_key(tmp_path: Path) -> None:
    """Each hiding place is tried, so that the tests above can fail."""
    canary = Canary()
    with App.open(
        environ={"HOME": str(tmp_path), "CHARGEHAND_HOME": str(tmp_path / "state")}, cwd=tmp_path
    ) as app:
        app.store.artifacts.put(b"x" * 9000 + canary.text.encode(), kind="agent")
    (packed,) = canary.below(tmp_path / "state")
    assert packed.endswith(".z")
    made = repository(
        tmp_path / "repo", {"f.txt": "".join((base64.b64encode(f"Bearer {canary.text}".encode())).decode())}
    )
    git(made, "gc", "-q")
    (made / "f.txt").unlink()
    assert canary.below(made) == {str(made / ".git")}
    with sqlite3.connect(tmp_path / "own.db") as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table t (x)")
        database.execute("insert into t values (?)", (canary.text,))
        database.commit()
        assert str(tmp_path / "own.db-wal") in canary.below(tmp_path)
    database.close()
    assert not canary.inside(Canary().text.encode())
