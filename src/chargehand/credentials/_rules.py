"""What a secret may be called and hold. No message here ever repeats a value."""

from __future__ import annotations

import re

from chargehand.core.errors import UsageError

_NAME = re.compile(r"[A-Z][A-Z0-9_]{1,63}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LONGEST = 16 * 1024


def checked_name(name: str) -> str:
    """Return `name`; raises `UsageError` (`secret_invalid`) unless it could name an environment variable."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} is no name for a secret",
            code="secret_invalid",
            hint="2 to 64 capital letters, digits and _, a letter first, such as OPENAI_API_KEY",
        )
    return name


def checked_value(name: str, value: str) -> str:
    """Return `value` without the newline at its end; raises `UsageError` (`secret_invalid`)."""
    value = value.removesuffix("\n").removesuffix("\r")
    wrong = _wrong(value)
    if wrong:
        raise UsageError(
            f"the value of {name} {wrong}",
            code="secret_invalid",
            hint=f"copy it again: `chargehand secret set {name}`",
        )
    return value


def _wrong(value: str) -> str:
    if not value.strip():
        return "is empty"
    if _CONTROL.search(value):
        return "has control characters or several lines"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"is longer than {_LONGEST // 1024} kB" if size > _LONGEST else ""
