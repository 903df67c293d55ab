"""Passwords: requirements, argon2id hashes, and verification."""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

from chargehand.core.errors import UsageError

if TYPE_CHECKING:
    from pwdlib import PasswordHash

_LENGTH = range(12, 1025)  # characters
# Compared with the password if the account does not exist: equal work, so that names cannot be probed.
NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$QP+RjXu7vQXFtV5DfzCHag$N1Q10lZ+xMLkV7WLeCgkUMcXPlb8Lz8l0jBz5wXf93U"


def hash_password(password: str, *, user: str) -> str:
    """Hash a new password, with 0.3 s of work and 64 MiB. Raise `UsageError` (`password_weak`)."""
    if len(password) not in _LENGTH or password.casefold() == user.casefold():
        # The message leaves the password out: others may read it.
        raise UsageError(
            f"a password has 12 to 1024 characters and is not the user's name, got {len(password)} characters",
            code="password_weak",
            hint="a few words in a row are long and easy to remember",
        )
    return _hasher().hash(_normal_form(password))


def compare_password(password: str, hashed: str | None) -> tuple[bool, str | None]:
    """Return whether a password matches a stored hash, and a new hash if the stored one has old parameters.

    Without a stored hash it does the same work, and no password matches.
    """
    from argon2.exceptions import InvalidHashError
    from pwdlib.exceptions import UnknownHashError

    try:
        fits, rehashed = _hasher().verify_and_update(_normal_form(password), hashed or NOBODY)
    except (InvalidHashError, UnknownHashError):  # the row is damaged: no password matches
        return False, None
    return fits and hashed is not None, rehashed


def _normal_form(password: str) -> bytes:
    # Keyboards encode one letter in several ways. Cut, since the work must not grow with a stranger's input.
    return unicodedata.normalize("NFKC", password[: _LENGTH.stop]).encode(errors="surrogatepass")


@functools.cache
def _hasher() -> PasswordHash:
    from pwdlib import PasswordHash
    from pwdlib.hashers.argon2 import Argon2Hasher

    # The second choice of RFC 9106, for machines that also run sandboxes.
    return PasswordHash((Argon2Hasher(time_cost=3, memory_cost=65536, parallelism=4),))
