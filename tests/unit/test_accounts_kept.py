"""Accounts and their grants in a store that is older, damaged, copied or restored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.older_stores import as_of_version_8, as_of_version_13

from chargehand.app.upkeep import back_up, check_store, restore
from chargehand.core.clock import SteppedClock
from chargehand.core.errors import RefusedError
from chargehand.identity import accounts, tokens
from chargehand.identity.providers import ConfiguredProvider
from chargehand.identity.sign_in import link_subject, list_subjects, start_sign_in
from chargehand.reports.reading import StateReader
from chargehand.testing.sign_in import FakeSignInProvider

PASSWORD = "correct horse battery"


def opened(place: Path) -> StateReader:
    environ = {"CHARGEHAND_HOME": str(place / "state"), "XDG_CONFIG_HOME": str(place), "HOME": str(place)}
    return StateReader(environ=environ, cwd=place, clock=SteppedClock())


def change(reader: StateReader, statement: str) -> None:
    with closing(sqlite3.connect(reader.home / "store.db")) as raw:
        raw.execute(statement)
        raw.commit()


def test_a_store_older_than_accounts_opens_without_accounts(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    project = reader.store.projects.register(tmp_path)
    reader.close()
    with closing(sqlite3.connect(tmp_path / "state/store.db")) as raw:
        as_of_version_8(raw)
        raw.commit()
    reader = opened(tmp_path)
    assert reader.store.projects.list() == (project,)
    owner = accounts.owner(reader)
    assert accounts.list_users(reader, by=owner).users == ()
    assert tokens.list_tokens(reader, by=owner).tokens == ()
    assert accounts.redeem_login_code(reader, accounts.create_login_code(reader).secret)
    assert accounts.create_user(reader, "ann", role="viewer", by=owner)
    reader.close()


def test_a_store_older_than_external_sign_in_keeps_its_accounts_and_sessions(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    owner = accounts.owner(reader)
    accounts.create_user(reader, "ann", role="viewer", password=PASSWORD, by=owner)
    session = accounts.log_in(reader, "ann", PASSWORD)
    reader.close()
    with closing(sqlite3.connect(tmp_path / "state/store.db")) as raw:
        as_of_version_13(raw)
        raw.commit()
    reader = opened(tmp_path)
    assert accounts.resolve_session(reader, session.secret) is not None
    assert list_subjects(reader, by=owner) == ()
    link_subject(reader, "ann", issuer="https://issuer.example", subject="1", by=owner)
    assert [row.user for row in list_subjects(reader, by=owner)] == ["ann"]
    reader.close()


@pytest.mark.parametrize(
    ("table", "hurt"),
    [
        ("accounts", "role = 'boss'"),
        ("accounts", "name = x'ff'"),
        ("accounts", "failures = 'many'"),
        ("web_sessions", "kind = ''"),
        ("web_sessions", "ends = 'never'"),
        ("login_codes", "digest = 'x'"),
        ("login_codes", "used = 'no'"),
        ("api_tokens", "owner = 7"),
        ("api_tokens", "revoked = ''"),
        ("external_subjects", "subject = ''"),
        ("pending_sign_ins", "expires = 'never'"),
    ],
)
def test_a_store_check_names_the_table_of_a_damaged_row(tmp_path: Path, table: str, hurt: str) -> None:
    reader = opened(tmp_path)
    owner = accounts.owner(reader)
    accounts.create_user(reader, "ann", role="viewer", by=owner)
    tokens.create_token(reader, "t", scopes=("read",), by=owner)
    accounts.redeem_login_code(reader, accounts.create_login_code(reader).secret)
    link_subject(reader, "ann", issuer="https://issuer.example", subject="1", by=owner)
    entry = ConfiguredProvider(name="example", provider=FakeSignInProvider())
    start_sign_in(reader, entry, callback="http://127.0.0.1/", return_to="/")
    assert check_store(reader).ok
    change(reader, f"UPDATE {table} SET {hurt}")
    report = check_store(reader)
    (problem,) = report.problems
    assert not report.ok
    assert problem.kind == "access_damaged"
    assert table in problem.message
    assert accounts.list_users(reader, by=owner) is not None
    assert tokens.list_tokens(reader, by=owner).tokens
    reader.close()


def test_a_copy_has_accounts_and_tokens_and_lets_no_session_of_then_in(tmp_path: Path) -> None:
    reader = opened(tmp_path)
    owner = accounts.owner(reader)
    accounts.create_user(reader, "ann", role="operator", password=PASSWORD, by=owner)
    token = tokens.create_token(reader, "t", scopes=("read",), user="ann", by=owner)
    session = accounts.log_in(reader, "ann", PASSWORD)
    code = accounts.create_login_code(reader).secret
    back_up(reader, tmp_path / "copy")
    accounts.remove_user(reader, "ann", by=owner)
    restore(reader, tmp_path / "copy", confirm=lambda told: None)
    reader = opened(tmp_path)
    assert [row.name for row in accounts.list_users(reader, by=owner).users] == ["ann"]
    assert tokens.resolve_token(reader, token.secret) is not None
    assert accounts.resolve_session(reader, session.secret) is None
    with pytest.raises(RefusedError):
        accounts.redeem_login_code(reader, code)
    assert accounts.log_in(reader, "ann", PASSWORD)
    assert check_store(reader).ok
    reader.close()
