from __future__ import annotations

from collections.abc import Iterator

import pytest

from chargehand.core.errors import (
    ChargehandError,
    ConfigError,
    ExhaustedError,
    InfrastructureError,
    NotFoundError,
    RefusedError,
    StoreError,
    TierUnavailableError,
    UsageError,
    WaitingError,
    nearest,
)


def tree(root: type[ChargehandError]) -> Iterator[type[ChargehandError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (RefusedError, 1),
        (UsageError, 2),
        (ConfigError, 2),
        (NotFoundError, 2),
        (WaitingError, 3),
        (ExhaustedError, 4),
        (TierUnavailableError, 5),
        (InfrastructureError, 6),
        (StoreError, 6),
    ],
)
def test_exit_codes_are_stable(kind: type[ChargehandError], exit_code: int) -> None:
    assert kind("what").exit_code == exit_code


def test_every_error_class_has_a_unique_code() -> None:
    kinds = list(tree(ChargehandError))
    assert len({kind.default_code for kind in kinds}) == len(kinds)


def test_an_error_carries_message_code_and_way_out() -> None:
    error = StoreError("no", code="store_newer", hint="upgrade")
    assert (str(error), error.message, error.code, error.hint) == ("no", "no", "store_newer", "upgrade")
    assert (StoreError("no").code, StoreError("no").hint) == ("store", "")


@pytest.mark.parametrize(
    ("kind", "builtin"), [(UsageError, ValueError), (NotFoundError, LookupError), (StoreError, RuntimeError)]
)
def test_errors_are_caught_as_the_matching_builtin(kind: type[ChargehandError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("what")


def test_the_hint_names_the_nearest_word_or_all() -> None:
    assert nearest("chekcs", ["checks", "setup"]) == "did you mean 'checks'?"
    assert nearest("zzz", ["setup", "checks"]) == "known: checks, setup"
    assert nearest("zzz", []) == "known: none"
