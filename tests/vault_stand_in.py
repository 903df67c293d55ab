"""A stand-in of Vault: its KV engine of version 2, tokens with leases, AppRole, Kubernetes login, and the seal.

It follows the published interface, and `hvac` works with it, but it cannot show that Vault behaves like it.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct

from chargehand.core.clock import SteppedClock

Reply = tuple[int, dict[str, Any]]
DENIED: Reply = (403, {"errors": ["permission denied"]})
NOT_FOUND: Reply = (404, {"errors": []})


class Token(Struct, kw_only=True):
    """A token: the paths that it may use, and the end of its lease on the stand-in's clock."""

    id: str
    paths: tuple[str, ...] = ("",)
    ends: float | None = None
    ttl: float = 0
    renewable: bool = True
    renewals: int = 0


class Vault:
    """The state of the stand-in; a test changes it while clients ask."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.root = f"hvs.{secrets.token_hex(12)}"
        self.tokens = {self.root: Token(id=self.root)}
        self.kept: dict[str, list[dict[str, Any] | None]] = {}
        self.roles: dict[str, str] = {}
        self.accounts: dict[str, str] = {}
        self.paths: tuple[str, ...] = ("",)
        self.ttl = 600.0
        self.sealed = False
        # Every answer while it is set, as a status.
        self.failing = 0
        # Requests wait for this event.
        self.open = threading.Event()
        self.open.set()
        self.asked: list[str] = []
        self.address = ""

    def write(self, path: str, **fields: Any) -> None:
        """Store a new version of a secret."""
        self.kept.setdefault(path, []).append(fields)

    def count(self, end: str) -> int:
        """Return how many requests had a path with this end."""
        return sum(path.endswith(end) for path in self.asked)

    def grant(self, *, paths: tuple[str, ...] = ("",), ttl: float | None = None, renewable: bool = True) -> Token:
        """Return a new token."""
        ttl = self.ttl if ttl is None else ttl
        made = Token(
            id=f"hvs.{secrets.token_hex(12)}",
            paths=paths,
            ends=self.clock.monotonic() + ttl if ttl else None,
            ttl=ttl,
            renewable=renewable,
        )
        self.tokens[made.id] = made
        return made

    def answer(self, method: str, path: str, token: str, body: dict[str, Any]) -> Reply:
        """Answer one request, as Vault does; `path` begins behind /v1/."""
        self.asked.append(f"{method} {path}")
        if path in ("sys/seal-status", "sys/unseal"):
            self.sealed = self.sealed and path != "sys/unseal"
            return 200, {"sealed": self.sealed, "t": 1, "n": 1, "progress": 0, "initialized": True}
        if self.failing:
            return self.failing, {"errors": ["not now"]}
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if path in ("auth/approle/login", "auth/kubernetes/login"):
            return self._log_in(path, body)
        owner = self.tokens.get(token)
        if owner is None or (owner.ends is not None and self.clock.monotonic() >= owner.ends):
            return 403, {"errors": ["permission denied", "invalid token"]}
        if path.startswith("auth/token/"):
            return self._own_token(path.removeprefix("auth/token/"), owner, body)
        return self._read(method, path, owner, body)

    def _read(self, method: str, path: str, owner: Token, body: dict[str, Any]) -> Reply:
        if path == "sys/seal":
            self.sealed = True
            return 204, {}
        mount, _, rest = path.partition("/")
        if mount != "secret":
            return 404, {"errors": [f'no handler for route "{path}". route entry not found.']}
        kind, _, name = rest.partition("/")
        if not any(name.startswith(allowed) for allowed in owner.paths):
            return DENIED
        return self._data(method, name, body) if kind == "data" else NOT_FOUND

    def _log_in(self, path: str, body: dict[str, Any]) -> Reply:
        if path.startswith("auth/approle"):
            if self.roles.get(body.get("role_id", "")) != body.get("secret_id"):
                return 400, {"errors": ["invalid role or secret ID"]}
        elif self.accounts.get(body.get("role", "")) != body.get("jwt"):
            return DENIED
        return 200, self._auth(self.grant(paths=self.paths))

    def _auth(self, token: Token) -> dict[str, Any]:
        return {
            "auth": {"client_token": token.id, "lease_duration": int(token.ttl), "renewable": token.renewable},
            "lease_id": "",
        }

    def _own_token(self, what: str, owner: Token, body: dict[str, Any]) -> Reply:
        if what == "lookup-self":
            left = 0 if owner.ends is None else int(owner.ends - self.clock.monotonic())
            return 200, {"data": {"id": owner.id, "ttl": left, "renewable": owner.renewable, "policies": []}}
        if what == "renew-self":
            if not owner.renewable or owner.ends is None:
                return 400, {"errors": ["lease is not renewable"]}
            owner.ends = self.clock.monotonic() + owner.ttl
            owner.renewals += 1
            return 200, self._auth(owner)
        if what == "revoke-self":
            del self.tokens[owner.id]
            return 204, {}
        if what == "create":
            ttl = float(str(body.get("ttl", self.ttl)).removesuffix("s"))
            return 200, self._auth(self.grant(ttl=ttl, renewable=body.get("renewable", True)))
        return NOT_FOUND

    def _data(self, method: str, name: str, body: dict[str, Any]) -> Reply:
        versions = self.kept.get(name, [])
        metadata = {
            "version": len(versions),
            "created_time": datetime.now(UTC).isoformat(),
            "deletion_time": "",
            "destroyed": False,
        }
        if method in ("POST", "PUT"):
            self.write(name, **body["data"])
            return 200, {"data": {**metadata, "version": len(versions) + 1}}
        if not versions:
            return NOT_FOUND
        if method == "DELETE":
            versions[-1] = None
            return 204, {}
        found = versions[-1]
        if found is None:
            return 404, {"data": {"data": None, "metadata": {**metadata, "deletion_time": "2026-01-01T00:00:00Z"}}}
        return 200, {"data": {"data": found, "metadata": metadata}, "lease_id": "", "lease_duration": 0}


@contextmanager
def open_vault() -> Iterator[Vault]:
    """Serve a new stand-in on loopback while the block runs."""
    vault = Vault()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            vault.open.wait(60)
            path = self.path.split("?")[0].removeprefix("/v1/")
            token = self.headers.get("X-Vault-Token", "")
            status, document = vault.answer(self.command, path, token, json.loads(content or b"{}"))
            reply = b"" if status == 204 else json.dumps(document).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", "http://127.0.0.1:1/")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            with suppress(ConnectionError):  # the client waited long enough
                self.wfile.write(reply)

        do_GET = do_POST = do_PUT = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    vault.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield vault
    finally:
        vault.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
