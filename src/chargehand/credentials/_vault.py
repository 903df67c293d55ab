"""HashiCorp Vault and OpenBao: secrets of a KV engine of version 2, over their HTTP interface.

Paths and fields are those of https://developer.hashicorp.com/vault/api-docs. Not tested with a real Vault.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.credentials._setup import LARGEST_ANSWER, KeyPlace, KeySetup, pick_text
from chargehand.network.http_client import WebClient, WebError, WebReply

_FIELD = "value"
_USUAL_TOKEN = "VAULT_TOKEN"
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_FORBIDDEN = (401, 403)
# A token is renewed in the last third of its lease.
_RENEW_AT = 2 / 3


class _Lease(msgspec.Struct):
    """A token of Vault, and the monotonic times at which it is renewed and ends; `None` if it never ends."""

    token: str
    renew_at: float | None = None
    is_renewable: bool = False

    def __repr__(self) -> str:
        return f"_Lease(renew_at={self.renew_at!r})"


class VaultKeys:
    """A KV engine of version 2. It logs in by a token, AppRole or Kubernetes, and renews the lease of its token.

    A token that has ended is replaced by a new login; a token of the user is read again, since an agent of Vault
    may have written a new one to its file.
    """

    is_cached = True

    def __init__(self, setup: KeySetup) -> None:
        self._setup, self._config = setup, setup.config
        self._lease: _Lease | None = None
        self._lock = threading.Lock()

    def get(self, name: str) -> str | None:
        """Return the secret of that name in its usual place."""
        return self.find(KeyPlace(name))

    def find(self, place: KeyPlace) -> str | None:
        """Return a field of the newest version of a secret; see `LocatedKeys`."""
        path = place.path or self._config.path or place.name
        address = f"{quote(self._config.mount)}/data/{quote(path.strip('/'))}"
        with self._lock, self._client() as client:
            known = self._lease is not None
            reply = self._send(client, "GET", address, token=self._token(client))
            if reply.status in _FORBIDDEN and known:
                # The lease may be lost or revoked: only a new login can tell that from a denied path.
                self._lease = None
                reply = self._send(client, "GET", address, token=self._token(client))
        if reply.status in _FORBIDDEN:
            self._lease = None
            raise self._setup.deny(f"denies {path!r}", "check the policy of its token, and that it has not ended")
        if reply.status == 404:
            # A missing secret has no error text; a missing engine has.
            if b"no handler for route" in reply.content:
                raise self._setup.misconfigured(
                    f"has no engine mounted at {self._config.mount!r}", "check its mount"
                )
            return None
        fields = self._document(reply, "data", "data")
        if place.field and place.field not in fields:
            known_fields = ", ".join(sorted(fields)) or "none"
            raise self._setup.misconfigured(f"has no field {place.field!r} in {path!r}", f"fields: {known_fields}")
        return pick_text(self._setup, place, fields, place.field or (place.name if self._config.path else _FIELD))

    def _client(self) -> WebClient:
        authority = Path(self._config.authority) if self._config.authority else None
        headers = {"X-Vault-Request": "true"}
        if self._config.namespace:
            headers["X-Vault-Namespace"] = self._config.namespace
        return WebClient(
            f"{(self._config.address or '').rstrip('/')}/v1/",
            headers=headers,
            seconds=self._config.timeout,
            connect_seconds=self._config.timeout,
            largest=LARGEST_ANSWER,
            authority=authority,
        )

    def _send(
        self,
        client: WebClient,
        method: str,
        address: str,
        *,
        token: str = "",
        body: Mapping[str, str] | None = None,
    ) -> WebReply:
        headers = {"X-Vault-Token": token} if token else {}
        content = None if body is None else msgspec.json.encode(body)
        try:
            reply = client.send(method, address, content=content, headers=headers)
        except WebError as error:
            raise self._setup.fail(f"cannot be asked: {error}", "check its address and that it runs") from None
        if reply.status == 503:
            raise self._setup.fail("is sealed or in maintenance", "unseal it")
        if reply.status in (429, 472, 473) or reply.status >= 500:
            raise self._setup.fail(f"cannot answer now: HTTP {reply.status}")
        if 300 <= reply.status < 400:
            raise self._setup.misconfigured("redirects to another address", "name the address of its active node")
        return reply

    def _document(self, reply: WebReply, *path: str) -> Mapping[str, Any]:
        if reply.status != 200:
            raise self._setup.misconfigured(f"answers HTTP {reply.status}", "check mount, path, login and role")
        try:
            found: Any = reply.document()
        except ValueError:
            found = None
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise self._setup.misconfigured("does not answer as a KV engine of version 2", "check its mount")
        return found

    def _token(self, client: WebClient) -> str:
        lease = self._lease
        if lease and lease.renew_at is not None and self._setup.clock.monotonic() >= lease.renew_at:
            lease = self._renew(client, lease)
        if lease is None:
            lease = self._log_in(client)
        self._lease = lease
        return lease.token

    def _renew(self, client: WebClient, lease: _Lease) -> _Lease | None:
        """Return the lease for longer, or `None` if its token has to be replaced."""
        if not lease.is_renewable:
            return None
        reply = self._send(client, "POST", "auth/token/renew-self", token=lease.token, body={})
        return self._make_lease(self._document(reply, "auth")) if reply.status == 200 else None

    def _log_in(self, client: WebClient) -> _Lease:
        if self._config.login == "token":
            token = self._own_token()
            reply = self._send(client, "GET", "auth/token/lookup-self", token=token)
            if reply.status != 200:
                # A policy may deny the lookup to a valid token.
                return _Lease(token=token)
            found = self._document(reply, "data")
            return self._make_lease({**found, "client_token": token, "lease_duration": found.get("ttl")})
        mount = self._config.login_mount or self._config.login
        if self._config.login == "approle":
            body = {"role_id": self._config.role or "", "secret_id": self._own_secret("the secret id of its role")}
        else:
            body = {"role": self._config.role or "", "jwt": self._read_file(_SERVICE_ACCOUNT)}
        reply = self._send(client, "POST", f"auth/{quote(mount)}/login", body=body)
        if reply.status in (400, *_FORBIDDEN):
            raise self._setup.deny("refuses the login", "check its role, and the secret that it logs in with")
        return self._make_lease(self._document(reply, "auth"))

    def _make_lease(self, found: Mapping[str, Any]) -> _Lease:
        token, seconds = found.get("client_token"), found.get("lease_duration")
        if not isinstance(token, str) or not token:
            raise self._setup.misconfigured("gives no token at the login")
        if not isinstance(seconds, int | float) or seconds <= 0:
            return _Lease(token=token)
        now = self._setup.clock.monotonic()
        return _Lease(token=token, renew_at=now + seconds * _RENEW_AT, is_renewable=found.get("renewable") is True)

    def _own_token(self) -> str:
        if self._config.key_file:
            return self._read_file(self._config.key_file)
        return self._own_secret("its token", _USUAL_TOKEN)

    def _own_secret(self, what: str, usual: str = "") -> str:
        name = self._config.secret or usual
        if not name:
            raise self._setup.misconfigured(f"names no secret with {what}", 'add secret = "NAME"')
        if value := self._setup.secret(name):
            return value
        raise self._setup.misconfigured(f"needs {what}: {name} is not set", f"chargehand secret set {name}")

    def _read_file(self, usual: str) -> str:
        path = self._config.key_file or usual
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(LARGEST_ANSWER).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._setup.misconfigured(f"cannot read {path!r}: {type(error).__name__}") from None
