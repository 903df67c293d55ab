"""No order of renewals, lost answers and passing time signs an account out, unless the forge revoked it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from chargehand.app.composition import App
from chargehand.app.forge.accounts import ForgeAccounts
from chargehand.app.forge.sign_in import SignIns
from chargehand.forges.contract import ForgeError
from chargehand.forges.grants import OauthGrant, read_grant, write_grant
from chargehand.forges.oauth import OauthClient

LIFE = 7_200.0


class OauthModel:
    """A forge's sign-ins in memory: `valid` has the access tokens with their ends, `refresh` the one accepted."""

    def __init__(self) -> None:
        self.made, self.refresh, self.revoked = 0, "r0", False
        self.failures = 0  # of the next renewals, before the forge sees them
        self.valid = {"a0": LIFE}

    def answer(self, grant: OauthGrant, now: float) -> OauthGrant:
        """Renew a grant, as the client does."""
        if self.failures:
            self.failures -= 1
            raise ForgeError("unreachable", "no connection")
        if self.revoked or grant.refresh != self.refresh:
            raise ForgeError("denied", "invalid_grant")
        self.made += 1
        access, self.refresh = f"a{self.made}", f"r{self.made}"
        self.valid[access] = now + LIFE
        return OauthGrant(
            access=access, refresh=self.refresh, expires=now + LIFE, client=grant.client, url=grant.url
        )


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
        self.now, self.forge = 0.0, OauthModel()
        first = OauthGrant(access="a0", refresh="r0", expires=LIFE, client="c", url="https://forge.test")
        self.apps[0].credentials.set("LAB_TOKEN", write_grant(first))

    def teardown(self) -> None:
        for app in self.apps:
            app.close()
        self.stack.close()

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Let clients ask the model."""
        usual = OauthClient.refresh
        OauthClient.refresh = lambda _, grant: self.forge.answer(grant, self.now)  # type: ignore[method-assign]
        try:
            yield
        finally:
            OauthClient.refresh = usual  # type: ignore[method-assign]

    @rule(seconds=st.sampled_from([1.0, 500.0, 3_000.0, LIFE - 800, LIFE - 1, LIFE, 50_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(times=st.integers(0, 3))
    def lose(self, times: int) -> None:
        self.forge.failures = times

    @rule()
    def revoke(self) -> None:
        self.forge.revoked = True

    @rule(number=st.integers(0, 1))
    def use(self, number: int) -> None:
        app = self.apps[number]
        sign_ins = SignIns(app, now=lambda: self.now, sleep=lambda _: None)
        down = self.forge.failures > 0
        token = ""
        with self.renewing(), contextlib.suppress(ForgeError):
            token = sign_ins.token(ForgeAccounts(app).entry("lab")).value
        if not token:
            assert down or self.forge.revoked
            assert all(end <= self.now for end in self.forge.valid.values()), "a valid token was not used"
            return
        # What is sent is valid, as far as the forge did not revoke it.
        assert self.now < self.forge.valid[token]

    @invariant()
    def the_stored_token_can_be_renewed(self) -> None:
        grant = read_grant(self.apps[0].credentials.get("LAB_TOKEN") or "")
        assert grant is not None
        assert grant.refresh == self.forge.refresh


SignInMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSignIns = SignInMachine.TestCase
