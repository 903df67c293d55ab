"""Second factors: enrolment, codes that count once, recovery codes, fresh proof before dangerous operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyotp
import pytest

from chargehand.core.clock import SteppedClock
from chargehand.core.errors import ChargehandError, NotFoundError, RefusedError, UsageError
from chargehand.identity import accounts, factors, tokens
from chargehand.identity.accounts import Caller, OpenedSession
from chargehand.policy.access import ACCESS_RULES, ENROLMENT, NEEDS_PROOF, FactorRole
from chargehand.reports.reading import StateReader

PASSWORD = "a rather long password"


class Person:
    """An account with its browser and its authenticator app."""

    def __init__(self, reader: StateReader, clock: SteppedClock, name: str = "ann", role: str = "admin") -> None:
        self.reader, self.clock, self.name = reader, clock, name
        accounts.create_user(reader, name, role=role, password=PASSWORD, by=accounts.owner(reader))
        self.app: dict[str, pyotp.TOTP] = {}

    def log_in(self, code: str = "", *, address: str = "") -> OpenedSession:
        return accounts.log_in(self.reader, self.name, PASSWORD, second_factor=code, address=address)

    def caller(self, opened: OpenedSession, *, factor_from: FactorRole = "none") -> Caller:
        found = accounts.resolve_session(self.reader, opened.secret, factor_from=factor_from)
        assert found is not None
        return found

    def code(self, factor: str = "phone", *, steps: int = 0) -> str:
        """Return the code that the app shows now, or so many steps of 30 s later."""
        return self.app[factor].at(self.clock.now() + timedelta(seconds=30 * steps))

    def next_code(self, factor: str = "phone") -> str:
        """Wait for the next code of the app."""
        self.clock.advance(30)
        return self.code(factor)

    def enrol(self, by: Caller, factor: str = "phone") -> tuple[str, ...]:
        """Add a factor and return the recovery codes."""
        begun = factors.start_enrolment(self.reader, factor, by=by)
        self.app[factor] = pyotp.TOTP(begun.secret)
        assert begun.uri == self.app[factor].provisioning_uri(name=self.name, issuer_name="Chargehand")
        return factors.confirm_enrolment(self.reader, factor, self.next_code(factor), by=by).codes


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Person]:
    environ = {"CHARGEHAND_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    clock = SteppedClock()
    reader = StateReader(environ=environ, cwd=tmp_path, clock=clock)
    yield Person(reader, clock)
    reader.close()


def refused(code: str, work: Callable[[], object], kind: type[ChargehandError] = RefusedError) -> None:
    with pytest.raises(kind) as error:
        work()
    assert error.value.code == code


def test_an_account_without_a_factor_needs_no_code(ann: Person) -> None:
    assert not ann.caller(ann.log_in()).has_factor
    factors.start_enrolment(ann.reader, "phone", by=ann.caller(ann.log_in()))
    assert not ann.caller(ann.log_in()).has_factor, "a factor counts once its first code was shown"


def test_a_code_is_needed_and_counts_once(ann: Person) -> None:
    session = ann.log_in()
    assert len(ann.enrol(ann.caller(session))) == 10
    refused("factor_needed", ann.log_in)
    refused("login_failed", lambda: ann.log_in(ann.code()))  # it confirmed the factor
    code = ann.next_code()
    opened = ann.log_in(code)
    assert ann.caller(opened).has_factor
    refused("login_failed", lambda: ann.log_in(code))
    assert ann.caller(session).has_factor, "open sessions stay open"


@pytest.mark.parametrize(("steps", "fits"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_clocks_may_differ_by_one_step(ann: Person, steps: int, fits: bool) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    ann.clock.advance(600)
    if fits:
        assert ann.log_in(ann.code(steps=steps))
        refused("login_failed", lambda: ann.log_in(ann.code(steps=steps - 1)))
    else:
        refused("login_failed", lambda: ann.log_in(ann.code(steps=steps)))


@pytest.mark.parametrize("code", ["000000", "abcdef", "12345", "٠٠٠٠٠٠", "\ud83d", "x" * 100, "1 2 3 4 5 6 7"])
def test_a_wrong_code_opens_nothing(ann: Person, code: str) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    ann.clock.advance(60)
    while code == ann.code():
        ann.clock.advance(60)
    refused("login_failed", lambda: ann.log_in(code))


def test_a_recovery_code_counts_once_whatever_its_form(ann: Person) -> None:
    codes = ann.enrol(ann.caller(ann.log_in()))
    assert len({*codes}) == 10
    opened = ann.log_in(f" {codes[0].upper().replace('-', ' ')} ")
    assert factors.list_factors(ann.reader, by=ann.caller(opened)).recovery_left == 9
    refused("login_failed", lambda: ann.log_in(codes[0]))
    new = factors.replace_recovery_codes(ann.reader, by=ann.caller(opened)).codes
    refused("login_failed", lambda: ann.log_in(codes[1]))
    assert ann.log_in(new[0])


def test_guesses_lock_the_account(ann: Person) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    for number in range(5):
        refused("login_failed", partial(ann.log_in, f"00000{number}x"))
    refused("login_failed", lambda: ann.log_in(ann.next_code()))
    ann.clock.advance(120)
    assert ann.log_in(ann.next_code())


def test_dangerous_operations_need_a_code_of_the_last_ten_minutes(ann: Person) -> None:
    opened = ann.log_in()
    ann.enrol(ann.caller(opened))

    def make(name: str) -> object:
        return accounts.create_user(ann.reader, name, role="viewer", by=ann.caller(opened))

    refused("proof_needed", lambda: make("bob"))
    refused("factor_wrong", lambda: factors.prove_again(ann.reader, "000000x", by=ann.caller(opened)))
    factors.prove_again(ann.reader, ann.next_code(), by=ann.caller(opened))
    assert make("bob")
    ann.clock.advance(601)
    refused("proof_needed", lambda: make("carol"))
    assert accounts.list_users(ann.reader, by=ann.caller(opened)), "reading needs none"


def test_wrong_codes_end_the_session(ann: Person) -> None:
    opened = ann.log_in()
    ann.enrol(ann.caller(opened))
    for _ in range(5):
        refused("factor_wrong", lambda: factors.prove_again(ann.reader, "123456x", by=ann.caller(opened)))
    assert accounts.resolve_session(ann.reader, opened.secret) is None


def test_a_factor_is_removed_with_a_fresh_code_only(ann: Person) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    opened = ann.log_in(ann.next_code())
    assert ann.enrol(ann.caller(opened), "tablet") == (), "recovery codes stay"
    ann.clock.advance(660)
    refused("proof_needed", lambda: factors.remove_factor(ann.reader, "phone", by=ann.caller(opened)))
    factors.prove_again(ann.reader, ann.code("tablet"), by=ann.caller(opened))
    other = ann.log_in(ann.next_code())
    left = factors.remove_factor(ann.reader, "phone", by=ann.caller(opened))
    assert ([each.name for each in left.factors], left.recovery_left) == (["tablet"], 10)
    assert accounts.resolve_session(ann.reader, other.secret) is None, "a thief may have opened it with the phone"
    with pytest.raises(NotFoundError):
        factors.remove_factor(ann.reader, "phone", by=ann.caller(opened))
    assert factors.remove_factor(ann.reader, "tablet", by=ann.caller(opened)).recovery_left == 0
    assert ann.log_in()


def test_a_role_can_require_a_factor(ann: Person) -> None:
    bob = Person(ann.reader, ann.clock, "bob", "operator")
    cases: tuple[tuple[Person, FactorRole, bool], ...] = (
        (ann, "admin", True), (bob, "admin", False), (bob, "operator", True),
    )  # fmt: skip
    for person, least, bound in cases:
        caller = person.caller(person.log_in(), factor_from=least)
        assert caller.must_enrol is bound
        if bound:
            refused("enrolment_needed", partial(accounts.require_access, ann.reader, caller, "mission.list"))
    opened = bob.log_in()
    bob.enrol(bob.caller(opened, factor_from="viewer"))
    caller = bob.caller(opened, factor_from="viewer")
    assert not caller.must_enrol
    accounts.require_access(ann.reader, caller, "mission.list")


def test_a_lost_factor_is_reset_by_the_owner_of_the_machine(ann: Person) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    opened = ann.log_in(ann.next_code())
    factors.reset_factors(ann.reader, "ann", by=accounts.owner(ann.reader))
    assert accounts.resolve_session(ann.reader, opened.secret) is None
    assert ann.log_in()
    assert [row.action for row in accounts.list_access(ann.reader, by=accounts.owner(ann.reader)).entries][1] == (
        "factor.reset"
    )


def test_the_next_account_of_a_name_has_no_factor(ann: Person) -> None:
    ann.enrol(ann.caller(ann.log_in()))
    accounts.remove_user(ann.reader, "ann", by=accounts.owner(ann.reader))
    accounts.create_user(ann.reader, "ann", role="viewer", password=PASSWORD, by=accounts.owner(ann.reader))
    assert not ann.caller(ann.log_in()).has_factor


def test_only_a_person_who_is_logged_in_adds_a_factor(ann: Person) -> None:
    refused("access_denied", lambda: factors.start_enrolment(ann.reader, "x", by=accounts.owner(ann.reader)))
    made = tokens.create_token(
        ann.reader, "t", scopes=("administer",), days=1, user="ann", by=accounts.owner(ann.reader)
    )
    by = tokens.resolve_token(ann.reader, made.secret)
    assert by is not None
    refused("access_denied", lambda: factors.start_enrolment(ann.reader, "x", by=by))


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "x" * 41, " x"])
def test_a_name_that_cannot_be_shown_is_refused(ann: Person, name: str) -> None:
    by = ann.caller(ann.log_in())
    refused("factor_invalid", lambda: factors.start_enrolment(ann.reader, name, by=by), UsageError)


def test_a_second_enrolment_replaces_an_unconfirmed_one_and_no_other(ann: Person) -> None:
    by = ann.caller(ann.log_in())
    first = factors.start_enrolment(ann.reader, "phone", by=by)
    ann.enrol(by)
    wrong = pyotp.TOTP(first.secret).at(ann.clock.now())
    refused("factor_wrong", lambda: factors.confirm_enrolment(ann.reader, "phone", wrong, by=by))
    refused("factor_exists", lambda: factors.start_enrolment(ann.reader, "phone", by=by))


def test_every_action_that_needs_more_is_an_action() -> None:
    assert set(ACCESS_RULES) >= NEEDS_PROOF | ENROLMENT
    assert not NEEDS_PROOF & ENROLMENT
