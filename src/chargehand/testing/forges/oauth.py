"""A fake of a forge's OAuth server, without a network: it accepts a refresh token once, as the real ones do."""

from __future__ import annotations

from collections.abc import Callable

from chargehand.forges.contract import ForgeError
from chargehand.forges.grants import OauthGrant
from chargehand.forges.oauth import DeviceCode, DeviceFlow, OauthSetup


class FakeOauthServer:
    """The sign-ins of one account; `connect` opens a client, and `refreshed` counts the renewals.

    `valid` has the time at which each access token expires, `life` seconds after it was issued. The next `down`
    renewals do not reach the server. `during` is called once, while the answer to a renewal is on its way.
    """

    def __init__(self, life: float = 7_200.0) -> None:
        self.life = life
        self.valid: dict[str, float] = {}
        self.down = self.refreshed = self.asked = 0
        self.during: Callable[[], None] | None = None
        self._refresh: set[str] = set()

    def connect(self, setup: OauthSetup) -> DeviceFlow:
        """Return a client of this server."""
        return _FakeOauthClient(self, setup)

    def issue(self, setup: OauthSetup) -> OauthGrant:
        """Return the tokens of a new sign-in, which leaves earlier ones valid."""
        number, expires = len(self.valid), setup.now() + self.life
        access, refresh = f"access-{number}", f"refresh-{number}"
        self.valid[access] = expires
        self._refresh.add(refresh)
        return OauthGrant(access=access, refresh=refresh, expires=expires, client=setup.client, url=setup.url)

    def revoke(self) -> None:
        """Refuse all refresh tokens that were issued."""
        self._refresh.clear()

    def accepts(self, grant: OauthGrant) -> bool:
        """Return whether the grant can be renewed."""
        return grant.refresh in self._refresh

    def renew(self, setup: OauthSetup, grant: OauthGrant) -> OauthGrant:
        """Exchange a refresh token. Raises `ForgeError`: `unreachable` while down, `denied` for a used token."""
        self.asked += 1
        if self.down:
            self.down -= 1
            raise ForgeError("unreachable", "no connection")
        if not self.accepts(grant):
            raise ForgeError("denied", "invalid_grant")
        self._refresh.remove(grant.refresh)
        self.refreshed += 1
        made = self.issue(setup)
        during, self.during = self.during, None
        if during is not None:
            during()
        return made


class _FakeOauthClient:
    def __init__(self, server: FakeOauthServer, setup: OauthSetup) -> None:
        self._server, self._setup = server, setup

    def request_code(self) -> DeviceCode:
        return DeviceCode(device_code="code", user_code="ABCD", page=self._setup.url, seconds=60.0, interval=5.0)

    def await_grant(self, code: DeviceCode) -> OauthGrant:
        return self._server.issue(self._setup)

    def refresh(self, grant: OauthGrant) -> OauthGrant:
        return self._server.renew(self._setup, grant)
