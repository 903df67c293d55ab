"""Sign-in by OpenID Connect: discovery, the code flow with PKCE, checks of ID tokens, logout in both directions.

After OpenID Connect Core 1.0 (section 3.1.3.7), Discovery 1.0, RP-Initiated Logout 1.0, Back-Channel Logout 1.0
and the Best Current Practice of RFC 9700. PyJWT verifies signatures.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import jwt
from msgspec import Struct

from chargehand.core.errors import ChargehandError
from chargehand.core.ports import ExternalSubject, PendingSignIn
from chargehand.identity._provider import ProviderClient, ProviderSetup, read_groups, refuse
from chargehand.network.addresses import is_loopback, is_web_url

# Signatures by the provider's key only: with HMAC, "none" or a symmetric key, anyone who knows what we know could
# sign (RFC 8725, section 2.1).
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_SKEW_SECONDS = 300
_METADATA_SECONDS = 3600.0
# How often an unknown key makes us read the keys again.
_KEYS_SECONDS = 10.0
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
# A logout token is valid for minutes, so that many of them are enough to recognize a repeated one.
_LOGOUTS_KEPT = 10_000


class _Metadata(Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class OidcProvider:
    """A provider found by its issuer; reads its metadata when first needed, and again each hour."""

    def __init__(self, setup: ProviderSetup) -> None:
        self.title = setup.title
        self._setup = setup
        self._client = ProviderClient(setup)
        self._lock, self._keys_lock = threading.Lock(), threading.Lock()
        self._metadata: tuple[float, _Metadata] | None = None
        self._keys: tuple[float, jwt.PyJWKSet] | None = None
        self._logouts: dict[str, None] = {}

    @property
    def issuer(self) -> str:
        """The issuer, as its metadata has it."""
        return self._read_metadata().issuer

    def start(self, pending: PendingSignIn, /) -> str:
        """Return the URL of the provider's page. Raises `InfrastructureError` (`provider_failed`)."""
        query = {
            "client_id": self._setup.client,
            "response_type": "code",
            "scope": " ".join(self._setup.scopes),
            "redirect_uri": pending.callback,
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": pending.challenge,
            "code_challenge_method": "S256",
        }
        return _with_query(self._read_metadata().authorization_endpoint, query)

    def finish(self, parameters: Mapping[str, str], pending: PendingSignIn, /) -> ExternalSubject:
        """Return the person who granted the callback's code.

        Raises `RefusedError` (`login_failed`), `InfrastructureError` (`provider_failed`).
        """
        metadata = self._read_metadata()
        issuer = parameters.get("iss")
        # RFC 9207: the answer of another provider must not be redeemed here.
        if issuer != metadata.issuer and (
            issuer is not None or metadata.authorization_response_iss_parameter_supported
        ):
            raise refuse(f"the answer does not come from {self.title}")
        if not (code := parameters.get("code", "")):
            reason = "".join(each for each in parameters.get("error", "")[:60] if each.isalnum() or each == "_")
            raise refuse(f"{self.title} did not sign you in ({reason or 'no code'})")
        fields = {"grant_type": "authorization_code", "code": code, "redirect_uri": pending.callback}
        methods = metadata.token_endpoint_auth_methods_supported
        in_body = "client_secret_basic" not in methods and "client_secret_post" in methods
        reply = self._client.redeem(
            metadata.token_endpoint, {**fields, "code_verifier": pending.verifier}, in_body=in_body
        )
        claims = self._verify(reply.id_token, ("exp", "sub", "nonce"))
        if not hmac.compare_digest(str(claims["nonce"]).encode(), pending.nonce.encode()):
            raise refuse("the ID token belongs to another sign-in")
        return self._describe(self._complete(claims, metadata, reply.access_token))

    def end_session(self, return_to: str) -> str | None:
        """Return the provider's page that ends the session there too and returns to a URL, `None` without one."""
        endpoint = self._read_metadata().end_session_endpoint if self._setup.end_session else ""
        query = {"client_id": self._setup.client, "post_logout_redirect_uri": return_to}
        return _with_query(endpoint, query) if endpoint else None

    def read_logout(self, token: str) -> tuple[str, str]:
        """Return subject and session that a logout token ends; one of them may be "".

        Raises `RefusedError` (`login_failed`), `InfrastructureError` (`provider_failed`).
        """
        claims = self._verify(token, ("jti", "events"))
        events, name = claims["events"], str(claims["jti"])
        subject, session = (str(claims.get(each) or "") for each in ("sub", "sid"))
        if not isinstance(events, dict) or _LOGOUT_EVENT not in events or "nonce" in claims:
            raise refuse("this is not a logout token")  # an ID token must not end sessions
        if not (subject or session):
            raise refuse("the logout token names nobody")
        if time.time() - claims["iat"] > _SKEW_SECONDS:
            raise refuse("this logout token is too old")  # not all have a time at which they expire
        with self._lock:
            if name in self._logouts:
                raise refuse("this logout token was used before")
            if len(self._logouts) >= _LOGOUTS_KEPT:
                del self._logouts[next(iter(self._logouts))]
            self._logouts[name] = None
        return subject, session

    def _verify(self, token: str, needed: tuple[str, ...]) -> dict[str, Any]:
        """Return the claims of a token that this provider signed for us, and that is valid now."""
        metadata = self._read_metadata()
        try:
            header = jwt.get_unverified_header(token)
            key = self._find_key(metadata, header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=self._setup.client,
                issuer=metadata.issuer,
                leeway=_SKEW_SECONDS,
                options={"require": ["iss", "aud", "iat", *needed]},
            )
        except (jwt.PyJWTError, ValueError) as error:
            raise refuse(f"the token of {self.title} is not valid: {error}") from error
        audience = claims.get("aud")
        several = isinstance(audience, list) and len(audience) > 1
        if claims.get("azp", self._setup.client if not several else None) != self._setup.client:
            raise refuse(f"the token of {self.title} was made for another client")
        return claims

    def _find_key(self, metadata: _Metadata, name: object) -> jwt.PyJWK:
        """Return the provider's key of that id, or its only one; keys change, so unknown ones are looked up."""
        with self._keys_lock:
            for oldest in (_METADATA_SECONDS, _KEYS_SECONDS):
                found = self._keys
                if found is None or time.monotonic() - found[0] >= oldest:
                    found = self._keys = (time.monotonic(), self._read_keys(metadata))
                keys = [each for each in found[1].keys if each.public_key_use in (None, "sig")]
                if fitting := [each for each in keys if name is None or each.key_id == name]:
                    if len(fitting) == 1:
                        return fitting[0]
                    raise refuse(f"the token of {self.title} does not say which key signed it")
        raise refuse(f"the token of {self.title} is signed by an unknown key")

    def _read_keys(self, metadata: _Metadata) -> jwt.PyJWKSet:
        document = self._client.decode(self._client.read(metadata.jwks_uri), dict[str, Any])
        try:
            return jwt.PyJWKSet.from_dict(document)
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as error:
            raise self._client.failure("lists no key that signs tokens") from error

    def _read_metadata(self) -> _Metadata:
        with self._lock:
            if self._metadata is not None and time.monotonic() - self._metadata[0] < _METADATA_SECONDS:
                return self._metadata[1]
            base = self._setup.url.rstrip("/")
            try:
                reply = self._client.read(f"{base}/.well-known/openid-configuration")
                metadata = self._client.decode(reply, _Metadata)
                self._check_metadata(metadata, base)
            except ChargehandError:
                if self._metadata is None:
                    raise
                # A provider that is away for a moment has not changed; it is asked again in a minute.
                metadata, checked = self._metadata[1], time.monotonic() - _METADATA_SECONDS + 60
                self._metadata = (checked, metadata)
                return metadata
            self._metadata = (time.monotonic(), metadata)
            return metadata

    def _check_metadata(self, metadata: _Metadata, base: str) -> None:
        if metadata.issuer.rstrip("/") != base:
            # Discovery 1.0, section 4.3: one tenant must not speak for another.
            raise self._client.failure(f"says that its issuer is {metadata.issuer[:200]!r}", "give that as url")
        endpoints = (
            metadata.authorization_endpoint,
            metadata.token_endpoint,
            metadata.jwks_uri,
            metadata.userinfo_endpoint,
            metadata.end_session_endpoint,
        )
        for each in filter(None, endpoints):
            if not is_web_url(each) or not (each.startswith("https://") or is_loopback(each)):
                raise self._client.failure(f"has an endpoint without https: {each[:200]!r}")

    def _complete(self, claims: dict[str, Any], metadata: _Metadata, access: str) -> dict[str, Any]:
        """Return the claims with those that only the userinfo endpoint has."""
        wanted = (self._setup.groups_claim.partition(".")[0], "email", "preferred_username")
        if not (metadata.userinfo_endpoint and access) or all(each in claims for each in wanted):
            return claims
        reply = self._client.read(metadata.userinfo_endpoint, token=access)
        if reply.media != "application/json":  # a signed answer, which is asked for at registration only
            return claims
        told = self._client.decode(reply, dict[str, Any])
        if told.get("sub") != claims["sub"]:  # Core 1.0, section 5.3.2: the token may be another person's
            raise refuse(f"{self.title} names two people")
        return {**told, **claims}

    def _describe(self, claims: Mapping[str, Any]) -> ExternalSubject:
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= 255:
            raise refuse(f"{self.title} names no subject")
        groups: Any = claims.get(self._setup.groups_claim)
        if groups is None:
            groups = claims
            for part in self._setup.groups_claim.split("."):
                groups = groups.get(part) if isinstance(groups, dict) else None
        mail = claims.get("email")
        verified = claims.get("email_verified")
        is_proven = isinstance(mail, str) and (verified is True or verified == "true")
        return ExternalSubject(
            issuer=str(claims["iss"]),
            subject=subject,
            login=str(claims.get("preferred_username") or claims.get("nickname") or ""),
            mail=str(mail) if is_proven else "",
            groups=read_groups(groups),
            session=str(claims.get("sid") or ""),
        )


def _with_query(url: str, query: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"
