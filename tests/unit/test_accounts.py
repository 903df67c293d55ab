"""Accounts, logins, sessions and tokens: permitted and refused access."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import NotFoundError, RefusedError, UsageError
from chargehand.identity import accounts, tokens
from chargehand.identity.accounts import Caller
from chargehand.policy.access import ROLES, SCOPES
from chargehand.reports.reading import StateReader

HASH = "$argon2id$v=19$m=65536,t=3,p=4$QP+RjXu7vQXFtV5DfzCHag$N1Q10lZ+xMLkV7WLeCgkUMcXPlb8Lz8l0jBz5wXf93U"

PASSWORD, OTHER = "correct horse battery", "staple staple staple"
MINUTE, HOUR, DAY = 60, 3600, 86400


class Opened:
    """A state directory with a clock that a test moves."""

    def __init__(self, place: Path) -> None:
        self.clock = SteppedClock()
        environ = {"CHARGEHAND_HOME": str(place / "state"), "HOME": str(place)}
        self.reader = StateReader(environ=environ, cwd=place, clock=self.clock)
        self.owner = accounts.owner(self.reader)

    def add(self, name: str = "ann", role: str = "operator", password: str | None = PASSWORD) -> None:
        accounts.create_user(self.reader, name, role=role, password=password, by=self.owner)

    def log_in(self, name: str = "ann", password: str = PASSWORD) -> accounts.OpenedSession:
        return accounts.log_in(self.reader, name, password, address="192.0.2.1")

    def fails(self, name: str = "ann", password: str = OTHER) -> RefusedError:
        with pytest.raises(RefusedError) as caught:
            self.log_in(name, password)
        assert caught.value.code == "login_failed"
        return caught.value

    def session(self, secret: str) -> Caller | None:
        return accounts.resolve_session(self.reader, secret)

    def log(self) -> list[tuple[str, str, str, str]]:
        entries = accounts.list_access(self.reader, by=self.owner).entries
        return [(row.actor, row.action, row.subject, row.outcome) for row in reversed(entries)]

    def raw(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.reader.home / "store.db")) as connection:
            connection.execute(statement, values)
            connection.commit()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path)
    yield made
    made.reader.close()


def test_a_login_opens_a_session_with_the_current_role(opened: Opened) -> None:
    opened.add()
    session = opened.log_in()
    assert session.caller.user == "ann"
    assert session.caller.scopes == SCOPES
    found = opened.session(session.secret)
    assert found is not None
    assert found.role == "operator"
    accounts.set_user_role(opened.reader, "ann", "viewer", by=opened.owner)
    found = opened.session(session.secret)
    assert found is not None
    assert found.role == "viewer"
    document = accounts.session_document(opened.reader, found)
    assert (document.user, document.role, document.accounts) == ("ann", "viewer", True)


def test_each_login_opens_a_new_session_and_ends_the_replaced_session(opened: Opened) -> None:
    opened.add()
    first = opened.log_in()
    second = accounts.log_in(opened.reader, "ann", PASSWORD, replaces=first.secret)
    assert second.secret != first.secret
    assert opened.session(first.secret) is None
    assert opened.session(second.secret) is not None
    accounts.close_session(opened.reader, second.secret, by=second.caller)
    accounts.close_session(opened.reader, second.secret, by=second.caller)
    assert opened.session(second.secret) is None


def test_an_idle_session_expires_and_a_used_session_lasts_seven_days(opened: Opened) -> None:
    opened.add()
    idle, used = opened.log_in(), opened.log_in()
    for _ in range(15):
        opened.clock.advance(11 * HOUR)
        assert opened.session(used.secret) is not None
    assert opened.session(idle.secret) is None
    opened.clock.advance(2 * HOUR)  # 167 h have passed
    last = opened.session(used.secret)
    assert last is not None
    assert last.expires == "2026-01-08T00:00:00.000000+00:00"
    opened.clock.advance(HOUR)
    assert opened.session(used.secret) is None


def test_sessions_and_tokens_are_valid_if_their_use_cannot_be_stored(opened: Opened) -> None:
    """On a full disk, for example: the person who comes to free it must not be locked out."""
    opened.add()
    session = opened.log_in()
    token = tokens.create_token(opened.reader, "t", scopes=("read",), by=opened.owner).secret
    for table in ("web_sessions", "api_tokens"):
        refuse = "BEGIN SELECT RAISE(ABORT, 'full'); END"
        opened.raw(f"CREATE TRIGGER {table}_full BEFORE UPDATE ON {table} {refuse}")
    opened.clock.advance(2 * MINUTE)
    assert opened.session(session.secret) is not None
    assert tokens.resolve_token(opened.reader, token) is not None
    opened.clock.advance(12 * HOUR)
    assert opened.session(session.secret) is None


@pytest.mark.parametrize("end", ["disable", "password", "remove", "own"])
def test_disabling_removal_and_password_changes_end_all_sessions_of_a_user(opened: Opened, end: str) -> None:
    opened.add()
    opened.add("bob")
    sessions = [opened.log_in(), opened.log_in()]
    other = opened.log_in("bob")
    mine = accounts.redeem_login_code(opened.reader, accounts.create_login_code(opened.reader).secret)
    match end:
        case "disable":
            accounts.set_user_disabled(opened.reader, "ann", True, by=opened.owner)
            opened.fails(password=PASSWORD)
            accounts.set_user_disabled(opened.reader, "ann", False, by=opened.owner)
        case "password":
            accounts.set_user_password(opened.reader, "ann", OTHER, by=opened.owner)
        case "own":
            accounts.change_own_password(opened.reader, PASSWORD, OTHER, by=sessions[0].caller)
        case _:
            accounts.remove_user(opened.reader, "ann", by=opened.owner)
            opened.add()
    assert [opened.session(each.secret) for each in sessions] == [None, None]
    assert opened.session(other.secret) is not None
    assert opened.session(mine.secret) is not None
    assert opened.log_in(password=OTHER if end in ("password", "own") else PASSWORD)


def test_wrong_unknown_locked_and_disabled_look_the_same(opened: Opened) -> None:
    opened.add()
    opened.add("off")
    opened.add("bot", password=None)
    accounts.set_user_disabled(opened.reader, "off", True, by=opened.owner)
    said = {
        (error.message, error.hint)
        for error in (
            opened.fails(),
            opened.fails("nobody", PASSWORD),
            opened.fails("off", PASSWORD),
            opened.fails("bot", ""),
            opened.fails("", ""),
            opened.fails("ann'--", "\ud800" * 3000),
        )
    }
    assert len(said) == 1


def test_a_lock_holds_against_the_right_password_grows_and_ends(opened: Opened) -> None:
    opened.add()
    for minutes in (1, 2):
        for _ in range(5 if minutes == 1 else 1):
            opened.fails()
        (shown,) = accounts.list_users(opened.reader, by=opened.owner).users
        assert shown.locked_until is not None
        opened.clock.advance(minutes * MINUTE - 1)
        opened.fails(password=PASSWORD)
        opened.clock.advance(1)
    assert opened.log_in()
    (shown,) = accounts.list_users(opened.reader, by=opened.owner).users
    assert shown.locked_until is None
    for _ in range(4):  # counted from zero again
        opened.fails()
    assert opened.log_in()


def test_many_at_once_are_not_many_guesses(opened: Opened) -> None:
    opened.add()
    store = opened.reader.store
    begun = []

    def begin() -> None:
        begun.append(store.accounts.begin_login("ann", lock=lambda n: "9999" if n >= 5 else None, address=""))

    threads = [threading.Thread(target=begin) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(attempt.password is not None for attempt in begun) == 5


def test_an_account_that_changes_during_the_comparison_is_not_opened(opened: Opened) -> None:
    opened.add()
    store = opened.reader.store
    for change in (
        lambda: accounts.set_user_password(opened.reader, "ann", OTHER, by=opened.owner),
        lambda: accounts.set_user_disabled(opened.reader, "ann", True, by=opened.owner),
    ):
        attempt = store.accounts.begin_login("ann", lock=lambda n: None, address="")
        assert attempt.password is not None
        change()
        row = store.grants.open_session(
            "ann", attempt=attempt, rehashed=None, digest="d" * 64, expires="9999", ends="9999"
        )
        assert row is None


def test_a_code_is_used_once_within_ten_minutes(opened: Opened) -> None:
    code = accounts.create_login_code(opened.reader).secret
    session = accounts.redeem_login_code(opened.reader, code, address="127.0.0.1")
    assert (session.caller.user, session.caller.role) == (opened.owner.user, "admin")
    found = opened.session(session.secret)
    assert found is not None
    assert not accounts.session_document(opened.reader, found).accounts
    late = accounts.create_login_code(opened.reader).secret
    opened.clock.advance(10 * MINUTE)
    for wrong in (code, late, "", "x", session.secret):
        with pytest.raises(RefusedError) as caught:
            accounts.redeem_login_code(opened.reader, wrong)
        assert caught.value.code == "login_failed"


def test_a_login_code_redeemed_concurrently_opens_only_one_session(opened: Opened) -> None:
    code = accounts.create_login_code(opened.reader).secret
    got_in: list[str] = []

    def redeem() -> None:
        with suppress(RefusedError):
            got_in.append(accounts.redeem_login_code(opened.reader, code).secret)

    threads = [threading.Thread(target=redeem) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got_in) == 1
    assert [outcome for *_, outcome in opened.log()].count("refused") == 7


def test_a_token_resolves_until_revoked_or_its_user_is_disabled(opened: Opened) -> None:
    opened.add()
    made = tokens.create_token(opened.reader, "ci", scopes=("steer", "read"), user="ann", days=2, by=opened.owner)
    assert made.secret.startswith("chg_")
    caller = tokens.resolve_token(opened.reader, made.secret)
    assert caller is not None
    assert (caller.user, caller.role, caller.scopes) == ("ann", "operator", ("read", "steer"))
    (listed,) = tokens.list_tokens(opened.reader, by=opened.owner).tokens
    assert (listed.id, listed.last_used) == (made.token.id, "2026-01-01T00:00:00.000000+00:00")
    accounts.set_user_disabled(opened.reader, "ann", True, by=opened.owner)
    assert tokens.resolve_token(opened.reader, made.secret) is None
    accounts.set_user_disabled(opened.reader, "ann", False, by=opened.owner)
    assert tokens.resolve_token(opened.reader, made.secret) is not None
    for wrong in ("", "chg_", made.secret[:-1], made.secret[4:], made.secret.upper()):
        assert tokens.resolve_token(opened.reader, wrong) is None
    assert tokens.revoke_token(opened.reader, made.token.id, by=opened.owner).revoked is not None
    assert tokens.resolve_token(opened.reader, made.secret) is None


def test_a_token_expires(opened: Opened) -> None:
    made = tokens.create_token(opened.reader, "mine", scopes=SCOPES, days=1, by=opened.owner)
    opened.clock.advance(DAY - 1)
    caller = tokens.resolve_token(opened.reader, made.secret)
    assert caller is not None
    assert (caller.user, caller.role, caller.scopes) == (opened.owner.user, "admin", SCOPES)
    opened.clock.advance(1)
    assert tokens.resolve_token(opened.reader, made.secret) is None


def test_a_new_user_with_a_removed_name_inherits_no_tokens(opened: Opened) -> None:
    opened.add(role="admin")
    made = tokens.create_token(opened.reader, "t", scopes=("read",), user="ann", by=opened.owner)
    accounts.remove_user(opened.reader, "ann", by=opened.owner)
    opened.add(role="viewer")
    assert tokens.resolve_token(opened.reader, made.secret) is None
    assert tokens.list_tokens(opened.reader, by=opened.owner).tokens == ()


def token_caller(opened: Opened, *scopes: str, user: str = "ann") -> Caller:
    made = tokens.create_token(opened.reader, "t", scopes=scopes, user=user, by=opened.owner)
    caller = tokens.resolve_token(opened.reader, made.secret, address="192.0.2.7")
    assert caller is not None
    return caller


def test_a_token_cannot_have_more_scopes_than_its_creator(opened: Opened) -> None:
    opened.add(role="viewer")
    opened.add("root", role="admin")
    viewer = opened.log_in().caller
    with pytest.raises(UsageError) as caught:
        tokens.create_token(opened.reader, "t", scopes=("read", "steer"), by=viewer)
    assert caught.value.code == "token_invalid"
    assert tokens.create_token(opened.reader, "t", scopes=("read",), by=viewer).token.user == "ann"
    reads = token_caller(opened, "read", user="root")
    with pytest.raises(RefusedError):
        tokens.create_token(opened.reader, "t", scopes=("read",), by=reads)
    administers = token_caller(opened, "administer", user="root")
    with pytest.raises(UsageError):
        tokens.create_token(opened.reader, "t", scopes=("decide",), by=administers)
    for scopes in ((), ("all",), ("read", "")):
        with pytest.raises(UsageError):
            tokens.create_token(opened.reader, "t", scopes=scopes, by=opened.owner)


def test_only_administrators_may_change_other_users(opened: Opened) -> None:
    opened.add()
    opened.add("bob")
    theirs = tokens.create_token(opened.reader, "t", scopes=("read",), user="bob", by=opened.owner).token.id
    before = accounts.list_users(opened.reader, by=opened.owner)
    reader, operator = opened.reader, opened.log_in().caller
    for ask in (
        lambda: accounts.create_user(reader, "eve", role="admin", by=operator),
        lambda: accounts.list_users(reader, by=operator),
        lambda: accounts.find_user(reader, "bob", by=operator),
        lambda: accounts.set_user_role(reader, "ann", "admin", by=operator),
        lambda: accounts.set_user_password(reader, "bob", OTHER, by=operator),
        lambda: accounts.set_user_disabled(reader, "bob", True, by=operator),
        lambda: accounts.set_user_disabled(reader, "bob", False, by=operator),
        lambda: accounts.remove_user(reader, "bob", by=operator),
        lambda: tokens.list_tokens(reader, by=operator),
        lambda: tokens.list_tokens(reader, user="bob", by=operator),
        lambda: tokens.create_token(reader, "t", scopes=("read",), user="bob", by=operator),
        lambda: tokens.revoke_token(reader, theirs, by=operator),
        lambda: tokens.revoke_token(reader, "t-unknown", by=operator),
        lambda: accounts.list_access(reader, by=operator),
    ):
        with pytest.raises(RefusedError) as caught:
            ask()
        assert caught.value.code == "access_denied"
        assert opened.log()[-1][0::3] == ("ann", "refused")
    assert accounts.list_users(opened.reader, by=opened.owner) == before
    own = tokens.create_token(reader, "mine", scopes=("read",), by=operator).token
    assert tokens.list_tokens(reader, user="ann", by=operator).tokens == (own,)
    assert tokens.revoke_token(reader, own.id, by=operator).revoked


def test_invalid_users_passwords_roles_and_tokens_are_refused(opened: Opened) -> None:
    opened.add()
    for name in ("", "Ann", "os:root", "a b", "-a", "a" * 65, "é", "a\n"):
        with pytest.raises(UsageError) as caught:
            opened.add(name)
        assert caught.value.code == "user_invalid"
    for password in ("", "short", "x" * 1025):
        with pytest.raises(UsageError) as caught:
            opened.add("bob", password=password)
        assert caught.value.code == "password_weak"
        assert not password or password not in caught.value.message
    with pytest.raises(UsageError):
        opened.add("a-long-user-name", password="A-Long-User-Name")
    with pytest.raises(UsageError, match="user 'ann' already exists"):
        opened.add()
    with pytest.raises(UsageError, match="'boss' is not a role"):
        accounts.set_user_role(opened.reader, "ann", "boss", by=opened.owner)
    for ask in (
        lambda: accounts.set_user_role(opened.reader, "anne", "admin", by=opened.owner),
        lambda: accounts.set_user_password(opened.reader, "anne", OTHER, by=opened.owner),
        lambda: accounts.set_user_disabled(opened.reader, "anne", True, by=opened.owner),
        lambda: accounts.remove_user(opened.reader, "anne", by=opened.owner),
        lambda: tokens.create_token(opened.reader, "t", scopes=("read",), user="anne", by=opened.owner),
        lambda: tokens.revoke_token(opened.reader, "t-1", by=opened.owner),
    ):
        with pytest.raises(NotFoundError):
            ask()
    for name, days in (("", 1), ("a\nb", 1), ("x" * 101, 1), ("t", 0), ("t", 3651)):
        with pytest.raises(UsageError) as caught:
            tokens.create_token(opened.reader, name, scopes=("read",), days=days, by=opened.owner)
        assert caught.value.code == "token_invalid"


def test_the_access_log_records_users_and_actions_without_secrets(opened: Opened) -> None:
    opened.add()
    opened.fails()
    opened.fails("my-password-by-mistake")
    session = opened.log_in()
    accounts.change_own_password(opened.reader, PASSWORD, OTHER, by=session.caller)
    owner = opened.owner.user
    assert opened.log() == [
        (owner, "user.create", "ann (operator)", "done"),
        ("", "session.open", "ann", "refused"),
        ("", "session.open", "", "refused"),
        ("ann", "session.open", "ann", "done"),
        ("ann", "user.password", "ann", "done"),
    ]
    (last,) = accounts.list_access(opened.reader, by=opened.owner, limit=1).entries
    assert last.address == "192.0.2.1"
    page = accounts.list_access(opened.reader, by=opened.owner, limit=2)
    rest = accounts.list_access(opened.reader, by=opened.owner, limit=9, before=page.next)
    assert [row.seq for row in (*page.entries, *rest.entries)] == [5, 4, 3, 2, 1]
    assert rest.next is None


def test_failed_logins_do_not_displace_successful_actions_from_the_log(opened: Opened) -> None:
    opened.add(password=None)
    opened.raw(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001) "
        "INSERT INTO access_log SELECT i + 10, '', '', 'session.open', '', '', 'refused' FROM n"
    )
    opened.fails("nobody")
    entries = accounts.list_access(opened.reader, by=opened.owner, limit=20_000).entries
    assert [row.outcome for row in entries] == ["refused"] * 10_000 + ["done"]
    assert (entries[0].seq, entries[-1].seq) == (10_012, 1)


def test_secrets_are_not_stored_in_the_files(opened: Opened) -> None:
    opened.add()
    session = opened.log_in()
    code = accounts.create_login_code(opened.reader).secret
    token = tokens.create_token(opened.reader, "t", scopes=("read",), by=opened.owner).secret
    kept = b"".join(path.read_bytes() for path in opened.reader.home.rglob("*") if path.is_file())
    assert b"192.0.2.1" in kept
    for secret in (PASSWORD, session.secret, session.secret[4:], code, token, token[4:]):
        assert secret.encode() not in kept


@pytest.mark.parametrize(
    "hurt",
    [
        "UPDATE accounts SET role = 'boss'",
        "UPDATE accounts SET disabled = 'no'",
        "UPDATE accounts SET disabled = x'00'",
        "DELETE FROM accounts",
        "UPDATE web_sessions SET expires = x'ff', kind = 'password'",
        "UPDATE web_sessions SET ends = 'zzzz'",
        "UPDATE web_sessions SET kind = 'admin'",
    ],
)
def test_a_damaged_row_grants_no_access_and_is_reported(opened: Opened, hurt: str) -> None:
    opened.add()
    session = opened.log_in()
    token = tokens.create_token(opened.reader, "t", scopes=("read",), user="ann", by=opened.owner).secret
    assert list(opened.reader.store.grants.problems(roles=ROLES)) == []
    opened.raw(hurt)
    assert opened.session(session.secret) is None
    if "accounts" in hurt:
        assert tokens.resolve_token(opened.reader, token) is None
    if not hurt.startswith("DELETE"):
        assert len(list(opened.reader.store.grants.problems(roles=ROLES))) == 1


@pytest.mark.parametrize(
    "hurt", ["owner = 'x'", "owner = 2", "expires = 'zzzz'", "expires = x'ff'", "revoked = ''", "scopes = x'ff'"]
)
def test_a_damaged_token_grants_no_scopes(opened: Opened, hurt: str) -> None:
    made = tokens.create_token(opened.reader, "t", scopes=("read",), by=opened.owner)
    opened.raw(f"UPDATE api_tokens SET {hurt}")
    caller = tokens.resolve_token(opened.reader, made.secret)
    assert caller is None or caller.scopes == ()
    assert tokens.list_tokens(opened.reader, by=opened.owner).tokens


@pytest.mark.parametrize("kept", ["x", "$argon2id$", HASH[:-5], HASH + "=", "$argon2id$v=19$m=x$y$z"])
def test_a_damaged_hash_fits_no_password(opened: Opened, kept: str) -> None:
    opened.add()
    opened.raw("UPDATE accounts SET password = ?", kept)
    opened.fails(password=PASSWORD)


@pytest.mark.usefixtures("real_hashes")
def test_a_weaker_password_hash_is_upgraded_at_login(opened: Opened) -> None:
    from pwdlib.hashers.argon2 import Argon2Hasher

    opened.add()
    weak = Argon2Hasher(time_cost=1, memory_cost=8192, parallelism=1).hash(PASSWORD)
    opened.raw("UPDATE accounts SET password = ?", weak)
    assert opened.log_in()
    attempt = opened.reader.store.accounts.begin_login("ann", lock=lambda n: None, address="")
    assert attempt.password is not None
    assert "m=65536,t=3,p=4" in attempt.password
    assert opened.log_in()


@pytest.mark.usefixtures("real_hashes")
def test_an_unknown_user_costs_the_same_password_hashing(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost follows from a hash's parameters: an unknown name is compared with a hash of equal parameters."""
    from pwdlib import PasswordHash

    compared: list[str] = []
    compare = PasswordHash.verify_and_update

    def note(self: PasswordHash, password: bytes, kept: str) -> tuple[bool, str | None]:
        compared.append(kept)
        return compare(self, password, kept)

    monkeypatch.setattr(PasswordHash, "verify_and_update", note)
    opened.add(password="ﬁve words in a row")  # a ligature, as some keyboards produce it
    opened.log_in(password="five words in a row")
    opened.fails(password="five words in a row ")
    opened.fails("nobody")
    somebodys, again, nobodys = (kept.split("$") for kept in compared)
    assert somebodys == again
    assert nobodys[:4] == somebodys[:4]
    assert [len(part) for part in nobodys] == [len(part) for part in somebodys]
