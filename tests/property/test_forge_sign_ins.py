"""No order of renewals, failures, logins, logouts and passing time uses a wrong token or loses a valid one."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chargehand.app.composition import App
from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.sign_in import SignIns
from chargehand.app.forge_accounts import log_out
from chargehand.core.errors import UsageError
from chargehand.forges.contract import ForgeError
from chargehand.forges.grants import OauthGrant, read_grant
from chargehand.testing.forges.oauth import FakeOauthServer

LIFE = 7_200.0
SHORTEST_PAUSE, LONGEST_PAUSE = 30.0, 300.0


class SignInMachine(RuleBasedStateMachine):
    """Processes that use one account, each with its own view of the state directory."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        file = place / ".config/chargehand/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text('[forges.lab]\nkind = "gitlab"\nurl = "https://forge.test"\n')
        environ = {"HOME": str(place), "CHARGEHAND_HOME": str(place / "state")}
        self.apps = [App(environ=environ, cwd=place, starts_workers=False) for _ in range(2)]
        self.now, self.server = 0.0, FakeOauthServer(LIFE)
        # The newest sign-in's client, "" after a logout; access tokens of other sign-ins may not be used any more.
        self.client, self.logins, self.failed_at, self.revoked = "", 0, 0.0, False
        self.log_in(0)

    def teardown(self) -> None:
        for app in self.apps:
            app.close()
        self.stack.close()

    def sign_ins(self, number: int) -> SignIns:
        app = self.apps[number]
        return SignIns(app, now=lambda: self.now, sleep=lambda _: None, connect=self.server.connect)

    def grant(self) -> OauthGrant | None:
        return read_grant(self.apps[0].credentials.get("LAB_TOKEN") or "")

    @rule(times=st.integers(0, 3))
    def lose(self, times: int) -> None:
        self.server.down = times

    @rule()
    def revoke(self) -> None:
        self.server.revoke()
        self.revoked = True

    @rule(number=st.integers(0, 1))
    def log_in(self, number: int) -> None:
        self.logins, self.failed_at, self.revoked = self.logins + 1, -LONGEST_PAUSE, False
        self.client = f"client-{self.logins}"
        entry = ForgeAccounts(self.apps[number]).entry("lab")
        secret = self.sign_ins(number).sign_in(entry, self.client, lambda _: None)
        self.apps[number].credentials.set("LAB_TOKEN", secret)

    @rule(number=st.integers(0, 1))
    def log_out(self, number: int) -> None:
        if self.client:
            log_out(self.apps[number], "lab")
        self.client = ""

    @rule(
        number=st.integers(0, 1),
        seconds=st.sampled_from([1.0, 29.0, 31.0, 500.0, LIFE - 800, LIFE - 1, LIFE, 50_000.0]),
        during=st.sampled_from(["", "log_in", "log_out"]),
    )
    def use(self, number: int, seconds: float, during: str) -> None:
        self.now += seconds
        meanwhile: dict[str, Callable[[], None]] = {
            "log_in": lambda: self.log_in(1 - number),
            "log_out": lambda: self.log_out(1 - number),
        }
        self.server.during = meanwhile.get(during)
        before, asked, down = self.grant(), self.server.asked, self.server.down
        is_paused = self.now < self.failed_at + SHORTEST_PAUSE
        token = ""
        with contextlib.suppress(ForgeError, UsageError):
            token = self.sign_ins(number).token(ForgeAccounts(self.apps[number]).entry("lab")).value
        self.server.during = None
        after = self.grant()
        assert (after.client if after else "") == self.client, "a renewal undid a login or a logout"
        assert not (is_paused and self.server.asked > asked), "a renewal that failed was repeated at once"
        if self.server.asked > asked and down:
            self.failed_at = self.now
        if before is not None and before.failure is not None and before.failure.problem == "denied":
            assert self.server.asked == asked, "a refused renewal was repeated"
        if token:
            # What is sent is of the newest sign-in, and valid, as far as the forge did not revoke it.
            assert after is not None
            assert token == after.access
            assert self.now < self.server.valid[token]
        elif after is not None:
            assert self.now >= self.server.valid[after.access], "a valid token was not used"
            is_waiting = self.now < self.failed_at + LONGEST_PAUSE
            assert is_waiting or not self.server.accepts(after), "the token was not renewed"

    @invariant()
    def the_stored_token_can_be_renewed(self) -> None:
        grant = self.grant()
        assert (grant is None) == (not self.client)
        assert grant is None or self.revoked or self.server.accepts(grant)


SignInMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSignIns = SignInMachine.TestCase
