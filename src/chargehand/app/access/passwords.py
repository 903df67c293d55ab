"""Passwords: what one must be, its argon2id hash, and the comparison with one."""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

from chargehand.core.errors import UsageError

if TYPE_CHECKING:
    from pwdlib import PasswordHash

_LENGTH = range(12, 1025)  # characters
# Compared with a password for a name that has no account: the same work, so that no name can be probed.
NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$QP+RjXu7vQXFtV5DfzCHag$N1Q10lZ+xMLkV7WLeCgkUMcXPlb8Lz8l0jBz5wXf93U"


def hash_password(password: str, *, user: str) -> str:
    """Return the hash of a new password, with 0.3 s of work and 64 MiB. Raises `UsageError` (`password_weak`)."""
    if len(password) not in _LENGTH or password.casefold() == user.casefold():
        # The message leaves the password out: others may read it.
        raise UsageError(
            f"a password has 12 to 1024 characters and is not the user's name, got {len(password)} characters",
            code="password_weak",
            hint="a few words in a row are long and easy to remember",
        )
    return _hasher().hash(_normal_form(password))


def compare_password(password: str, hashed: str | None) -> tuple[bool, str | None]:
    """Return whether a password fits a stored hash, and a new hash where the stored one has old parameters.

    Without a stored hash it does the same work, and no password fits.
    """
    from argon2.exceptions import InvalidHashError
    from pwdlib.exceptions import UnknownHashError

    try:
        fits, rehashed = _hasher().verify_and_update(_normal_form(password), hashed or NOBODY)
    except (InvalidHashError, UnknownHashError):  # the row is damaged: no password fits it
        return False, None
    return fits and hashed is not None, rehashed


def _normal_form(password: str) -> bytes:
    # Keyboards write one letter in several ways. Cut, since the work must not grow with what a stranger sends.
    return unicodedata.normalize("NFKC", password[: _LENGTH.stop]).encode(errors="surrogatepass")


@functools.cache
def _hasher() -> PasswordHash:
    from pwdlib import PasswordHash
    from pwdlib.hashers.argon2 import Argon2Hasher

    # The second choice of RFC 9106, for machines that also run sandboxes.
    return PasswordHash((Argon2Hasher(time_cost=3, memory_cost=65536, parallelism=4),))
