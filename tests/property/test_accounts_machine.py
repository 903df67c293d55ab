"""Accounts, sessions, codes and tokens against a model of plain sets, with operations in any order."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.conftest import examples

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.identity import accounts, tokens
from chargehand.policy.access import ROLES, SCOPES, lock_seconds, scopes_of_role
from chargehand.reports.reading import StateReader
from chargehand.store.access_log import Actor, as_moment

NAMES = st.sampled_from(["ann", "bob"])
IDLE, LONGEST = 12 * 3600, 7 * 24 * 3600


class Account:
    def __init__(self, role: str, *, created: float) -> None:
        self.role = role
        self.created = created
        self.known: set[str] = set()
        self.password = "first"
        self.disabled = False
        self.failures = 0
        self.locked_until = 0.0


class AccountsMachine(RuleBasedStateMachine):
    """Hashes of passwords are plain words here: the cost of hashing is tested elsewhere."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.clock = SteppedClock()
        self.open()
        self.users: dict[str, Account] = {}
        # secret: user ("" for the owner), when opened, when last seen
        self.sessions: dict[str, tuple[str, float, float]] = {}
        self.closed: list[str] = []
        self.codes: dict[str, float] = {}
        self.void: list[str] = []
        # secret: user, scopes, when it ends, its id
        self.tokens: dict[str, tuple[str, tuple[str, ...], float, str]] = {}
        self.revoked: list[str] = []
        # Most failures need a person who is logged in.
        for name, role in (("ann", "operator"), ("bob", "admin")):
            self.add(name, role)
            self.log_in(name, right=True, times=1, address="")
            self.make_token(name, ["read"], 9)

    def open(self) -> None:
        environ = {"CHARGEHAND_HOME": str(self.directory / "state"), "HOME": str(self.directory)}
        self.reader = StateReader(environ=environ, cwd=self.directory, clock=self.clock)
        self.owner = accounts.owner(self.reader)

    def teardown(self) -> None:
        if hasattr(self, "reader"):
            self.reader.close()
            shutil.rmtree(self.directory)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def moment(self, seconds: float) -> str:
        return as_moment(self.clock.now() + timedelta(seconds=seconds))

    @rule(seconds=st.sampled_from([30, 61, 300, 601, 3600, 11 * 3600, 3 * 86400]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.close_expired()

    @rule(name=NAMES, role=st.sampled_from(ROLES))
    def add(self, name: str, role: str) -> None:
        if name in self.users:
            with pytest.raises(UsageError):
                accounts.create_user(self.reader, name, role=role, by=self.owner)
            return
        accounts.create_user(self.reader, name, role=role, by=self.owner)
        self.reader.store.accounts.set_password(name, "first", actor=Actor(user="test"))
        self.users[name] = Account(role, created=self.now)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name in self.users:
            accounts.remove_user(self.reader, name, by=self.owner)
            del self.users[name]
            self.close_sessions_of(name)
            for secret in [each for each, token in self.tokens.items() if token[0] == name]:
                del self.tokens[secret]
                self.revoked.append(secret)
        else:
            with pytest.raises(NotFoundError):
                accounts.remove_user(self.reader, name, by=self.owner)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), role=st.sampled_from(ROLES))
    def give_role(self, data: st.DataObject, role: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.users)))
        accounts.set_user_role(self.reader, name, role, by=self.owner)
        self.users[name].role = role

    @precondition(lambda self: self.users)
    @rule(data=st.data(), states=st.sampled_from([[True], [False], [True, False]]))
    def disable(self, data: st.DataObject, states: list[bool]) -> None:
        name = data.draw(st.sampled_from(sorted(self.users)))
        for disabled in states:
            accounts.set_user_disabled(self.reader, name, disabled, by=self.owner)
            user = self.users[name]
            user.disabled, user.failures, user.locked_until = disabled, 0, 0.0
            if disabled:
                self.close_sessions_of(name)

    @precondition(lambda self: self.users)
    @rule(data=st.data(), password=st.sampled_from(["first", "second"]))
    def give_password(self, data: st.DataObject, password: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.users)))
        self.reader.store.accounts.set_password(name, password, actor=Actor(user="test"))
        user = self.users[name]
        user.password, user.failures, user.locked_until = password, 0, 0.0
        self.close_sessions_of(name)

    @rule(
        name=NAMES,
        right=st.sampled_from([True, True, False]),
        times=st.integers(1, 6),
        address=st.sampled_from(["", "203.0.113.1", "203.0.113.2"]),
    )
    def log_in(self, name: str, right: bool, times: int, address: str) -> None:
        user = self.users.get(name)
        password = user.password if user is not None and right else "wrong"
        for _ in range(1 if right else times):
            self.log_in_once(name, password, address)

    def log_in_once(self, name: str, password: str, address: str) -> None:
        def lock(failures: int) -> str | None:
            seconds = lock_seconds(failures)
            return self.moment(seconds) if seconds else None

        attempt = self.reader.store.accounts.begin_login(name, lock=lock, address=address)
        user = self.users.get(name)
        is_locked = user is not None and user.locked_until > self.now
        # A locked account still lets its person in from the address of an earlier login; "", this machine, is
        # never one.
        if user is None or user.disabled or (is_locked and address not in user.known):
            assert attempt.password is None
            return
        assert attempt.password == user.password
        if not is_locked:
            user.failures += 1
            user.locked_until = self.now + lock_seconds(user.failures)
        if attempt.password != password:
            return
        secret = f"chs_{len(self.sessions) + len(self.closed)}"
        row = self.reader.store.grants.open_session(
            name,
            attempt=attempt,
            rehashed=None,
            digest=hashlib.sha256(secret.encode()).hexdigest(),
            expires=self.moment(IDLE),
            ends=self.moment(LONGEST),
        )
        assert row is not None
        user.failures, user.locked_until = 0, 0.0
        if address and self.now > user.created:
            user.known.add(address)
        self.sessions[secret] = (name, self.now, self.now)

    @rule()
    def make_code(self) -> None:
        self.void += self.codes  # a new code replaces the older ones
        self.codes = {accounts.create_login_code(self.reader).secret: self.now + 600}

    @precondition(lambda self: self.codes or self.void)
    @rule(data=st.data())
    def redeem(self, data: st.DataObject) -> None:
        code = data.draw(st.sampled_from([*self.codes, *self.void]))
        if self.codes.get(code, 0.0) <= self.now:
            with pytest.raises(RefusedError):
                accounts.redeem_login_code(self.reader, code)
        else:
            secret = accounts.redeem_login_code(self.reader, code).secret
            self.sessions[secret] = ("", self.now, self.now)
            del self.codes[code]
            self.void.append(code)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        secret = data.draw(st.sampled_from(list(self.sessions)))
        accounts.close_session(self.reader, secret, by=self.owner)
        del self.sessions[secret]
        self.closed.append(secret)

    @rule(name=NAMES | st.none(), scopes=st.lists(st.sampled_from(SCOPES), min_size=1), days=st.integers(1, 9))
    def make_token(self, name: str | None, scopes: list[str], days: int) -> None:
        user = None if name is None else self.users.get(name)
        allowed = SCOPES if name is None else () if user is None else scopes_of_role(user.role)  # type: ignore[arg-type]
        whole = set(scopes) <= set(allowed)
        try:
            made = tokens.create_token(self.reader, "t", scopes=tuple(scopes), user=name, days=days, by=self.owner)
        except UsageError:  # also catches `NotFoundError`
            assert not whole
            return
        assert whole
        self.tokens[made.secret] = (name or "", made.token.scopes, self.now + days * 86400, made.token.id)

    @precondition(lambda self: self.tokens)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        secret = data.draw(st.sampled_from(list(self.tokens)))
        tokens.revoke_token(self.reader, self.tokens.pop(secret)[3], by=self.owner)
        self.revoked.append(secret)

    @rule()
    def reopen(self) -> None:
        self.reader.close()
        self.open()

    def close_sessions_of(self, name: str) -> None:
        for secret in [each for each, session in self.sessions.items() if session[0] == name]:
            del self.sessions[secret]
            self.closed.append(secret)

    @rule()
    def use_sessions(self) -> None:
        for secret, (name, opened, seen) in self.sessions.items():
            found = accounts.resolve_session(self.reader, secret)
            assert found is not None
            assert found.user == (name or self.owner.user)
            assert found.role == (self.users[name].role if name else "admin")
            if self.now >= seen + 60:  # a use within a minute is not recorded
                self.sessions[secret] = (name, opened, self.now)

    def close_expired(self) -> None:
        for secret, (_, opened, seen) in list(self.sessions.items()):
            if self.now >= min(seen + IDLE, opened + LONGEST):
                del self.sessions[secret]
                self.closed.append(secret)

    @invariant()
    def what_is_void_stays_void(self) -> None:
        if not hasattr(self, "reader"):
            return
        assert all(accounts.resolve_session(self.reader, secret) is None for secret in self.closed)
        assert all(tokens.resolve_token(self.reader, secret) is None for secret in self.revoked)
        for secret, (name, scopes, ends, _) in self.tokens.items():
            found = tokens.resolve_token(self.reader, secret)
            if self.now >= ends or (name and self.users[name].disabled):
                assert found is None
            else:
                assert found is not None
                assert found.scopes == scopes
                assert found.role == (self.users[name].role if name else "admin")

    @invariant()
    def rows_are_as_they_were_written(self) -> None:
        if hasattr(self, "reader"):
            assert list(self.reader.store.grants.problems(roles=ROLES)) == []
            shown = {row.name: row for row in accounts.list_users(self.reader, by=self.owner).users}
            assert set(shown) == set(self.users)
            for name, user in self.users.items():
                assert (shown[name].locked_until is not None) == (user.locked_until > self.now)


TestAccountsMachine = AccountsMachine.TestCase
TestAccountsMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
