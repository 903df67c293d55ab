"""A fake provider of external sign-in, without a network: it checks callback and PKCE as a real one does."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from urllib.parse import parse_qs, urlencode, urlsplit

from chargehand.core.errors import RefusedError
from chargehand.core.ports import ExternalSubject, PendingSignIn

ISSUER = "https://issuer.example"


class FakeSignInProvider:
    """Signs in whoever `approve` names; `finished` counts the callbacks that it was asked about.

    `people` are further claims about subjects.
    """

    title = "Example & Co"

    def __init__(self, issuer: str = ISSUER) -> None:
        self.issuer = issuer
        self.finished = 0
        self.people: dict[str, ExternalSubject] = {}
        self._codes: dict[str, tuple[str, str, str]] = {}

    def start(self, pending: PendingSignIn, /) -> str:
        """Return the URL of the provider's page."""
        query = {
            "state": pending.state,
            "redirect_uri": pending.callback,
            "code_challenge": pending.challenge,
            "nonce": pending.nonce,
        }
        return f"{self.issuer}/authorize?{urlencode(query)}"

    def approve(self, url: str, subject: str) -> str:
        """Sign a person in at the provider's page; return the callback's URL, to which it sends the browser."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = f"code-{len(self._codes)}"
        self._codes[code] = (subject, query["code_challenge"], query["redirect_uri"])
        return f"{query['redirect_uri']}?{urlencode({'state': query['state'], 'code': code})}"

    def finish(self, parameters: Mapping[str, str], pending: PendingSignIn, /) -> ExternalSubject:
        """Redeem a code once, with the verifier of the challenge that it was made for."""
        self.finished += 1
        subject, challenge, callback = self._codes.pop(parameters.get("code", ""), ("", "", ""))
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if not subject or (proof, pending.callback) != (challenge, callback):
            raise RefusedError("the provider refused this sign-in", code="login_failed", hint="sign in again")
        plain = ExternalSubject(issuer=self.issuer, subject=subject, session=f"session of {subject}")
        return self.people.get(subject, plain)

    def end_session(self, return_to: str) -> str | None:
        """Return the URL of the page that ends the provider's session."""
        return f"{self.issuer}/logout?{urlencode({'post_logout_redirect_uri': return_to})}"

    def read_logout(self, token: str) -> tuple[str, str]:
        """Read a token of the form `SUBJECT/SESSION`, which anyone could write."""
        subject, divider, session = token.partition("/")
        if not divider:
            raise RefusedError("this is not a logout token", code="login_failed", hint="send another one")
        return subject, session
