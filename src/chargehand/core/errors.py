"""The error tree: every error a person can meet, with a stable code, an exit code and a way out.

ChargehandError
    UsageError (2, ValueError)      the request itself is wrong: option, path, revision, configuration
        ConfigError                 a configuration file or variable is wrong
        RepositoryError             the repository cannot be worked on as asked
        NotFoundError (LookupError) no mission, checkpoint, agent … of that name
    MessageError (1, ValueError)    a message of an agent is malformed
    RefusedError (1)                the work was refused, or failed
    WaitingError (3)                a person has to decide first
    ExhaustedError (4)              budget or time is used up
        RateLimitedError            a client calls too often
    TierUnavailableError (5)        the sandbox tier cannot be had here
    InfrastructureError (6)         our own machinery failed: sandbox died, store, depot, disk
        SandboxDiedError
        StoreError
        BusyError               too much is open or asked for at once
        UpstreamError           a model's provider gave no reply, or half of one
        FencedError             another worker took the mission over: this one must stop at once
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

# A wrong value may be a message of megabytes; only enough to recognise it is shown.
_LONGEST_VALUE = 120


class ChargehandError(Exception):
    """An error meant for a person: what happened (with the value), a stable code, and a way out."""

    default_code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, code: str | None = None, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint


class UsageError(ChargehandError, ValueError):
    """The request itself is wrong; nothing was started."""

    default_code = "usage"
    exit_code = 2


class ConfigError(UsageError):
    """A configuration file, variable or option is wrong; the message names file, line and key."""

    default_code = "config_invalid"


class RepositoryError(UsageError):
    """The repository cannot be worked on as asked; it was not touched."""

    default_code = "repository"


class NotFoundError(UsageError, LookupError):
    """Nothing of that name exists; the hint lists what does."""

    default_code = "not_found"


class MessageError(ChargehandError, ValueError):
    """A message is malformed; `path` is the place (`$` the whole), `value` the shortened value found there.

    `code` is `malformed_message`, or `message_newer` if a newer version wrote it.
    """

    default_code = "malformed_message"

    def __init__(self, problem: str, *, path: str = "$", value: object = None, code: str | None = None) -> None:
        shown = repr(value)
        self.path = path
        self.value = shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…"
        super().__init__(f"{problem} - at {path}: {self.value}", code=code)


class RefusedError(ChargehandError):
    """The work was refused or failed; the user's repository is unchanged."""

    default_code = "refused"


class WaitingError(ChargehandError):
    """A person has to decide before the work can continue."""

    default_code = "waiting"
    exit_code = 3


class ExhaustedError(ChargehandError):
    """Budget or time is used up."""

    default_code = "exhausted"
    exit_code = 4


class RateLimitedError(ExhaustedError):
    """A client calls too often; it may call again in `retry_seconds`."""

    default_code = "rate_limited"

    def __init__(self, message: str, *, retry_seconds: int, hint: str = "") -> None:
        self.retry_seconds = retry_seconds
        super().__init__(message, hint=hint or f"try again in {retry_seconds} s")


class TierUnavailableError(ChargehandError):
    """The sandbox tier is not available on this machine; the hint is the command that fixes it."""

    default_code = "sandbox_unavailable"
    exit_code = 5


class InfrastructureError(ChargehandError, RuntimeError):
    """Our own machinery failed: neither the agent's fault nor the person's."""

    default_code = "infrastructure"
    exit_code = 6


class SandboxDiedError(InfrastructureError):
    """The sandbox ended while in use (killed from outside, out of memory, lost launcher)."""

    default_code = "sandbox_died"


class StoreError(InfrastructureError):
    """The state directory cannot be read or written as required."""

    default_code = "store"


class BusyError(InfrastructureError):
    """Too much is open or requested at once; retry in `retry_seconds`."""

    default_code = "busy"

    def __init__(self, message: str, *, retry_seconds: int, hint: str = "") -> None:
        self.retry_seconds = retry_seconds
        super().__init__(message, hint=hint or f"try again in {retry_seconds} s")


class UpstreamError(InfrastructureError):
    """A model's provider, or its substitute, gave no reply or an incomplete one.

    `code` is `upstream_unreachable`, `upstream_timeout`, `upstream_cut`, `upstream_malformed`, `reply_unreadable`
    (the reply is complete, but the model's text cannot be parsed), `uncarried` (the model cannot accept part of
    the request) or `quota_exhausted`.
    """

    default_code = "upstream_unreachable"


class FencedError(InfrastructureError):
    """Another worker took the mission over, so nothing that this worker still does for it may count."""

    default_code = "fenced"


# A longer list would hide the error.
_NAMES_LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to `name`, or lists the first known ones."""
    words = sorted(known)
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    more = len(words) - _NAMES_LISTED
    listed = ", ".join(words[:_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"known: {listed or 'none'}"
