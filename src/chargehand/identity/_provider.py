"""Shared by the clients of all sign-in providers: their setup, requests to the provider, and its refusals."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote_plus, urlencode

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.errors import InfrastructureError, RefusedError
from chargehand.core.text import printable
from chargehand.network.addresses import is_loopback
from chargehand.network.http_client import WebClient, WebError, WebReply

_T = TypeVar("_T")
_SILENCE_SECONDS = 10.0
_LARGEST_ANSWER = 1 << 20
# A person is in a few groups; a provider that lists more than these is read up to here.
MOST_GROUPS, _LONGEST_GROUP = 10_000, 300


class ProviderSetup(Struct, frozen=True, kw_only=True):
    """The parameters of a provider's client; `secret` returns the client secret, `None` for a public client."""

    name: str
    title: str
    url: str
    client: str
    secret: Callable[[], str | None]
    scopes: tuple[str, ...]
    groups_claim: str = "groups"
    end_session: bool = True


class TokenReply(Struct, frozen=True):
    """The fields of a token endpoint's answer that are read (RFC 6749, sections 5.1 and 5.2)."""

    access_token: str = ""
    id_token: str = ""
    error: str = ""


class ProviderClient:
    """Requests to one provider; without an answer they raise `InfrastructureError` (`provider_failed`)."""

    def __init__(self, setup: ProviderSetup) -> None:
        self.setup = setup
        self.client = WebClient(
            headers={"Accept": "application/json"}, seconds=_SILENCE_SECONDS, largest=_LARGEST_ANSWER
        )

    def read(self, url: str, *, token: str = "") -> WebReply:
        """Return the answer of status 200 to a request, authorized by an access token."""
        reply = self._send("GET", url, headers={"Authorization": f"Bearer {token}"} if token else {})
        if reply.status != 200:
            raise self.failure(f"answered {reply.status}")
        return reply

    def redeem(self, url: str, fields: Mapping[str, str], *, in_body: bool) -> TokenReply:
        """Exchange a code for tokens; `in_body` says where the client secret belongs (RFC 6749, section 2.3.1).

        Raises `RefusedError` (`login_failed`) if the provider refuses the code.
        """
        secret, client = self.setup.secret(), self.setup.client
        form, headers = dict(fields), {"Content-Type": "application/x-www-form-urlencoded"}
        if secret is None or in_body:
            form["client_id"] = client
        if secret is not None and in_body:
            form["client_secret"] = secret
        elif secret is not None:
            pair = f"{quote_plus(client)}:{quote_plus(secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        reply = self._send("POST", url, headers=headers, content=urlencode(form).encode())
        answer = self.decode(reply, TokenReply)
        if answer.error in ("invalid_client", "unauthorized_client", "incorrect_client_credentials"):
            raise self.failure(f"refuses this server's client ({answer.error})", "check client and secret")
        if answer.error or reply.status in (400, 401, 403):
            raise refuse(
                f"{self.setup.title} refused this sign-in ({printable(answer.error)[:80] or reply.status})"
            )
        if reply.status != 200:
            raise self.failure(f"answered {reply.status}")
        return answer

    def decode(self, reply: WebReply, kind: type[_T]) -> _T:
        """Return a JSON answer as a record."""
        try:
            return decode_as(reply.content, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.failure(f"did not answer with the expected JSON (status {reply.status})") from error

    def failure(self, problem: str, hint: str = "try again later") -> InfrastructureError:
        """Return the error of a provider that cannot prove anything now."""
        return InfrastructureError(f"{self.setup.title} {problem}", code="provider_failed", hint=hint)

    def _send(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes | None = None
    ) -> WebReply:
        # Only its certificate proves that this is the provider; an address of this machine needs no proof.
        if not url.startswith("https://") and not is_loopback(url):
            raise self.failure("is not reached by https", "give an https address in [sign_in]")
        try:
            with self.client as client:
                return client.send(method, url, content=content, headers=headers)
        except WebError as error:
            raise self.failure(f"does not answer: {error}") from error


def refuse(problem: str) -> RefusedError:
    """Return the refusal of a sign-in that proves nothing."""
    return RefusedError(problem, code="login_failed", hint="begin again on the login page")


def read_groups(value: object) -> tuple[str, ...]:
    """Return the groups that a claim lists, whatever else it contains."""
    listed = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(each for each in listed[:MOST_GROUPS] if isinstance(each, str) and len(each) <= _LONGEST_GROUP)
