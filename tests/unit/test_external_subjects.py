"""External subjects of accounts: linked, listed, unlinked, unique; and who may do that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError, UsageError
from chargehand.identity import accounts
from chargehand.identity.sign_in import link_subject, list_subjects, unlink_subject
from chargehand.reports.reading import StateReader

ISSUER = "https://issuer.example"


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[StateReader]:
    environ = {"CHARGEHAND_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    made = StateReader(environ=environ, cwd=tmp_path, clock=SteppedClock())
    for name in ("ann", "bob"):
        accounts.create_user(made, name, role="operator", by=accounts.owner(made))
    yield made
    made.close()


def linked(reader: StateReader, user: str | None = None) -> list[tuple[str, str, str]]:
    rows = list_subjects(reader, by=accounts.owner(reader), user=user)
    return [(row.user, row.issuer, row.subject) for row in rows]


def test_an_account_can_have_several_subjects_and_a_subject_one_account(reader: StateReader) -> None:
    by = accounts.owner(reader)
    link_subject(reader, "ann", issuer=ISSUER, subject="1", by=by)
    link_subject(reader, "ann", issuer="https://other.example", subject="1", by=by)
    link_subject(reader, "bob", issuer=ISSUER, subject="2", by=by)
    with pytest.raises(UsageError) as taken:
        link_subject(reader, "bob", issuer=ISSUER, subject="1", by=by)
    assert (taken.value.code, "'ann'" in taken.value.message) == ("subject_taken", True)
    assert linked(reader, "bob") == [("bob", ISSUER, "2")]
    assert len(linked(reader)) == 3
    unlink_subject(reader, issuer=ISSUER, subject="1", by=by)
    link_subject(reader, "bob", issuer=ISSUER, subject="1", by=by)
    assert linked(reader, "ann") == [("ann", "https://other.example", "1")]
    done = [(row.action, row.subject) for row in accounts.list_access(reader, by=by).entries[:2]]
    assert done == [("user.link", f"bob (1 of {ISSUER})"), ("user.unlink", f"ann (1 of {ISSUER})")]


def test_a_removed_account_loses_its_subjects(reader: StateReader) -> None:
    by = accounts.owner(reader)
    link_subject(reader, "ann", issuer=ISSUER, subject="1", by=by)
    accounts.remove_user(reader, "ann", by=by)
    accounts.create_user(reader, "ann", role="operator", by=by)
    assert linked(reader) == []


@pytest.mark.parametrize(
    ("user", "issuer", "subject", "error"),
    [
        ("nobody", ISSUER, "1", NotFoundError),
        ("ann", "", "1", UsageError),
        ("ann", ISSUER, "", UsageError),
        ("ann", ISSUER, "a\nb", UsageError),
        ("ann", ISSUER, "x" * 501, UsageError),
    ],
)
def test_a_wrong_link_is_refused(
    reader: StateReader, user: str, issuer: str, subject: str, error: type[ChargehandError]
) -> None:
    with pytest.raises(error):
        link_subject(reader, user, issuer=issuer, subject=subject, by=accounts.owner(reader))
    assert linked(reader) == []


def test_an_unknown_subject_cannot_be_unlinked(reader: StateReader) -> None:
    with pytest.raises(NotFoundError):
        unlink_subject(reader, issuer=ISSUER, subject="1", by=accounts.owner(reader))


def test_only_an_administrator_links_lists_and_unlinks(reader: StateReader) -> None:
    by = replace(accounts.owner(reader), user="bob", role="operator", via="session")
    for act in (
        lambda: link_subject(reader, "bob", issuer=ISSUER, subject="1", by=by),
        lambda: list_subjects(reader, by=by),
        lambda: unlink_subject(reader, issuer=ISSUER, subject="1", by=by),
    ):
        with pytest.raises(RefusedError) as refused:
            act()
        assert refused.value.code == "access_denied"
