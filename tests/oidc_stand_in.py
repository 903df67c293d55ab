"""A stand-in of an OpenID Connect provider that signs whatever a test says: for tokens that no real one issues."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from chargehand.core.own_config import SignInConfig
from chargehand.core.ports import PendingSignIn, SignInProvider
from chargehand.identity.providers import open_providers

CLIENT = "chargehand"
PENDING = PendingSignIn(state="state", verifier="v" * 43, callback="http://127.0.0.1/callback")
# A document, or a status with a raw body.
Answer = dict[str, Any] | tuple[int, bytes]


class Keys:
    """A source of keys with one client secret, `THE_SECRET`."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def get(self, name: str) -> str | None:
        """Return the secret of the client."""
        return self._secret if name == "THE_SECRET" else None


class OidcStandIn:
    """A provider on a local port; `answers` replaces documents by path, `asked` lists the paths of requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.key: Any = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.kid = "first"
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.asked: list[str] = []
        self.token = ""
        self.userinfo: dict[str, Any] = {}

    def metadata(self, **more: Any) -> dict[str, Any]:
        """Return the discovery document."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "end_session_endpoint": f"{self.url}/end",
            **more,
        }

    def keys(self) -> dict[str, Any]:
        """Return the set of public keys."""
        public = self.key.public_key()
        algorithm = (
            jwt.algorithms.RSAAlgorithm if isinstance(public, rsa.RSAPublicKey) else jwt.algorithms.ECAlgorithm
        )
        return {"keys": [{**algorithm.to_jwk(public, as_dict=True), "kid": self.kid, "use": "sig"}]}

    def rotate(self, kid: str) -> None:
        """Replace the key."""
        self.key, self.kid = ec.generate_private_key(ec.SECP256R1()), kid

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a good ID token; `None` leaves one out."""
        now = int(time.time())
        good = {
            "iss": self.url, "aud": CLIENT, "sub": "ann", "iat": now, "exp": now + 60, "nonce": PENDING.nonce,
            "preferred_username": "ann", "email": "ann@example.org", "email_verified": True, "groups": ["ops"],
        }  # fmt: skip
        return {name: value for name, value in {**good, **changed}.items() if value is not None}

    def logout_claims(self, **changed: Any) -> dict[str, Any]:
        """Return the claims of a good logout token."""
        event = {"http://schemas.openid.net/event/backchannel-logout": {}}
        mine = {"nonce": None, "jti": f"jti-{time.monotonic_ns()}", "sid": "s-1", "events": event}
        return self.claims(**{**mine, **changed})

    def sign(self, claims: dict[str, Any], *, key: Any = None, algorithm: str = "", **headers: Any) -> str:
        """Return a token, by default signed with the present key."""
        usual = "RS256" if isinstance(self.key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(claims, key or self.key, algorithm or usual, headers={"kid": self.kid, **headers})

    def answer(self, path: str) -> Answer:
        """Return the answer of a path."""
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]()
        usual: dict[str, Callable[[], Answer]] = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": self.keys,
            "/token": lambda: {"access_token": "a-token", "token_type": "Bearer", "id_token": self.token},
            "/userinfo": lambda: self.userinfo,
        }
        return usual[path]()

    def open(self, **changed: Any) -> SignInProvider:
        """Return our client of this provider."""
        usual = {"url": self.url, "title": "Company", "client": CLIENT, "secret": "THE_SECRET"}
        return open_providers({"company": SignInConfig(**{**usual, **changed})}, Keys("s3cret"))[0].provider


@contextmanager
def oidc_stand_in() -> Iterator[OidcStandIn]:
    """Serve a provider during the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = provider.answer(self.path.partition("?")[0])
            status, body = (200, json.dumps(answer).encode()) if isinstance(answer, dict) else answer
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if body[:1] == b"{" else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # the name that the base class calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider = OidcStandIn(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
