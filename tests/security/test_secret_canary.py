"""Keys of every source stay in the worker: in no log, prompt, artifact, sandbox, or list of processes.

Each source has a random key. One mission gets all of them: its model has a fallback for each source, and the
provider refuses all keys but the last.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from tests.aws_kit import CREDENTIALS, open_aws
from tests.conftest import write_files
from tests.integration.command_line import Cli, Completed, repository
from tests.native_kit import FINISH, ModelServer, call, edit, says
from tests.security.test_gateway_canary import LOOK, Canary, lower
from tests.vault_stand_in import Vault, open_vault

from chargehand.app.composition import App
from chargehand.core.attempt_events import SecretUsed
from chargehand.core.events import read_payload

SOURCES = ("environment", "keyring", "file", "files", "box", "say", "corp", "cloud")
KEYRING = """
import json, os, pathlib
from keyring.backend import KeyringBackend
class Keyring(KeyringBackend):
    priority = 1
    def get_password(self, service, username):
        return json.loads(pathlib.Path(__file__).with_name("held.json").read_text()).get(username)
    def set_password(self, service, username, password): raise RuntimeError
    def delete_password(self, service, username): raise RuntimeError
"""


class Provider(ModelServer):
    """Accepts `accepted` alone, and looks at all processes of the machine while it is asked."""

    def __init__(self, replies: list[Any]) -> None:
        super().__init__(replies)
        self.accepted = ""
        self.canaries: dict[str, Canary] = {}
        self.seen: set[str] = set()
        self.keys: list[str] = []
        self.then: Any = lambda number: None

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str, bytes]:
        key = lower(headers)["authorization"].removeprefix("Bearer ")
        self.keys.append(key)
        # Each source's key once, and then the first call of the agent that has all.
        names = self.canaries if len(self.keys) <= len(self.canaries) + 1 else ()
        words, variables = (b"".join(read_processes(file)) for file in ("cmdline", "environ"))
        for name in names:
            canary = self.canaries[name]
            # The variable of the person is in the environment of the programs that they start.
            if canary.inside(words) or (name != "environment" and canary.inside(variables)):
                self.seen.add(f"{name} in a process")
        if key != self.accepted:
            return 401, "application/json", json.dumps({"error": {"message": f"not with {key}"}}).encode()
        answered = super()._answer(body, headers)
        self.then(self.asked[-1])
        return answered


def read_processes(file: str) -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / file).read_bytes()
        except OSError:  # it has ended
            continue


class Person(Cli):
    """A person with a repository, whose keys are canaries."""

    def __init__(self, place: Path, canaries: dict[str, Canary], **environ: str) -> None:
        super().__init__(place, **environ)
        self.canaries = canaries
        self.config = self.place / ".config" / "chargehand"
        self.repository = repository(self.place / "repo")
        self.heard: list[Completed] = []

    def hear(self, *words: str) -> Completed:
        """Run the program and keep its output."""
        self.heard.append(self.say(*words, cwd=self.repository))
        return self.heard[-1]

    def hear_alone(self, *words: str) -> Completed:
        """Run the program in a new process, with a keyring of its own, and keep its output."""
        argv, null = self.argv("--json", *words), subprocess.DEVNULL
        done = subprocess.run(
            argv, cwd=self.repository, env=self.environ, stdin=null, capture_output=True, text=True
        )
        result = Completed(code=done.returncode, stdout=done.stdout, stderr=done.stderr)
        self.heard.append(result)
        return result

    def leaks(self, server: Provider) -> list[object]:
        """Return every place that holds a key."""
        found: list[object] = sorted(server.seen)
        for name, canary in self.canaries.items():
            kept = {str(self.config / "secrets.json")} if name == "file" else set()
            found += sorted(canary.below(self.place) - kept)
            found += [result for result in self.heard if canary.inside((result.stdout + result.stderr).encode())]
            found += [body for body in server.bodies if canary.inside(json.dumps(body).encode())]
        return found

    def uses(self, result: Completed) -> list[SecretUsed]:
        """Return the recorded uses of secrets by a mission."""
        with App.open(environ=self.environ, cwd=self.place) as app:
            lines = app.store.log.read(result.document["mission"], types=("secret.used",))
            return [payload for payload in map(read_payload, lines) if isinstance(payload, SecretUsed)]


class Company(Person):
    """A person whose keys come from each source."""

    def __init__(self, place: Path, address: str, vault: Vault, aws: str) -> None:
        canaries = {name: Canary() for name in SOURCES}
        values = {name: canary.text for name, canary in canaries.items()}
        # Stores are outside of the directory that is searched.
        self.stores = place / "stores"
        super().__init__(
            place / "home",
            canaries,
            KEY_ENVIRONMENT=values["environment"],
            VAULT_TOKEN=vault.root,
            PYTHONPATH=str(self.stores),
            PYTHON_KEYRING_BACKEND="canary_keyring.Keyring",
            **CREDENTIALS,
        )
        held = json.dumps({"KEY_KEYRING": values["keyring"]})
        write_files(self.stores, {"canary_keyring.py": KEYRING, "held.json": held, "said": values["say"]})
        write_files(self.stores, {"mounted/KEY_FILES": values["files"]})
        (self.stores / "mounted" / "KEY_FILES").chmod(0o400)
        (self.stores / "box.key").write_bytes(os.urandom(32))
        (self.stores / "box.key").chmod(0o600)
        vault.write("team/ai", key=values["corp"])
        client = boto3.client("secretsmanager", endpoint_url=aws, region_name="eu-west-1", **ACCOUNT)
        client.create_secret(Name="team/ai", SecretString=values["cloud"])
        sources: dict[str, dict[str, Any]] = {
            "files": {"kind": "files", "path": str(self.stores / "mounted")},
            "box": {"kind": "encrypted", "key_file": str(self.stores / "box.key")},
            "say": {"kind": "command", "command": ["cat", str(self.stores / "said")]},
            "corp": {"kind": "vault", "address": vault.address},
            "cloud": {"kind": "aws", "address": aws},
        }
        tables = [table(f"secrets.sources.{name}", **keys) for name, keys in sources.items()]
        for number, name in enumerate(SOURCES):
            more = {"path": "team/ai"} if name in ("corp", "cloud") else {}
            more |= {"field": "key"} if name == "corp" else {}
            tables.append(
                table(f"secrets.keys.KEY_{name.upper()}", sources=[name], providers=["127.0.0.1"], **more)
            )
            fallback = [f"m-{each}" for each in SOURCES[number + 1 : number + 2]]
            model = {"base_url": address, "model": "words", "key": f"KEY_{name.upper()}", "price": 1.0}
            tables.append(table(f"models.m-{name}", **model, fallback=fallback))
        write_files(self.config, {"config.toml": "\n".join(tables)})
        self.set("KEY_FILE", values["file"])
        self.set("KEY_BOX", values["box"], "--source", "box")

    def set(self, name: str, value: str, *more: str) -> None:
        with App.open(environ=self.environ, cwd=self.place) as app:
            app.credentials.set(name, value, more[1] if more else "")


ACCOUNT = {
    "aws_access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
    "aws_secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
}


def table(name: str, **keys: Any) -> str:
    return "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items()), ""])


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with open_aws() as address:
        yield address


@pytest.mark.needs_bwrap
def test_keys_of_every_source_are_nowhere_and_their_use_is_recorded(tmp_path: Path, aws: str) -> None:
    server = Provider([says("", edit("aaa", "bbb", "f.txt")), FINISH])
    with server.running() as address, open_vault() as vault:
        company = Company(tmp_path, address, vault, aws)
        server.replies.insert(0, says("I look", call("bash", command=LOOK.format(secrets=company.config))))
        server.canaries = company.canaries
        server.accepted = company.canaries["cloud"].text
        done = company.hear_alone(
            "run", "mend", "--agent", "native", "--model", "m-environment", "--only-check", "true"
        )
        assert done.document["status"] == "promoted", done
        assert company.hear("mission", "log", done.document["mission"]).code == 0
    assert set(server.keys) == {canary.text for canary in company.canaries.values()}, "all keys were used"
    uses = company.uses(done)
    assert {use.secret: (use.source, use.purpose, use.role, use.refused) for use in uses} == {
        f"KEY_{name.upper()}": (name, "127.0.0.1", "developer", "") for name in SOURCES
    }
    assert len(uses) == len(SOURCES), "one event for each secret of an attempt"
    assert company.leaks(server) == []


@pytest.mark.needs_bwrap
def test_the_next_call_uses_the_rotated_key_and_a_use_outside_of_the_scope_is_refused(tmp_path: Path) -> None:
    server = Provider([says("", edit("aaa", "bbb", "f.txt")), FINISH])
    old, new = Canary(), Canary()
    with server.running() as address, open_vault() as vault:
        company = Person(tmp_path / "home", {"corp": old, "again": new}, VAULT_TOKEN=vault.root)
        key = {"sources": ["corp"], "path": "team/ai", "field": "key"}
        tables = [
            table("secrets.sources.corp", kind="vault", address=vault.address),
            table("secrets.keys.KEY_CORP", **key, roles=["developer"]),
            table("models.m", base_url=address, model="words", key="KEY_CORP", price=1.0),
        ]
        write_files(company.config, {"config.toml": "\n".join(tables)})
        vault.write("team/ai", key=old.text)

        def rotate(number: int) -> None:
            vault.write("team/ai", key=new.text)
            server.accepted = new.text

        server.accepted, server.then, server.canaries = old.text, rotate, company.canaries
        words = ("--agent", "native", "--model", "m", "--only-check", "true")
        done = company.hear("run", "mend", *words)
        assert done.document["status"] == "promoted", done
        assert server.keys == [old.text, old.text, new.text], "one call more, for the refused one"
        assert done.document["attempts"][0]["status"] == "succeeded"
        before = len(server.keys)
        asked = vault.count("data/team/ai")
        refused = company.hear("run", "look", "--role", "reviewer", *words[:4])
        assert "secret_scope" in refused.stdout + refused.stderr, refused
        assert (len(server.keys), vault.count("data/team/ai")) == (before, asked + 1), "only looked for, not used"
        assert [(use.refused, use.role) for use in company.uses(refused)] == [("secret_scope", "reviewer")]
    assert company.leaks(server) == []
