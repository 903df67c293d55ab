"""The OAuth device flow (RFC 8628), for machines without a browser, and the renewal of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from chargehand.core.codec import decode_as
from chargehand.core.text import printable
from chargehand.forges.contract import DeviceEndpoints, ForgeError, ForgeProblem
from chargehand.forges.grants import OauthGrant
from chargehand.network.http_client import WebClient, WebError

_SILENCE_SECONDS = 30.0
_LARGEST_REPLY = 1 << 20
# RFC 8628, section 3.5: so much longer after `slow_down`. A forge that is down is asked ever less often.
_SLOWER_SECONDS, _LONGEST_INTERVAL = 5.0, 60.0
_REFRESH_PAUSES = (1.0, 3.0)
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_PENDING = ("authorization_pending", "slow_down")
# The names that GitHub and the RFCs give to a token or code that ended or was used.
_ENDED = ("invalid_grant", "bad_refresh_token", "expired_token", "incorrect_device_code", "access_denied")


class DeviceCode(Struct, frozen=True, kw_only=True):
    """A code that a person types at `page` within `seconds`; `interval` is in seconds."""

    device_code: str
    user_code: str
    page: str
    seconds: float
    interval: float

    def __repr__(self) -> str:
        return f"DeviceCode({self.page!r}, …)"


class OauthReply(Struct, frozen=True):
    """The fields of all answers; a forge leaves out those that do not belong."""

    access_token: str = ""
    refresh_token: str | None = None
    expires_in: float | None = None
    device_code: str = ""
    user_code: str = ""
    verification_uri: str = ""
    interval: float | None = None
    error: str = ""
    error_description: str | None = None


class OauthSetup(Struct, frozen=True, kw_only=True):
    """The parameters of a client: `url` is the address of the forge's pages, `client` its public id.

    `authority` is a file of certificates to trust in addition. `sleep` waits; `now` returns seconds since 1970.
    """

    url: str
    endpoints: DeviceEndpoints
    client: str
    authority: Path | None = None
    sleep: Callable[[float], None]
    now: Callable[[], float]


class DeviceFlow(Protocol):
    """The sign-in of a public client, without a client secret. Every method raises `ForgeError`."""

    def request_code(self) -> DeviceCode:
        """Return a new code for a person to type."""
        ...

    def await_grant(self, code: DeviceCode) -> OauthGrant:
        """Wait until a person has granted the code. Raises `ForgeError` (`denied`) if it expired or was denied."""
        ...

    def refresh(self, grant: OauthGrant) -> OauthGrant:
        """Exchange the refresh token, which a forge accepts once. Raises `ForgeError` (`denied`) if refused."""
        ...


class OauthClient:
    """The device flow over HTTP."""

    def __init__(self, setup: OauthSetup) -> None:
        self._setup = setup

    def request_code(self) -> DeviceCode:
        """Return a new code for a person to type."""
        setup = self._setup
        fields = {"client_id": setup.client, "scope": " ".join(setup.endpoints.scopes)}
        reply = self._post(setup.endpoints.start, fields)
        if not (reply.device_code and reply.user_code and reply.verification_uri):
            raise self._refusal(reply)
        return DeviceCode(
            device_code=reply.device_code,
            user_code=printable(reply.user_code),
            page=printable(reply.verification_uri),
            seconds=reply.expires_in or 900.0,
            interval=reply.interval or 5.0,
        )

    def await_grant(self, code: DeviceCode) -> OauthGrant:
        """Wait until a person has granted the code. Raises `ForgeError` (`denied`) if it expired or was denied."""
        setup, interval, end = self._setup, code.interval, self._setup.now() + code.seconds
        fields = {"client_id": setup.client, "device_code": code.device_code, "grant_type": _DEVICE_GRANT}
        while setup.now() < end:
            setup.sleep(interval)
            try:
                reply = self._post(setup.endpoints.token, fields)
            except ForgeError as error:
                if not error.is_transient:
                    raise
                interval = min(interval * 2, _LONGEST_INTERVAL)
                continue
            if reply.access_token:
                return self._grant(reply)
            if reply.error not in _PENDING:
                raise self._refusal(reply)
            if reply.error == "slow_down":
                # GitHub names the new interval, which already is the longer one.
                interval = max(reply.interval or 0.0, interval + _SLOWER_SECONDS)
        raise self._refusal(OauthReply(error="expired_token"))

    def refresh(self, grant: OauthGrant) -> OauthGrant:
        """Exchange the refresh token, which a forge accepts once; a lost answer is asked for again."""
        fields = {
            "client_id": self._setup.client,
            "grant_type": "refresh_token",
            "refresh_token": grant.refresh,
        }
        for pause in (*_REFRESH_PAUSES, None):
            try:
                reply = self._post(self._setup.endpoints.token, fields)
            except ForgeError as error:
                if pause is None or not error.is_transient:
                    raise
                self._setup.sleep(pause)
                continue
            if not reply.access_token:
                raise self._refusal(reply)
            made = self._grant(reply)
            return made if made.refresh else msgspec.structs.replace(made, refresh=grant.refresh)
        raise AssertionError("unreachable")

    def _grant(self, reply: OauthReply) -> OauthGrant:
        expires = None if reply.expires_in is None else self._setup.now() + reply.expires_in
        return OauthGrant(
            access=reply.access_token,
            refresh=reply.refresh_token or "",
            expires=expires,
            client=self._setup.client,
            url=self._setup.url,
        )

    def _post(self, path: str, fields: Mapping[str, str]) -> OauthReply:
        """Send a form; an error of the protocol is an ordinary answer."""
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        host = urlsplit(self._setup.url).netloc
        try:
            with WebClient(
                headers={"user-agent": "chargehand"},
                seconds=_SILENCE_SECONDS,
                largest=_LARGEST_REPLY,
                authority=self._setup.authority,
            ) as http:
                address = self._setup.url + path
                reply = http.send("POST", address, content=urlencode(fields).encode(), headers=headers)
        except WebError as error:
            hint = "name the file of its authority" if error.problem == "certificate" else ""
            is_lasting = error.problem in ("certificate", "invalid", "too_large")
            problem: ForgeProblem = "invalid" if is_lasting else "unreachable"
            raise ForgeError(problem, f"{host}: {error}", hint=hint) from None
        if reply.status in (404, 405) or 300 <= reply.status < 400:
            hint = "check the client id, and that its application has the device flow enabled"
            raise ForgeError("missing", f"{host} has no device flow for this client", hint=hint)
        if reply.status == 429 or reply.status >= 500:
            raise ForgeError("broken", f"{host}: POST {path} was answered with {reply.status}")
        try:
            return decode_as(reply.content, OauthReply)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # Not the answer itself, which may contain a token.
            raise ForgeError("invalid", f"{host}: POST {path} was answered with no OAuth document") from None

    def _refusal(self, reply: OauthReply) -> ForgeError:
        host = urlsplit(self._setup.url).netloc
        reasons = {
            "access_denied": "the sign-in was denied at the forge",
            "expired_token": "the code has expired",
        }
        said = printable(reply.error_description or reply.error or "it sent no token").replace("\n", " ")[:200]
        if reply.error in _ENDED:
            return ForgeError("denied", f"{host}: {reasons.get(reply.error, said)}", hint="sign in again")
        hint = "check the client id, and that its application has the device flow enabled"
        return ForgeError("invalid", f"{host} refuses the sign-in: {said}", hint=hint)
