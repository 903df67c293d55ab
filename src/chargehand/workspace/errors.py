"""Errors of depots, bases and workspaces, beyond the common tree of errors."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from chargehand.core.errors import ChargehandError, InfrastructureError

Fault = Callable[[str], None]
"""Called with the name of each point at which a crash must be harmless; tests stop the process there."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def no_fault(point: str) -> None:
    """Do nothing: the production value of a `Fault`."""


class RefMovedError(ChargehandError):
    """A ref was not at the value that a compare-and-swap expected; nothing was changed. `actual` is its value."""

    default_code: ClassVar[str] = "ref_moved"

    def __init__(self, ref: str, *, expected: str | None, actual: str | None) -> None:
        super().__init__(f"{ref!r} is at {actual!r}, expected {expected!r}", hint="read it again and retry")
        self.ref = ref
        self.expected = expected
        self.actual = actual


class GitError(InfrastructureError):
    """A git command of ours failed in a way that its caller did not foresee; `exit_status` is git's."""

    default_code: ClassVar[str] = "git_failed"

    def __init__(self, message: str, *, exit_status: int, code: str | None = None, hint: str = "") -> None:
        super().__init__(
            message, code=code, hint=hint or "`chargehand store check` shows whether its depot is intact"
        )
        self.exit_status = exit_status


def no_space(what: str) -> InfrastructureError:
    """Return the error for a full disk (or quota) while doing `what`."""
    return InfrastructureError(
        f"no space left on the disk while {what}", code="no_space", hint="free some space, or run 'chargehand gc'"
    )


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn a full disk into `InfrastructureError` code `no_space`; other errors pass."""
    try:
        yield
    except OSError as problem:
        if problem.errno in _FULL:
            raise no_space(what) from problem
        raise
