"""Sign-in at GitHub and GitHub Enterprise: OAuth 2 without ID tokens; the user API says who signed in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlencode

from msgspec import Struct

from chargehand.core.ports import ExternalSubject, PendingSignIn
from chargehand.identity._provider import MOST_GROUPS, ProviderClient, ProviderSetup, read_groups, refuse

_T = TypeVar("_T")
PUBLIC = "https://github.com"
_PAGE = 100


class _User(Struct, frozen=True):
    id: int
    login: str


class _Mail(Struct, frozen=True):
    email: str
    primary: bool = False
    verified: bool = False


class _Organization(Struct, frozen=True):
    login: str


class _Team(Struct, frozen=True):
    slug: str
    organization: _Organization


class GithubProvider:
    """GitHub as an OAuth 2 provider; groups are organizations (`ORG`) and teams (`ORG/TEAM`).

    A person's subject is the number of the user, since a login name can be given to another person.
    """

    def __init__(self, setup: ProviderSetup) -> None:
        self.title = setup.title
        self.issuer = setup.url.rstrip("/")
        self._setup = setup
        self._client = ProviderClient(setup)
        self._api = "https://api.github.com" if self.issuer == PUBLIC else f"{self.issuer}/api/v3"

    def start(self, pending: PendingSignIn, /) -> str:
        """Return the URL of GitHub's page."""
        query = {
            "client_id": self._setup.client,
            "scope": " ".join(self._setup.scopes),
            "redirect_uri": pending.callback,
            "state": pending.state,
            "code_challenge": pending.challenge,
            "code_challenge_method": "S256",
        }
        return f"{self.issuer}/login/oauth/authorize?{urlencode(query)}"

    def finish(self, parameters: Mapping[str, str], pending: PendingSignIn, /) -> ExternalSubject:
        """Return the person who granted the callback's code.

        Raises `RefusedError` (`login_failed`), `InfrastructureError` (`provider_failed`).
        """
        if not (code := parameters.get("code", "")):
            raise refuse(f"{self.title} did not sign you in")
        fields = {"code": code, "redirect_uri": pending.callback, "code_verifier": pending.verifier}
        reply = self._client.redeem(f"{self.issuer}/login/oauth/access_token", fields, in_body=True)
        if not (token := reply.access_token):
            raise refuse(f"{self.title} gave no token")
        user = self._client.decode(self._client.read(f"{self._api}/user", token=token), _User)
        return ExternalSubject(
            issuer=self.issuer,
            subject=str(user.id),
            login=user.login,
            mail=self._find_mail(token),
            groups=self._find_groups(token),
        )

    def end_session(self, return_to: str) -> str | None:
        """Return `None`: GitHub has no page that ends its session for others."""
        return None

    def read_logout(self, token: str) -> tuple[str, str]:
        """Refuse: GitHub sends no logout tokens."""
        raise refuse(f"{self.title} sends no logout tokens")

    def _find_mail(self, token: str) -> str:
        if not {"user", "user:email"} & {*self._setup.scopes}:
            return ""
        mails = self._client.decode(self._client.read(f"{self._api}/user/emails", token=token), list[_Mail])
        return next((each.email for each in mails if each.primary and each.verified), "")

    def _find_groups(self, token: str) -> tuple[str, ...]:
        if not {"read:org", "write:org", "admin:org"} & {*self._setup.scopes}:
            return ()
        groups = [each.login for each in self._pages("user/orgs", token, list[_Organization])]
        groups += [
            f"{each.organization.login}/{each.slug}" for each in self._pages("user/teams", token, list[_Team])
        ]
        return read_groups(groups)

    def _pages(self, path: str, token: str, kind: type[list[_T]]) -> list[_T]:
        found: list[_T] = []
        for page in range(1, MOST_GROUPS // _PAGE + 1):
            url = f"{self._api}/{path}?per_page={_PAGE}&page={page}"
            part = self._client.decode(self._client.read(url, token=token), kind)
            found += part
            if len(part) < _PAGE:
                break
        return found
