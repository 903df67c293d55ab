"""The sign-in of a GitHub App: a signed claim of the App, exchanged for tokens of its installations.

An installation's token is asked for one repository alone, and is valid for an hour.
"""

from __future__ import annotations

import base64
import email.utils
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from chargehand.core.errors import UsageError
from chargehand.forges._rest import RestClient, encode, repository_path
from chargehand.forges.addresses import github_api
from chargehand.forges.contract import ForgeAccount, ForgeError, ForgeSetup
from chargehand.network.http_client import WebClient, WebError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

# GitHub accepts ten minutes at most, and no claim from its future: a clock may be a minute fast.
_BACK_SECONDS, _CLAIM_SECONDS = 60, 540
_LARGEST_SKEW = 30.0
NEEDED: Mapping[str, str] = {
    "contents": "write",
    "issues": "write",
    "pull_requests": "write",
    "statuses": "write",
    "checks": "read",
    "actions": "read",
}
"""The least permissions of an App, by GitHub's names."""


class AppInstallation(Struct, frozen=True):
    """An installation of the App in an account."""

    id: int
    app_slug: str = ""
    suspended_at: str | None = None


class AppTokenReply(Struct, frozen=True):
    """A new token with its permissions; it expires by GitHub's clock."""

    token: str
    expires_at: datetime
    permissions: dict[str, str] = {}


class InstallationToken(Struct, frozen=True):
    """A token with its account; valid for `seconds` from now."""

    token: str
    account: ForgeAccount
    seconds: float

    def __repr__(self) -> str:
        return f"InstallationToken({self.account.login!r}, …)"


class AppSignIn:
    """Signs in as the App `app`, its id or client id, with its private key in PEM."""

    def __init__(self, setup: ForgeSetup, app: str, key: bytes, *, now: Callable[[], float] = time.time) -> None:
        self._setup, self._app, self._now = setup, app, now
        self._base = github_api(setup.url, setup.api)
        self._key = _load_key(key)
        self._skew = 0.0  # of GitHub's clock against ours, known once it refused a claim

    def request_token(self, repository: str, *, installation: int | None = None) -> InstallationToken:
        """Return a token for one repository, or for the whole installation if `repository` is "".

        Raises `ForgeError`: `denied` for a wrong App or key, `missing` if it is not installed, `forbidden` if
        the installation is suspended.
        """
        try:
            return self._request(repository, installation)
        except ForgeError as error:
            if error.problem != "denied":
                raise
            skew = self._read_skew()
            if abs(skew) < _LARGEST_SKEW:
                hint = "check the App's id, and that its private key was not deleted at GitHub"
                raise ForgeError("denied", error.message, hint=hint) from None
            self._skew = skew
        return self._request(repository, installation)

    def _request(self, repository: str, installation: int | None) -> InstallationToken:
        claim = _sign_claim(self._key, self._app, int(self._now() + self._skew))
        headers = {"accept": "application/vnd.github+json", "authorization": f"Bearer {claim}"}
        rest = RestClient(msgspec.structs.replace(self._setup, token=claim), self._base, headers)
        try:
            found = self._find(rest, repository, installation)
            body = {"repositories": [repository.partition("/")[2]]} if repository else {}
            path = f"/app/installations/{found.id}/access_tokens"
            try:
                reply = rest.send_change("POST", path, encode(body), "application/json")
            except ForgeError as error:
                if error.problem == "refused":  # 422: the installation has other repositories only
                    raise self._not_installed(repository, found.app_slug) from None
                raise
            made: AppTokenReply = rest.decode(reply, AppTokenReply)
            sent = reply.headers.get("date", "")
            server = email.utils.parsedate_to_datetime(sent).timestamp() if sent else self._now()
            lacks = tuple(
                f"{name}: {level}"
                for name, level in NEEDED.items()
                if made.permissions.get(name) not in ("write", "admin", level)
            )
            account = ForgeAccount(login=f"{found.app_slug}[bot]", lacks=lacks)
            return InstallationToken(made.token, account, made.expires_at.timestamp() - server)
        finally:
            rest.close()

    def _find(self, rest: RestClient, repository: str, installation: int | None) -> AppInstallation:
        try:
            if installation is not None:
                found = rest.read(f"/app/installations/{installation}", AppInstallation, fresh=True)
            elif repository:
                path = f"/repos/{repository_path(repository)}/installation"
                found = rest.read(path, AppInstallation, fresh=True)
            else:
                listed: list[AppInstallation] = list(rest.pages("/app/installations", AppInstallation))
                if not listed:
                    raise self._not_installed("", "")
                found = listed[0]
        except ForgeError as error:
            if error.problem != "missing":
                raise
            raise self._not_installed(repository, "") from None
        if found.suspended_at:
            raise ForgeError(
                "forbidden",
                f"the installation of the App {found.app_slug} is suspended",
                hint=f"unsuspend it at {self._setup.url}/settings/installations",
            )
        return found

    def _not_installed(self, repository: str, slug: str) -> ForgeError:
        place = f"/apps/{slug}/installations/new" if slug else "/settings/apps"
        message = f"the App {slug or self._app} is not installed for {repository or 'any account'}"
        return ForgeError("missing", message, hint=f"install it at {self._setup.url}{place}")

    def _read_skew(self) -> float:
        try:
            with WebClient(
                headers={"user-agent": "chargehand"}, seconds=30.0, authority=self._setup.authority
            ) as http:
                sent = http.send("GET", self._base).headers.get("date", "")
            return email.utils.parsedate_to_datetime(sent).timestamp() - self._now()
        except (WebError, ValueError, TypeError):
            return 0.0


def _sign_claim(key: RSAPrivateKey, app: str, now: int) -> str:
    """Return a JSON Web Token (RFC 7519) by which GitHub knows the App."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    head = {"alg": "RS256", "typ": "JWT"}
    body = {"iat": now - _BACK_SECONDS, "exp": now + _CLAIM_SECONDS, "iss": app}
    signed = b".".join(_base64(msgspec.json.encode(part)) for part in (head, body))
    return (signed + b"." + _base64(key.sign(signed, PKCS1v15(), SHA256()))).decode()


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _load_key(content: bytes) -> RSAPrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    # Without the error's text, which may repeat a part of the file.
    if not isinstance(key, RSAPrivateKey):
        raise UsageError(
            "the private key of the App is not an RSA key in PEM without a passphrase",
            code="forge_key",
            hint="generate a new one on the App's page, and keep the file that you get",
        )
    return key
